//! Plugins whose calls never end, and what that costs the others: nothing.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ostler_guests::fixtures::{HOSTILE_BURGLAR, HOSTILE_DEVICE};
use ostler_model::clock::Stopwatch;
use ostler_model::config::AnswerGrants;
use ostler_model::grants::{CommandGrant, FileGrant, Grants};
use ostler_model::limits::{PLUGIN_CALLS_MAX, PluginLimits};
use ostler_plugin::Plugin;
use ostler_plugin::device::LoadedDevice;
use serde_json::{Value, json};

use super::arena::{Arena, Outcome, load, spec};

/// The deadline of the calls that hang.
const WALL: Duration = Duration::from_millis(400);
/// Calls that hang at once: more than all plugins together may have.
const MANY: usize = 140;

async fn plugin(
    arena: &Arena,
    file: &str,
    config: Value,
    files: &Path,
    wall: Duration,
) -> Arc<LoadedDevice> {
    let files = vec![FileGrant { path: files.to_owned(), write: false }];
    let commands = vec![CommandGrant { program: "/bin/echo".into(), args: vec![] }];
    let groups = Some(vec!["bench/gpu/*".to_owned()]);
    let answers = AnswerGrants { groups, ..AnswerGrants::default() };
    let grants = Grants { files, commands, answers, ..Grants::default() };
    let cpu = Duration::from_secs(60);
    let limits = PluginLimits { call_wall_max: wall, call_cpu_max: cpu, ..PluginLimits::default() };
    match load(&arena.plugins, spec("hangs", config, grants, limits), file).await {
        Ok(Plugin::Device(plugin)) => Arc::new(plugin),
        Ok(Plugin::Driver(_)) => panic!("a driver"),
        Err(error) => panic!("{error}"),
    }
}

/// Ask the hanging plugin so often at once; meanwhile its neighbour, which has a grant and so runs on
/// the threads for calls, is asked again and again.
async fn ask_at_once(arena: &Arena, hanging: Arc<LoadedDevice>, calls: usize) -> Outcome {
    let config = json!({ "mode": "cards" });
    let dir = arena.empty("of-the-neighbour");
    let patient = Duration::from_secs(20);
    let neighbour = plugin(arena, HOSTILE_DEVICE, config, &dir, patient).await;
    let watch = Stopwatch::start();
    let asked: Vec<_> = (0..calls)
        .map(|_| {
            let hanging = Arc::clone(&hanging);
            tokio::spawn(async move { hanging.fingerprint().await })
        })
        .collect();
    let mut answers = 0;
    while answers < 20 || asked.iter().any(|call| !call.is_finished()) {
        if let Err(error) = neighbour.fingerprint().await {
            return Outcome { escaped: Some(error.to_string()), ..Outcome::default() };
        }
        answers += 1;
    }
    let mut said = Vec::new();
    for call in asked {
        said.push(call.await.unwrap().unwrap_err().to_string());
    }
    // One after the other: a place is waited for as long as a call may take.
    let past = Some(watch.elapsed().saturating_sub(2 * WALL));
    let strikes = neighbour.meter().report().strikes;
    let escaped = (strikes > 0).then(|| format!("the neighbour has {strikes} strikes"));
    said.sort_unstable();
    said.dedup();
    Outcome { past, escaped, said: said.join("; ") }
}

pub async fn many_calls(arena: &Arena) -> Outcome {
    let dir = arena.empty("hangs");
    let hanging = plugin(arena, HOSTILE_DEVICE, json!({ "mode": "sleep" }), &dir, WALL).await;
    let outcome = ask_at_once(arena, Arc::clone(&hanging), MANY).await;
    let strikes = hanging.meter().report().strikes;
    // Those that never ran are no strikes, those that did are.
    assert!((1..=2 * PLUGIN_CALLS_MAX).contains(&strikes), "{strikes}");
    outcome
}

/// A file whose opening takes as long as on a disk that hangs: it has a lease, which the kernel takes
/// away from its holder only after a while.
struct Leased(File);

impl Leased {
    /// `None` where the file system has no leases.
    #[expect(unsafe_code, reason = "no crate here knows leases")]
    fn new(path: &Path) -> Option<Self> {
        std::fs::write(path, "held").unwrap();
        let file = File::open(path).unwrap();
        // SAFETY: no handler is set: the signal by which the holder is told is ignored.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        // SAFETY: the descriptor is open; a lease is no memory.
        let leased = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
        (leased == 0).then_some(Self(file))
    }
}

/// Each call sits in a file that does not open, long after its deadline.
pub async fn files(arena: &Arena) -> Outcome {
    let dir = arena.empty("hangs");
    let path = dir.join("file");
    let Some(Leased(held)) = Leased::new(&path) else { return Outcome::of("no leases here") };
    let config = json!({ "mode": "open-files", "paths": [path] });
    let hanging = plugin(arena, HOSTILE_BURGLAR, config, &dir, WALL).await;
    let outcome = ask_at_once(arena, hanging, 3 * PLUGIN_CALLS_MAX).await;
    drop(held);
    outcome
}
