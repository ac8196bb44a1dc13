//! When tasks start, and how they are ended.

use std::path::PathBuf;

use ostler_agent::JobHandle;
use ostler_model::event::EventKind;
use ostler_model::ids::TaskName;
use ostler_model::task::TaskStatus;

use super::mock;
use crate::support::jobs::{assert_successful, batch, events, exit, lifecycle, shell, state, wasm};
use crate::support::system::{eventually, pid_in, runs};
use crate::support::{PATIENCE, TestAgent, parse};

async fn submitted(agent: &TestAgent, job: &str) -> JobHandle {
    agent.handle.submit(parse(job)).await.unwrap_or_else(|e| panic!("{e}"))
}

fn dir(job: &JobHandle) -> PathBuf {
    job.allocs()[0].dir()
}

async fn until_running(job: &JobHandle, task: &str) {
    let name = TaskName::new(task).unwrap();
    let states = job.allocs()[0].state();
    eventually(&format!("{task} runs"), || {
        states.borrow().tasks.get(&name).is_some_and(|t| t.status == TaskStatus::Running)
    })
    .await;
}

async fn ended(job: &JobHandle) -> ostler_agent::JobResult {
    ostler_model::clock::timeout(PATIENCE, job.wait()).await.expect("the job ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_task_gets_its_signal_and_then_is_killed() {
    let agent = TestAgent::start().await;
    let script = |on_term: &str| {
        format!(
            "trap '{on_term}' TERM; trap '' INT; echo $$ > $NOMAD_TASK_DIR/pid; \
             while :; do sleep 0.05; done"
        )
    };
    let signal =
        |timeout: &str| format!("kill_signal = \"SIGTERM\"\n kill_timeout = \"{timeout}\"");
    let job = submitted(
        &agent,
        &batch(
            &[
                shell("polite", &script("echo bye; exit 3"), &signal("25s")),
                shell("stubborn", &script(""), &signal("200ms")),
                wasm("spins", "guest:toolbox", &["spin"], ""),
            ]
            .concat(),
        ),
    )
    .await;
    let mut pids = Vec::new();
    for task in ["polite", "stubborn"] {
        pids.push(pid_in(&dir(&job).join(task).join("local/pid")).await);
    }
    // A process runs a moment before its driver has answered and the task counts as running.
    for task in ["polite", "stubborn", "spins"] {
        until_running(&job, task).await;
    }
    job.stop("enough").await;
    let result = ended(&job).await;
    assert_eq!(exit(&result, "polite").exit_code, 3);
    assert_eq!(agent.stdout(&result, "polite"), "bye\n");
    assert_eq!(exit(&result, "stubborn").signal, 9);
    assert_eq!(exit(&result, "spins").signal, 9);
    for task in ["polite", "stubborn", "spins"] {
        use EventKind::{Killed, Killing, Received, Started, TaskSetup, Terminated};
        assert_eq!(
            events(&result, task),
            [Received, TaskSetup, Started, Killing, Terminated, Killed],
            "{task}"
        );
        assert!(!state(&result, task).failed, "{task}: to be stopped is no failure");
    }
    assert!(!pids.into_iter().any(runs));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_leader_ends_the_group() {
    let agent = TestAgent::start().await;
    let wait = "until test -e $NOMAD_ALLOC_DIR/data/up; do sleep 0.02; done";
    let result = agent
        .run(&batch(
            &[
                shell("leader", wait, "leader = true"),
                shell("follower", "touch $NOMAD_ALLOC_DIR/data/up; sleep 1000", ""),
                wasm("spins", "guest:toolbox", &["spin"], ""),
            ]
            .concat(),
        ))
        .await;
    assert_successful(&result);
    assert_eq!(exit(&result, "leader").exit_code, 0);
    for task in ["follower", "spins"] {
        assert!(events(&result, task).contains(&EventKind::LeaderDead), "{task}");
        assert_eq!(state(&result, task).status, TaskStatus::Dead);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_run_in_the_order_of_their_lifecycle() {
    let agent = TestAgent::start().await;
    let note = |what: &str| format!("echo {what} >> $NOMAD_ALLOC_DIR/data/order");
    let noted = |what: &str| {
        format!("until grep -q {what} $NOMAD_ALLOC_DIR/data/order; do sleep 0.02; done")
    };
    // The main task ends only when poststart and the sidecar were there, so all of them must be.
    let main = [note("main"), noted("poststart"), noted("sidecar"), note("main-ends")].join("\n");
    let result = agent
        .run(&batch(
            &[
                shell("last", &note("poststop"), &lifecycle("poststop", false)),
                shell("main", &main, ""),
                shell("after", &note("poststart"), &lifecycle("poststart", false)),
                shell(
                    "beside",
                    &[note("sidecar"), "sleep 1000".into()].join("\n"),
                    &lifecycle("prestart", true),
                ),
                shell("first", &note("prestart"), &lifecycle("prestart", false)),
            ]
            .concat(),
        ))
        .await;
    assert_successful(&result);
    let path =
        agent.handle.data_dir().join(format!("allocs/{}/alloc/data/order", result.allocs[0].id));
    let order = std::fs::read_to_string(path).unwrap();
    let place = |what: &str| {
        order.lines().position(|line| line == what).unwrap_or_else(|| panic!("{what} in {order}"))
    };
    assert!(place("prestart") < place("main"), "{order}");
    // Started, not yet heard of: what a busy machine lets run first is not the agent's to say.
    let started = |task: &str| state(&result, task).started_at.unwrap();
    assert!(started("main") <= started("after"), "{order}");
    assert!(place("main-ends") < place("poststop"), "{order}");
    assert_eq!(order.lines().count(), 6, "each ran once: {order}");
    assert!(events(&result, "beside").contains(&EventKind::MainTasksDead));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_prestart_task_keeps_the_main_task_from_starting() {
    let agent = TestAgent::start().await;
    let result = agent
        .run(&batch(
            &[
                shell("first", "exit 9", &lifecycle("prestart", false)),
                shell("main", "echo never", ""),
            ]
            .concat(),
        ))
        .await;
    assert_eq!(result.exit_code(), 9);
    assert!(!events(&result, "main").contains(&EventKind::Started));
    assert_eq!(state(&result, "main").status, TaskStatus::Dead);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mock_task_that_does_not_listen_is_killed_after_its_timeout() {
    let agent = TestAgent::start().await;
    let job =
        submitted(&agent, &batch(&mock("deaf", "kill_after = \"1h\"", "kill_timeout = \"100ms\"")))
            .await;
    until_running(&job, "deaf").await;
    job.stop("enough").await;
    let result = ended(&job).await;
    assert!(events(&result, "deaf").contains(&EventKind::Killed), "{result:#?}");
    agent.stop().await;
}
