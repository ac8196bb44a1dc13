//! Chooses the cores that the tasks of an allocation get for themselves. Pure.
//!
//! ```text
//! free cores ─ sidecars of prestart ─┬─ prestart tasks
//!                                    ├─ main tasks        each phase from what the first left:
//!                                    └─ poststop tasks    they do not run at the same time
//! ```
//! Requests for cores of one NUMA node are served first, and the larger ones before the smaller
//! ones. One core always stays for the tasks that have none of their own, as long as there are such
//! tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Problem;
use super::needs::LifecyclePhase;
use ostler_model::cores::CoreSet;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::job::{Task, TaskGroup};
use ostler_model::resources::{CoreRequest, NumaAffinity};

/// The cores that each allocation has for itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CoreLedger(BTreeMap<AllocId, CoreSet>);

impl CoreLedger {
    /// Assign these cores to an allocation. `false`: one of them is assigned already, and nothing
    /// is changed.
    pub(super) fn claim<'a>(
        &mut self,
        alloc: AllocId,
        cores: impl Iterator<Item = &'a CoreSet>,
    ) -> bool {
        let wanted = cores.fold(CoreSet::new(), |all, one| all.union(one));
        let free = self.held_cores().intersection(&wanted).is_empty();
        if free && !wanted.is_empty() {
            self.0.insert(alloc, wanted);
        }
        free
    }

    /// Take back the cores of an allocation. Returns them.
    pub(super) fn release(&mut self, alloc: AllocId) -> Option<CoreSet> {
        self.0.remove(&alloc)
    }

    /// Give an allocation the cores again that it had a moment before.
    pub(super) fn put_back(&mut self, alloc: AllocId, cores: CoreSet) {
        self.0.insert(alloc, cores);
    }

    /// All cores that are assigned.
    pub(super) fn held_cores(&self) -> CoreSet {
        self.0.values().fold(CoreSet::new(), |all, one| all.union(one))
    }
}

/// Does a task of the group run on cores that it shares with others?
pub(super) fn shares_cores(group: &TaskGroup) -> bool {
    group.tasks.iter().any(|task| task.resources.cores.is_none())
}

/// Choose cores for each task that asks for some, of those that are free. `nodes` gives the cores
/// of each NUMA node; it is only called where that matters.
///
/// # Errors
/// The task for which there are not enough cores, and the cores that are free for it.
pub(super) fn choose<'a>(
    group: &'a TaskGroup,
    free: &CoreSet,
    nodes: &dyn Fn() -> Vec<CoreSet>,
) -> Result<BTreeMap<TaskName, CoreSet>, (&'a Task, CoreRequest, CoreSet)> {
    let (mut always, mut phases) = (CoreSet::new(), BTreeMap::<LifecyclePhase, CoreSet>::new());
    let mut chosen = BTreeMap::new();
    let tasks = group.tasks.iter();
    let asking = tasks
        .filter_map(|task| Some((LifecyclePhase::from_task(task), &**task, task.resources.cores?)));
    let mut asking: Vec<_> = asking.collect();
    asking.sort_by_key(|(phase, _, request)| {
        let numa = match request.numa {
            NumaAffinity::Require => 0,
            NumaAffinity::Prefer => 1,
            NumaAffinity::None => 2,
        };
        (*phase, numa, Reverse(request.count))
    });
    for (phase, task, request) in asking {
        let of_phase = phases.entry(phase).or_default();
        let left = free.without(&always).without(of_phase);
        let picked = pick(&left, request, nodes).ok_or((task, request, left))?;
        match phase {
            LifecyclePhase::Always => always = always.union(&picked),
            _ => *of_phase = of_phase.union(&picked),
        }
        chosen.insert(task.name.clone(), picked);
    }
    Ok(chosen)
}

/// The lowest free cores. Where the NUMA node matters, they are from the fullest node
/// that has enough.
fn pick(left: &CoreSet, request: CoreRequest, nodes: &dyn Fn() -> Vec<CoreSet>) -> Option<CoreSet> {
    let count = usize::try_from(request.count).ok()?;
    let of_one = || {
        let parts = nodes().into_iter().map(|node| left.intersection(&node));
        parts.filter(|part| part.len() >= count).min_by_key(CoreSet::len)?.first(count)
    };
    match request.numa {
        NumaAffinity::None => left.first(count),
        NumaAffinity::Prefer => of_one().or_else(|| left.first(count)),
        NumaAffinity::Require => of_one(),
    }
}

