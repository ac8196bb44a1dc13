//! Secrets of tasks are in memory.

use ostler_agent::StopOptions;
use ostler_model::alloc::ClientStatus;

use super::{Served, job_id, service};
use crate::support::system::{eventually, pid_in};

fn mounts_below(dir: &std::path::Path) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    let below = |line: &&str| {
        line.split(' ').nth(1).is_some_and(|at| at.starts_with(dir.to_str().unwrap()))
    };
    mounts.lines().filter(below).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_in_memory_over_a_restart_of_the_agent_and_go_with_the_allocation() {
    let served = Served::start().await;
    let script = "env {\n A = \"b\"\n }\n resources {\n memory = 32\n secrets = 2\n }";
    let job = service("", script).replace("echo $$", "echo key > $NOMAD_SECRETS_DIR/key; echo $$");
    served.register(&job).await;
    let view = served.until_running(1).await.remove(0);
    let dir = view.handle.dir();
    pid_in(&dir.join("t/local/pid")).await;
    let mounts = mounts_below(&dir);
    if mounts.is_empty() {
        assert!(!rustix::process::geteuid().is_root(), "nothing is mounted");
        eprintln!("skipped: not root");
        return;
    }
    let mount = &mounts[0];
    assert!(
        mounts.len() == 1 && mount.starts_with("tmpfs") && mount.contains("size=2048k"),
        "{mounts:?}"
    );
    assert!(
        mount.contains("nosuid") && mount.contains("nodev") && mount.contains("noexec"),
        "{mount}"
    );
    let served = served.restart().await;
    served.until_running(1).await;
    assert_eq!(mounts_below(&dir), mounts);
    assert_eq!(std::fs::read_to_string(dir.join("t/secrets/key")).unwrap(), "key\n");
    let purge = StopOptions { purge: true, ..StopOptions::default() };
    served.agent.deregister(&job_id(), purge).await.unwrap();
    eventually("it has ended", || {
        let ended = |status: ClientStatus| status.is_terminal();
        served
            .agent
            .control()
            .alloc(view.allocation.id)
            .is_none_or(|view| ended(view.state.client_status))
    })
    .await;
    served.agent.control().collect(None).await.unwrap();
    eventually("the directory is gone", || !dir.exists()).await;
    assert_eq!(mounts_below(&dir), [""; 0]);
    served.end().await;
}
