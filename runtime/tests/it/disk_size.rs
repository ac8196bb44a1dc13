//! What an allocation may hold on disk, where its job states a size.

use crate::support::agent_process::AgentProcess;
use crate::support::files::Files;
use crate::support::jobs::{STAYS_FAILED, shell};
use crate::support::system::until;

fn job(name: &str, task: &str) -> String {
    format!(
        "job \"{name}\" {{\n type = \"batch\"\n group \"g\" {{\n {STAYS_FAILED}\n restart {{\n attempts = 0\n \
         mode = \"fail\"\n }}\n ephemeral_disk {{\n size = 20\n }}\n {task}\n }}\n}}\n"
    )
}

/// How the only task of a job ended: its events in one text.
async fn failed(agent: &AgentProcess, name: &str) -> String {
    until("it failed", async || {
        agent.allocs(name).await.first().is_some_and(|alloc| alloc["ClientStatus"] == "failed")
    })
    .await;
    let id = agent.allocs(name).await[0]["ID"].as_str().unwrap().to_owned();
    agent.ask(&["alloc", "status", &id]).await.stdout
}

#[tokio::test]
async fn a_file_that_was_removed_and_is_held_open_is_no_way_around_the_size() {
    let agent = AgentProcess::start().await;
    // No name, and 40 MiB.
    let script = "exec 3>local/x; rm local/x; head -c 41943040 /dev/zero >&3; exec sleep 1000";
    agent.submit(&job("held", &shell("t", script, ""))).await.said(0, &[]);
    let said = failed(&agent, "held").await;
    assert!(said.contains("ephemeral_disk.size allows 20 MiB"), "{said}");
}

#[tokio::test]
async fn neither_an_archive_nor_a_file_that_is_larger_than_the_size_is_brought() {
    let (agent, files) = (AgentProcess::start().await, Files::start().await);
    let zeros = vec![0; 25 << 20];
    let artifact = |url: &str| {
        format!(
            "artifact {{\n source = \"{url}\"\n destination = \"local/x\"\n mode = \"file\"\n }}"
        )
    };
    // Some thirty kilobytes that become 25 MiB.
    let packed = crate::artifacts::gzipped(&zeros);
    for (name, block, why) in [
        ("archive", artifact(&files.body("/x.gz", &packed)), "bytes that the allocation's"),
        ("file", artifact(&files.body("/x", &zeros)), "it has 26214400 bytes"),
    ] {
        agent.submit(&job(name, &shell("t", "true", &block))).await.said(0, &[]);
        let said = failed(&agent, name).await;
        assert!(said.contains(why) && said.contains("ephemeral_disk.size leaves"), "{said}");
    }
}
