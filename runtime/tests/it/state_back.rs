//! A state file that goes back in time, beside tasks that live: an older copy put back, a newest
//! commit that cannot be read, a file that is gone.

use std::path::{Path, PathBuf};

use ostler_state::disk_store::DiskBackend;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::ostler;
use crate::support::system::{detach_mounts, eventually, processes_of, runs, until};

/// A service whose task writes a line with its pid at each start.
fn service(job: &str, starts: &Path) -> String {
    format!(
        r#"job "{job}" {{
  group "g" {{
    task "t" {{
      driver = "raw_exec"
      config {{
        command = "/bin/sh"
        args = ["-c", "echo $$ >> {}; exec sleep 600"]
      }}
      resources {{
        cpu = 20
        memory = 64
      }}
    }}
  }}
}}
"#,
        starts.display()
    )
}

struct Bench {
    state: PathBuf,
    journal: PathBuf,
    starts: PathBuf,
}

/// The state file and its journal.
type Copy = (Vec<u8>, Vec<u8>);

impl Bench {
    fn of(data: &Home) -> Self {
        Self::in_dir(data.path())
    }

    fn in_dir(dir: &Path) -> Self {
        let (state, journal) = (dir.join("state.redb"), dir.join("state.redb.journal"));
        Self { state, journal, starts: dir.join("starts") }
    }

    fn copy(&self) -> Copy {
        (std::fs::read(&self.state).unwrap(), std::fs::read(&self.journal).unwrap())
    }

    fn put_back(&self, (state, journal): &Copy) {
        std::fs::write(&self.state, state).unwrap();
        std::fs::write(&self.journal, journal).unwrap();
    }

    /// Move the journal into the state file as an agent does, and leave that as one leaves it which is
    /// killed then.
    fn settle(&self) {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Self::in_dir(dir.path());
        scratch.put_back(&self.copy());
        let open = DiskBackend::open(&scratch.state).unwrap();
        std::fs::copy(&scratch.state, &self.state).unwrap();
        std::fs::remove_file(&self.journal).unwrap();
        drop(open);
    }

    /// Pids of the task, oldest start first.
    fn starts(&self) -> Vec<u32> {
        let text = std::fs::read_to_string(&self.starts).unwrap_or_default();
        text.lines().map(|line| line.parse().unwrap()).collect()
    }

    async fn until_started(&self, times: usize) -> Vec<u32> {
        eventually("the task starts", || self.starts().len() >= times).await;
        self.starts()
    }

    fn live(&self) -> Vec<u32> {
        self.starts().into_iter().filter(|pid| runs(*pid)).collect()
    }
}

/// Kill the agent as a crash does; its tasks run on.
async fn killed(agent: AgentProcess) -> Home {
    agent.signal(Signal::KILL);
    agent.ended().await.1
}

async fn started(data: Home) -> AgentProcess {
    AgentProcess::start_in(data, &[]).await
}

fn alloc_dirs(data: &Home) -> usize {
    std::fs::read_dir(data.path().join("allocs")).map_or(0, Iterator::count)
}

async fn held(agent: &AgentProcess) -> Vec<Value> {
    agent.json(&["state", "runs", "--json"]).await["runs"].as_array().unwrap().clone()
}

/// Wait until the job of the directory is registered and waits.
async fn until_held(agent: &AgentProcess) {
    until("the job waits", async || {
        agent.ask(&["job", "status", "svc"]).await.stdout.contains("held back")
    })
    .await;
}

/// An agent whose file knows nothing of the one service that runs, and the state before it as it was.
async fn with_service_and_older_copy() -> (AgentProcess, Bench, Copy) {
    let agent = AgentProcess::start().await;
    let bench = Bench::of(&agent.data);
    let data = killed(agent).await;
    let older = bench.copy();
    let agent = started(data).await;
    agent.run(&service("svc", &bench.starts)).await.said(0, &["job svc runs"]);
    bench.until_started(1).await;
    (agent, bench, older)
}

