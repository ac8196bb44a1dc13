//! What a cluster cost, counted and shown.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use ostler_model::time::Timestamp;
use ostler_testing::servers::ServerDouble;
use ostler_testing::servers::traffic::{Traffic, Volume};
use serde_json::{Value, json};

use super::ScalePlan;
use crate::joined::net::Net;

/// What was counted in one phase, of all nodes together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseFigures {
    /// Its name.
    pub name: &'static str,
    /// How long it was counted.
    pub time: Duration,
    /// When everything was as the servers wanted it, since its begin.
    pub done: Option<Duration>,
    /// What went to the servers, and what came from them: every byte of the connections.
    pub traffic: [Traffic; 2],
    /// Connections that were asked for.
    pub dials: u64,
    /// Calls by their method.
    pub calls: BTreeMap<String, Volume>,
    /// Longest time between two registrations or heartbeats of a node.
    pub silence: Duration,
    /// How much later than a server had asked for one came, at most.
    pub late: Duration,
}

/// What differs from machine to machine.
#[derive(Clone, Copy, Debug)]
pub struct ScaleMeasured {
    /// How long the play took.
    pub wall: Duration,
    /// Resident memory for each node without allocations, with the server's end of its connection.
    pub node_bytes: u64,
    /// The same for each allocation.
    pub alloc_bytes: u64,
}

/// What a cluster cost.
#[derive(Clone, Debug)]
pub struct ScaleReport {
    /// Of what.
    pub plan: ScalePlan,
    /// In order.
    pub phases: Vec<PhaseFigures>,
    /// Of this play.
    pub measured: ScaleMeasured,
}

/// Counts a phase.
pub(super) struct PhaseMeter {
    begun: Timestamp,
    traffic: [Traffic; 2],
    dials: u64,
    calls: BTreeMap<String, Volume>,
}

impl PhaseMeter {
    pub(super) fn begin(double: &ServerDouble, net: &Net, now: Timestamp) -> Self {
        let mut book = double.book();
        for node in book.nodes.values_mut() {
            (node.silence, node.late) = (Duration::ZERO, Duration::ZERO);
        }
        let calls = book.volumes.clone();
        Self { begun: now, traffic: net.traffic(), dials: net.dials(), calls }
    }

    pub(super) fn end(
        self,
        name: &'static str,
        (double, net, now): (&ServerDouble, &Net, Timestamp),
        done: Option<Duration>,
    ) -> PhaseFigures {
        let book = double.book();
        let since =
            |before: Timestamp| Duration::from_nanos(now.nanos().saturating_sub(before.nanos()));
        let calls = book.volumes.iter().map(|(method, volume)| {
            let before = self.calls.get(method).copied().unwrap_or_default();
            (method.clone(), volume.since(before))
        });
        let calls = calls.filter(|(_, volume)| *volume != Volume::default()).collect();
        // One that is silent still counts, too.
        let silences = book
            .nodes
            .values()
            .map(|node| node.silence.max(node.heard.map_or(Duration::ZERO, since)));
        let lates = book.nodes.values().map(|node| node.late);
        let ([to, from], [to_before, from_before]) = (net.traffic(), self.traffic);
        PhaseFigures {
            name,
            time: since(self.begun),
            done,
            traffic: [to.since(to_before), from.since(from_before)],
            dials: net.dials().saturating_sub(self.dials),
            calls,
            silence: silences.max().unwrap_or_default(),
            late: lates.max().unwrap_or_default(),
        }
    }
}

/// Resident bytes of this process; zero where nobody says so.
pub(super) fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")).map(str::trim);
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0).saturating_mul(1_024)
}

impl PhaseFigures {
    /// So many in the whole phase, of each node in a minute.
    #[must_use]
    pub fn each_minute(&self, count: u64, nodes: usize) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
        let (count, nodes) = (count as f64, nodes.max(1) as f64);
        count * 60.0 / nodes / self.time.as_secs_f64().max(1.0)
    }
}

