//! What is said of how a task ended: in the API, by `ostler alloc status` and by `ostler run`.
//!
//! ```text
//! way to end                     code            said
//! exit, proc_exit                its own         nothing more
//! signal                         128 + number    killed by signal N
//! trap                           134             trapped: …
//! memory limit                   137             out of memory at N MiB
//! its driver or host cannot tell 255             why not
//! it did not start               none            why not
//! ```

use serde_json::{Value, json};

use crate::support::DataDir;
use crate::support::agent_process::AgentProcess;
use crate::support::binary::run;
use crate::support::jobs::{SOON_HEALTHY, batch, groups, lifecycle, shell, wasm};
use crate::support::system::until;

const SMALL: &str = "resources {\n cpu = 20\n memory = 32\n }";

fn mock(name: &str, config: &str) -> String {
    format!("task \"{name}\" {{\n driver = \"mock_driver\"\n config {{\n {config}\n }}\n }}\n")
}

/// Task, code, signal, and what its `Terminated` event says.
const ENDS: &[(&str, i32, u32, &str)] = &[
    ("exits", 7, 0, "Exit Code: 7"),
    ("killed", 137, 9, "Exit Code: 137, Signal: 9, Exit Message: \"killed by signal 9\""),
    ("aborted", 134, 6, "killed by signal 6"),
    ("module", 42, 0, "Exit Code: 42"),
    ("high", 200, 0, "Exit Code: 200"),
    ("minus", 255, 0, "Exit Code: 255"),
    ("component", 1, 0, "Exit Code: 1"),
    ("panics", 134, 0, "Exit Code: 134, Exit Message: \"trapped: unreachable"),
    ("panics", 134, 0, "it wrote to standard error: thread 'main'"),
    ("overflows", 134, 0, "Exit Message: \"trapped: the stack of"),
    ("large", 137, 0, "Exit Code: 137, Exit Message: \"out of memory at 32 MiB"),
    ("large-p1", 137, 0, "Exit Code: 137, Exit Message: \"out of memory at 32 MiB"),
    ("signalled", 139, 11, "killed by signal 11"),
    ("says", 1, 0, "Exit Code: 1, Exit Message: \"it broke\""),
];

fn all() -> String {
    groups([
        shell("exits", "exit 7", ""),
        shell("killed", "kill -KILL $$", ""),
        shell("aborted", "kill -ABRT $$", ""),
        wasm("module", "guest:toolbox-p1", &["exit", "42"], ""),
        wasm("high", "guest:toolbox-p1", &["exit", "200"], ""),
        wasm("minus", "guest:toolbox-p1", &["exit", "-1"], ""),
        wasm("component", "guest:toolbox", &["exit", "42"], ""),
        wasm("panics", "guest:toolbox", &["panic"], ""),
        wasm("overflows", "guest:toolbox-p1", &["recurse"], ""),
        wasm("large", "guest:toolbox", &["alloc", "64"], SMALL),
        wasm("large-p1", "guest:toolbox-p1", &["alloc", "64"], SMALL),
        mock("signalled", "run_for = \"1ms\"\n exit_signal = 11"),
        mock("says", "run_for = \"1ms\"\n exit_err_msg = \"it broke\""),
    ])
}

/// The state of a task, once it is dead.
async fn dead(agent: &AgentProcess, job: &str, name: &str) -> (String, Value) {
    let mut found = None;
    until(&format!("{name} is dead"), async || {
        let allocs = agent.allocs(job).await;
        let of = allocs.iter().find(|alloc| alloc["TaskStates"][name]["State"] == "dead");
        found = of.map(|alloc| {
            (alloc["ID"].as_str().unwrap().to_owned(), alloc["TaskStates"][name].clone())
        });
        found.is_some()
    })
    .await;
    found.unwrap()
}