/// The failed choice as a problem.
pub(super) fn problem(
    index: u32,
    (task, request, free): (&Task, CoreRequest, CoreSet),
    total: &CoreSet,
) -> Problem {
    Problem::Cores {
        task: task.name.clone(),
        index,
        wanted: request.count,
        one_node: request.numa == NumaAffinity::Require,
        free,
        total: total.clone(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;
    use ostler_model::job::{Lifecycle, LifecycleHook};
    use ostler_model::rng::Rng;
    use ostler_testing::fixtures;

    fn task(
        name: &str,
        cores: u32,
        numa: NumaAffinity,
        hook: Option<(LifecycleHook, bool)>,
    ) -> Task {
        let mut task = fixtures::task(name).unwrap();
        task.resources.cores = (cores > 0).then_some(CoreRequest { count: cores, numa });
        task.lifecycle = hook.map(|(hook, sidecar)| Lifecycle { hook, sidecar });
        task
    }

    fn cores(text: &str) -> CoreSet {
        text.parse().unwrap()
    }

    fn chosen(tasks: Vec<Task>, free: &str, nodes: &[&str]) -> Result<String, String> {
        let group = fixtures::group("g", tasks).unwrap();
        let nodes: Vec<_> = nodes.iter().map(|node| cores(node)).collect();
        match choose(&group, &cores(free), &|| nodes.clone()) {
            Ok(chosen) => {
                let texts = chosen.iter().map(|(task, cores)| format!("{task}={cores}"));
                Ok(texts.collect::<Vec<_>>().join(" "))
            }
            Err(short) => Err(problem(0, short, &cores(free)).to_string()),
        }
    }

    #[test]
    fn tasks_that_run_at_the_same_time_share_no_core_and_those_that_do_not_may() {
        use LifecycleHook::{Poststop, Prestart};
        let none = NumaAffinity::None;
        let tasks = vec![
            task("init", 2, none, Some((Prestart, false))),
            task("main", 1, none, None),
            task("other", 1, none, None),
            task("proxy", 1, none, Some((Prestart, true))),
            task("after", 2, none, Some((Poststop, false))),
            task("shared", 0, none, None),
        ];
        let got = chosen(tasks.clone(), "0-2", &[]).unwrap();
        assert_eq!(got, "after=1-2 init=1-2 main=1 other=2 proxy=0");
        let short = chosen(tasks, "4,6", &[]).unwrap_err();
        assert!(short.contains("task init") && short.contains("2 cores"), "{short}");
    }

    #[test]
    fn cores_of_one_node_are_taken_where_that_matters() {
        let nodes = ["0-3", "4-5"];
        let ask = |count, numa| vec![task("t", count, numa, None)];
        assert_eq!(chosen(ask(2, NumaAffinity::None), "3-5", &nodes).unwrap(), "t=3-4");
        assert_eq!(chosen(ask(2, NumaAffinity::Prefer), "3-5", &nodes).unwrap(), "t=4-5");
        assert_eq!(chosen(ask(2, NumaAffinity::Require), "0-5", &nodes).unwrap(), "t=4-5");
        assert_eq!(chosen(ask(3, NumaAffinity::Prefer), "3-5", &nodes).unwrap(), "t=3-5");
        let both = vec![
            task("any", 1, NumaAffinity::None, None),
            task("near", 2, NumaAffinity::Require, None),
        ];
        assert_eq!(chosen(both, "0-2", &["0-1", "2"]).unwrap(), "any=2 near=0-1");
        let refused = chosen(ask(3, NumaAffinity::Require), "3-5", &nodes).unwrap_err();
        assert!(refused.contains("of one NUMA node"), "{refused}");
    }

    #[test]
    fn a_core_is_held_once_and_free_after_its_release() {
        let (rng, mut ledger) = (Rng::from_seed(1), CoreLedger::default());
        let (one, other) = (AllocId::new(rng.uuid()), AllocId::new(rng.uuid()));
        assert!(ledger.claim(one, [cores("0"), cores("1")].iter()));
        assert!(!ledger.claim(other, [cores("1-2")].iter()));
        assert!(ledger.claim(other, [cores("2")].iter()));
        assert_eq!(ledger.held_cores(), cores("0-2"));
        ledger.release(one);
        assert_eq!(ledger.held_cores(), cores("2"));
    }
}