#[tokio::test]
async fn a_later_run_of_a_task_that_an_older_copy_knows_is_owned_again_and_not_doubled() {
    let agent = AgentProcess::start().await;
    let bench = Bench::of(&agent.data);
    agent.run(&service("svc", &bench.starts)).await.said(0, &["job svc runs"]);
    bench.until_started(1).await;
    let data = killed(agent).await;
    let older = bench.copy();
    let agent = started(data).await;
    let id = agent.alloc("svc").await;
    agent.ask(&["alloc", "restart", &id]).await.said(0, &[]);
    let pids = bench.until_started(2).await;
    let data = killed(agent).await;
    bench.put_back(&older);

    let agent = started(data).await;
    assert_eq!(bench.live(), [pids[1]]);
    assert_eq!(agent.alloc("svc").await, id);
    let told = agent.ask(&["node", "status"]).await;
    assert!(told.stdout.contains("older than what was acknowledged"), "{told:#?}");
    assert!(held(&agent).await.is_empty());
    // It is owned: it can be stopped, and nothing else was started.
    agent.ask(&["job", "stop", "svc"]).await.said(0, &[]);
    assert_eq!((bench.live(), bench.starts().len()), (Vec::new(), 2));
}

#[tokio::test]
async fn a_run_that_an_older_copy_does_not_know_is_held_back_until_it_is_ended() {
    let (agent, bench, older) = with_service_and_older_copy().await;
    let data = killed(agent).await;
    bench.put_back(&older);
    let unknown = ask(data.path(), &["state", "check"]).await;
    assert_eq!(unknown.code, Some(1), "{unknown:#?}");
    assert!(unknown.stdout.contains("1 run(s) are alive that it does not know"), "{unknown:#?}");
    assert!(unknown.stdout.contains("older than what was acknowledged"), "{unknown:#?}");

    let agent = started(data).await;
    let pids = bench.starts();
    assert_eq!(bench.live(), pids);
    assert_eq!(alloc_dirs(&agent.data), 1, "the directory of a task that lives stays");
    let listed = held(&agent).await;
    assert_eq!(listed.len(), 1, "{listed:#?}");
    assert_eq!((&listed[0]["job"], &listed[0]["pid"]), (&"svc".into(), &pids[0].into()));
    let told = agent.ask(&["node", "status"]).await;
    assert!(told.stdout.contains("ostler state end-run"), "{told:#?}");

    // Its job comes again, and waits with the reason.
    agent.submit(&service("svc", &bench.starts)).await.said(0, &[]);
    let status = agent.ask(&["job", "status", "svc"]).await;
    assert!(status.stdout.contains("held back"), "{status:#?}");
    assert_eq!(bench.starts(), pids, "no second copy");

    let supervisor = listed[0]["supervisor"].to_string();
    agent.ask(&["state", "end-run", &supervisor]).await.said(0, &[]);
    let pids = bench.until_started(2).await;
    assert_eq!(bench.live(), [pids[1]]);
    assert!(held(&agent).await.is_empty());
    agent.ask(&["state", "end-run", &supervisor]).await.said(2, &["ostler state runs"]);
    // What is left of the run is removed like anything that no record names, and nothing else is.
    let agent = started(killed(agent).await).await;
    assert_eq!(bench.live(), [pids[1]]);
    drop(agent);
}

