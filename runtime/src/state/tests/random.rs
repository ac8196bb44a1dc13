//! Random work with failing commits, against a plain map of what may be there.

use super::*;
use crate::state::Put;
use crate::state::backend::Backend as _;
use crate::state::testing::Fault;
use proptest::prelude::*;
use std::collections::HashSet;

#[derive(Clone, Debug)]
enum Step {
    Put { key: u8, value: u8 },
    Delete { key: u8 },
    Destroy { alloc: u8 },
}

fn any_step() -> impl Strategy<Value = (Step, Option<Fault>)> {
    let step = prop_oneof![
        10 => (0u8..6, 0u8..3).prop_map(|(key, value)| Step::Put { key, value }),
        2 => (0u8..6).prop_map(|key| Step::Delete { key }),
        1 => (0u8..3).prop_map(|alloc| Step::Destroy { alloc }),
    ];
    let fault = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Fault::Before)),
        1 => Just(Some(Fault::After)),
    ];
    (step, fault)
}

fn key(n: u8) -> Key {
    let alloc = id(u128::from(n % 3));
    if n < 3 { Key::Alloc(alloc) } else { Key::TaskState(alloc, task("t")) }
}

/// What a key may hold: one content when the last change was acknowledged, more after failures.
type May = HashSet<Option<u8>>;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn no_acknowledged_write_is_ever_missing(steps in prop::collection::vec(any_step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let memory = Arc::new(MemBackend::default());
            let backend = FaultyBackend::new(memory.clone());
            let store = StateStore::with_backend(Path::new("(test)"), backend.clone()).unwrap();
            let mut may: Vec<May> = vec![HashSet::from([None]); 6];
            let mut destroyed = HashSet::new();
            for (step, fault) in steps {
                let commits = backend.commits();
                backend.plan([fault]);
                match step {
                    Step::Put { key: n, value } => {
                        let after = &mut may[usize::from(n)];
                        match store.put(&key(n), &value).await {
                            Ok(Put::Destroyed) => prop_assert!(destroyed.contains(&(n % 3))),
                            Ok(_) => *after = HashSet::from([Some(value)]),
                            Err(_) => { after.insert(Some(value)); }
                        }
                    }
                    Step::Delete { key: n } => match store.delete(&key(n)).await {
                        Ok(()) => may[usize::from(n)] = HashSet::from([None]),
                        Err(_) => { may[usize::from(n)].insert(None); }
                    },
                    Step::Destroy { alloc } => {
                        destroyed.insert(alloc);
                        let gone = store.destroy_alloc(id(u128::from(alloc))).await.is_ok();
                        for n in [alloc, alloc + 3] {
                            let after = &mut may[usize::from(n)];
                            if gone { after.clear(); }
                            after.insert(None);
                        }
                    }
                }
                if backend.commits() == commits {
                    backend.forget_plan();
                }
                for n in 0..6u8 {
                    let there = store.get::<u8>(&key(n)).unwrap();
                    prop_assert!(may[usize::from(n)].contains(&there), "key {n}: {there:?}");
                }
            }
            // Opened again over the same records, the store sees what the first one left.
            drop(store);
            let reopened = StateStore::with_backend(Path::new("(test)"), memory.clone()).unwrap();
            for n in 0..6u8 {
                let there = reopened.get::<u8>(&key(n)).unwrap();
                prop_assert!(may[usize::from(n)].contains(&there));
                if let Some(value) = there {
                    prop_assert_eq!(reopened.put(&key(n), &value).await.unwrap(), Put::Unchanged);
                }
                prop_assert_eq!(memory.get(&key(n).encode()).unwrap().is_some(), there.is_some());
            }
            Ok(())
        })?;
    }
}
