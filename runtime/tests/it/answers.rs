//! What a plugin answers makes the host act only as far as its grants go, proved through a serving
//! agent: devices, drivers, names.

use std::path::Path;

use ostler_agent::PluginStatus;
use ostler_guests::fixtures::{DRIVER_MOCK, HOSTILE_DEVICE, HOSTILE_DRIVER, HOSTILE_WANTS_SOCKETS};
use ostler_model::device::HealthState;

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, batch, shell, state, wasm};

const THING: &str =
    "resources {\n cpu = 20\n memory = 32\n device \"hostile/thing\" {\n count = 1\n }\n }";

/// The hostile device plugin in a block of this name, with what it answers and is granted.
fn device(name: &str, answer: &str, grants: &str) -> String {
    format!(
        "plugin \"{name}\" {{\n file = \"{HOSTILE_DEVICE}\"\n config {{\n answer = {answer}\n }}\n \
         grants {{\n {grants}\n }}\n}}\n"
    )
}

/// What the agent has of a plugin that it does not use.
fn refused(agent: &TestAgent, name: &str, source: &str) -> String {
    let mut plugins = agent.handle.plugins().iter();
    let found = plugins.find(|entry| entry.name == name && entry.source.contains(source));
    match found.map(|entry| entry.status.clone()) {
        Some(PluginStatus::Refused(reason)) => reason,
        other => panic!("{name} of {source:?} is {other:?}"),
    }
}