#[tokio::test]
async fn with_the_file_gone_what_lives_is_listed_held_back_and_can_be_ended_without_an_agent() {
    let (agent, bench, _) = with_service_and_older_copy().await;
    let jobs = agent.data.path().join("jobs.d");
    std::fs::create_dir(&jobs).unwrap();
    std::fs::write(jobs.join("svc.hcl"), service("svc", &bench.starts)).unwrap();
    let data = killed(agent).await;
    std::fs::remove_file(&bench.state).unwrap();

    let dir = jobs.to_str().unwrap().to_owned();
    let agent = AgentProcess::start_in(data, &["--jobs-dir", &dir]).await;
    let pids = bench.starts();
    until_held(&agent).await;
    let listed = held(&agent).await;
    assert_eq!(listed.len(), 1, "{listed:#?}");
    assert_eq!((bench.starts(), bench.live()), (pids.clone(), pids.clone()));
    let told = agent.ask(&["node", "status"]).await;
    assert!(told.stdout.contains("was gone when the agent started"), "{told:#?}");

    let data = killed(agent).await;
    let listed = ask(data.path(), &["state", "runs"]).await;
    assert!(listed.stdout.contains("svc.g[0]"), "{listed:#?}");
    let json = ask(data.path(), &["state", "runs", "--json"]).await;
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    let supervisor = json["runs"][0]["supervisor"].to_string();
    ask(data.path(), &["state", "end-run", &supervisor]).await.said(0, &[]);
    assert_eq!(bench.live(), [0; 0]);
    // Nothing is in the way any more.
    let agent = AgentProcess::start_in(data, &["--jobs-dir", &dir]).await;
    let pids = bench.until_started(2).await;
    assert_eq!(bench.live(), [pids[1]]);
    drop(agent);
}

/// Where the root page of the newest commit lies, as the storage engine describes its files: a byte
/// of flags (bit 0: which of two slots), the geometry, and the slots of 128 bytes.
fn newest_root(file: &[u8]) -> std::ops::Range<usize> {
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let slot = 64 + 128 * usize::from(file[9] & 1);
    let root = u64::from_le_bytes(file[slot + 8..slot + 16].try_into().unwrap());
    let (page, header_pages) = (word(12), word(16));
    let (index, region, order) = (root & 0xf_ffff, (root >> 20) & 0xf_ffff, root >> 59);
    assert_eq!(region, 0, "a small file");
    let bytes = page << order;
    let start = page + header_pages * page + usize::try_from(index).unwrap() * bytes;
    start..start + bytes
}

#[tokio::test]
async fn a_newest_commit_that_cannot_be_read_is_found_by_the_check_and_doubles_nothing() {
    let (agent, bench, _) = with_service_and_older_copy().await;
    let data = killed(agent).await;
    // What the journal still holds it would make good.
    bench.settle();
    let mut content = std::fs::read(&bench.state).unwrap();
    let root = newest_root(&content);
    content[root].fill(0);
    std::fs::write(&bench.state, &content).unwrap();

    let checked = ask(data.path(), &["state", "check"]).await;
    assert_eq!(checked.code, Some(1), "{checked:#?}");
    assert!(checked.stdout.contains("DAMAGED"), "{checked:#?}");
    // Also where nothing but the file is at hand.
    let alone = tempfile::tempdir().unwrap();
    let copy = alone.path().join("state.redb");
    std::fs::copy(&bench.state, &copy).unwrap();
    let args = ["state", "check", "--file", copy.to_str().unwrap()];
    let checked = ostler(args).await;
    assert_eq!(checked.code, Some(1), "{checked:#?}");
    assert!(std::fs::read(&bench.state).unwrap() == content, "looking changes nothing");

    let pids = bench.starts();
    let checked = ask(data.path(), &["state", "check", "--json"]).await;
    let checked: Value = serde_json::from_str(&checked.stdout).unwrap();
    if checked["damage"].is_string() {
        // What the commit before needs was written over: there is nothing to step back to.
        ask(data.path(), &["agent"]).await.said(3, &["it was left as it is"]);
        assert!(std::fs::read(&bench.state).unwrap() == content, "a refused file is not changed");
        assert_eq!((bench.starts(), bench.live()), (pids.clone(), pids));
        assert_eq!(alloc_dirs(&data), 1);
        return;
    }
    let agent = started(data).await;
    let told = agent.ask(&["node", "status"]).await;
    assert!(told.stdout.contains("older than what was acknowledged"), "{told:#?}");
    assert_eq!((bench.starts(), bench.live()), (pids.clone(), pids));
    assert_eq!(alloc_dirs(&agent.data), 1);
}

