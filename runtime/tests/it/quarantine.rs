//! Plugins that fail too often: quarantine, its end, and tasks that poison their driver.

use ostler_agent::{Agent, JobHandle, PluginState, Quarantine};
use ostler_guests::fixtures::{HOSTILE_DEVICE, HOSTILE_DRIVER};
use ostler_health::meter::PluginActivity;
use ostler_model::clock::timeout;
use ostler_model::device::HealthState;
use ostler_model::event::EventKind;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::system::eventually;
use crate::support::{PATIENCE, TestAgent, options, parse};

/// The hostile driver, with a failure policy.
fn driver(failure: &str) -> String {
    format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DRIVER}\"\n grants {{\n process = true\n }}\n \
         failure {{\n {failure}\n }}\n}}\n"
    )
}

/// The hostile device plugin, which traps in its fingerprint, with a failure policy.
fn device(failure: &str) -> String {
    format!(
        "plugin \"hostile\" {{\n file = \"{HOSTILE_DEVICE}\"\n config {{\n mode = \"trap\"\n }}\n \
         failure {{\n retry_first = \"100ms\"\n retry_max = \"200ms\"\n {failure}\n }}\n}}\n"
    )
}

/// A job with one task of the hostile driver, started again as often as said.
fn job(name: &str, start: &str, restarts: u32) -> String {
    format!(
        "job \"{name}\" {{\n type = \"batch\"\n group \"g\" {{\n restart {{\n attempts = {restarts}\n \
         interval = \"1h\"\n delay = \"10ms\"\n mode = \"fail\"\n }}\n task \"t\" {{\n driver = \
         \"hostile\"\n kill_timeout = \"1s\"\n config {{\n command = \"/bin/sleep\"\n args = \
         [\"1000\"]\n start = \"{start}\"\n }}\n resources {{\n cpu = 20\n memory = 32\n }}\n }}\n \
         }}\n}}\n"
    )
}

fn activity(agent: &ostler_agent::AgentHandle) -> PluginActivity {
    agent.plugin_status("hostile")[0].activity.clone().expect("it is in use")
}

fn quarantine(agent: &ostler_agent::AgentHandle) -> Option<Quarantine> {
    activity(agent).quarantine
}

fn health(agent: &TestAgent) -> (HealthState, String) {
    let node = agent.handle.node();
    let driver = node.drivers.get("hostile").map(|driver| driver.health.clone());
    let health = driver.or_else(|| node.device_plugins.get("hostile-device").cloned());
    health.map(|health| (health.state, health.reason)).unwrap_or_default()
}

