//! Host volumes: directories of the node that the configuration offers and jobs mount.

use std::path::Path;

use serde_json::json;
use tempfile::TempDir;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{assert_successful, batch, isolated_shell, shell, wasm};
use crate::support::{KEEPS, TestAgent, parse};

const WRITER: &str = "volume_mount {\n volume = \"data\"\n destination = \"/srv/data\"\n }";

fn volume(source: &str, more: &str) -> String {
    format!("volume \"data\" {{\n type = \"host\"\n source = \"{source}\"\n {more}\n }}\n")
}

/// An agent with the volumes `data` and `fixed`, which is read-only; both are the directory.
async fn agent(dir: &Path) -> TestAgent {
    // Whoever a task runs as.
    let anybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(dir, anybody).unwrap();
    crate::support::system::write_for_all(&dir.join("here"), "of the node\n");
    TestAgent::with_config(&config(dir)).await
}

fn config(dir: &Path) -> String {
    let path = dir.display();
    format!(
        "client {{\n host_volume \"data\" {{\n path = \"{path}\"\n }}\n host_volume \"fixed\" {{\n path \
         = \"{path}\"\n read_only = true\n }}\n}}\n"
    )
}

fn events(result: &ostler_agent::JobResult) -> String {
    let tasks = result.allocs.iter().flat_map(|alloc| alloc.state.tasks.values());
    tasks.flat_map(|task| &task.events).map(|event| format!("{event:?}\n")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_isolated_task_reads_and_writes_a_volume_at_its_own_path() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    let script = "cat /srv/data/here; echo mine > /srv/data/new; ls /srv";
    let job = volume("data", "") + &isolated_shell("t", script, WRITER);
    let result = agent.run(&batch(&job)).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "of the node\ndata\n");
    assert_eq!(std::fs::read_to_string(dir.path().join("new")).unwrap(), "mine\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_that_is_read_only_anywhere_is_not_written() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    let script = "cat /srv/data/here; (echo x > /srv/data/here) 2>/dev/null && echo written; true";
    let mount = |more: &str| {
        format!("volume_mount {{\n volume = \"data\"\n destination = \"srv/data\"\n {more}\n }}")
    };
    for (volume, mount) in [
        (volume("fixed", "read_only = true"), mount("")),
        (volume("data", "read_only = true"), mount("")),
        (volume("data", ""), mount("read_only = true")),
    ] {
        let result = agent.run(&batch(&(volume + &isolated_shell("t", script, &mount)))).await;
        assert_successful(&result);
        assert_eq!(agent.stdout(&result, "t"), "of the node\n");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_has_a_volume_as_a_directory_with_its_rights() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    let write = ["write", "/srv/data/new", "by wasm"];
    let job = volume("data", "") + &wasm("t", "guest:toolbox", &write, WRITER);
    let result = agent.run(&batch(&job)).await;
    assert_successful(&result);
    assert_eq!(std::fs::read_to_string(dir.path().join("new")).unwrap().trim(), "by wasm");

    let read = volume("fixed", "read_only = true")
        + &wasm("t", "guest:toolbox", &["cat", "/srv/data/here"], WRITER);
    let result = agent.run(&batch(&read)).await;
    assert_eq!(agent.stdout(&result, "t"), "of the node\n");
    let refused = volume("fixed", "read_only = true") + &wasm("t", "guest:toolbox", &write, WRITER);
    let result = agent.run(&batch(&refused)).await;
    assert!(!result.is_successful(), "{result:#?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_never_covers_what_is_the_tasks_own() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    let job = |place: &str| {
        let mount = WRITER.replace("/srv/data", place);
        batch(&(volume("data", "") + &wasm("t", "guest:toolbox", &["cat", "/x"], &mount)))
    };
    for (place, said) in [
        ("/", "would cover /local of the task"),
        ("${NOMAD_TASK_DIR}", "would cover /local of the task"),
        ("/secrets/", "would cover /secrets of the task"),
        ("/alloc/logs", "/alloc is read-only but for /alloc/data and /alloc/tmp"),
    ] {
        let refused = ostler_jobspec::parse(job(place).as_bytes(), Path::new("j.hcl"), None);
        let refused = refused.unwrap_err().render(&job(place), false);
        assert!(refused.contains(said), "{place}: {refused}");
    }
    // What is not known before the task runs.
    let hidden = job("${PLACE}")
        .replace("volume_mount {", "env {\n PLACE = \"/local\"\n }\n volume_mount {");
    let result = agent.run(&hidden).await;
    let told = events(&result);
    assert!(!result.is_successful() && told.contains("which covers /local"), "{told}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_mounts_nothing_says_where_the_volume_is() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    let job = volume("data", "") + &shell("t", "true", WRITER);
    let result = agent.run(&batch(&job)).await;
    assert!(!result.is_successful());
    let told = events(&result);
    let place = dir.path().canonicalize().unwrap();
    assert!(told.contains("driver raw_exec mounts nothing"), "{told}");
    assert!(told.contains(&place.display().to_string()), "{told}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_volume_whose_directory_is_gone_fails_its_tasks_by_its_path() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    let place = dir.path().to_owned();
    drop(dir);
    let job = volume("data", "") + &isolated_shell("t", "true", WRITER);
    let result = agent.run(&batch(&job)).await;
    let told = events(&result);
    assert!(!result.is_successful() && told.contains(&place.display().to_string()), "{told}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_volume_or_with_a_read_only_one_refuses_by_name() {
    let dir = TempDir::new().unwrap();
    let agent = agent(dir.path()).await;
    for (source, said) in [("other", "no host volume of that name"), ("fixed", "read-only")] {
        let job = batch(&(volume(source, "") + &isolated_shell("t", "true", WRITER)));
        let refused = agent.handle.submit(parse(&job)).await.err().unwrap().to_string();
        assert!(refused.contains(said) && refused.contains(source), "{refused}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn volumes_are_shown_with_the_node_and_a_restarted_agent_knows_them() {
    let (dir, home) = (TempDir::new().unwrap(), Home::new());
    std::fs::write(dir.path().join("here"), "").unwrap();
    ostler_testing::files::open_to_all(dir.path()).unwrap();
    let file = home.path().join("ostler.hcl");
    std::fs::write(&file, format!("{KEEPS}{}", config(dir.path()))).unwrap();
    let file = file.to_str().unwrap().to_owned();
    let mut agent = AgentProcess::start_in(home, &["--config", &file]).await;
    let status = agent.json(&["node", "status", "--json"]).await;
    let path = dir.path().to_str().unwrap();
    assert_eq!(status["host_volumes"]["fixed"], json!({"path": path, "read_only": true}));

    let task = isolated_shell("t", "test -e /srv/data/here && sleep 1000", WRITER)
        .replace("kill_timeout", "");
    let job = format!(
        "job \"keeps\" {{\n group \"g\" {{\n update {{\n min_healthy_time = \"10ms\"\n }}\n {}{task} }}\n}}",
        volume("data", "")
    );
    agent.run(&job).await.said(0, &[]);
    let before = agent.alloc("keeps").await;
    agent.signal(rustix::process::Signal::KILL);
    let (_, home) = agent.ended().await;
    agent = AgentProcess::start_in(home, &["--config", &file]).await;
    assert_eq!(agent.alloc("keeps").await, before, "the task runs on");
    agent.ask(&["job", "stop", "--purge", "keeps"]).await.said(0, &[]);
}
