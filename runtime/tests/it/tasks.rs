//! What a task gets, how it ends, and what is made of that: both drivers that run real programs,
//! and the one that pretends.

mod environment;
mod files;
mod life;

use std::collections::BTreeMap;

use ostler_model::alloc::ClientStatus;
use ostler_model::event::EventKind;

use crate::support::TestAgent;
use crate::support::jobs::{
    assert_successful, batch, events, exit, groups, shell, state, wasm, with_guests,
};

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
        LITERAL = "$${NOBODY}"
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
        assert_eq!(var("LITERAL"), "${NOBODY}");
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
        assert!(!vars.keys().any(|name| name.starts_with("CARGO")), "{printed}");
    }
    let wasm_vars = agent.stdout(&result, "w");
    let wasm_vars = variables(&wasm_vars);
    assert_eq!(wasm_vars["NOMAD_TASK_DIR"], "/local", "it sees no path of the node");
    assert!(!["PATH", "HOME", "USER"].iter().any(|name| wasm_vars.contains_key(name)));
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
        assert_eq!(
            agent.stdout(&result, task),
            "two words\n\nedge-7\n\"quoted\\\"\nnäher\n",
            "{task}"
        );
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_variable_stays_as_it_is_and_the_nearest_name_is_told() {
    let agent = TestAgent::start().await;
    let job = batch(&shell("t", "echo '${NOMAD_TASK_NAM}'", ""));
    let result = agent.run(&job).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "${NOMAD_TASK_NAM}\n");
    let told = &state(&result, "t").events;
    assert!(told.iter().any(|e| e.message.contains("NOMAD_TASK_NAME")), "{told:#?}");
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
    assert!(state(&result, "small").is_successful(), "{result:#?}");
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

fn mock(name: &str, config: &str, more: &str) -> String {
    format!(
        "task \"{name}\" {{\n driver = \"mock_driver\"\n config {{\n {config}\n }}\n {more}\n }}\n"
    )
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
            mock(
                "tries-again",
                "start_error = \"not yet\"\n start_error_recoverable = true",
                &restarts(2),
            ),
        ]))
        .await;
    assert!(state(&result, "runs").is_successful());
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
