//! What happens to a cluster, and what is counted meanwhile.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ostler_model::clock::{self, Stopwatch};

use super::ScalePlan;
use super::cluster::{Cluster, SERVERS};
use super::report::{PhaseFigures, PhaseMeter, ScaleMeasured, ScaleReport, resident};
use crate::joined::net::Way;

/// Shortest time that is counted for a phase in which something happens.
const PHASE_MIN: Duration = Duration::from_secs(60);
/// How long nothing happens.
const QUIET: Duration = Duration::from_secs(600);
/// What the servers want is so within this time.
const DONE_MAX: Duration = Duration::from_secs(3_600);
/// How often it is looked whether it is.
const LOOK: Duration = Duration::from_millis(100);
/// How long no server leads after the one that did is gone.
const ELECTION: Duration = Duration::from_secs(10);
/// How long that server is gone.
const AWAY: Duration = Duration::from_secs(120);
/// How long a fail-over is counted.
const FAIL_OVER: Duration = Duration::from_secs(300);

/// A phase that goes on.
struct Phase<'a> {
    cluster: &'a Cluster,
    name: &'static str,
    meter: PhaseMeter,
    began: Stopwatch,
}

impl<'a> Phase<'a> {
    fn begin(cluster: &'a Cluster, name: &'static str) -> Self {
        Self { cluster, name, meter: cluster.meter(), began: Stopwatch::start() }
    }

    /// Wait until everything is as the servers want it.
    async fn done(&self) -> Result<Duration, String> {
        while !self.cluster.is_as_wanted() {
            if self.began.elapsed() > DONE_MAX {
                return Err(format!("{}: not done within {DONE_MAX:?}", self.name));
            }
            clock::sleep(LOOK).await;
        }
        Ok(self.began.elapsed())
    }

    /// Go on for so long at least, counted from the begin.
    async fn end(self, least: Duration, done: Option<Duration>) -> Result<PhaseFigures, String> {
        clock::sleep(least.saturating_sub(self.began.elapsed())).await;
        match self.cluster.broken() {
            Some(broken) => Err(format!("{}: {broken}", self.name)),
            None => Ok(self.meter.end(
                self.name,
                (&self.cluster.double, &self.cluster.net, self.cluster.now()),
                done,
            )),
        }
    }
}

/// See the module.
pub(super) async fn play(plan: &ScalePlan, dir: &Path) -> Result<ScaleReport, String> {
    let empty = resident();
    let mut cluster = Cluster::new(plan.seed);
    // Nodes register while others are being started.
    let (meter, began) = (cluster.meter(), Stopwatch::start());
    cluster.start(plan, dir).await?;
    let phase = Phase { cluster: &cluster, name: "registration", meter, began };
    let done = phase.done().await?;
    let mut phases = vec![phase.end(PHASE_MIN, Some(done)).await?];
    phases.push(Phase::begin(&cluster, "idle").end(QUIET, None).await?);
    let with_nodes = resident();

    let phase = Phase::begin(&cluster, "placing");
    cluster.place(plan.allocs, &cluster.members);
    let done = phase.done().await?;
    phases.push(phase.end(PHASE_MIN, Some(done)).await?);
    phases.push(Phase::begin(&cluster, "running").end(QUIET, None).await?);
    let with_allocs = resident();

    let (drained, kept) = cluster.members.split_at(cluster.members.len() / 2);
    let phase = Phase::begin(&cluster, "drain");
    let moved = cluster.stop_all(drained);
    cluster.place(moved, kept);
    let done = phase.done().await?;
    phases.push(phase.end(PHASE_MIN, Some(done)).await?);

    let phase = Phase::begin(&cluster, "fail-over");
    fail_over(&cluster).await;
    phases.push(phase.end(FAIL_OVER, None).await?);
    let live = cluster.live();
    if live != plan.allocs {
        return Err(format!("{live} allocations run instead of {}", plan.allocs));
    }
    let per = |bytes: u64, count: usize| bytes / u64::try_from(count).unwrap_or(1).max(1);
    let measured = ScaleMeasured {
        wall: Duration::ZERO,
        node_bytes: per(with_nodes.saturating_sub(empty), plan.nodes),
        alloc_bytes: per(with_allocs.saturating_sub(with_nodes), plan.allocs),
    };
    Ok(ScaleReport { plan: *plan, phases, measured })
}

/// The server that leads goes, and comes back later.
async fn fail_over(cluster: &Cluster) {
    let Some(leader) = SERVERS.first() else { return };
    cluster.net.set(leader, Way::Refuses);
    cluster.net.cut(leader);
    cluster.leaderless.store(true, Ordering::Relaxed);
    clock::sleep(ELECTION).await;
    cluster.leaderless.store(false, Ordering::Relaxed);
    clock::sleep(AWAY.saturating_sub(ELECTION)).await;
    cluster.net.mend();
}
