//! Defects of the kind that this simulation is for, each one line of the node where it is planted, and found
//! by the seeds of the gate: `tests/planted.rs`.
//!
//! The node asks `ostler_model::planted::planted` there, which is `false` in everything that is shipped.

/// A defect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planted {
    /// As the node names it.
    pub name: &'static str,
    /// What the node does with it.
    pub what: &'static str,
}

const fn defect(name: &'static str, what: &'static str) -> Planted {
    Planted { name, what }
}

/// All of them.
pub const PLANTED: &[Planted] = &[
    defect("answered-before-written", "a change is acknowledged before it is durable"),
    defect("attempts-not-counted", "restarts use up no attempt"),
    defect("beyond-count-runs-on", "a smaller count stops nothing"),
    defect("canaries-never-promoted", "healthy canaries are not promoted by themselves"),
    defect("clock-with-one-reading", "waits follow the time of day"),
    defect("delay-outlives-kill", "a kill while a restart waits is ignored"),
    defect("deployment-without-deadline", "nobody looks when a deployment's time is over"),
    defect("devices-free-at-stop", "devices are free when the stop is told"),
    defect("devices-kept", "devices of what has ended are not released"),
    defect("ended-place-forgotten", "collected work runs again"),
    defect("ended-place-unwritten", "collected work runs again after a restart of the agent"),
    defect("first-before-alone", "a replacement waits for one of those before it only"),
    defect("fresh-attempts-at-restart", "a restart of the agent gives fresh attempts"),
    defect("future-on-record", "a clock set back makes recorded waits longer"),
    defect("intent-not-durable", "a run starts before its intent is on record"),
    defect("job-unwritten", "the record of a job is not written"),
    defect("last-place-empty", "the last place of a group is never filled"),
    defect("main-before-prestart", "a main task does not wait for what prepares for it"),
    defect("not-prepared-after-reboot", "a restarted machine prepares nothing anew"),
    defect("pending-place-empty", "a place whose allocation is pending is filled again"),
    defect("previous-not-awaited", "a replacement waits for nothing"),
    defect("purged-while-it-runs", "what a purge stops is forgotten before it has ended"),
    defect("restarted-after-kill", "the end of a killed run is taken for one by itself"),
    defect("started-beside-what-is-left", "a lost run is not ended before the next begins"),
    defect("stop-lost-at-restart", "an allocation that is to stop runs on with the next agent"),
    defect("stop-without-kill", "what ignores its stop is not killed"),
    defect("successors-without-end", "failed allocations get successors beyond their attempts"),
];

/// The defect of this name.
#[must_use]
pub fn named(name: &str) -> Option<Planted> {
    PLANTED.iter().find(|planted| planted.name == name).copied()
}