fn path_of(dir: &Path) -> String {
    dir.canonicalize().unwrap().display().to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_plugin_without_grants_gives_tasks_nothing_of_the_node() {
    let node = tempfile::tempdir().unwrap();
    std::fs::write(node.path().join("secret"), "of the node").unwrap();
    let at = path_of(node.path());
    for (answer, why) in [
        (
            format!("{{ mounts = [[\"{at}\", \"/local/x\"]] }}"),
            format!("a mount of {at} (writable)"),
        ),
        ("{ mounts = [[\"/\", \"/local/x\"]] }".to_owned(), "a mount of / (writable)".to_owned()),
        ("{ env = [[\"LD_PRELOAD\", \"/x\"]] }".to_owned(), "LD_PRELOAD".to_owned()),
        (
            "{ env = [[\"HOSTILE_PLUGIN_PATH\", \"/x\"]] }".to_owned(),
            "task_env = [\\\"HOSTILE_PLUGIN_PATH\\\"]".to_owned(),
        ),
        ("{ nodes = [[\"/dev/mem\", \"rw\"]] }".to_owned(), "/dev/mem".to_owned()),
    ] {
        let agent = TestAgent::with_config(&device("hostile", &answer, "")).await;
        let job = batch(&wasm("t", "guest:toolbox", &["ls", "/local/x"], THING));
        let result = agent.run(&job).await;
        assert!(!result.is_successful(), "{answer}");
        let events = format!("{:?}", state(&result, "t").events);
        assert!(events.contains(&why), "{answer}: {events}");
        assert!(!events.contains("Started"), "nothing of the task ran: {events}");
        agent.stop().await;
    }
    assert_eq!(std::fs::read_to_string(node.path().join("secret")).unwrap(), "of the node");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_refusal_says_is_what_grants_it() {
    let node = tempfile::tempdir().unwrap();
    std::fs::write(node.path().join("device"), "I am it\n").unwrap();
    let at = path_of(node.path());
    let answer = format!("{{ mounts = [[\"{at}\", \"/local/x\"]], env = [[\"IT\", \"x\"]] }}");
    let grants = format!("mounts \"{at}\" {{ write = true }}\n task_env = [\"IT\"]");
    let job = batch(&wasm("t", "guest:toolbox", &["cat", "/local/x/device"], THING));

    let agent = TestAgent::with_config(&device("hostile", &answer, "")).await;
    let result = agent.run(&job).await;
    let events = format!("{:?}", state(&result, "t").events).replace("\\\"", "\"");
    for line in grants.lines() {
        assert!(events.contains(line.trim()), "{line} in {events}");
    }
    agent.stop().await;

    let agent = TestAgent::with_config(&device("hostile", &answer, &grants)).await;
    let result = agent.run(&job).await;
    assert_successful(&result);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_in_a_granted_directory_shows_a_task_nothing_else() {
    let (assigned, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(other.path().join("secret"), "of the node").unwrap();
    std::os::unix::fs::symlink(other.path(), assigned.path().join("link")).unwrap();
    let at = path_of(assigned.path());
    let answer = format!("{{ mounts = [[\"{at}/link\", \"/local/x\"]] }}");
    let grants = format!("mounts \"{at}\" {{ write = true }}");
    let agent = TestAgent::with_config(&device("hostile", &answer, &grants)).await;
    let job = batch(&wasm("t", "guest:toolbox", &["cat", "/local/x/secret"], THING));
    let result = agent.run(&job).await;
    assert!(!result.is_successful());
    let events = format!("{:?}", state(&result, "t").events);
    assert!(events.contains("which leads to"), "{events}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_shown_in_the_place_of_a_tasks_own_directories() {
    let node = tempfile::tempdir().unwrap();
    let at = path_of(node.path());
    for place in ["/local", "/alloc", "/secrets", "/tmp", "/", "/etc/ld.so.preload"] {
        let answer = format!("{{ mounts = [[\"{at}\", \"{place}\"]] }}");
        let grants = format!("mounts \"{at}\" {{ write = true }}");
        let agent = TestAgent::with_config(&device("hostile", &answer, &grants)).await;
        let result = agent.run(&batch(&wasm("t", "guest:toolbox", &["ls", "/"], THING))).await;
        assert!(!result.is_successful(), "{place}");
        let events = format!("{:?}", state(&result, "t").events);
        assert!(events.contains("cannot be given to the task"), "{place}: {events}");
        agent.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_announces_no_group_of_another_however_early_it_comes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("one"), "I am one\n").unwrap();
    let at = path_of(dir.path());
    let files = format!(
        "plugin \"files\" {{\n config {{\n dir = \"{at}\"\n }}\n grants {{\n files \"{at}\" {{}}\n \
         mounts \"{at}\" {{}}\n }}\n}}\n"
    );
    // It comes first by name.
    let thief = device("a-thief", "{ groups = [[\"ostler\", \"file\", \"files\"]] }", "");
    let agent = TestAgent::with_config(&format!("{files}{thief}")).await;
    let node = agent.handle.node();
    let group = node.devices.iter().find(|group| group.key.kind == "file").unwrap();
    assert_eq!(group.plugin.as_str(), "files");
    let health = &node.device_plugins["hostile-device"];
    assert_eq!(health.state, HealthState::Unhealthy);
    assert!(health.reason.contains("groups = [\"ostler/file/*\"]"), "{}", health.reason);
    agent.stop().await;

    let thief = device("a-thief", "{ groups = [[\"a-thief\", \"file\", \"files\"]] }", "");
    let agent = TestAgent::with_config(&format!("{files}{thief}")).await;
    let node = agent.handle.node();
    let vendors: Vec<_> = node.devices.iter().map(|group| group.key.vendor.as_str()).collect();
    assert!(vendors.contains(&"a-thief") && vendors.contains(&"ostler"), "{vendors:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_plugin_directory_takes_no_name_by_a_higher_version() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["exec.wasm", "wasm.wasm", "mock.wasm"] {
        std::fs::copy(DRIVER_MOCK, dir.path().join(name)).unwrap();
    }
    std::fs::copy(HOSTILE_DRIVER, dir.path().join("thief.wasm")).unwrap();
    std::fs::copy(HOSTILE_DEVICE, dir.path().join("gpus.wasm")).unwrap();
    let config = format!(
        "plugin_dir = \"{}\"\nplugin \"thief\" {{\n config {{\n name = \"exec\"\n version = \
         \"99.0.0\"\n }}\n grants {{\n process = true\n }}\n}}\nplugin \"gpus\" {{\n config {{\n name = \
         \"nvidia\"\n version = \"99.0.0\"\n }}\n}}\n",
        dir.path().display()
    );
    let agent = TestAgent::with_config(&config).await;
    for name in ["exec", "wasm", "mock"] {
        let reason = refused(&agent, name, ".wasm");
        assert!(reason.contains("does not replace by itself"), "{name}: {reason}");
        assert!(reason.contains(&format!("plugin \"{name}\" {{\n  file = ")), "{name}: {reason}");
    }
    let reason = refused(&agent, "thief", "thief.wasm");
    assert!(reason.contains("the name exec of a driver"), "{reason}");
    assert!(reason.contains("driver = \"exec\""), "{reason}");
    let reason = refused(&agent, "gpus", "gpus.wasm");
    assert!(reason.contains("which is the name of another plugin"), "{reason}");
    let result = agent.run(&batch(&shell("t", "echo built in", ""))).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "built in\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_that_says_so_gives_a_name_away() {
    let config = format!(
        "plugin \"thief\" {{\n file = \"{HOSTILE_DRIVER}\"\n config {{\n name = \"exec\"\n }}\n grants \
         {{\n process = true\n driver = \"exec\"\n }}\n}}\n"
    );
    let agent = TestAgent::with_config(&config).await;
    let reason = refused(&agent, "exec", "built-in");
    assert!(reason.contains("the configuration has a block for it"), "{reason}");
    assert!(agent.handle.node().drivers.contains_key("exec"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_loads_without_what_is_denied_and_is_refused_it() {
    let bare = format!("plugin \"wants-sockets\" {{\n file = \"{HOSTILE_WANTS_SOCKETS}\"\n");
    let agent = TestAgent::with_config(&format!("{bare}}}\n")).await;
    assert!(refused(&agent, "wants-sockets", "").contains("wasi:sockets"));
    agent.stop().await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let denied = format!("{bare} grants {{\n deny = [\"connect\"]\n }}\n}}\n");
    let agent = TestAgent::with_config(&denied).await;
    let job = batch(&format!(
        "task \"t\" {{\n driver = \"wants-sockets\"\n config {{\n address = \"{address}\"\n }}\n}}"
    ));
    let result = agent.run(&job).await;
    let events = format!("{:?}", state(&result, "t").events);
    assert!(events.contains("not connected"), "{events}");
    agent.stop().await;
}
