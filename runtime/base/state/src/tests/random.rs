//! Runs random work with failing commits and reopening, and compares the content with what may
//! be there.

use super::model::*;
use super::*;
use crate::PutOutcome;
use crate::backend::Backend as _;
use crate::testing::Fault;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    One(Change),
    Together(Vec<Change>),
    Later(usize, u16),
    Flush,
    /// Close the store and open it over the same records.
    Reopen,
}

/// Keys 0 and 1 of allocation 1, key 4 of allocation 2, and two keys of no allocation.
const USED: [usize; 5] = [0, 1, 4, 10, 11];

fn any_key() -> impl Strategy<Value = usize> {
    prop::sample::select(USED.to_vec())
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        12 => (any_key(), 1u16..4).prop_map(|(n, version)| Change::Put(n, version)),
        2 => any_key().prop_map(Change::Delete),
        1 => any_key().prop_map(Change::Quarantine),
        1 => (1u128..3).prop_map(Change::Destroy),
    ]
}

fn any_fault() -> impl Strategy<Value = Option<Fault>> {
    prop_oneof![
        12 => Just(None),
        1 => Just(Some(Fault::Before)),
        1 => Just(Some(Fault::After)),
        1 => Just(Some(Fault::Panic)),
    ]
}

/// A step, and the faults of the next commits meanwhile.
fn any_step() -> impl Strategy<Value = (Step, [Option<Fault>; 2])> {
    let step = prop_oneof![
        10 => any_change().prop_map(Step::One),
        4 => prop::collection::vec(any_change(), 2..6).prop_map(Step::Together),
        6 => (any_key(), 1u16..4).prop_map(|(n, version)| Step::Later(n, version)),
        2 => Just(Step::Flush),
        1 => Just(Step::Reopen),
    ];
    (step, [any_fault(), any_fault()])
}

struct Random {
    memory: Arc<MemBackend>,
    gate: Arc<FaultyBackend>,
    store: Option<StateStore>,
    model: Model,
}

impl Random {
    fn new() -> Self {
        let memory = Arc::new(MemBackend::default());
        let gate = FaultyBackend::new(memory.clone());
        let mut random = Self { memory, gate, store: None, model: Model::new() };
        random.open();
        random
    }

    fn open(&mut self) {
        self.gate = FaultyBackend::new(self.memory.clone());
        self.store =
            Some(StateStore::with_backend(Path::new("(test)"), self.gate.clone()).unwrap());
    }

    async fn step(&mut self, step: &Step) -> Check {
        let Some(store) = self.store.clone() else { return Ok(()) };
        match step {
            Step::One(change) => {
                self.model.announce(*change);
                let ended = perform(&store, *change).await.ok();
                self.model.one(*change, ended)
            }
            Step::Together(changes) => {
                changes.iter().for_each(|change| self.model.announce(*change));
                let ended = together(&store, &self.gate, changes).await;
                let ended = ended.into_iter().map(|(share, result)| (share, result.ok()));
                self.model.together(changes, &ended.collect::<Vec<_>>())
            }
            Step::Later(n, version) => {
                match store.put_later(&key(*n), &value(*n, *version)).await.unwrap() {
                    PutOutcome::Queued => {
                        self.model.queued(*n, *version);
                        Ok(())
                    }
                    put => self.model.one(Change::Put(*n, *version), Some(put)),
                }
            }
            Step::Flush => {
                self.model.batch(&[], store.flush().await.is_ok());
                Ok(())
            }
            Step::Reopen => {
                let before = store.stats().commits_failed;
                store.close().await;
                self.model.batch(&[], store.stats().commits_failed == before);
                drop((store, self.store.take()));
                self.model.later.clear();
                self.model.destroyed.clear();
                self.open();
                Ok(())
            }
        }
    }

    /// Check that the content is allowed. It is then the only possible one, except for
    /// lagging writes.
    fn look(&mut self) -> Check {
        let Some(store) = &self.store else { return Ok(()) };
        let found = records(store)?;
        self.model.found(found, self.memory.count_quarantined().unwrap())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if soak() { 5_000 } else { 100 }))]

    #[test]
    fn no_acknowledged_write_is_ever_missing_and_none_is_wrongly_skipped(
        steps in prop::collection::vec(any_step(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut random = Random::new();
            for (n, (step, faults)) in steps.iter().enumerate() {
                random.gate.plan(*faults);
                let done = random.step(step).await;
                random.gate.forget_plan();
                let checked = done.and_then(|()| random.look());
                prop_assert!(checked.is_ok(), "step {n}, {step:?}: {checked:?}");
            }
            // At the end the store is opened again, and everything acknowledged is there.
            random.step(&Step::Reopen).await.unwrap();
            let checked = random.look();
            prop_assert!(checked.is_ok(), "at the end: {checked:?}");
            Ok(())
        })?;
    }
}
