//! Allocations on a scripted node and virtual time: times below are exact.
//!
//! What of the ledger of Nomad's bugs (reference §1.14, §1.7) an allocation's owner can have, and
//! where it is tested; what cannot happen here and why not:
//!
//! | item | test |
//! |---|---|
//! | A4 #17104 | `restoring::a_pre_run_hook_that_fails_now_ends_nothing_that_was_found_running` |
//! | A6 #10907 | cannot happen: nobody but this node says what is to run |
//! | A11 #27933 | `restoring::one_whose_directory_is_gone_runs_on_until_its_task_ends`, `restoring::one_whose_directory_is_gone_and_of_which_nothing_lives_gets_another_and_runs_again` |
//! | A12 #16638 | `restoring::one_without_any_record_beside_its_own_is_run_as_if_new`; records without an allocation are the agent's |
//! | A15 #26699 | `restoring::every_pre_run_hook_runs_again_none_is_only_marked_as_done`; hooks have no done-marks |
//! | A17 #9840 | `control::node_records::reboot::tests`, `it/machine/trouble.rs`; after a restart of the agent alone they do not: `restoring::a_prestart_task_that_succeeded_is_not_run_again` |
//! | B21 #5905, B23 #26271 | `hooks::every_hook_that_fails_hangs_or_panics_in_any_phase_leaves_nothing_behind` |
//! | B22 #17175 | `restarts::an_allocation_that_ended_or_ends_is_not_restarted_and_nothing_of_it_runs_again` |
//! | B24 | `hooks::hooks_are_called_in_order_and_none_when_the_agent_leaves` |
//! | B26 | `restoring::one_whose_records_are_unreadable_ends_failed_and_orphans_nothing`; a dead task with a run is the task's owner's |
//! | B28 #8311, #13055 | `machine::tests::random`: mains before sidecars, the leader before all |
//! | B29 #17971 | `removal::what_it_showed_stays_when_it_is_removed` |
//! | A3 #5984 | `removal::no_record_comes_back_after_a_removal_whenever_it_comes` |
//! | B33 #12779, B34 #28191 | `previous::one_that_ended_before_anybody_looked_is_not_waited_for` |
//! | B35 #18108, #16826 | `previous::a_sticky_disk_is_taken_over_and_the_logs_stay_where_they_were` |
//! | B36 #28394 | an allocation nobody wants any more is the agent's; removal of a running one: `removal::removing_twice_at_once_is_removing_once` |
//! | B37 #5645 | `bounds::an_allocation_that_runs_long_enough_is_healthy_and_stays_so` |
//! | I #9707 | `bounds::an_update_of_how_long_it_may_run_counts_from_the_beginning`: the hook had nothing to do before |
//! | §1.7 un-run runner | `removal::an_allocation_that_never_ran_can_be_removed`, `removal::one_restored_as_finished_can_be_removed` |
//! | §1.7 L1 failing restore | `restoring::one_whose_records_are_unreadable_ends_failed_and_orphans_nothing` |
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod bounds;
mod elsewhere;
mod ending;
mod faults;
mod hooks;
mod lifecycle;
mod networks;
mod previous;
mod removal;
mod restarts;
mod restoring;
mod running;
mod services;
mod simulation;
mod updates;

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::alloc::hooks as alloc_hooks;
use crate::alloc::hooks::AllocHook;
use crate::alloc::{AllocHandle, AllocRunner, AllocStart, PreviousAlloc, RestartScope};
use crate::context::{AllocContext, NodeContext};
use crate::services::NodeServices;
use crate::task::TaskScope;
use crate::task::hooks::TaskHook;
use ostler_model::alloc::Allocation;
use ostler_model::clock::{self, Clock};
use ostler_model::job::{JobKind, Task};
use ostler_model::rng::Rng;
use ostler_model::task::TaskStatus;
use ostler_model::time::Timestamp;
use ostler_state::StateStore;
use ostler_testing::fake_driver::FakeNode;
use ostler_testing::fake_variables::FakeVariables;
use ostler_testing::fixtures;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A node, a store, a directory: everything an allocation needs.
pub(super) struct Bench {
    pub node: FakeNode,
    pub store: StateStore,
    pub root: tempfile::TempDir,
    pub kind: JobKind,
    /// Stands at one second unless a test moves it.
    pub clock: Clock,
    pub alloc_hooks: Vec<Arc<dyn AllocHook>>,
    pub task_hooks: Vec<Arc<dyn TaskHook>>,
    pub services: NodeServices,
    pub variables: FakeVariables,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            node: FakeNode::new(),
            store: StateStore::in_memory().unwrap(),
            root: tempfile::tempdir().unwrap(),
            kind: JobKind::Batch,
            clock: Clock::fixed(Timestamp::from_nanos(1_000_000_000)),
            alloc_hooks: alloc_hooks::standard(),
            task_hooks: crate::task::hooks::standard(),
            services: NodeServices::new(10),
            variables: FakeVariables::default(),
        }
    }

    pub fn run(&self, tasks: Vec<Task>) -> AllocHandle {
        self.run_allocation(fixtures::allocation(self.kind, tasks, &Rng::from_seed(7)).unwrap())
    }

    pub fn run_allocation(&self, allocation: Allocation) -> AllocHandle {
        AllocRunner::spawn(self.start(allocation)).unwrap()
    }

    pub fn context(&self) -> NodeContext {
        let (root, store) = (self.root.path(), self.store.clone());
        NodeContext {
            services: self.services.clone(),
            variables: Arc::new(self.variables.clone()),
            alloc_hooks: self.alloc_hooks.clone(),
            task_hooks: self.task_hooks.clone(),
            ..NodeContext::with_doubles(root, &self.node, store, self.clock.clone())
        }
    }

    pub fn start(&self, allocation: Allocation) -> AllocStart {
        self.start_on(self.context(), allocation)
    }

    pub fn start_on(&self, node: NodeContext, allocation: Allocation) -> AllocStart {
        AllocStart {
            node: Arc::new(node),
            context: AllocContext::default(),
            allocation: Arc::new(allocation),
        }
    }

    pub fn start_after(&self, previous: Vec<PreviousAlloc>, allocation: Allocation) -> AllocStart {
        let context = AllocContext { previous, ..AllocContext::default() };
        AllocStart { context, ..self.start(allocation) }
    }

    /// When the node was asked for this first, in virtual seconds.
    pub fn when(&self, what: &str) -> f64 {
        self.node
            .when(what)
            .unwrap_or_else(|| panic!("no {what:?} in {:?}", self.node.journal()))
            .as_secs_f64()
    }
}

pub(super) fn task(name: &str) -> Task {
    fixtures::task(name).unwrap()
}

pub(super) fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

/// Names of the events of a task.
pub(super) fn events(state: &AllocState, task: &str) -> Vec<&'static str> {
    state.tasks[task].events.iter().map(|e| e.kind.as_str()).collect()
}

/// Wait until the allocation looks like this.
pub(super) async fn until(handle: &AllocHandle, like: impl Fn(&AllocState) -> bool) -> AllocState {
    let mut state = handle.state();
    let found = clock::timeout(Duration::from_secs(86_400), state.wait_for(|s| like(s))).await;
    found.expect("the state never came").unwrap().clone()
}

pub(super) async fn until_running(handle: &AllocHandle, task: &str) {
    until(handle, |s| s.tasks[task].status == TaskStatus::Running).await;
}

/// A shared list tests write into from probes and hooks.
pub(super) type Seen<T> = Arc<Mutex<Vec<T>>>;
