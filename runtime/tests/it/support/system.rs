//! What the machine says: processes, and conditions that come true.

use std::path::Path;
use std::time::Duration;

use super::PATIENCE;

/// Wait until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            ostler::clock::sleep(Duration::from_millis(20)).await;
        }
    };
    ostler::clock::timeout(PATIENCE, wait).await.unwrap_or_else(|| panic!("never: {what}"));
}

/// The same for a condition that is asked for.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async { while !condition().await {} };
    ostler::clock::timeout(PATIENCE, wait).await.unwrap_or_else(|| panic!("never: {what}"));
}

/// Does a process with this id run? A zombie does not.
pub fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X'])
    })
}

/// The id by which the host knows a process: its pid and its start time.
pub fn host_process_id(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let start_ticks = after_name.split_whitespace().nth(19).unwrap();
    format!("{pid}-{start_ticks}")
}

/// Processes other than this one that have `dir` in their environment or arguments: tasks, and
/// children of an agent on that directory.
pub fn processes_of(dir: &Path) -> Vec<u32> {
    let dir = dir.to_string_lossy().into_owned();
    let names = |file: String| {
        std::fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(&dir))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            names(format!("/proc/{pid}/environ")) || names(format!("/proc/{pid}/cmdline"))
        })
        .filter(|pid| runs(*pid))
        .collect()
}

/// The number a task wrote to a file, once it is there.
pub async fn pid_in(file: &Path) -> u32 {
    let mut found = None;
    // Read once: a task that starts again empties the file before it writes.
    eventually(&format!("a pid in {}", file.display()), || {
        found = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok());
        found.is_some()
    })
    .await;
    found.unwrap()
}
