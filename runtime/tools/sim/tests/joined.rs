//! Nodes that servers have, and clusters of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::atomic::{AtomicU64, Ordering};

use ostler_sim::joined::plan::JoinedPlan;
use ostler_sim::joined::play;
use ostler_sim::scale::report::{PhaseFigures, ScaleReport};
use ostler_sim::scale::{self, ScalePlan};

/// Those of defects that were mended, of the node or of what is expected of it.
const MENDED: &[u64] = &[138, 147, 175, 179, 218, 257, 336, 456];
/// Played at each run.
const SEEDS: u64 = 10;

/// A directory in memory where there is one: nothing of a node is to outlive its play.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn fails(seed: u64) -> Option<String> {
    let failure = play::play(&JoinedPlan::from_seed(seed), directory().path()).err()?;
    Some(format!("seed {seed}: {}; again with: ostler-sim replay {seed} --joined", failure.what))
}

#[test]
fn nodes_run_what_their_servers_want_once_and_tell_them_whatever_happens_to_the_way() {
    let seeds: Vec<u64> = (0..SEEDS).chain(MENDED.iter().copied()).collect();
    let next = AtomicU64::new(0);
    let failed: Vec<String> = std::thread::scope(|scope| {
        let player = || {
            let mut failed = Vec::new();
            while let Ok(at) = usize::try_from(next.fetch_add(1, Ordering::Relaxed)) {
                let Some(seed) = seeds.get(at) else { break };
                failed.extend(fails(*seed));
            }
            failed
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let players: Vec<_> = (0..cores).map(|_| scope.spawn(player)).collect();
        players.into_iter().flat_map(|player| player.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

fn cluster() -> ScaleReport {
    let plan = ScalePlan { nodes: 30, allocs: 300, seed: 1 };
    scale::play(&plan, directory().path()).unwrap()
}

fn calls(phase: &PhaseFigures, method: &str) -> u64 {
    phase.calls.get(method).map_or(0, |volume| volume.calls)
}

#[test]
fn a_cluster_costs_its_servers_what_the_page_on_scale_says_and_no_node_is_silent() {
    let report = cluster();
    let [registration, idle, placing, running, drain, fail_over] = &report.phases[..] else {
        panic!("{:?}", report.phases)
    };
    assert_eq!(calls(registration, "Node.Register"), 30);
    assert_eq!(registration.dials, 30, "one connection each");
    for quiet in [idle, running] {
        assert_eq!(calls(quiet, "Node.UpdateAlloc"), 0);
        assert_eq!(calls(quiet, "Alloc.GetAllocs"), 0);
        assert_eq!(quiet.dials, 0);
        // A question is held for five minutes.
        assert!(calls(quiet, "Node.GetClientAllocs") <= 3 * 30);
    }
    for busy in [placing, drain] {
        assert!(
            calls(busy, "Alloc.GetAllocs") <= 2 * 30,
            "what is placed at once is pulled at once"
        );
        assert!(calls(busy, "Node.UpdateAlloc") <= 3 * 30, "and told together");
    }
    for phase in [registration, idle, placing, running, drain] {
        // The way of a call, and no more.
        assert!(phase.late < std::time::Duration::from_secs(1), "{phase:?}");
    }
    assert!(fail_over.late < std::time::Duration::from_secs(40), "{fail_over:?}");
    // Bytes and connects are not compared: the connections' own signs of life go by the machine's clock.
    let counted = |report: &ScaleReport| -> Vec<Vec<(String, u64)>> {
        let phases = report.phases.iter().take(5);
        let calls = |phase: &PhaseFigures| {
            phase.calls.iter().map(|(method, volume)| (method.clone(), volume.calls)).collect()
        };
        phases.map(calls).collect()
    };
    assert_eq!(counted(&report), counted(&cluster()), "the same seed plays the same");
}

/// The page says how its figures are made: that works, and prints what the page shows.
#[test]
#[allow(clippy::disallowed_methods, reason = "it is typed")]
fn the_command_of_the_page_on_scale_prints_what_it_shows() {
    let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/scale.md");
    let page = std::fs::read_to_string(page).unwrap();
    let typed = page.lines().find_map(|line| line.strip_prefix("$ ")).unwrap();
    let typed = typed.strip_prefix("cargo run --release -p ostler-sim -- ").unwrap();
    let dir = directory();
    let picture = dir.path().join("scale.svg");
    let mut words: Vec<String> = typed.split_whitespace().map(str::to_owned).collect();
    for (option, value) in
        [("--nodes", "4"), ("--allocs", "8"), ("--svg", picture.to_str().unwrap())]
    {
        let at = words.iter().position(|word| word == option).unwrap();
        words[at + 1] = value.to_owned();
    }
    let ran = std::process::Command::new(env!("CARGO_BIN_EXE_ostler-sim")).args(&words).output();
    let ran = ran.unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let printed = String::from_utf8(ran.stdout).unwrap();
    let (phases, methods) = (" silence    late", " calls bytes out  bytes in");
    for heading in printed.lines().filter(|line| line.ends_with(phases) || line.ends_with(methods))
    {
        assert!(page.contains(heading), "{heading}");
    }
    let names = |text: &str| -> Vec<String> {
        let rows = text.lines().filter(|line| line.contains("Node.") || line.contains("Alloc."));
        // In a fail-over it depends on their number which calls nodes come to.
        let mut rows: Vec<String> = rows
            .filter(|line| !line.starts_with("fail-over"))
            .filter(|line| line.split_whitespace().count() == 5)
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
            .collect();
        rows.sort();
        rows
    };
    assert_eq!(names(&printed), names(&page));
    let svg = std::fs::read_to_string(picture).unwrap();
    assert!(svg.starts_with("<svg ") && svg.contains("fail-over") && svg.ends_with("</svg>\n"));
}
