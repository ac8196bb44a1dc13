//! The agent ends before its tasks: by crash, or with them. Nothing runs that nobody knows of.
//!
//! Agents that must die are this test binary again, told by a variable to play one.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use super::*;

const ROLE: &str = "OSTLER_TEST_ROLE";
pub(super) const FILE: &str = "OSTLER_TEST_FILE";

/// This binary again, running only the test `name`, in a role.
pub(super) fn again(name: &str, role: &str, file: &Path) -> Child {
    #[allow(clippy::disallowed_methods, reason = "the test binary plays an agent")]
    let mut binary = std::process::Command::new(std::env::current_exe().unwrap());
    binary
        .args([name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(FILE, file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(super) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Print the identity for the outer test to read.
fn show(identity: &ProcessIdentity) {
    println!("\nidentity {}", serde_json::to_string(identity).unwrap());
}

fn shown(agent: &mut Child) -> ProcessIdentity {
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let line = lines.map(Result::unwrap).find_map(|line| {
        line.strip_prefix("identity ").map(|json| serde_json::from_str(json).unwrap())
    });
    line.expect("the agent said whom it started")
}

/// Play an agent: start a task, and stay until killed.
async fn play(role: &str) {
    let host = host_with(role == "embedded");
    let file = std::env::var(FILE).unwrap();
    let mut case = sh(&format!("echo hi > {file}; exec sleep 1000"));
    if role == "recording" {
        case.spec.record_identity = Arc::new(|identity| {
            show(&identity);
            Box::pin(std::future::pending())
        });
    }
    let id = start(&host, &case.spec).await.unwrap();
    until("user code runs", || Path::new(&file).exists()).await;
    show(&host.identity(&case.spec.run_id, &id).unwrap());
    std::future::pending().await
}

/// Start an agent in `role`, kill it without warning once it has said whom it started.
fn crash(name: &str, role: &str, file: &Path) -> ProcessIdentity {
    let mut agent = again(name, role, file);
    let identity = shown(&mut agent);
    assert!(identity::is_alive(&identity));
    agent.kill().unwrap();
    agent.wait().unwrap();
    identity
}

/// Remove the cgroup a killed agent could not.
async fn tidy(identity: &ProcessIdentity) {
    for _ in 0..100 {
        identity::reap_leftover(identity).unwrap();
        if cgroup_is_gone(identity) {
            return;
        }
        clock_sleep().await;
    }
    panic!("the cgroup stays");
}

#[tokio::test]
async fn an_agent_killed_while_recording_leaves_no_process_and_no_user_code_has_run() {
    const NAME: &str = "an_agent_killed_while_recording_leaves_no_process_and_no_user_code_has_run";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("made");
    let identity = crash(NAME, "recording", &file);
    until("the held child is gone", || !identity::is_alive(&identity)).await;
    assert!(!file.exists());
    tidy(&identity).await;
}

#[tokio::test]
async fn a_task_outlives_a_killed_agent_and_the_next_one_finds_and_ends_it() {
    const NAME: &str = "a_task_outlives_a_killed_agent_and_the_next_one_finds_and_ends_it";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let identity = crash(NAME, "plain", &dir.path().join("made"));
    assert!(identity::is_alive(&identity));
    assert_eq!(identity::reap_leftover(&identity).unwrap(), identity::ReapOutcome::Killed);
    until("the task is gone", || !identity::is_alive(&identity)).await;
    tidy(&identity).await;
}

#[tokio::test]
async fn a_task_of_an_embedded_agent_dies_with_it() {
    const NAME: &str = "a_task_of_an_embedded_agent_dies_with_it";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let identity = crash(NAME, "embedded", &dir.path().join("made"));
    until("the task is gone", || !identity::is_alive(&identity)).await;
    tidy(&identity).await;
}

#[tokio::test]
async fn a_leftover_is_killed_only_when_pid_start_and_boot_agree() {
    let (host, case) = (Mode::Here.host(), sh("sleep 1000 & wait"));
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let identity = ProcessIdentity { cgroup: None, ..host.identity(run, &id).unwrap() };
    for stranger in [
        ProcessIdentity { start_ticks: identity.start_ticks + 1, ..identity.clone() },
        ProcessIdentity { boot_id: "an earlier boot".to_owned(), ..identity.clone() },
        ProcessIdentity { pid: u32::MAX, ..identity.clone() },
    ] {
        assert_eq!(identity::reap_leftover(&stranger).unwrap(), identity::ReapOutcome::Gone);
    }
    assert!(identity::is_alive(&identity));
    assert_eq!(identity::reap_leftover(&identity).unwrap(), identity::ReapOutcome::Killed);
    assert_eq!(host.wait(run, &id).await.signal, Some(9));
    assert_eq!(identity::reap_leftover(&identity).unwrap(), identity::ReapOutcome::Gone);
}

#[tokio::test]
async fn embedded_children_die_with_the_host_that_started_them() {
    let host = host_with(true);
    let case = sh("exec sleep 1000");
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(&case.spec.run_id, &id).unwrap();
    assert!(identity::is_alive(&identity));
    drop(host);
    until("the child is gone", || !identity::is_alive(&identity)).await;
    until("its cgroup is gone", || cgroup_is_gone(&identity)).await;
}

/// In a process of its own, because other tests open descriptors and children at the same time.
#[test]
fn two_hundred_starts_leave_no_descriptor_and_no_zombie() {
    const NAME: &str = "two_hundred_starts_leave_no_descriptor_and_no_zombie";
    if role().is_none() {
        let output = again(NAME, "counting", Path::new("")).wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(String::from_utf8_lossy(&output.stderr).contains("200 starts"));
        return;
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let host = Mode::Here.host();
        to_end(&host, &sh("exit 0").spec).await;
        let before = open_descriptors();
        for round in 0..200 {
            let mut case = sh(match round % 2 {
                0 => "echo hi",
                _ => "sleep 1000 >/dev/null 2>&1 & kill -9 $$",
            });
            if round % 10 == 0 {
                case.spec.command = "/no/such/program".to_owned();
                start(&host, &case.spec).await.unwrap_err();
                host.forget_run(&case.spec.run_id);
            } else {
                to_end(&host, &case.spec).await;
            }
        }
        // The first start's own may still be closing when they are counted.
        until("descriptors are as before", || open_descriptors() <= before).await;
        assert_eq!(children(), "", "no child is left, dead or alive");
    });
    eprintln!("200 starts");
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Children of all threads of this process, the reaped excluded.
fn children() -> String {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("children")).ok())
        .collect()
}
