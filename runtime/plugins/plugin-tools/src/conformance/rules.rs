//! The rules: what each asks, why it matters, and what an author does about it.

use serde::Serialize;

use ostler_model::plugin::PluginKind;

/// One rule of the suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rule {
    /// The stable name of the rule.
    pub id: &'static str,
    /// Why the rule matters to an agent.
    pub why: &'static str,
    /// What an author does if the rule is broken.
    pub advice: &'static str,
}

macro_rules! rules {
    ($($name:ident = $id:literal, $why:literal, $advice:literal;)*) => {
        $(pub(super) const $name: Rule = Rule { id: $id, why: $why, advice: $advice };)*
        /// All rules, in the order in which they are tried.
        #[cfg(test)]
        pub(super) const ALL: &[Rule] = &[$($name),*];
    };
}

rules! {
    MANIFEST = "manifest",
        "An agent reads imports and exports before it runs anything.",
        "Build a component for wasm32-wasip2 that exports ostler:plugin/driver or /device.";
    ASKS = "asks",
        "The imports are all that a plugin can do; what no grant exists for is refused.",
        "Import only what the plugin uses; grant the rest in its block or on this command line.";
    LOADS = "loads",
        "A plugin that does not compile or link within the limits is never used.",
        "Make it smaller, and build it against the interface of this agent.";
    DESCRIBES = "describe",
        "Name, version and schemas are asked once, and everything else rests on them.",
        "Answer constants; call no host function and read no file in describe.";
    SCHEMA = "schema",
        "Configurations are checked against the schema before the plugin runs.",
        "Give a JSON Schema, and set additionalProperties to false so that typos are reported.";
    CONFIG = "config",
        "A plugin whose configuration does not fit its schema is not loaded.",
        "Give a configuration that fits with --config, or correct the schema.";
    DETERMINISM = "describe-determinism",
        "Each call runs on a fresh instance; a description that changes cannot be relied on.",
        "Let describe depend on nothing: no clock, no random numbers, no file.";
    NO_GRANTS = "no-grants",
        "Without a grant the host refuses with a typed error; a trap hides which grant is missing.",
        "Handle the refusal: answer undetected or unhealthy with the reason, or permission-denied.";
    OTHER_CONFIG = "other-config",
        "A trap counts as a failure of the plugin and tells the operator nothing.",
        "Parse the configuration with an error (invalid-config), never with unwrap.";
    FINGERPRINT = "fingerprint",
        "What is found here is what jobs are placed by; a broken answer is refused as a whole.",
        "See the rules of the interface; where nothing is here, say undetected and why: no error.";
    STABLE = "fingerprint-stable",
        "Devices are assigned by their ids over restarts; ids that change are lost to their tasks.",
        "Make ids of what stays (serial number, bus address), and sort what is listed.";
    ORDER = "order",
        "After a restart of the agent any call can be the first one.",
        "Remember nothing between calls; find it again, or read it from the handle.";
    ANSWERS = "answers",
        "What answers may cause is granted, as imports are; an answer that goes further is refused.",
        "Keep to names that begin with the plugin's own, or say in its documentation what to grant.";
    UNKNOWN_DEVICE = "reserve-unknown",
        "A device can vanish between placement and start; the task must then fail with a reason.",
        "Look for each claimed id and answer not-found when it is not there.";
    RESERVE = "reserve",
        "A task is told how to use its devices before each start: the same claim, the same answer.",
        "Compute the reservation from the claim alone.";
    ODD_CLAIMS = "claims",
        "Claims come from a ledger that may be older than this plugin.",
        "Answer an error for what cannot be; never index or unwrap what a claim holds.";
    RELEASE = "release",
        "A release is repeated after a crash, also for devices that are gone.",
        "Let release do nothing and answer well when there is nothing to release.";
    STATS = "stats",
        "Measurements of devices that the plugin does not have are dropped.",
        "Report the ids that fingerprint reports, or answer unsupported.";
    HANDLES = "handles",
        "Handles are stored over upgrades: an older version, or a damaged one, comes back one day.",
        "Check version and data of a handle; answer not-found or invalid, never trap.";
    RECOVER = "recover-unknown",
        "A recover that succeeds for a handle of nothing makes the agent own a task that is not.",
        "Answer an error unless the handle is one of yours.";
    UNKNOWN_TASK = "unknown-task",
        "Stopping what is not found is success; a trap leaves the task in the agent's hands.",
        "Answer not-found, or well.";
    START_WRONG = "start-wrong-config",
        "Schemas do not say everything; what is wrong must fail the task, not the driver.",
        "Parse the task's configuration with an error (invalid-config).";
    LIFE = "life",
        "Start, recover, inspect, stop, kill, exited and destroy are the life of every task.",
        "Follow the interface's documentation; destroy twice must not trap.";
    CANCELLED = "cancelled",
        "A start can be given up at any moment; what it left must not be in the way of the next.",
        "Let nothing but the handle say what was started.";
    MEMORY = "limits-memory",
        "A call that reaches its memory limit is ended.",
        "Answer less, read files in pieces, or have the limit raised in the plugin's block.";
    HOST_CALLS = "limits-host-calls",
        "A call that asks the host too often is ended.",
        "Read larger pieces and list directories once.";
    TIME = "limits-time",
        "A call that reaches its deadline is ended, and a kill may wait behind it.",
        "Do less in one call; ask for the next fingerprint later instead of waiting.";
}

/// The rules that are tried for a plugin of this kind once it is loaded.
pub(super) fn of_kind(kind: PluginKind) -> &'static [Rule] {
    match kind {
        PluginKind::Device => &[
            DETERMINISM,
            SCHEMA,
            NO_GRANTS,
            OTHER_CONFIG,
            ORDER,
            FINGERPRINT,
            STABLE,
            ANSWERS,
            RESERVE,
            UNKNOWN_DEVICE,
            ODD_CLAIMS,
            RELEASE,
            STATS,
            MEMORY,
            HOST_CALLS,
            TIME,
        ],
        PluginKind::Driver => &[
            DETERMINISM,
            SCHEMA,
            NO_GRANTS,
            OTHER_CONFIG,
            FINGERPRINT,
            STABLE,
            ANSWERS,
            HANDLES,
            RECOVER,
            UNKNOWN_TASK,
            START_WRONG,
            LIFE,
            CANCELLED,
            MEMORY,
            HOST_CALLS,
            TIME,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_one_name_and_says_why_it_is_there_and_what_to_do() {
        for (index, rule) in ALL.iter().enumerate() {
            assert!(ALL.iter().skip(index + 1).all(|other| other.id != rule.id), "{}", rule.id);
            assert!(rule.why.ends_with('.') && rule.advice.ends_with('.'), "{}", rule.id);
        }
        for kind in [PluginKind::Device, PluginKind::Driver] {
            assert!(of_kind(kind).iter().all(|rule| ALL.contains(rule)));
        }
    }
}
