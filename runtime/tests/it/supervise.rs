//! Supervisors of native tasks, forked from the program that is shipped.

use std::path::Path;
use std::sync::Arc;

use ostler_model::clock::Clock;
use ostler_model::cores::CoreSet;
use ostler_model::ids::{AllocId, RunId, TaskName};
use ostler_model::ports::{Adoption, ByteSink, SinkFiles};
use ostler_process::{ProcessHost, ProcessOptions, ProcessSpec, Supervision};

use crate::support::OSTLER;

const TASKS: u32 = 100;
/// Largest share of a supervisor, KiB.
const PSS_KIB_MAX: u64 = 1024;

struct Files(std::path::PathBuf);

impl ByteSink for Files {
    fn write(&self, _: &[u8]) {}

    fn files(&self) -> Option<SinkFiles> {
        Some(SinkFiles {
            dir: std::os::fd::OwnedFd::from(std::fs::File::open(&self.0).unwrap()).into(),
            prefix: "t.stdout.".to_owned(),
            files_max: 10,
            file_bytes_max: 10 << 20,
            fresh: false,
        })
    }
}

fn host(dir: &Path) -> ProcessHost {
    ProcessHost::new(ProcessOptions {
        control: tokio::runtime::Handle::current(),
        kill_with_agent: false,
        supervision: Some(Supervision { program: OSTLER.into(), records: dir.join("exits") }),
        cgroup_parent: None,
        clock: Clock::system(),
    })
    .unwrap()
}

fn spec(dir: &Path, number: u32) -> ProcessSpec {
    let logs = dir.join(format!("logs-{number}"));
    std::fs::create_dir(&logs).unwrap();
    let sink: Arc<dyn ByteSink> = Arc::new(Files(logs));
    let alloc = AllocId::new(uuid::Uuid::from_u128(u128::from(number)));
    ProcessSpec {
        run_id: RunId::new(alloc, &TaskName::new("t").unwrap(), 0),
        command: "/bin/sh".to_owned(),
        search: Vec::new(),
        args: vec!["-c".to_owned(), "echo hi; read line; exec sleep 1000".to_owned()],
        env: (0..40).map(|n| (format!("VARIABLE_{n}"), "some value of it".repeat(4))).collect(),
        cwd: dir.to_owned(),
        user: None,
        isolation: None,
        network: None,
        stdout: Arc::clone(&sink),
        stderr: sink,
        record_identity: Arc::new(|_| Box::pin(async { Ok(()) })),
        cpu_mhz: 0,
        cores: CoreSet::new(),
        memory_bytes_max: 0,
    }
}

fn pss_kib(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_supervisors_share_their_memory_and_the_next_agent_owns_all_their_tasks() {
    let dir = tempfile::tempdir().unwrap();
    let first = host(dir.path());
    let mut tasks = Vec::new();
    for number in 0..TASKS {
        let spec = spec(dir.path(), number);
        let id = first.spawn(spec.clone()).await.unwrap();
        first.release(&spec.run_id).await.unwrap();
        let identity = first.identity(&spec.run_id, &id).unwrap();
        tasks.push((spec.run_id, id, identity));
    }
    let shares: Vec<u64> =
        tasks.iter().map(|(_, _, identity)| pss_kib(identity.supervisor.unwrap().pid)).collect();
    let (sum, max) = (shares.iter().sum::<u64>(), shares.iter().max().unwrap());
    eprintln!("PSS of {TASKS} supervisors: mean {} KiB, largest {max} KiB", sum / u64::from(TASKS));
    assert!(*max <= PSS_KIB_MAX, "a supervisor takes {max} KiB");

    drop(first);
    let second = host(dir.path());
    for (run, _, identity) in &tasks {
        assert_eq!(second.adopt(run, identity).unwrap(), Adoption::Running);
    }
    for (run, id, _) in &tasks {
        assert!(second.usage(run, id).is_some());
        second.kill_run(run);
    }
    for (number, (run, id, _)) in tasks.iter().enumerate() {
        let exit = second.wait(run, id).await;
        assert!(exit.error.is_none() && (exit.signal, exit.exit_code) != (None, None), "{exit:?}");
        let log = dir.path().join(format!("logs-{number}/t.stdout.0"));
        assert_eq!(std::fs::read_to_string(log).unwrap(), "hi\n");
        second.forget_run(run);
    }
    second.finish_removals().await;
    assert_eq!(std::fs::read_dir(dir.path().join("exits")).unwrap().count(), 0);
}

#[test]
fn started_by_hand_the_supervisor_program_ends_at_once() {
    let output = std::process::Command::new(OSTLER)
        .arg("__supervise")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
