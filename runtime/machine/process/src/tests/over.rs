//! A run is over when everything of it has ended, and its exit is not lost for trouble of the node.

use std::path::Path;

use super::outlive::{kill, state_of, supervisor, without_cgroups_at};
use super::*;
use ostler_model::ports::Adoption;

/// Processes that do not end although they are killed, as in uninterruptible sleep: the version 1
/// freezer holds them until it is dropped. `None` where a machine has no such freezer.
pub(super) struct Frozen(PathBuf);

impl Frozen {
    pub(super) fn new(pid: u32) -> Option<Self> {
        let freezer = Path::new("/sys/fs/cgroup/freezer");
        if !freezer.join("release_agent").exists() || !rustix::process::geteuid().is_root() {
            eprintln!("no freezer here: nothing can be made not to end");
            return None;
        }
        let path = freezer.join(format!("ostler-test-{}-{pid}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("cgroup.procs"), pid.to_string()).unwrap();
        std::fs::write(path.join("freezer.state"), "FROZEN").unwrap();
        while std::fs::read_to_string(path.join("freezer.state")).unwrap().trim() != "FROZEN" {}
        Some(Self(path))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        std::fs::write(self.0.join("freezer.state"), "THAWED").unwrap();
        for _ in 0..2_000 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn the_end_of_a_task_whose_supervisor_was_killed_is_told_when_it_is_dead() {
    let host = without_cgroups_at(&scratch().join("lost"));
    let case = sh("exec sleep 1000");
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(run, &id).unwrap();
    let Some(frozen) = Frozen::new(identity.pid) else { return forget(&host, run, &id).await };
    kill(supervisor(&identity), Signal::KILL);
    until("the supervisor is gone", || !exists(supervisor(&identity))).await;
    let told = host.wait(run, &id);
    assert!(
        ostler_model::clock::timeout(Duration::from_secs(1), told).await.is_none(),
        "told too early"
    );
    assert!(exists(identity.pid));
    drop(frozen);
    let exit = host.wait(run, &id).await;
    assert!(!exists(identity.pid), "told before it was dead");
    assert!(exit.error.unwrap().contains("the supervisor of the process was killed"));
    host.forget_run(run);
}

#[tokio::test]
async fn what_a_task_started_is_waited_for_before_its_end_is_told() {
    for mode in [Mode::Here, Mode::Supervised] {
        let host = match mode {
            Mode::Here => without_cgroups_here(),
            Mode::Supervised => without_cgroups_at(&scratch().join("descendants")),
        };
        let case = sh("sleep 1000 >/dev/null 2>&1 & echo $!; wait");
        let run = &case.spec.run_id;
        let id = host.spawn(case.spec.clone()).await.unwrap();
        host.release(run).await.unwrap();
        until("the child is there", || pid_in(&case.stdout).is_some_and(exists)).await;
        let child = pid_in(&case.stdout).unwrap();
        let Some(frozen) = Frozen::new(child) else { return forget(&host, run, &id).await };
        host.kill_run(run);
        let told = host.wait(run, &id);
        let early = ostler_model::clock::timeout(Duration::from_secs(7), told).await;
        assert!(early.is_none(), "{mode:?}: told too early: {early:?}");
        assert!(exists(child));
        drop(frozen);
        host.wait(run, &id).await;
        assert!(!exists(child), "{mode:?}: told before it was dead");
        host.forget_run(run);
    }
}

fn without_cgroups_here() -> ProcessHost {
    ProcessHost::new(ProcessOptions {
        control: Handle::current(),
        kill_with_agent: false,
        supervision: None,
        cgroup_parent: Some(scratch().join("no-cgroup")),
        clock: Clock::system(),
    })
    .unwrap()
}

#[tokio::test]
async fn what_only_may_be_of_a_task_is_named_and_not_killed() {
    let host = without_cgroups_at(&scratch().join("strangers"));
    // Not a word of whose it is in its environment.
    let case = sh("sleep 1000 & echo $!; wait");
    let run = case.spec.run_id.clone();
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(&run, &id).unwrap();
    let is_sleep =
        |pid| std::fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"sleep\n");
    until("its child is there", || pid_in(&case.stdout).is_some_and(is_sleep)).await;
    let child = pid_in(&case.stdout).unwrap();
    // Below its own supervisor: what another one watches over is not looked at.
    let later = identity.clone();
    let found = leftovers::find_remaining(&run, &later, leftovers::Certainty::Recorded).unwrap();
    let of_child = found.iter().find(|left| left.pid == child).unwrap();
    assert!(!of_child.certain);
    leftovers::kill_certain(
        &found.iter().filter(|left| left.pid == child).cloned().collect::<Vec<_>>(),
    );
    assert!(exists(child));
    assert!(leftovers::describe_uncertain(&found).unwrap().contains(&format!("{child} (sleep)")));
    // Whoever knew it a moment ago is sure.
    let found = leftovers::find_remaining(&run, &later, leftovers::Certainty::Now).unwrap();
    assert!(found.iter().all(|left| left.certain));
    // The pid names another process now, so no process with the number of the session belongs to it.
    let reused = ProcessIdentity { start_ticks: identity.start_ticks - 1, ..later };
    assert_eq!(leftovers::find_remaining(&run, &reused, leftovers::Certainty::Now).unwrap(), []);
    forget(&host, &run, &id).await;
}

/// Put a directory in the place of the record, so that the record cannot be written.
fn refuse_record(exits: &Path, run: &RunId, identity: &ProcessIdentity) -> PathBuf {
    let name = supervise::record::name(run.as_str(), identity.pid, identity.start_ticks);
    let path = exits.join(name);
    std::fs::create_dir(&path).unwrap();
    path
}

#[tokio::test]
async fn an_exit_that_cannot_be_written_is_known_all_the_same() {
    let exits = scratch().join("refused");
    let host = supervised_host(&exits);
    let case = sh("read line < /dev/null; sleep 0.1; exit 7");
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(run, &id).unwrap();
    let in_place = refuse_record(&exits, run, &identity);
    let exit = host.wait(run, &id).await;
    assert_eq!((exit.exit_code, exit.error), (Some(7), None));
    // An agent after this one reads the same.
    let next = supervised_host(&exits);
    assert_eq!(next.adopt(run, &identity).unwrap(), Adoption::Running);
    assert_eq!(next.wait(run, &id).await.exit_code, Some(7));
    assert!(exists(supervisor(&identity)), "it keeps the exit");
    next.forget_run(run);
    until("the supervisor has left", || !exists(supervisor(&identity))).await;
    std::fs::remove_dir(in_place).unwrap();
    host.forget_run(run);
}

#[tokio::test]
async fn an_exit_that_the_disk_refused_is_written_when_it_can_be() {
    let exits = scratch().join("refused-for-a-while");
    let host = supervised_host(&exits);
    let case = sh("exec sleep 1000");
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(run, &id).unwrap();
    let in_place = refuse_record(&exits, run, &identity);
    kill(identity.pid, Signal::TERM);
    assert_eq!(host.wait(run, &id).await.signal, Some(15));
    std::fs::remove_dir(in_place).unwrap();
    until("the supervisor has left", || state_of(supervisor(&identity)).is_none()).await;
    let next = supervised_host(&exits);
    let adopted = next.adopt(run, &identity).unwrap();
    let Adoption::Ended(exit) = adopted else { panic!("{adopted:?}") };
    assert_eq!(exit.signal, Some(15));
    next.forget_run(run);
    host.forget_run(run);
}

#[tokio::test]
async fn a_supervisor_is_said_to_be_killed_only_when_it_may_have_been() {
    let exits = scratch().join("removed");
    let host = supervised_host(&exits);
    let case = sh("exec sleep 1000");
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    std::fs::remove_dir_all(&exits).unwrap();
    host.kill_run(run);
    let error = host.wait(run, &id).await.error.unwrap();
    assert!(error.contains("the directory of exit records was removed"), "{error}");
    host.forget_run(run);
}