fn event<'a>(task: &'a Value, kind: &str) -> &'a Value {
    let mut events = task["Events"].as_array().unwrap().iter();
    events.rfind(|event| event["Type"] == kind).unwrap_or_else(|| panic!("no {kind} in {task:#}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_failed_shows_code_0_and_each_event_says_what_ended_the_task() {
    let agent = AgentProcess::start().await;
    assert_eq!(agent.submit(&all()).await.code, Some(0));
    for (name, code, signal, text) in ENDS {
        let (alloc, task) = dead(&agent, "j", name).await;
        assert_eq!(task["Failed"], true, "{name}: {task:#}");
        let exit = &task["LastExit"];
        assert_eq!((&exit["ExitCode"], &exit["Signal"]), (&json!(code), &json!(signal)), "{name}");
        let ended = event(&task, "Terminated");
        let said = ended["DisplayMessage"].as_str().unwrap();
        assert!(said.contains(text), "{name}: {said}");
        assert_eq!(ended["ExitCode"], json!(code), "{name}");
        assert_eq!(ended["Details"]["exit_code"], json!(code.to_string()), "{name}");
        let shown = agent.ask(&["alloc", "status", &alloc]).await;
        let whole = shown.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(whole.contains(text), "{name}: {shown:#?}");
    }
}

#[tokio::test]
async fn the_last_line_of_a_run_says_what_the_task_failed_of() {
    for (task, code, line) in [
        (shell("t", "kill -KILL $$", ""), 137, "failed: killed by signal 9, exit code 137"),
        (
            wasm("t", "guest:toolbox", &["alloc", "64"], SMALL),
            137,
            "failed: out of memory at 32 MiB",
        ),
        (wasm("t", "guest:toolbox-p1", &["recurse"], ""), 134, "failed: trapped: the stack of"),
        (mock("t", "start_error = \"no room\""), 1, "failed: no room"),
        (mock("t", "run_for = \"1ms\"\n exit_err_msg = \"it broke\""), 1, "failed: it broke"),
        (
            shell("t", "", "").replace("/bin/sh", "/nowhere/redis-server"),
            1,
            "failed: command \"/nowhere/redis-server\" was not found; looked for: ",
        ),
    ] {
        let data = DataDir::new();
        let file = data.path().join("job.hcl");
        std::fs::write(&file, batch(&task)).unwrap();
        let ended = run(data.path(), &file).await;
        ended.said(code, &[line]);
        let last = ended.stderr.lines().last().unwrap();
        assert!(last.contains(line), "{ended:#?}");
    }
}

#[tokio::test]
async fn a_job_that_fails_names_the_task_and_why_in_its_last_line() {
    let agent = AgentProcess::start().await;
    let job = batch(&shell("t", "", "").replace("/bin/sh", "/no/such/program"));
    let ended = agent.run(&job).await;
    ended.said(
        1,
        &["task t of j.g0[0] failed: command \"/no/such/program\" was not found; looked for: "],
    );
    let last = ended.stderr.lines().last().unwrap();
    assert!(last.contains("/no/such/program"), "{ended:#?}");
}

#[tokio::test]
async fn a_task_between_two_runs_is_not_called_never_started() {
    let agent = AgentProcess::start().await;
    let restart = "restart {\n attempts = 1\n delay = \"1h\"\n interval = \"2h\"\n }";
    let tasks =
        [shell("first", "exit 0", &lifecycle("prestart", false)), shell("t", "exit 3", restart)];
    let job = format!("job \"j\" {{\n group \"g\" {{\n {}\n }}\n}}\n", tasks.concat());
    assert_eq!(agent.submit(&job).await.code, Some(0));
    let mut said = Value::Null;
    until("it waits", async || {
        let allocs = agent.allocs("j").await;
        let alloc = allocs.first().cloned().unwrap_or_default();
        let waits = alloc["TaskStates"]["t"]["Restarts"] == 1;
        said = alloc;
        waits && said["ClientStatus"] == "pending"
    })
    .await;
    assert_eq!(said["ClientDescription"], "Tasks wait to be started again", "{said:#}");
}

#[tokio::test]
async fn what_the_agent_kills_after_its_timeout_shows_the_code_of_a_kill() {
    let agent = AgentProcess::start().await;
    let deaf = "trap '' INT TERM; echo up; while :; do sleep 0.05; done";
    let tasks = [
        shell("native", deaf, "kill_timeout = \"200ms\""),
        wasm("spins", "guest:toolbox", &["spin"], "kill_timeout = \"200ms\""),
    ];
    let job = crate::support::jobs::with_guests(&format!(
        "job \"j\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {}\n }}\n}}\n",
        tasks.concat()
    ));
    agent.run(&job).await.said(0, &["job j runs"]);
    let alloc = agent.alloc("j").await;
    let up = async || agent.ask(&["alloc", "logs", &alloc, "native"]).await.stdout == "up\n";
    until("its trap is set", up).await;
    agent.ask(&["job", "stop", "j"]).await.said(0, &["is stopped"]);
    for name in ["native", "spins"] {
        let (_, task) = dead(&agent, "j", name).await;
        assert_eq!(task["Failed"], false, "{task:#}");
        let exit = &task["LastExit"];
        assert_eq!((&exit["ExitCode"], &exit["Signal"]), (&137.into(), &9.into()), "{task:#}");
    }
}
