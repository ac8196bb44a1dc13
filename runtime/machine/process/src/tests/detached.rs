//! Processes that go on without the agent.

use std::fs::File;
use std::io::Read as _;

use super::*;
use crate::detached_process::{DetachedProcess, DetachedSpec, ProcessEnd, start_detached};

/// Start `program` with its end of a connection. Its standard error goes to a file.
fn started(
    program: &str,
    argument: &str,
    place: &str,
) -> (DetachedProcess, OwnedFd, tempfile::NamedTempFile) {
    let errors = tempfile::NamedTempFile::new().unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let spec = DetachedSpec {
        program: std::path::Path::new(program),
        argument,
        place: std::path::Path::new(place),
        name: "a-worker",
        stdin: theirs.into(),
        stderr: errors.reopen().unwrap(),
        cgroup: None,
    };
    (start_detached(spec).unwrap(), ours.into(), errors)
}

/// The output of a script in a shell that was started as a detached process.
async fn told(script: &str) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("exec 1>&2\n{script}\n")).unwrap();
    let (shell, _connection, mut errors) = started("/bin/sh", file.path().to_str().unwrap(), "/");
    assert_eq!(shell.wait_for_end().await.unwrap(), ProcessEnd::Exited(0));
    let mut text = String::new();
    errors.as_file_mut().read_to_string(&mut text).unwrap();
    text
}

#[tokio::test]
async fn how_it_ended_is_told_to_everybody_who_asks_and_nothing_of_it_is_left() {
    let (cat, connection, _errors) = started("/bin/cat", "-", "/dev/null");
    let pid = cat.pid;
    let twice = async { tokio::join!(cat.wait_for_end(), cat.wait_for_end()) };
    drop(connection);
    let (first, second) = twice.await;
    assert_eq!((first.unwrap(), second.unwrap()), (ProcessEnd::Exited(0), ProcessEnd::Exited(0)));
    assert_eq!(cat.wait_for_end().await.unwrap(), ProcessEnd::Exited(0));
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "it is a zombie");

    let (sleep, _connection, _errors) = started("/bin/sleep", "1000", "0");
    sleep.kill().unwrap();
    let how = sleep.wait_for_end().await.unwrap();
    assert_eq!(
        (how, how.to_string().as_str()),
        (ProcessEnd::Killed(9), "killed by signal 9 (SIGKILL)")
    );
    sleep.kill().unwrap();
}

#[tokio::test]
async fn it_takes_nothing_of_the_agent_along_but_three_descriptors() {
    let inherited = File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
    let script =
        "for fd in /proc/self/fd/*; do [ -e $fd ] && echo ${fd##*/}; done; env | cut -d= -f1; pwd";
    let told = told(script).await;
    let mut lines: Vec<&str> = told.lines().collect();
    // The shell reads its script by one more; what it sets itself is not ours.
    lines.retain(|line| !matches!(*line, "10" | "PWD" | "SHLVL" | "_" | "OLDPWD"));
    lines.retain(|line| line.parse() != Ok(255));
    assert_eq!(lines, ["0", "1", "2", "/"], "{told}");
    drop(inherited);
}

#[tokio::test]
async fn it_leads_a_session_of_its_own_with_all_signals_and_all_files_the_system_allows() {
    // This process ignores SIGPIPE, as every program of this language does.
    // The shell reads by itself: while it starts a program it blocks signals.
    let signals = "while read name set; do case $name in Sig[BI][lg][kn]:) echo $set;; esac; done";
    let signals = format!("{signals} < /proc/$$/status");
    let asked = format!("echo $$; cut -d' ' -f6 /proc/$$/stat; ulimit -Sn; ulimit -Hn; {signals}");
    let told = told(&asked).await;
    let lines: Vec<&str> = told.lines().collect();
    let [pid, session, soft, hard, blocked, ignored] = lines[..] else { panic!("{told}") };
    let none = "0000000000000000";
    assert_eq!((pid, soft, blocked, ignored), (session, hard, none, none));
}

#[tokio::test]
async fn a_later_agent_finds_the_same_process_and_no_other() {
    let (sleep, _connection, _errors) = started("/bin/sleep", "1000", "0");
    assert!(DetachedProcess::open_existing(sleep.pid, sleep.start_ticks + 1).unwrap().is_none());
    let found = DetachedProcess::open_existing(sleep.pid, sleep.start_ticks).unwrap().unwrap();
    assert!(!found.has_same_program());
    let me = identity::read(std::process::id()).unwrap();
    assert!(
        DetachedProcess::open_existing(me.pid, me.start_ticks).unwrap().unwrap().has_same_program()
    );
    found.kill().unwrap();
    assert_eq!(found.wait_for_end().await.unwrap(), ProcessEnd::Killed(9));
    assert!(DetachedProcess::open_existing(sleep.pid, sleep.start_ticks).unwrap().is_none());
    // Reaped by the other: nothing is left to say how.
    assert_eq!(sleep.wait_for_end().await.unwrap(), ProcessEnd::Unknown);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_an_error_and_no_process() {
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let spec = DetachedSpec {
        program: std::path::Path::new("/no/such/program"),
        argument: "__worker",
        place: std::path::Path::new("/"),
        name: "a-worker",
        stdin: theirs.into(),
        stderr: tempfile::tempfile().unwrap(),
        cgroup: None,
    };
    assert_eq!(start_detached(spec).unwrap_err().kind(), std::io::ErrorKind::NotFound);
}

#[tokio::test]
async fn it_is_in_its_cgroup_from_the_start_and_the_cgroup_goes_after_it() {
    let host = host_with(false);
    let name = format!("worker-{}", std::process::id());
    let Some(cgroup) = host.create_worker_cgroup(&name, Some(64 << 20), 20).unwrap() else {
        eprintln!("skipped: {:?}", host.cgroup_status().unavailable);
        return;
    };
    let (_ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let spec = DetachedSpec {
        program: std::path::Path::new("/bin/sleep"),
        argument: "1000",
        place: std::path::Path::new("0"),
        name: "a-worker",
        stdin: theirs.into(),
        stderr: tempfile::tempfile().unwrap(),
        cgroup: Some(&cgroup),
    };
    let sleep = start_detached(spec).unwrap();
    // As a later agent does, which has nothing but the process.
    let found = host.find_worker_cgroup(&sleep).unwrap().expect("it is not in its cgroup");
    drop(cgroup);
    assert!(!found.saw_oom_kill());
    found.set_cpu_weight(500).unwrap();
    sleep.kill().unwrap();
    sleep.wait_for_end().await.unwrap();
    found.remove().await;
    let parent = host.cgroup_status().parent.clone().unwrap();
    let mut names = std::fs::read_dir(parent).unwrap().flatten().map(|entry| entry.file_name());
    let mine = format!("{name}-");
    assert!(!names.any(|found| found.to_str().unwrap().starts_with(&mine)));
}
