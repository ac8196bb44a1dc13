//! What the machine says: processes, and conditions that come true.

use std::path::Path;
use std::time::Duration;

use super::PATIENCE;

/// Write a file that everybody reads, whatever the tests' umask is.
pub fn write_for_all(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    ostler_testing::files::open_to_all(path).unwrap();
}

/// Wait until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            ostler_model::clock::sleep(Duration::from_millis(20)).await;
        }
    };
    ostler_model::clock::timeout(PATIENCE, wait).await.unwrap_or_else(|| panic!("never: {what}"));
}

/// The same for a condition that is asked for.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let wait = async { while !condition().await {} };
    ostler_model::clock::timeout(PATIENCE, wait).await.unwrap_or_else(|| panic!("never: {what}"));
}

/// Does a process with this id run? A zombie does not.
pub fn runs(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with(['Z', 'X'])
    })
}

/// Kill a process that may have ended already.
pub fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let _ended_already =
        pid.map(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL));
}

/// The id by which the host knows a process: its pid and its start time.
pub fn host_process_id(pid: u32) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit(')').next().unwrap();
    let start_ticks = after_name.split_whitespace().nth(19).unwrap();
    format!("{pid}-{start_ticks}")
}

/// Processes other than this one that have `dir` in their environment or arguments, or mounts of
/// their own of it: tasks, and children of an agent on that directory.
pub fn processes_of(dir: &Path) -> Vec<u32> {
    let name = dir.to_string_lossy().into_owned();
    let names = |file: String| {
        std::fs::read(file).is_ok_and(|text| String::from_utf8_lossy(&text).contains(&name))
    };
    std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| *pid != std::process::id())
        .filter(|pid| {
            names(format!("/proc/{pid}/environ"))
                || names(format!("/proc/{pid}/cmdline"))
                || is_isolated(*pid) && names(format!("/proc/{pid}/mountinfo"))
        })
        .filter(|pid| runs(*pid))
        .collect()
}

/// Those of them with a view of processes of their own: isolated tasks.
pub fn isolated_processes_of(dir: &Path) -> Vec<u32> {
    processes_of(dir).into_iter().filter(|pid| is_isolated(*pid)).collect()
}

/// Does it see other processes than this one does?
fn is_isolated(pid: u32) -> bool {
    let namespace = |of: String| std::fs::read_link(format!("/proc/{of}/ns/pid")).ok();
    namespace(pid.to_string()).is_some_and(|its| Some(its) != namespace("self".to_owned()))
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

/// Detach what is mounted below a directory: who was killed left the secrets of its tasks so.
pub fn detach_mounts(below: &Path) {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split_whitespace().nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(below)) {
        let _gone = rustix::mount::unmount(place, rustix::mount::UnmountFlags::DETACH);
    }
}
