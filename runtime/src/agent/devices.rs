//! Devices and the agent: the ledger on disk, what an earlier agent left owed, and statistics.
//!
//! ```text
//!  task starts ─► keep: the entry is durable ─► plugins reserve … the task ends, plugins release
//!                 (in the ledger since placement)                         │
//!  allocation over, all released ─► free        settled: the entry goes ◄─┘
//!  restart: entry, allocation runs ─► the task holds it     entry, allocation over ─► release
//!           no entry, allocation runs ─► released already, lent until the allocation is over
//! ```
//! The ledger on disk has what may have to be released; admission lends by its own, which has more:
//! an instance stays with its allocation until that is over.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{AgentHandle, Inner};
use ostler_device::ledger::{DeviceLedger, Holder};
use ostler_device::manager::{ClaimReport, LedgerBook};
use ostler_model::alloc::Allocation;
use ostler_model::clock;
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::STATE_WRITE_WALL_MAX;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::TaskStatus;
use ostler_state::{Key, StateError};

/// The agent's ledger, as the device manager writes it.
pub(super) struct AgentBook(Weak<Inner>);

impl AgentBook {
    pub(super) fn of(agent: &AgentHandle) -> Arc<dyn LedgerBook> {
        Arc::new(Self(Arc::downgrade(&agent.0)))
    }
}

impl LedgerBook for AgentBook {
    fn keep<'a>(&'a self, holder: &'a Holder) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async move {
            let later = |why: &str| PluginCallError::Recoverable(why.to_owned());
            let Some(agent) = self.0.upgrade().map(AgentHandle) else {
                return Err(later("the agent ends"));
            };
            match clock::timeout(STATE_WRITE_WALL_MAX, agent.keep_devices(holder)).await {
                Some(Ok(())) => Ok(()),
                Some(Err(error)) => {
                    Err(later(&format!("who holds the devices could not be written: {error}")))
                }
                None => Err(later("who holds the devices was not written in time")),
            }
        })
    }

    fn settled<'a>(&'a self, holder: &'a Holder) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if let Some(agent) = self.0.upgrade().map(AgentHandle) {
                agent.settle_devices(holder).await;
            }
        })
    }
}

impl AgentHandle {
    /// Newest statistics of every device of the node, by group. A group whose plugin does not
    /// measure is not among them; one whose plugin fails says so.
    #[must_use]
    pub fn device_stats(&self) -> Vec<DeviceGroupStats> {
        self.0.devices.all_stats()
    }

    /// Newest statistics of the devices of an allocation's running tasks, by group: what several
    /// tasks have of one group is one group. `None`: there is no such allocation.
    #[must_use]
    pub fn alloc_device_stats(&self, alloc: AllocId) -> Option<Vec<DeviceGroupStats>> {
        self.device_stats_of(alloc, |_| true)
    }

    /// As [`AgentHandle::alloc_device_stats`], for one task; none when it does not run.
    #[must_use]
    pub fn task_device_stats(
        &self,
        alloc: AllocId,
        task: &TaskName,
    ) -> Option<Vec<DeviceGroupStats>> {
        self.device_stats_of(alloc, |name| name == task)
    }

    fn device_stats_of(
        &self,
        alloc: AllocId,
        wanted: impl Fn(&TaskName) -> bool,
    ) -> Option<Vec<DeviceGroupStats>> {
        let view = self.alloc(alloc)?;
        let runs = |task: &TaskName| {
            view.state.tasks.get(task).is_some_and(|state| state.status == TaskStatus::Running)
        };
        let lent = view.allocation.devices.iter();
        let devices = lent.filter(|(task, _)| wanted(task) && runs(task)).flat_map(|(_, of)| of);
        Some(self.0.devices.stats_of(devices))
    }

    /// Who holds which device instance: running allocations, and those that are over while a
    /// plugin was not told of it yet.
    #[must_use]
    pub fn device_holders(&self) -> DeviceLedger {
        self.admission().devices().clone()
    }

    /// Where the tasks that hold devices are with their plugins.
    #[must_use]
    pub fn device_claims(&self) -> Vec<ClaimReport> {
        self.0.devices.claims()
    }

    async fn keep_devices(&self, holder: &Holder) -> Result<(), StateError> {
        // Otherwise it is queued since the allocation was placed.
        let news = self.admission().owe_devices(holder);
        if news {
            self.put_ledger().await?;
        }
        self.0.state.durable_to(self.0.state.mark(), Duration::ZERO).await
    }

    async fn settle_devices(&self, holder: &Holder) {
        self.admission().settle_devices(holder);
        match self.put_ledger().await {
            // Closed: the agent has left, and the next one releases once more.
            Ok(()) | Err(StateError::Closed { .. }) => {}
            Err(error) => tracing::warn!(%holder, %error, "release of devices not written"),
        }
        self.0.wake.notify_one();
    }

    /// Queue the ledger as it is now.
    pub(super) async fn put_ledger(&self) -> Result<(), StateError> {
        let _last = self.0.ledger.lock().await;
        let ledger = self.admission().owed_devices();
        self.0.state.put_later(&Key::DeviceLedger, &ledger).await.map(drop)
    }

    /// What the tasks of a live allocation hold towards their plugins. `ledger`: what was on disk;
    /// absent where it was not readable, which counts as everything. `own`: its tasks are this
    /// agent's.
    pub(super) fn restore_devices(
        &self,
        alloc: &Allocation,
        ledger: Option<&DeviceLedger>,
        own: bool,
    ) {
        for (task, devices) in alloc.devices.iter().filter(|(_, devices)| !devices.is_empty()) {
            let holder = Holder { alloc: alloc.id, task: task.clone() };
            if ledger.is_some_and(|ledger| !ledger.holds(&holder, devices)) {
                self.admission().settle_devices(&holder);
            } else if own {
                self.0.devices.restore_claim(holder, devices);
            }
        }
    }

    /// What is in the ledger for allocations that are not live: their plugins were not told of the
    /// end, or that they were is not on disk. Held until they are; `release` says of which
    /// allocations they are to be told by this agent.
    pub(super) fn restore_owed(
        &self,
        ledger: &DeviceLedger,
        live: &BTreeSet<AllocId>,
        release: impl Fn(AllocId) -> bool,
    ) {
        let mut owed: BTreeMap<Holder, BTreeMap<GroupKey, Vec<String>>> = BTreeMap::new();
        for held in ledger.holders().filter(|held| !live.contains(&held.holder.alloc)) {
            let groups = owed.entry(held.holder).or_default();
            groups.entry(held.group).or_default().push(held.instance);
        }
        for (holder, groups) in owed {
            let devices: Vec<AllocatedDevice> =
                groups.into_iter().map(|(group, ids)| AllocatedDevice { group, ids }).collect();
            if let Err(error) = self.admission().adopt_owed(&holder, &devices) {
                // Lent again already, so it was released: the ledger on disk was late.
                tracing::info!(%holder, %error, "nothing to release any more");
                continue;
            }
            if release(holder.alloc) {
                tracing::info!(%holder, "the task is over: its devices are released");
                let alloc = holder.alloc;
                self.0.devices.restore_claim(holder, &devices);
                let _owing = self.0.devices.end_alloc(alloc);
            }
        }
    }
}
