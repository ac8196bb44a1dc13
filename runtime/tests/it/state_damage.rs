//! Damaged and older state files while tasks live: none is started twice, ended, or loses its
//! directory; the case is said; and after what the message tells to do everything is in order.
//!
//! ```text
//! live tasks, agent killed ─► file damaged ─► `state check` ─► agent started
//!   ├─ it gives up: the message says why ─► the file is put back ─► it owns all of them again
//!   └─ it runs: what it does not own is listed with the command that ends it ─► done ─► in order
//! ```
//! One in four kinds in a normal run, which ones goes by its seed; all with `OSTLER_SOAK=1`.
//! `OSTLER_DAMAGE` plays those with that text in their name.

mod kinds;
mod scene;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ostler_model::rng::Rng;
use tokio::task::JoinSet;

use kinds::{KINDS, Kind, Said};
use scene::{Scene, Start};

use crate::histories::model::{Life, Shape};
use crate::support::binary::ostler;
use crate::support::http::A_MOMENT;
use crate::support::system::eventually;

/// One of so many kinds is met in a normal run, another one of them in each.
const SHARE: usize = 4;
/// Scenes at a time.
const SIDE_BY_SIDE: usize = 3;

/// Words of which one is in whatever tells of damage.
const TELLING: &[&str] = &[
    "damaged",
    "DAMAGED",
    "older",
    "put aside",
    "cannot be read",
    "held back",
    "not a state file",
    "newer",
    "is gone",
    "was gone",
    "does not know",
    "did not know",
    "owned again",
    "is lost",
    "left by",
    "inconsistent",
    "quarantine",
    "not readable",
    "not a regular file",
    "Is a directory",
    "is not whole",
];

/// One kind, on `scene`; it may be used again when it comes back.
async fn case(kind: &Kind, mut scene: Scene, rng: &Rng) -> Result<(Start, Option<Scene>), String> {
    (kind.damage)(&scene.file(), &scene.copies, rng);
    let file = scene.file();
    let newest = scene.copies.newest.clone();
    let lossless = scene.records(&file).await == scene.records(&newest).await;
    let check = ["state".as_ref(), "check".as_ref(), "--file".as_ref(), file.as_os_str()];
    let checked = ostler(check).await;
    let started = scene.start().await;
    // What must not happen would happen now.
    ostler_model::clock::sleep(2 * A_MOMENT).await;
    let mut said = format!("{}{}{}", checked.stdout, checked.stderr, scene.said());
    if started == Start::Ready {
        let status = scene.ask(&["node", "status"]).await;
        said += &status.stdout;
        said += &status.stderr;
    }
    let wrong = scene.wrong();
    if !wrong.is_empty() {
        return Err(format!("{started:?}: {}\n{said}", wrong.join("\n")));
    }
    let to_be_said = kind.said == Said::Something && !lossless;
    if to_be_said && !TELLING.iter().any(|word| said.contains(word)) {
        return Err(format!("{started:?}: nothing is said of it:\n{said}"));
    }
    if started == Start::GaveUp {
        put_back(&mut scene).await.map_err(|wrong| format!("{started:?}, {wrong}\n{said}"))?;
    }
    if (started == Start::GaveUp || lossless) && scene.begin_again().await {
        return Ok((started, Some(scene)));
    }
    let orderly = orderly(&mut scene, &said).await;
    orderly.map_err(|wrong| format!("{started:?}, then {wrong}\n{said}"))?;
    Ok((started, None))
}

/// The copy of the whole file, as the message says.
async fn put_back(scene: &mut Scene) -> Result<(), String> {
    let file = scene.file();
    if file.is_dir() {
        std::fs::remove_dir(&file).unwrap();
    } else {
        let _gone = std::fs::remove_file(&file);
    }
    let journal = kinds::journal(&file);
    if journal.is_dir() {
        std::fs::remove_dir(&journal).unwrap();
    }
    scene::copy_both(&scene.copies.newest, &file);
    if scene.start().await != Start::Ready {
        return Err(format!("the whole file put back does not do: {}", scene.said()));
    }
    ostler_model::clock::sleep(A_MOMENT).await;
    match scene.wrong() {
        wrong if wrong.is_empty() => Ok(()),
        wrong => Err(format!("put back: {}", wrong.join("\n"))),
    }
}

