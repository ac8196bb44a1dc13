//! Defects that are planted are found.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use ostler_model::planted::plant;
use ostler_sim::plan::Plan;
use ostler_sim::planted::{PLANTED, SEEDS};
use ostler_sim::play::play;

/// Does this seed fail with the defect, or panic?
fn fails(defect: Option<&'static str>, seed: u64) -> bool {
    let played = std::panic::catch_unwind(|| {
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        plant(defect);
        play(&Plan::from_seed(seed), dir.path())
    });
    plant(None);
    !matches!(played, Ok(Ok(_)))
}

/// And is it the defect that it fails with?
fn found(defect: &'static str, seed: u64) -> bool {
    fails(Some(defect), seed) && !fails(None, seed)
}

/// Look at the numbers from 0 on all cores until one is what is looked for.
fn first(below: u64, is: impl Fn(u64) -> bool + Sync) -> Option<u64> {
    let (next, first) = (AtomicU64::new(0), AtomicU64::new(below));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= first.load(Ordering::Relaxed) {
                        return;
                    }
                    if is(number) {
                        first.fetch_min(number, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    Some(first.into_inner()).filter(|number| *number < below)
}

#[test]
fn every_planted_defect_is_found_by_a_seed_of_the_gate() {
    let lost = first(PLANTED.len().try_into().unwrap(), |at| {
        let planted = PLANTED.get(usize::try_from(at).unwrap()).unwrap();
        assert!(planted.seed < SEEDS, "no seed {} is played", planted.seed);
        !found(planted.name, planted.seed)
    });
    let lost = lost.map(|at| PLANTED.get(usize::try_from(at).unwrap()).unwrap());
    assert_eq!(lost, None, "its seed does not find it: cargo test --test planted -- --ignored");
    assert!(PLANTED.len() >= 20);
}

/// For whoever plants a defect or draws other plans: which seeds find those that `OSTLER_PLANTED` names, or all.
#[test]
#[ignore = "takes long: cargo test --test planted -- --ignored --nocapture"]
fn the_first_seed_that_finds_each_planted_defect() {
    let named = std::env::var("OSTLER_PLANTED").unwrap_or_default();
    let asked = |name: &str| named.is_empty() || named.split(',').any(|one| one == name);
    let seeds = std::env::var("OSTLER_SEEDS").map_or(SEEDS, |seeds| seeds.parse().unwrap());
    let of = PLANTED.iter().filter(|planted| asked(planted.name));
    let none: Vec<&str> = of
        .filter(|planted| {
            let seed = first(seeds, |seed| found(planted.name, seed));
            println!("{}: {seed:?}", planted.name);
            seed.is_none()
        })
        .map(|planted| planted.name)
        .collect();
    assert!(none.is_empty(), "none of {seeds} seeds finds {}", none.join(", "));
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|of| of == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_list_of_planted_defects_is_what_the_node_asks_for() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    for part in ["base/model", "core/control", "core/lifecycle"] {
        sources(&runtime.join(part).join("src"), &mut files);
    }
    let texts = files.iter().map(|path| std::fs::read_to_string(path).unwrap());
    let asked: BTreeSet<String> = texts
        .flat_map(|text| {
            let names = text.split("planted(\"").skip(1).filter_map(|rest| rest.split('"').next());
            names.map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    let listed: BTreeSet<String> = PLANTED.iter().map(|planted| planted.name.to_owned()).collect();
    assert_eq!(asked, listed);
    assert_eq!(listed.len(), PLANTED.len(), "one name each");
}