#[tokio::test]
async fn a_directory_that_a_power_cut_took_is_made_again_and_its_task_runs() {
    let (agent, bench, _) = with_service_and_older_copy().await;
    let id = agent.alloc("svc").await;
    let data = killed(agent).await;
    // Everything that ran is gone, and what was not on the disk yet.
    for pid in processes_of(data.path()) {
        let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let _ended_already = kill_process(pid, Signal::KILL);
    }
    eventually("nothing runs", || bench.live().is_empty()).await;
    detach_mounts(data.path());
    std::fs::remove_dir_all(data.path().join("allocs").join(&id)).unwrap();

    let agent = started(data).await;
    let pids = bench.until_started(2).await;
    assert_eq!(bench.live(), [pids[1]]);
    assert_eq!(agent.alloc("svc").await, id, "the same allocation");
    let status = agent.ask(&["alloc", "status", &id]).await;
    assert!(status.stdout.contains("is made again"), "{status:#?}");
}

#[tokio::test]
async fn runs_whose_notes_and_exit_records_are_gone_are_found_by_their_processes() {
    let (agent, bench, older) = with_service_and_older_copy().await;
    let data = killed(agent).await;
    bench.put_back(&older);
    std::fs::remove_dir_all(data.path().join("exits")).unwrap();

    let agent = started(data).await;
    let pids = bench.starts();
    let listed = held(&agent).await;
    assert_eq!(listed.len(), 1, "{listed:#?}");
    assert_eq!((&listed[0]["job"], &listed[0]["pid"]), (&"svc".into(), &pids[0].into()));
    assert_eq!((bench.live(), alloc_dirs(&agent.data)), (pids, 1));
}

#[tokio::test]
async fn a_run_of_a_known_task_that_cannot_be_owned_keeps_its_place_until_it_ends() {
    let agent = AgentProcess::start().await;
    let bench = Bench::of(&agent.data);
    agent.run(&service("svc", &bench.starts)).await.said(0, &["job svc runs"]);
    bench.until_started(1).await;
    let data = killed(agent).await;
    let older = bench.copy();
    let agent = started(data).await;
    let id = agent.alloc("svc").await;
    agent.ask(&["alloc", "restart", &id]).await.said(0, &[]);
    let pids = bench.until_started(2).await;
    let data = killed(agent).await;
    bench.put_back(&older);
    for entry in std::fs::read_dir(data.path().join("exits")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "run") {
            std::fs::remove_file(path).unwrap();
        }
    }

    let agent = started(data).await;
    until_held(&agent).await;
    assert_eq!((bench.live(), bench.starts().len()), (vec![pids[1]], 2));
    let pid = Pid::from_raw(i32::try_from(pids[1]).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    // It ended by itself: its allocation gets its owner, which starts the task again.
    let pids = bench.until_started(3).await;
    assert_eq!(bench.live(), [pids[2]]);
    assert_eq!(agent.alloc("svc").await, id);
    assert!(held(&agent).await.is_empty());
}

#[tokio::test]
async fn an_allocation_on_record_is_not_started_beside_the_one_that_took_its_place_since() {
    let agent = AgentProcess::start().await;
    let bench = Bench::of(&agent.data);
    agent.run(&service("svc", &bench.starts)).await.said(0, &["job svc runs"]);
    bench.until_started(1).await;
    let data = killed(agent).await;
    let older = bench.copy();
    let agent = started(data).await;
    let newer = service("svc", &bench.starts).replace("sleep 600", "sleep 601");
    agent.run(&newer).await.said(0, &["job svc runs"]);
    let pids = bench.until_started(2).await;
    eventually("the older one is over", || bench.live() == [pids[1]]).await;
    let data = killed(agent).await;
    bench.put_back(&older);

    let agent = started(data).await;
    until_held(&agent).await;
    assert_eq!((bench.live(), bench.starts().len()), (vec![pids[1]], 2), "no second copy");
    let supervisor = held(&agent).await[0]["supervisor"].to_string();
    agent.ask(&["state", "end-run", &supervisor]).await.said(0, &[]);
    let pids = bench.until_started(3).await;
    assert_eq!(bench.live(), [pids[2]], "as the file has it");
}
