//! What a task gets, how it ends, and what is made of that: both drivers that run real programs,
//! and the one that pretends.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use ostler::agent::JobHandle;
use ostler::model::alloc::ClientStatus;
use ostler::model::event::EventKind;
use ostler::model::ids::TaskName;
use ostler::model::task::TaskStatus;

use crate::support::jobs::{
    assert_successful, batch, events, exit, groups, lifecycle, shell, state, wasm, with_guests,
};
use crate::support::system::{eventually, pid_in, runs};
use crate::support::{PATIENCE, TestAgent, parse};

const NODE: &str = r#"
  name       = "edge-7"
  datacenter = "north"
  meta {
    rack = "r1"
  }
"#;

fn variables(printed: &str) -> BTreeMap<&str, &str> {
    printed.lines().filter_map(|line| line.split_once('=')).collect()
}

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

async fn ended(job: &JobHandle) -> ostler::agent::JobResult {
    ostler::clock::timeout(PATIENCE, job.wait()).await.expect("the job ends")
}

#[tokio::test(flavor = "multi_thread")]
async fn both_kinds_of_tasks_get_the_same_variables_and_none_of_the_agents() {
    let agent = TestAgent::with_config(NODE).await;
    let more = r#"
      meta {
        owner = "task"
      }
      env {
        WHERE   = "${node.unique.name} ${node.datacenter} ${meta.rack} ${attr.kernel.name}"
        WHO     = "${NOMAD_TASK_NAME} of ${NOMAD_JOB_NAME}[${NOMAD_ALLOC_INDEX}]"
        LITERAL = "$${HOME}"
        PORT    = "${NOMAD_PORT_web}"
      }
    "#;
    let job = with_guests(&format!(
        r#"job "shop" {{
             type        = "batch"
             datacenters = ["north"]
             meta {{
               owner = "job"
               tier  = "gold"
             }}
             group "front" {{
               network {{
                 port "web" {{}}
                 port "admin" {{
                   to = 8080
                 }}
               }}
               {}
               {}
             }}
           }}"#,
        wasm("w", "guest:toolbox", &["env"], more),
        shell("n", "/usr/bin/env", more),
    ));
    let result = agent.run(&job).await;
    assert_successful(&result);
    for task in ["w", "n"] {
        let printed = agent.stdout(&result, task);
        let vars = variables(&printed);
        let var = |name: &str| *vars.get(name).unwrap_or_else(|| panic!("{name} in {printed}"));
        assert_eq!(var("WHERE"), "edge-7 north r1 linux");
        assert_eq!(var("WHO"), format!("{task} of shop[0]"));
        assert_eq!(var("LITERAL"), "${HOME}");
        assert_eq!(var("NOMAD_META_owner"), "task");
        assert_eq!(var("NOMAD_META_TIER"), "gold");
        assert_eq!(var("NOMAD_GROUP_NAME"), "front");
        assert_eq!(var("NOMAD_ALLOC_NAME"), "shop.front[0]");
        assert_eq!(var("NOMAD_ALLOC_ID"), result.allocs[0].id.to_string());
        assert_eq!(var("NOMAD_DC"), "north");
        assert_eq!((var("NOMAD_CPU_LIMIT"), var("NOMAD_MEMORY_LIMIT")), ("20", "64"));
        assert_eq!(var("NOMAD_PORT_web"), var("PORT"));
        assert_eq!(var("NOMAD_ADDR_web"), format!("127.0.0.1:{}", var("PORT")));
        assert_eq!(var("NOMAD_ALLOC_PORT_admin"), "8080");
        assert_ne!(var("NOMAD_PORT_web"), var("NOMAD_PORT_admin"));
        assert!(!vars.keys().any(|name| name.starts_with("CARGO") || *name == "HOME"), "{printed}");
    }
    let wasm_vars = agent.stdout(&result, "w");
    assert_eq!(variables(&wasm_vars)["NOMAD_TASK_DIR"], "/local", "it sees no path of the node");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_arrive_as_written_in_every_kind_of_task() {
    let agent = TestAgent::with_config(NODE).await;
    let args = ["args", "two words", "", "${node.unique.name}", "\"quoted\\\"", "näher"];
    let result = agent
        .run(&batch(&[
            wasm("component", "guest:toolbox", &args, ""),
            wasm("module", "guest:toolbox-p1", &args, ""),
            shell("native", "for a in 'two words' '' ${node.unique.name} '\"quoted\\\"' näher; do echo \"$a\"; done", ""),
        ].concat()))
        .await;
    assert_successful(&result);
    for task in ["component", "module", "native"] {
        assert_eq!(agent.stdout(&result, task), "two words\n\nedge-7\n\"quoted\\\"\nnäher\n", "{task}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_variable_fails_the_task_with_the_nearest_name() {
    let agent = TestAgent::start().await;
    let job = batch(&shell("t", "echo ${NOMAD_TASK_NAM}", ""));
    let result = agent.run(&job).await;
    assert_eq!(result.allocs[0].state.client_status, ClientStatus::Failed);
    let told = &state(&result, "t").events;
    assert!(told.iter().any(|e| e.message.contains("NOMAD_TASK_NAME")), "{told:#?}");
    assert!(!events(&result, "t").contains(&EventKind::Started));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_beyond_its_memory_is_ended_as_out_of_memory() {
    let agent = TestAgent::start().await;
    let limit = "resources {\n cpu = 20\n memory = 32\n }";
    let result = agent
        .run(&groups([
            wasm("small", "guest:toolbox", &["alloc", "8"], limit),
            wasm("large", "guest:toolbox", &["alloc", "64"], limit),
            wasm("large-p1", "guest:toolbox-p1", &["alloc", "64"], limit),
        ]))
        .await;
    assert!(state(&result, "small").successful(), "{result:#?}");
    assert_eq!(agent.stdout(&result, "small"), format!("{}\n", 8 << 20));
    for task in ["large", "large-p1"] {
        assert!(exit(&result, task).oom_killed, "{:#?}", state(&result, task));
        assert!(state(&result, task).failed);
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_and_signals_are_kept() {
    let agent = TestAgent::start().await;
    let result = agent
        .run(&groups([
            shell("native", "exit 7", ""),
            shell("signalled", "kill -KILL $$", ""),
            wasm("module", "guest:toolbox-p1", &["exit", "42"], ""),
            wasm("component", "guest:toolbox", &["exit", "42"], ""),
            wasm("panics", "guest:toolbox", &["panic"], ""),
            wasm("overflows", "guest:toolbox-p1", &["recurse"], ""),
        ]))
        .await;
    assert_eq!(exit(&result, "native").exit_code, 7);
    assert_eq!(exit(&result, "signalled").signal, 9);
    assert_eq!(exit(&result, "module").exit_code, 42);
    assert_eq!(exit(&result, "component").exit_code, 1, "a component only fails");
    for task in ["panics", "overflows"] {
        assert!(exit(&result, task).error.is_some(), "{:#?}", exit(&result, task));
    }
    assert!(agent.log(&result, "panics", "stderr").contains("as asked"));
    assert!(result.allocs.iter().all(|a| a.state.client_status == ClientStatus::Failed));
    assert_eq!(result.exit_code(), 7, "the first one's");
    agent.stop().await;
}

/// Fails until its third run; counts its runs in the shared directory.
const THIRD_TIME_LUCKY: &str = r#"
  f=$NOMAD_ALLOC_DIR/data/runs
  echo run >> $f
  echo "run $(wc -l < $f)"
  test $(wc -l < $f) -ge 3
"#;

fn restarts(attempts: u32) -> String {
    format!(
        "restart {{\n attempts = {attempts}\n interval = \"1h\"\n delay = \"10ms\"\n mode = \"fail\"\n }}"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_fails_is_started_again_until_it_succeeds() {
    let agent = TestAgent::start().await;
    let result = agent.run(&batch(&shell("t", THIRD_TIME_LUCKY, &restarts(3)))).await;
    assert_successful(&result);
    assert_eq!(state(&result, "t").restarts, 2);
    assert_eq!(agent.stdout(&result, "t"), "run 1\nrun 2\nrun 3\n");
    use EventKind::{Received, Restarting, Started, TaskSetup, Terminated};
    assert_eq!(
        events(&result, "t"),
        [
            Received, TaskSetup, Started, Terminated, Restarting, Started, Terminated, Restarting,
            Started, Terminated
        ]
    );
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_fails_for_good_when_its_attempts_are_used_up() {
    let agent = TestAgent::start().await;
    let result = agent.run(&batch(&shell("t", THIRD_TIME_LUCKY, &restarts(1)))).await;
    assert_eq!(result.exit_code(), 1);
    assert_eq!(agent.stdout(&result, "t"), "run 1\nrun 2\n");
    assert!(state(&result, "t").failed);
    assert_eq!(events(&result, "t").last(), Some(&EventKind::NotRestarting));
    agent.stop().await;
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
    let signal = |timeout: &str| {
        format!("kill_signal = \"SIGTERM\"\n kill_timeout = \"{timeout}\"")
    };
    let job = submitted(
        &agent,
        &batch(&[
            shell("polite", &script("echo bye; exit 3"), &signal("25s")),
            shell("stubborn", &script(""), &signal("200ms")),
            wasm("spins", "guest:toolbox", &["spin"], ""),
        ].concat()),
    )
    .await;
    let mut pids = Vec::new();
    for task in ["polite", "stubborn"] {
        pids.push(pid_in(&dir(&job).join(task).join("local/pid")).await);
    }
    until_running(&job, "spins").await;
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
        .run(&batch(&[
            shell("leader", wait, "leader = true"),
            shell("follower", "touch $NOMAD_ALLOC_DIR/data/up; sleep 1000", ""),
            wasm("spins", "guest:toolbox", &["spin"], ""),
        ].concat()))
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
    let noted =
        |what: &str| format!("until grep -q {what} $NOMAD_ALLOC_DIR/data/order; do sleep 0.02; done");
    // The main task ends only when poststart and the sidecar were there, so all of them must be.
    let main = [note("main"), noted("poststart"), noted("sidecar"), note("main-ends")].join("\n");
    let result = agent
        .run(&batch(&[
            shell("last", &note("poststop"), &lifecycle("poststop", false)),
            shell("main", &main, ""),
            shell("after", &note("poststart"), &lifecycle("poststart", false)),
            shell("beside", &[note("sidecar"), "sleep 1000".into()].join("\n"), &lifecycle("prestart", true)),
            shell("first", &note("prestart"), &lifecycle("prestart", false)),
        ].concat()))
        .await;
    assert_successful(&result);
    let path = agent.handle.data_dir().join(format!("allocs/{}/alloc/data/order", result.allocs[0].id));
    let order = std::fs::read_to_string(path).unwrap();
    let place = |what: &str| {
        order.lines().position(|line| line == what).unwrap_or_else(|| panic!("{what} in {order}"))
    };
    assert!(place("prestart") < place("main"), "{order}");
    assert!(place("main") < place("poststart"), "{order}");
    assert!(place("main-ends") < place("poststop"), "{order}");
    assert_eq!(order.lines().count(), 6, "each ran once: {order}");
    assert!(events(&result, "beside").contains(&EventKind::MainTasksDead));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_prestart_task_keeps_the_main_task_from_starting() {
    let agent = TestAgent::start().await;
    let result = agent
        .run(&batch(&[
            shell("first", "exit 9", &lifecycle("prestart", false)),
            shell("main", "echo never", ""),
        ].concat()))
        .await;
    assert_eq!(result.exit_code(), 9);
    assert!(!events(&result, "main").contains(&EventKind::Started));
    assert_eq!(state(&result, "main").status, TaskStatus::Dead);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_allocation_directory_has_its_shape_and_secrets_are_private() {
    let agent = TestAgent::start().await;
    let result = agent
        .run(&batch(&[
            wasm("writes", "guest:toolbox", &["write", "/alloc/data/note", "from", "wasm"], &lifecycle("prestart", false)),
            wasm("lists", "guest:toolbox", &["ls", "/alloc"], ""),
            shell("native", "cat $NOMAD_ALLOC_DIR/data/note; pwd; ls $NOMAD_SECRETS_DIR $NOMAD_TASK_DIR", ""),
            wasm("keeps", "guest:toolbox", &["write", "/secrets/key", "42"], ""),
        ].concat()))
        .await;
    assert_successful(&result);
    let root = agent.handle.data_dir().join(format!("allocs/{}", result.allocs[0].id));
    let native = root.join("native");
    assert_eq!(agent.stdout(&result, "lists"), "data\nlogs\ntmp\n");
    assert!(agent.stdout(&result, "native").starts_with(&format!("from wasm{}\n", native.display())));
    let mode = |path: &str| std::fs::metadata(root.join(path)).unwrap().permissions().mode() & 0o7777;
    for path in ["alloc", "alloc/data", "alloc/logs", "alloc/tmp", "native", "native/local", "native/tmp"] {
        assert_eq!(mode(path), 0o755, "{path}");
    }
    assert_eq!((mode("native/secrets"), mode("keeps/secrets")), (0o700, 0o700));
    assert_eq!(std::fs::read_to_string(root.join("keeps/secrets/key")).unwrap(), "42");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_sees_its_own_directories_and_nothing_else() {
    let agent = TestAgent::start().await;
    let link = "ln -s /etc $NOMAD_ALLOC_DIR/data/etc; echo private > $NOMAD_SECRETS_DIR/key";
    let other = shell("other", link, &lifecycle("prestart", false));
    let tries = [
        ("absolute", "/etc/passwd"),
        ("upwards", "/alloc/../../../../../../etc/passwd"),
        ("link", "/alloc/data/etc/passwd"),
        ("sibling", "/alloc/../other/secrets/key"),
    ];
    let groups_of = |(name, path): (&str, &str)| {
        let cat = |name, guest| other.clone() + &wasm(name, guest, &["cat", path], "");
        [cat(name, "guest:toolbox"), cat(&format!("{name}-p1"), "guest:toolbox-p1")]
    };
    let result = agent.run(&groups(tries.into_iter().flat_map(groups_of))).await;
    assert!(state(&result, "other").successful());
    for (name, _) in tries {
        for name in [name.to_owned(), format!("{name}-p1")] {
            assert_eq!(exit(&result, &name).exit_code, 1, "{name}");
            assert_eq!(agent.stdout(&result, &name), "", "{name}");
            assert!(agent.log(&result, &name, "stderr").starts_with("toolbox:"), "{name}");
        }
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn logs_rotate_at_line_ends_and_only_the_newest_files_stay() {
    let agent = TestAgent::start().await;
    let logs = "logs {\n max_files = 2\n max_file_size = 1\n }";
    // 50,000 lines of 64 bytes: a little over three files.
    let result = agent
        .run(&batch(&[
            wasm("w", "guest:toolbox", &["write-lines", "50000", "63"], logs),
            shell("n", "seq -f '%063.0f' 1 50000", logs),
        ].concat()))
        .await;
    assert_successful(&result);
    let dir = agent.handle.data_dir().join(format!("allocs/{}/alloc/logs", result.allocs[0].id));
    for task in ["w", "n"] {
        let mut files: Vec<String> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name.starts_with(&format!("{task}.stdout.")))
            .collect();
        files.sort();
        assert_eq!(files, [format!("{task}.stdout.2"), format!("{task}.stdout.3")]);
        let read = |name: &String| std::fs::read_to_string(dir.join(name)).unwrap();
        let (full, last) = (read(&files[0]), read(&files[1]));
        assert_eq!(full.len(), 1 << 20, "{task}");
        for text in [&full, &last] {
            assert!(text.lines().all(|line| line.len() == 63), "{task}: only whole lines");
        }
        assert_eq!(last.len(), 50_000 * 64 - 3 * (1 << 20), "{task}: nothing is lost at the end");
    }
    assert!(std::fs::read_to_string(dir.join("n.stdout.3")).unwrap().ends_with("50000\n"));
    agent.stop().await;
}

fn mock(name: &str, config: &str, more: &str) -> String {
    format!("task \"{name}\" {{\n driver = \"mock_driver\"\n config {{\n {config}\n }}\n {more}\n }}\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mock_driver_pretends_as_it_is_told() {
    let agent = TestAgent::start().await;
    let result = agent
        .run(&groups([
            mock("runs", "run_for = \"1ms\"", ""),
            mock("fails", "run_for = \"1ms\"\n exit_code = 3", ""),
            mock("signalled", "run_for = \"1ms\"\n exit_signal = 11", ""),
            mock("says", "run_for = \"1ms\"\n exit_err_msg = \"it broke\"", ""),
            mock("refuses", "start_error = \"no room\"", ""),
            mock("tries-again", "start_error = \"not yet\"\n start_error_recoverable = true", &restarts(2)),
        ]))
        .await;
    assert!(state(&result, "runs").successful());
    assert_eq!(exit(&result, "fails").exit_code, 3);
    assert_eq!(exit(&result, "signalled").signal, 11);
    assert_eq!(exit(&result, "says").error.as_deref(), Some("it broke"));
    let failures = |task: &str| {
        events(&result, task).iter().filter(|kind| **kind == EventKind::DriverFailure).count()
    };
    assert_eq!(failures("refuses"), 1, "{:#?}", state(&result, "refuses"));
    assert_eq!(failures("tries-again"), 3, "{:#?}", state(&result, "tries-again"));
    let told = &state(&result, "refuses").events;
    assert!(told.iter().any(|event| event.message.contains("no room")), "{told:#?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mock_task_that_does_not_listen_is_killed_after_its_timeout() {
    let agent = TestAgent::start().await;
    let job = submitted(
        &agent,
        &batch(&mock("deaf", "kill_after = \"1h\"", "kill_timeout = \"100ms\"")),
    )
    .await;
    until_running(&job, "deaf").await;
    job.stop("enough").await;
    let result = ended(&job).await;
    assert!(events(&result, "deaf").contains(&EventKind::Killed), "{result:#?}");
    agent.stop().await;
}
