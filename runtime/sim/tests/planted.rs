//! Defects that are planted are found.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ostler_model::planted::plant;
use ostler_sim::plan::Plan;
use ostler_sim::planted::PLANTED;
use ostler_sim::play::play;

/// The gate plays so many.
const SEEDS: u64 = 2_000;

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

/// The first seed that some core finds it with.
fn find(defect: &'static str) -> Option<u64> {
    let (next, done, first) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(u64::MAX));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= SEEDS {
                        return;
                    }
                    if found(defect, seed) {
                        first.fetch_min(seed, Ordering::Relaxed);
                        done.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    Some(first.into_inner()).filter(|seed| *seed < SEEDS)
}

/// Not part of every run: a defect that no seed finds costs all of them.
#[test]
#[ignore = "takes long: cargo test --test planted -- --ignored --nocapture"]
fn every_planted_defect_is_found_by_a_seed_of_the_gate() {
    let mut lost = Vec::new();
    for planted in PLANTED {
        match find(planted.name) {
            Some(seed) => println!("{}: found with seed {seed}", planted.name),
            None => lost.push(format!("{} ({})", planted.name, planted.what)),
        }
    }
    assert!(lost.is_empty(), "{SEEDS} seeds do not find: {}", lost.join("; "));
    assert!(PLANTED.len() >= 20);
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|of| of == "rs") => found.push(path),
            false => {}
        }
    }
}

#[test]
fn the_list_of_planted_defects_is_what_the_node_asks_for() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for part in ["model", "control", "lifecycle"] {
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