/// Everything can be ended as it is told, and begun again, once.
async fn orderly(scene: &mut Scene, said: &str) -> Result<(), String> {
    let commands = said.lines().filter_map(|line| {
        let from = line.find("ostler state end-run ")?;
        let words = line[from..].split_whitespace().skip(1).take(3);
        Some(words.map(|word| word.trim_matches(['`', ',', '.', ')']).to_owned()).collect())
    });
    let commands: BTreeSet<Vec<String>> = commands.collect();
    for command in &commands {
        let args: Vec<&str> = command.iter().map(String::as_str).collect();
        if args.iter().skip(2).any(|word| word.parse::<u32>().is_err()) {
            continue;
        }
        let ended = scene.ask(&args).await;
        if ended.code != Some(0) {
            return Err(format!("{args:?} does not do: {ended:#?}"));
        }
    }
    for job in ["keeps", "late", "ends", "foreign"] {
        scene.ask(&["job", "stop", job]).await;
    }
    let pids: Vec<u32> = scene.live.iter().map(|run| run.pid).collect();
    let mut left = scene.alive();
    let all_end = ostler_model::clock::timeout(std::time::Duration::from_secs(30), async {
        while !left.is_empty() {
            ostler_model::clock::sleep(std::time::Duration::from_millis(50)).await;
            left = scene.alive();
        }
    });
    if all_end.await.is_none() {
        return Err(format!(
            "after {commands:?} and stopping all jobs there live {:#?} of {pids:?}",
            scene.alive()
        ));
    }
    let again = Shape {
        id: "keeps".to_owned(),
        batch: false,
        wasm: false,
        sticky: false,
        attempts: 0,
        life: Life::Runs { stop: std::time::Duration::ZERO },
    };
    scene.register(&again, 2, 9).await;
    eventually("it runs again", || scene.alive().len() == 2).await;
    scene.live.clear();
    if let Some(wrong) = scene.wrong().first() {
        return Err(wrong.clone());
    }
    scene.ask(&["job", "stop", "keeps"]).await;
    scene.leave().await;
    eventually("no process is left", || scene.site.processes().is_empty()).await;
    Ok(())
}

/// Kinds of this run, some of each sort.
fn wanted(seed: u64) -> Vec<&'static Kind> {
    if let Ok(only) = std::env::var("OSTLER_DAMAGE") {
        return KINDS.iter().filter(|kind| kind.name.contains(&only)).collect();
    }
    let soak = std::env::var_os("OSTLER_SOAK").is_some_and(|value| value == "1");
    let step = if soak { 1 } else { SHARE };
    let first = usize::try_from(seed).unwrap() % step;
    KINDS.iter().skip(first).step_by(step).collect()
}

/// Take one kind after the other.
async fn work(
    kinds: &Mutex<Vec<&'static Kind>>,
    seed: u64,
) -> Vec<(&'static str, Result<Start, String>)> {
    let (mut done, mut scene) = (Vec::new(), None);
    loop {
        let Some(kind) = kinds.lock().unwrap().pop() else { return done };
        let here = match scene.take() {
            Some(scene) => scene,
            None => Scene::new().await,
        };
        let result = case(kind, here, &Rng::from_seed(seed)).await.map(|(started, reusable)| {
            scene = reusable;
            started
        });
        match &result {
            Ok(started) => println!("{}: well, {started:?}", kind.name),
            Err(trouble) => println!("=== {} (seed {seed}): {trouble}", kind.name),
        }
        done.push((kind.name, result));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_or_older_state_file_costs_no_live_task() {
    let seed = Rng::system().number_below(1 << 30);
    let kinds = Arc::new(Mutex::new(wanted(seed)));
    println!("{} kinds, seed {seed}", kinds.lock().unwrap().len());
    let mut workers = JoinSet::new();
    for _ in 0..SIDE_BY_SIDE {
        let (kinds, control) = (Arc::clone(&kinds), tokio::runtime::Handle::current());
        workers.spawn_blocking(move || control.block_on(work(&kinds, seed)));
    }
    let mut wrong = Vec::new();
    while let Some(done) = workers.join_next().await {
        for (name, result) in done.expect("a worker ends") {
            if let Err(trouble) = result {
                wrong.push(format!("=== {name} (seed {seed}): {trouble}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} kinds went wrong\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn there_are_thirty_kinds_with_names_of_their_own() {
    let names: BTreeSet<&str> = KINDS.iter().map(|kind| kind.name).collect();
    assert!(names.len() == KINDS.len() && names.len() >= 30);
}
