//! One place, filled again and again: never by two at a time, and its data goes along.

use ostler_agent::{AllocView, LeaveMode, RegisterOptions, StopOptions};
use ostler_model::alloc::DesiredStatus;

use super::{Served, job_id};
use crate::support::agent_process::AgentProcess;
use crate::support::jobs::{AT_ONCE, shell, with_guests};
use crate::support::system::eventually;
use crate::support::{DataDir, parse};

/// Where tasks write down what they do.
struct Diary(tempfile::TempDir);

impl Diary {
    /// Of tasks that take two seconds to stop.
    fn new() -> Self {
        let diary = Self::of_lasting_tasks();
        diary.let_stop();
        diary
    }

    /// Of tasks that do not stop before they may.
    fn of_lasting_tasks() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn let_stop(&self) {
        std::fs::write(self.0.path().join("may-stop"), "").unwrap();
    }

    /// A service whose task tells when it begins and ends, and whether another one runs; the first leaves a
    /// file on a disk that is kept. Another `version` is another allocation.
    fn job(&self, version: u32) -> String {
        let dir = self.0.path().display();
        let script = format!(
            "cd {dir}; mkdir runs || echo two >> diary; [ -e first ] || touch $NOMAD_ALLOC_DIR/data/kept; \
             [ -e $NOMAD_ALLOC_DIR/data/kept ] || echo empty >> diary; touch first; \
             trap 'sleep 2; until [ -e may-stop ]; do sleep 0.1; done; echo end >> diary; rmdir runs; exit 0' INT TERM; \
             echo begin $VERSION >> diary; while :; do sleep 0.1; done"
        );
        let env = format!("kill_timeout = \"30s\"\n env {{\n VERSION = \"{version}\"\n }}");
        with_guests(&format!(
            "job \"web\" {{\n group \"g\" {{\n ephemeral_disk {{\n sticky = true\n }}\n {}\n }}\n}}",
            shell("t", &script, &env)
        ))
    }