impl ScaleReport {
    /// As tables for people.
    #[must_use]
    pub fn text(&self) -> String {
        let ScalePlan { nodes, allocs, seed } = self.plan;
        let mut text = format!("{nodes} nodes, {allocs} allocations, seed {seed}\n\n");
        // Writing into a string does not fail.
        let _fine = self.write_phases(&mut text).and_then(|()| self.write_methods(&mut text));
        text
    }

    /// The part of it that is the same wherever it is played, and what this machine took.
    #[must_use]
    pub fn measured_text(&self) -> String {
        let ScaleMeasured { wall, node_bytes, alloc_bytes } = self.measured;
        format!(
            "memory: {} KiB for each node, {} KiB more for each allocation; played in {:.1} s\n",
            node_bytes / 1_024,
            alloc_bytes / 1_024,
            wall.as_secs_f64()
        )
    }

    fn write_phases(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "{:<13} {:>5} {:>7} {:>9} {:>9} {:>9} {:>8} {:>9} {:>7}",
            "phase",
            "time",
            "done",
            "messages",
            "bytes out",
            "bytes in",
            "connects",
            "silence",
            "late"
        )?;
        for phase in &self.phases {
            let [to, from] = phase.traffic;
            let each = |count| phase.each_minute(count, self.plan.nodes);
            let done = phase.done.map_or_else(|| "-".to_owned(), seconds);
            writeln!(
                text,
                "{:<13} {:>4.0}s {:>7} {:>9.1} {:>9.0} {:>9.0} {:>8} {:>9} {:>7}",
                phase.name,
                phase.time.as_secs_f64(),
                done,
                each(to.messages.saturating_add(from.messages)),
                each(to.bytes),
                each(from.bytes),
                phase.dials,
                seconds(phase.silence),
                seconds(phase.late),
            )?;
        }
        writeln!(text, "(messages and bytes of each node in a minute; connects of all together)\n")
    }

    fn write_methods(&self, text: &mut String) -> std::fmt::Result {
        writeln!(
            text,
            "{:<13} {:<21} {:>9} {:>9} {:>9}",
            "phase", "method", "calls", "bytes out", "bytes in"
        )?;
        for phase in &self.phases {
            for (method, volume) in &phase.calls {
                let each = |count| phase.each_minute(count, self.plan.nodes);
                let Volume { calls, asked, answered } = *volume;
                writeln!(
                    text,
                    "{:<13} {method:<21} {:>9.2} {:>9.0} {:>9.0}",
                    phase.name,
                    each(calls),
                    each(asked),
                    each(answered)
                )?;
            }
        }
        writeln!(text, "(of each node in a minute)")
    }

    /// As data.
    #[must_use]
    pub fn json(&self) -> Value {
        let phases: Vec<_> = self.phases.iter().map(|phase| self.phase_json(phase)).collect();
        let ScaleMeasured { wall, node_bytes, alloc_bytes } = self.measured;
        json!({
            "nodes": self.plan.nodes,
            "allocs": self.plan.allocs,
            "seed": self.plan.seed,
            "phases": phases,
            "measured": {
                "wall_seconds": wall.as_secs_f64(),
                "bytes_per_node": node_bytes,
                "bytes_per_alloc": alloc_bytes,
            },
        })
    }

    fn phase_json(&self, phase: &PhaseFigures) -> Value {
        let each = |count| phase.each_minute(count, self.plan.nodes);
        let [to, from] = phase.traffic;
        let methods = phase.calls.iter().map(|(method, volume)| {
            let Volume { calls, asked, answered } = *volume;
            let value = json!({
                "calls": each(calls), "bytes_out": each(asked), "bytes_in": each(answered),
            });
            (method.clone(), value)
        });
        json!({
            "name": phase.name,
            "seconds": phase.time.as_secs_f64(),
            "done_seconds": phase.done.map(|done| done.as_secs_f64()),
            "per_node_and_minute": {
                "messages": each(to.messages.saturating_add(from.messages)),
                "bytes_out": each(to.bytes),
                "bytes_in": each(from.bytes),
                "methods": methods.collect::<serde_json::Map<_, _>>(),
            },
            "connects": phase.dials,
            "longest_silence_seconds": phase.silence.as_secs_f64(),
            "latest_after_ttl_seconds": phase.late.as_secs_f64(),
        })
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.1}s", time.as_secs_f64())
}
