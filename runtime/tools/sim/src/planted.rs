//! Defects of the kind that this simulation is for, each one line of the node where it is planted, and found
//! by a seed of the gate: `tests/planted.rs`.
//!
//! The node asks `ostler_model::planted::planted` there, which is `false` in everything that is shipped.

/// So many nodes are played in every run of the tests, from seeds that count from 0: each defect is found by one.
pub const SEEDS: u64 = 400;

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// As the node names it.
    pub name: &'static str,
    /// What the node does with it.
    pub what: &'static str,
    /// The first seed whose plan finds it.
    pub seed: u64,
}

const fn defect(name: &'static str, seed: u64, what: &'static str) -> Planted {
    Planted { name, what, seed }
}

/// All of them.
pub const PLANTED: &[Planted] = &[
    defect("answered-before-written", 10, "a change is acknowledged before it is durable"),
    defect("attempts-not-counted", 0, "restarts use up no attempt"),
    defect("beyond-count-runs-on", 0, "a smaller count stops nothing"),
    defect("canaries-never-promoted", 19, "healthy canaries are not promoted by themselves"),
    defect("clock-with-one-reading", 349, "waits follow the time of day"),
    defect("delay-outlives-kill", 16, "a kill while a restart waits is ignored"),
    defect("deployment-without-deadline", 11, "nobody looks when a deployment's time is over"),
    defect("devices-free-at-stop", 22, "devices are free when the stop is told"),
    defect("devices-kept", 37, "devices of what has ended are not released"),
    defect("ended-place-forgotten", 0, "collected work runs again"),
    defect("ended-place-unwritten", 0, "collected work runs again after a restart of the agent"),
    defect(
        "first-before-alone",
        16,
        "a replacement waits for one of those before it only, which waits for none",
    ),
    defect("fresh-attempts-at-restart", 0, "a restart of the agent gives fresh attempts"),
    defect("future-on-record", 170, "a clock set back makes recorded waits longer"),
    defect("intent-not-durable", 0, "a run starts before its intent is on record"),
    defect("job-unwritten", 0, "the record of a job is not written"),
    defect("last-place-empty", 0, "the last place of a group is never filled"),
    defect("main-before-prestart", 3, "a main task does not wait for what prepares for it"),
    defect("not-prepared-after-reboot", 37, "a restarted machine prepares nothing anew"),
    defect("previous-not-awaited", 5, "a replacement waits for nothing"),
    defect("stop-lost-at-restart", 8, "an allocation that is to stop runs on with the next agent"),
    defect("stop-without-kill", 2, "what ignores its stop is not killed"),
    defect("successors-without-end", 52, "failed allocations get successors beyond their attempts"),
];

/// The defect of this name.
#[must_use]
pub fn named(name: &str) -> Option<Planted> {
    PLANTED.iter().find(|planted| planted.name == name).copied()
}