    fn lines(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.0.path().join("diary")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    async fn begun(&self, version: u32) {
        let line = format!("begin {version}");
        eventually(&format!("{line} in {:?}", self.0.path()), || self.lines().contains(&line))
            .await;
    }

    /// Nothing ran twice, and no data was left behind.
    fn assert_well(&self, expected: &[&str]) {
        assert_eq!(self.lines(), expected);
    }
}

async fn stop_job(served: &Served, purge: bool) {
    let options = StopOptions { purge, ..StopOptions::default() };
    served.agent.deregister(&job_id(), options).await.unwrap();
}

/// Stop the allocation of the job that is to run, whatever it is at.
async fn stop_alloc(served: &Served) {
    let lives = |view: &AllocView| !view.state.client_status.is_terminal();
    let wanted = served.wanted().into_iter().find(lives).unwrap().allocation.id;
    served.agent.stop_alloc(wanted, false).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn two_changes_in_a_row_run_one_copy_and_the_data_goes_along() {
    let (served, diary) = (Served::start().await, Diary::new());
    served.register(&diary.job(1)).await;
    diary.begun(1).await;
    served.register(&diary.job(2)).await;
    served.register(&diary.job(3)).await;
    diary.begun(3).await;
    diary.assert_well(&["begin 1", "end", "begin 3"]);
    // Nobody waits for those that had the place: all of them can be collected.
    assert_eq!(served.agent.control().collect(None).await.unwrap().allocs.len(), 2);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_allocation_that_is_stopped_frees_no_place() {
    let (served, diary) = (Served::start().await, Diary::new());
    served.register(&diary.job(1)).await;
    diary.begun(1).await;
    stop_alloc(&served).await;
    stop_alloc(&served).await;
    stop_alloc(&served).await;
    eventually("the fourth runs", || diary.lines().len() >= 3).await;
    diary.assert_well(&["begin 1", "end", "begin 1"]);
    assert_eq!(served.wanted().len(), 1);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_stopped_and_run_twice_runs_one_copy_purged_or_not() {
    for purge in [false, true] {
        let (served, diary) = (Served::start().await, Diary::new());
        served.register(&diary.job(1)).await;
        diary.begun(1).await;
        stop_job(&served, purge).await;
        served.register(&diary.job(2)).await;
        stop_job(&served, purge).await;
        served.register(&diary.job(3)).await;
        diary.begun(3).await;
        diary.assert_well(&["begin 1", "end", "begin 3"]);
        served.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_failed_before_does_not_hide_the_one_that_is_on_its_way_out() {
    let (served, diary) = (Served::start().await, Diary::new());
    // It fails for good; nothing of it is told to stop.
    let restart = "restart {\n attempts = 0\n mode = \"fail\"\n }\n ephemeral_disk";
    let failing = diary.job(1).replace("exec sleep", "").replace("cd ", "exit 1; cd ");
    let first = served.register(&failing.replace("ephemeral_disk", restart)).await.placed[0];
    served.until(first, ostler_model::alloc::ClientStatus::Failed).await;
    served.register(&diary.job(2)).await;
    diary.begun(2).await;
    stop_alloc(&served).await;
    eventually("it runs again", || diary.lines().len() >= 3).await;
    diary.assert_well(&["begin 2", "end", "begin 2"]);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_leaves_in_the_middle_and_the_next_one_waits_on() {
    let (served, diary) = (Served::start().await, Diary::new());
    served.register(&diary.job(1)).await;
    diary.begun(1).await;
    served.register(&diary.job(2)).await;
    served.register(&diary.job(3)).await;
    let began = ostler_model::clock::Stopwatch::start();
    let served = served.restart().await;
    assert!(began.elapsed().as_secs() < 15, "it does not wait for what waits");
    diary.begun(3).await;
    diary.assert_well(&["begin 1", "end", "begin 3"]);
    let stopped = |view: &AllocView| view.allocation.desired == DesiredStatus::Stop;
    assert_eq!(served.agent.control().allocs().iter().filter(|view| stopped(view)).count(), 2);
    served.end().await;
}

/// The agent is killed after so many of the changes that follow each other at once.
async fn killed_between(changes: usize) {
    let (agent, diary) = (AgentProcess::start().await, Diary::of_lasting_tasks());
    agent.submit(&diary.job(1)).await.said(0, &[]);
    diary.begun(1).await;
    for version in 2..2 + u32::try_from(changes).unwrap() {
        agent.submit(&diary.job(version)).await.said(0, &[]);
    }
    agent.signal(rustix::process::Signal::KILL);
    let (_, data) = agent.ended().await;
    let agent = AgentProcess::start_in(data, &[]).await;
    let last = 4;
    for version in 2 + u32::try_from(changes).unwrap()..=last {
        agent.submit(&diary.job(version)).await.said(0, &[]);
    }
    diary.let_stop();
    diary.begun(last).await;
    diary.assert_well(&["begin 1", "end", "begin 4"]);
    let ended = agent.ask(&["job", "stop", "web"]).await;
    ended.said(0, &["is stopped"]);
}

#[tokio::test]
async fn an_agent_that_is_killed_between_changes_runs_no_second_copy_either() {
    for changes in 1..=3 {
        killed_between(changes).await;
    }
}

/// Nothing is collected by number.
const KEEPS_MANY: &str = "gc {\n max_allocs = 100000\n}";

/// Many minimal allocations.
fn many(count: u32, version: u32) -> String {
    let more = format!(
        "resources {{\n cpu = 1\n memory = 10\n }}\n kill_timeout = \"20s\"\n env {{\n V = \"{version}\"\n }}"
    );
    with_guests(&format!(
        "job \"web\" {{\n group \"g\" {{\n count = {count}\n {AT_ONCE}\n {}\n }}\n}}",
        shell("t", "exec sleep 1000", &more)
    ))
}

/// Register `job`, and return as soon as the agent knows it.
async fn known(served: &Served, job: &str) -> tokio::task::JoinHandle<()> {
    let (agent, job) = (served.agent.clone(), parse(job));
    let registered = tokio::spawn({
        let agent = agent.clone();
        async move { drop(agent.register(job, RegisterOptions::default()).await.unwrap()) }
    });
    while agent.control().job(&job_id()).is_none_or(|job| job.allocs.is_empty()) {
        tokio::task::yield_now().await;
    }
    registered
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_that_comes_while_a_large_registration_is_made_reaches_all_of_it() {
    let served = Served::on(DataDir::new(), KEEPS_MANY).await;
    let registered = known(&served, &many(1000, 1)).await;
    stop_job(&served, false).await;
    registered.await.unwrap();
    eventually("all of it is over", || {
        let views = served.agent.control().allocs();
        views.len() == 1000 && views.iter().all(|view| view.phase.has_ended())
    })
    .await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_of_what_is_only_being_made_waits_for_it() {
    let served = Served::on(DataDir::new(), KEEPS_MANY).await;
    let registered = known(&served, &many(200, 1)).await;
    let second = served.register(&many(200, 2)).await.placed;
    registered.await.unwrap();
    assert_eq!(second.len(), 200);
    eventually("the second ones run", || {
        second.iter().all(|id| {
            served.view(*id).state.client_status == ostler_model::alloc::ClientStatus::Running
        })
    })
    .await;
    for id in second {
        let view = served.view(id);
        let previous = served.view(view.allocation.previous.expect("it had a predecessor"));
        assert!(previous.phase.has_ended(), "{} runs beside {}", id, previous.allocation.id);
        let ended = previous.state.tasks.values().filter_map(|task| task.finished_at).max();
        let began = view.state.tasks.values().filter_map(|task| task.started_at).min();
        assert!(ended <= began, "{ended:?} {began:?}");
    }
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_that_comes_while_a_large_registration_is_made_leaves_nothing_running() {
    let served = Served::on(DataDir::new(), KEEPS_MANY).await;
    let registered = known(&served, &many(200, 1)).await;
    let deadline = std::time::Duration::from_secs(60);
    served.agent.leave(LeaveMode::Drain { deadline }).await;
    registered.await.unwrap();
    let left = crate::support::system::processes_of(served.data.path());
    assert_eq!(left, [0; 0]);
}