/// A job whose task runs.
async fn running(agent: &TestAgent, text: &str) -> JobHandle {
    let job = agent.handle.submit(parse(text)).await.unwrap();
    for alloc in job.allocs() {
        let mut state = alloc.state();
        let runs = state.wait_for(|s| s.tasks.values().all(|t| t.started_at.is_some()));
        timeout(PATIENCE, runs).await.expect("it runs").unwrap();
    }
    job
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_fails_with_several_tasks_gets_no_more_and_what_it_runs_goes_on_and_ends() {
    let agent = TestAgent::with_config(&driver("strikes_max = 3\n quarantine = \"manual\"")).await;
    let before = running(&agent, &job("before", "", 0)).await;
    for name in ["a", "b", "c"] {
        assert!(!agent.run(&job(name, "trap", 0)).await.is_successful(), "{name}");
    }
    let begun = quarantine(&agent.handle).expect("it is in quarantine");
    assert!(begun.reason.contains("3 strikes within 10m"), "{begun:?}");
    eventually("the driver is unhealthy", || health(&agent).0 == HealthState::Unhealthy).await;
    let reason = health(&agent).1;
    assert!(reason.contains("in quarantine") && reason.contains("plugin lift hostile"), "{reason}");
    let refused = agent.handle.submit(parse(&job("late", "", 0))).await.map(drop).unwrap_err();
    assert!(refused.to_string().contains("in quarantine"), "{refused}");

    // What runs is not touched, and ends in order.
    assert!(before.allocs()[0].state().borrow().tasks["t"].finished_at.is_none());
    let stops =
        |agent: &TestAgent| activity(&agent.handle).calls.get("stop").map_or(0, |c| c.calls);
    before.stop("the end of the test").await;
    timeout(PATIENCE, before.wait()).await.expect("it ends");
    assert_eq!(stops(&agent), 1, "the driver was asked to stop it");

    let lifted = agent.handle.lift_plugin("hostile");
    assert_eq!(lifted[0].was, Some(begun));
    eventually("the driver is healthy", || health(&agent).0 == HealthState::Healthy).await;
    assert_eq!(activity(&agent.handle).state, PluginState::Running);
    let after = running(&agent, &job("after", "", 0)).await;
    after.stop("the end of the test").await;
    timeout(PATIENCE, after.wait()).await.expect("it ends");
    assert!(agent.handle.lift_plugin("no such").is_empty());
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_task_that_poisons_its_driver_fails_and_takes_the_driver_from_nobody() {
    let agent = TestAgent::with_config(&driver("strikes_max = 3")).await;
    let result = agent.run(&job("poison", "trap", 1_000)).await;
    let task = &result.allocs[0].state.tasks["t"];
    let said: Vec<&str> = task.events.iter().map(|event| &*event.message).collect();
    assert!(task.failed, "{said:?}");
    let last = task.events.iter().rfind(|event| event.kind == EventKind::DriverFailure).unwrap();
    assert!(last.message.contains("failed 3 times on this task"), "{said:?}");
    let trapped = activity(&agent.handle);
    assert_eq!(
        (trapped.calls["start"].failed, trapped.strikes, trapped.strikes_counted),
        (3, 3, 0)
    );
    let by_task: Vec<_> = trapped.strikes_by_task.into_iter().collect();
    assert_eq!(by_task, [("task t of group g of job poison".to_owned(), 3)]);
    assert_eq!((trapped.state, trapped.quarantine), (PluginState::Running, None));
    // Another task, and this one with another configuration.
    for text in [job("good", "", 0), job("poison", "", 0)] {
        let good = running(&agent, &text).await;
        good.stop("the end of the test").await;
        timeout(PATIENCE, good.wait()).await.expect("it ends");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_that_traps_is_tried_again_when_its_quarantine_is_over_and_relapses() {
    let agent = TestAgent::with_config(&device("strikes_max = 2\n quarantine = \"1s\"")).await;
    let relapsed = || quarantine(&agent.handle).is_some_and(|q| q.relapses >= 1);
    eventually("it relapses", relapsed).await;
    let quarantine = quarantine(&agent.handle).unwrap();
    let length = quarantine.until.unwrap().since(quarantine.since);
    assert_eq!(length.as_secs(), 1 << quarantine.relapses, "{quarantine:?}");
    assert!(quarantine.reason.contains("tried again"), "{quarantine:?}");
    let (state, reason) = health(&agent);
    assert_eq!(state, HealthState::Unhealthy);
    assert!(reason.contains("hostile"), "{reason}");
    let others = agent.handle.node().device_plugins["files"].state;
    assert_eq!(others, HealthState::Healthy);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_quarantine_outlives_the_agent_and_ends_with_another_file() {
    let config = |file: &str| {
        let text =
            device("strikes_max = 2\n quarantine = \"manual\"").replace(HOSTILE_DEVICE, file);
        ostler_jobspec::parse_agent_config(text.as_bytes(), "/test/ostler.hcl".as_ref()).unwrap()
    };
    let agent = TestAgent::with_config(&device("strikes_max = 2\n quarantine = \"manual\"")).await;
    eventually("it is in quarantine", || quarantine(&agent.handle).is_some()).await;
    let before = quarantine(&agent.handle);
    let file = agent.data.path().join("quarantine.json");
    eventually("it is on disk", || file.exists()).await;
    let data = agent.leave().await;

    let agent = Agent::start(options(data.path(), config(HOSTILE_DEVICE))).await.unwrap();
    assert_eq!(quarantine(&agent), before);
    assert!(
        agent.notices().iter().any(|n| n.contains("still in quarantine")),
        "{:?}",
        agent.notices()
    );
    agent.shutdown().await;
    drop(agent);

    // The same code with one more custom section is another component.
    let other = data.path().join("other.wasm");
    let mut bytes = std::fs::read(HOSTILE_DEVICE).unwrap();
    bytes.extend([0, 2, 1, b'x']);
    std::fs::write(&other, bytes).unwrap();
    let agent = Agent::start(options(data.path(), config(other.to_str().unwrap()))).await.unwrap();
    assert!(
        agent.notices().iter().any(|n| n.contains("has been replaced since")),
        "{:?}",
        agent.notices()
    );
    agent.shutdown().await;
}

#[tokio::test]
async fn the_command_line_shows_a_quarantine_and_lifts_it() {
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    let text = device("strikes_max = 2\n quarantine = \"manual\"");
    std::fs::write(&config, format!("{}{text}", crate::support::KEEPS)).unwrap();
    let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
    let shown = async || agent.ask(&["plugin", "status", "hostile"]).await;
    crate::support::system::until("it is shown", async || {
        shown().await.stdout.contains("until `ostler plugin lift hostile-device`")
    })
    .await;
    let shown = shown().await.stdout;
    assert!(shown.contains("state       quarantined\n"), "{shown}");
    assert!(shown.contains("because     2 strikes within 10m"), "{shown}");

    let unknown = agent.ask(&["plugin", "lift", "nothing"]).await;
    unknown.said(2, &["there is no plugin nothing; `ostler plugin status` lists them"]);
    assert!(!unknown.stderr.contains("PUT"), "{unknown:#?}");
    let lifted = agent.json(&["plugin", "lift", "--json", "hostile"]).await;
    assert_eq!(lifted[0]["name"], "hostile-device", "{lifted:#}");
    assert!(lifted[0]["was"]["reason"].as_str().unwrap().contains("2 strikes"), "{lifted:#}");
    let text = agent.ask(&["plugin", "lift", "files"]).await;
    assert_eq!(text.code, Some(0), "{text:#?}");
    assert!(text.stdout.contains("was not in quarantine"), "{text:#?}");
}
