//! Tasks with supervisors: the agent goes, they stay.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::crash::{FILE, again, role};
use super::*;
use ostler_model::ports::Adoption;

/// The message of an agent in this test to the test.
#[derive(Serialize, Deserialize)]
struct Told {
    run: RunId,
    identity: ProcessIdentity,
}

/// Prints numbers until the file `stop` is there, then ends with 7.
const COUNTING: &str =
    "i=0; while [ ! -e stop ]; do echo $i; i=$((i+1)); sleep 0.001; done; exit 7";

/// A script with a child in its session, and a child that left the session.
const CHILDREN: &str = "sleep 1000 & setsid sleep 1001 & echo 0; wait";

/// Play an agent: start a counting task with its files in the directory, stay until killed.
async fn play(role: &str) {
    let dir = PathBuf::from(std::env::var(FILE).unwrap());
    let (host, mut case) = match role {
        "children" => (without_cgroups_at(&dir.join("exits")), sh(CHILDREN)),
        _ => (supervised_host(&dir.join("exits")), sh(COUNTING)),
    };
    let mut parts = case.spec.run_id.as_str().split('/').map(str::to_owned);
    for name in ["NOMAD_ALLOC_ID", "NOMAD_TASK_NAME"] {
        case.spec.env.push((name.to_owned(), parts.next().unwrap()));
    }
    case.spec.cwd = dir.clone();
    case.spec.stdout = Arc::new(KeptIn(dir));
    let id = host.spawn(case.spec.clone()).await.unwrap();
    if role != "held" {
        host.release(&case.spec.run_id).await.unwrap();
    }
    let identity = host.identity(&case.spec.run_id, &id).unwrap();
    let told = Told { run: case.spec.run_id.clone(), identity };
    println!("\ntold {}", serde_json::to_string(&told).unwrap());
    std::future::pending().await
}

/// An agent that was killed without warning after it started a counting task.
fn killed_agent(test: &str, role: &str, dir: &Path) -> Told {
    let mut agent = again(&format!("tests::outlive::{test}"), role, dir);
    let lines = BufReader::new(agent.stdout.take().unwrap()).lines();
    let told = lines.map(Result::unwrap).find_map(|line| {
        line.strip_prefix("told ").map(|json| serde_json::from_str::<Told>(json).unwrap())
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    told.expect("the agent said whom it started")
}

fn printed(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("t.stdout.0")).unwrap_or_default()
}

fn assert_nothing_is_missing(printed: &str) {
    for (expected, line) in printed.lines().enumerate() {
        assert_eq!(line.parse(), Ok(expected));
    }
}

pub(super) fn supervisor(identity: &ProcessIdentity) -> u32 {
    identity.supervisor.unwrap().pid
}

pub(super) fn kill(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(pid.try_into().unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

pub(super) fn zygote_of(identity: &ProcessIdentity) -> u32 {
    let shim = Pid::from_raw(supervisor(identity).try_into().unwrap()).unwrap();
    identity::parent_of(shim).unwrap()
}

/// A host that has nothing but process groups and supervisors.
fn without_cgroups() -> ProcessHost {
    without_cgroups_at(&scratch().join("without-cgroups"))
}

pub(super) fn without_cgroups_at(records: &Path) -> ProcessHost {
    let records = records.to_owned();
    let supervision = Supervision { program: supervise_script(), records };
    ProcessHost::new(ProcessOptions {
        control: Handle::current(),
        kill_with_agent: false,
        supervision: Some(supervision),
        cgroup_parent: Some(scratch().join("no-cgroup")),
        clock: Clock::system(),
    })
    .unwrap()
}

fn records(path: &Path) -> usize {
    std::fs::read_dir(path).unwrap().count()
}

pub(super) fn state_of(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

#[tokio::test]
async fn a_task_goes_on_printing_without_its_agent_and_the_next_one_gets_its_exit() {
    const NAME: &str = "a_task_goes_on_printing_without_its_agent_and_the_next_one_gets_its_exit";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let Told { run, identity } = killed_agent(NAME, "plain", dir.path());
    let before = printed(dir.path()).len();
    until("it prints on", || printed(dir.path()).len() > before + 100).await;

    let host = supervised_host(&dir.path().join("exits"));
    assert_eq!(host.adopt(&run, &identity).unwrap(), Adoption::Running);
    assert_eq!(host.adopt(&run, &identity).unwrap(), Adoption::Running, "again is the same");
    let id = identity.id();
    assert_eq!(host.state(&run, &id).unwrap(), ProcessState::Running);
    assert!(host.usage(&run, &id).unwrap().memory_bytes.unwrap() > 0);
    std::fs::write(dir.path().join("stop"), "").unwrap();
    let exit = host.wait(&run, &id).await;
    assert_eq!((exit.exit_code, exit.signal, exit.error), (Some(7), None, None));
    assert_nothing_is_missing(&printed(dir.path()));
    host.forget_run(&run);
    host.finish_removals().await;
    assert_eq!(records(&dir.path().join("exits")), 0);
}

#[tokio::test]
async fn the_exit_of_a_task_that_ended_while_nobody_was_there_is_known() {
    const NAME: &str = "the_exit_of_a_task_that_ended_while_nobody_was_there_is_known";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let Told { run, identity } = killed_agent(NAME, "plain", dir.path());
    std::fs::write(dir.path().join("stop"), "").unwrap();
    until("the supervisor is gone", || !exists(supervisor(&identity))).await;
    assert_nothing_is_missing(&printed(dir.path()));

    let exits = dir.path().join("exits");
    let host = supervised_host(&exits);
    assert_eq!(host.sweep(std::slice::from_ref(&run), &[]).unwrap(), 0);
    // Also when the machine was started anew after it ended.
    let rebooted = ProcessIdentity { boot_id: "an earlier boot".to_owned(), ..identity.clone() };
    let Adoption::Ended(exit) = supervised_host(&exits).adopt(&run, &rebooted).unwrap() else {
        panic!("it ended");
    };
    assert_eq!(exit.exit_code, Some(7));
    // And when nothing but the exit record says that there was such a run.
    let ended = crate::live::find_ended_runs(&exits, std::slice::from_ref(&run)).unwrap();
    let alone = &ended[&run];
    assert_eq!((alone.id(), alone.supervisor), (identity.id(), None));
    let adopted = supervised_host(&exits).adopt(&run, alone).unwrap();
    assert_eq!(adopted, Adoption::Ended(exit.clone()));
    assert_eq!(host.adopt(&run, &identity).unwrap(), Adoption::Ended(exit.clone()));
    assert_eq!(host.wait(&run, &identity.id()).await, exit);
    host.signal(&run, &identity.id(), "TERM").unwrap();
    host.forget_run(&run);
    host.finish_removals().await;
    assert_eq!(records(&exits), 0);
    let stranger = supervised_host(&exits).adopt(&run, &rebooted).unwrap();
    assert_eq!(stranger, Adoption::Rebooted);
}

#[tokio::test]
async fn an_agent_that_dies_before_it_lets_a_task_go_leaves_a_task_that_never_ran() {
    const NAME: &str = "an_agent_that_dies_before_it_lets_a_task_go_leaves_a_task_that_never_ran";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let Told { run, identity } = killed_agent(NAME, "held", dir.path());
    until("the supervisor is gone", || !exists(supervisor(&identity))).await;
    assert!(!exists(identity.pid));
    assert_eq!(printed(dir.path()), "");
    let exits = dir.path().join("exits");
    let ended = crate::live::find_ended_runs(&exits, std::slice::from_ref(&run)).unwrap();
    assert!(ended.is_empty(), "it did not run: {ended:?}");
    let host = supervised_host(&exits);
    // An agent that is killed before it made use of the answer is followed by one that asks again.
    for host in [&host, &host, &supervised_host(&exits)] {
        assert_eq!(host.adopt(&run, &identity).unwrap(), Adoption::NotRun);
    }
    host.forget_run(&run);
    host.finish_removals().await;
    assert_eq!(records(&exits), 0);
}

#[tokio::test]
async fn an_agent_that_came_later_signals_and_kills_through_the_supervisor() {
    let exits = scratch().join("later");
    let (first, second) = (supervised_host(&exits), supervised_host(&exits));
    let case = sh("trap 'echo caught' USR1; echo up; while :; do sleep 0.01; done");
    let run = &case.spec.run_id;
    let id = start(&first, &case.spec).await.unwrap();
    let identity = first.identity(run, &id).unwrap();
    drop(first);
    assert_eq!(second.adopt(run, &identity).unwrap(), Adoption::Running);
    until("the trap is set", || case.stdout.text().contains("up")).await;
    second.signal(run, &id, "USR1").unwrap();
    until("the signal has arrived", || case.stdout.text().contains("caught")).await;
    second.kill_run(run);
    assert_eq!(second.wait(run, &id).await.signal, Some(9));
    second.forget_run(run);
}

#[tokio::test]
async fn who_has_the_pid_of_a_supervisor_or_task_now_is_never_touched() {
    let exits = scratch().join("reuse");
    let host = supervised_host(&exits);
    let stranger = sh("exec sleep 1000");
    let id = start(&host, &stranger.spec).await.unwrap();
    let theirs = host.identity(&stranger.spec.run_id, &id).unwrap();
    // As recorded by an agent before the numbers were used again.
    let shim = theirs.supervisor.unwrap();
    let before =
        ostler_model::ports::SupervisorIdentity { start_ticks: shim.start_ticks - 1, ..shim };
    let ours = ProcessIdentity {
        start_ticks: theirs.start_ticks - 1,
        supervisor: Some(before),
        cgroup: None,
        ..theirs.clone()
    };
    let (next, run) = (supervised_host(&exits), run_id(1));
    let adopted = next.adopt(&run, &ours).unwrap();
    let Adoption::Ended(exit) = adopted else { panic!("{adopted:?}") };
    assert!(exit.error.unwrap().contains("supervisor"));
    next.kill_run(&run);
    next.forget_run(&run);
    let other_boot = ProcessIdentity { boot_id: "an earlier boot".to_owned(), ..theirs.clone() };
    assert_eq!(next.adopt(&run, &other_boot).unwrap(), Adoption::Rebooted);
    assert_eq!(identity::reap_leftover(&ours).unwrap(), identity::ReapOutcome::Gone);
    assert_eq!(identity::reap_leftover(&other_boot).unwrap(), identity::ReapOutcome::Gone);
    assert_eq!(host.state(&stranger.spec.run_id, &id).unwrap(), ProcessState::Running);
    assert!(identity::is_alive(&theirs));
    until("it sleeps, and is not stopped", || state_of(theirs.pid) == Some('S')).await;

    let unsupervised = ProcessIdentity { supervisor: None, ..theirs };
    assert_eq!(next.adopt(&run, &unsupervised).unwrap(), Adoption::Unknown);
    forget(&host, &stranger.spec.run_id, &id).await;
}

#[tokio::test]
async fn a_killed_supervisor_takes_its_task_and_the_group_with_it_and_the_exit_says_so() {
    let exits = scratch().join("killed");
    let host = supervised_host(&exits);
    let case = sh("sleep 1000 & echo $!; wait");
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(run, &id).unwrap();
    until("the child is there", || pid_in(&case.stdout).is_some_and(exists)).await;
    kill(supervisor(&identity), Signal::KILL);
    let exit = host.wait(run, &id).await;
    assert!(exit.error.unwrap().contains("the supervisor of the process was killed"));
    until("the task is gone", || !exists(identity.pid)).await;
    if cfg!(target_os = "linux") && group_by_pidfd_works() {
        until("its child is gone", || !exists(pid_in(&case.stdout).unwrap())).await;
    }
    // So says also an agent that comes later.
    let adopted = supervised_host(&exits).adopt(run, &identity).unwrap();
    assert!(matches!(adopted, Adoption::Ended(RawExit { error: Some(_), .. })), "{adopted:?}");
    host.forget_run(run);
}

/// Children of a task whose supervisor was killed while no agent was there.
async fn orphans(test: &str, dir: &Path) -> (Told, Vec<u32>) {
    let told = killed_agent(test, "children", dir);
    let Told { run, identity } = &told;
    let mut children = Vec::new();
    until("its children are there", || {
        let all = leftovers::find_remaining(run, identity, leftovers::Certainty::Recorded).unwrap();
        let certain = all.iter().filter(|left| left.certain).map(|left| left.pid);
        children = certain.filter(|pid| *pid != identity.pid).collect();
        let sleep = |pid| std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        children.len() == 2 && children.iter().all(|pid| sleep(*pid) == "sleep\n")
    })
    .await;
    kill(supervisor(identity), Signal::KILL);
    until("the task is gone", || !exists(identity.pid)).await;
    assert!(children.iter().all(|child| exists(*child)), "nobody ends them");
    (told, children)
}

#[tokio::test]
async fn what_a_killed_supervisor_left_while_no_agent_was_there_is_ended_before_that_is_told() {
    const NAME: &str =
        "what_a_killed_supervisor_left_while_no_agent_was_there_is_ended_before_that_is_told";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let (Told { run, identity }, children) = orphans(NAME, dir.path()).await;
    let host = without_cgroups_at(&dir.path().join("exits"));
    assert_eq!(host.adopt(&run, &identity).unwrap(), Adoption::Running, "it is not over");
    let exit = host.wait(&run, &identity.id()).await;
    assert!(exit.error.unwrap().contains("the supervisor of the process was killed"));
    assert!(!children.iter().any(|child| exists(*child)), "a child was left");
    host.forget_run(&run);
}

#[tokio::test]
async fn what_a_killed_supervisor_left_is_ended_by_the_identity_of_its_task_too() {
    const NAME: &str = "what_a_killed_supervisor_left_is_ended_by_the_identity_of_its_task_too";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let (Told { run, identity }, children) = orphans(NAME, dir.path()).await;
    identity::end_leftover(run, identity, Duration::from_secs(30)).await.unwrap();
    assert!(!children.iter().any(|child| exists(*child)), "a child was left");
}

#[tokio::test]
async fn what_an_agent_left_is_ended_by_its_identity_without_being_owned() {
    const NAME: &str = "what_an_agent_left_is_ended_by_its_identity_without_being_owned";
    if let Some(role) = role() {
        return play(&role).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let Told { run, identity } = killed_agent(NAME, "plain", dir.path());
    assert!(identity::is_alive(&identity));
    let bound = Duration::from_secs(30);
    identity::end_leftover(run.clone(), identity.clone(), bound).await.unwrap();
    assert!(!identity::is_alive(&identity));
    let shim = identity.supervisor.unwrap();
    let shim = identity::open_same(shim.pid, shim.start_ticks).unwrap();
    assert!(shim.is_none_or(|shim| identity::has_ended(&shim)));
    identity::end_leftover(run, identity, bound).await.unwrap();
}

/// An agent with few descriptors, which raises that: what a task of it, a command of a plugin and the
/// agent itself have.
async fn play_raised(dir: &Path) {
    let few = Rlimit { current: Some(300), ..getrlimit(Resource::Nofile) };
    let hard = few.maximum.map_or("unlimited".to_owned(), |most| most.to_string());
    setrlimit(Resource::Nofile, few).unwrap();
    let most = descriptors::raise_limit().unwrap();
    assert_eq!(getrlimit(Resource::Nofile).current, most);
    assert_ne!(most, Some(300), "there is room to raise it");
    let script = vec!["-c".to_owned(), "ulimit -Sn; ulimit -Hn".to_owned()];
    let command =
        crate::program::run("/bin/sh".into(), script, Duration::from_secs(60)).await.unwrap();
    assert_eq!(String::from_utf8(command.stdout).unwrap(), format!("300\n{hard}\n"));
    let host = supervised_host(&dir.join("exits"));
    let mut case = sh("ulimit -Sn");
    case.spec.stdout = Arc::new(KeptIn(dir.to_owned()));
    let id = start(&host, &case.spec).await.unwrap();
    assert_eq!(host.wait(&case.spec.run_id, &id).await.exit_code, Some(0));
    host.forget_run(&case.spec.run_id);
}

#[tokio::test]
async fn an_agent_may_have_more_files_open_than_it_was_started_with_and_what_it_starts_may_not() {
    const NAME: &str =
        "an_agent_may_have_more_files_open_than_it_was_started_with_and_what_it_starts_may_not";
    if role().is_some() {
        return play_raised(&PathBuf::from(std::env::var(FILE).unwrap())).await;
    }
    let dir = tempfile::tempdir().unwrap();
    let name = format!("tests::outlive::{NAME}");
    let ended = again(&name, "raised", dir.path()).wait_with_output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
    assert_eq!(printed(dir.path()).trim(), "300");
}

/// Since Linux 6.9.
fn group_by_pidfd_works() -> bool {
    let text = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = text.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap(), numbers.next().unwrap()) >= (6, 9)
}

#[tokio::test]
async fn a_stopped_supervisor_is_woken_to_kill() {
    let host = Mode::Supervised.host();
    let case = sh("exec sleep 1000");
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(&case.spec.run_id, &id).unwrap();
    kill(supervisor(&identity), Signal::STOP);
    until("it is stopped", || state_of(supervisor(&identity)) == Some('T')).await;
    host.kill(&case.spec.run_id, &id).unwrap();
    assert_eq!(host.wait(&case.spec.run_id, &id).await.signal, Some(9));
    host.forget_run(&case.spec.run_id);
}

#[tokio::test]
async fn descendants_that_left_the_session_are_killed_at_the_end_without_cgroups() {
    let host = without_cgroups();
    assert_eq!(host.cgroup_status().parent, None);
    let daemon = "setsid sh -c 'setsid sleep 1000 & echo $!' >&1; ";
    // The leader ends by itself, or is killed.
    for (rest, code) in [("exec >/dev/null 2>&1; exit 3", Some(3)), ("sleep 1000", None)] {
        let case = sh(&format!("{daemon}{rest}"));
        let run = &case.spec.run_id;
        let id = start(&host, &case.spec).await.unwrap();
        until("the daemon is there", || pid_in(&case.stdout).is_some()).await;
        if code.is_none() {
            host.kill_run(run);
        }
        assert_eq!(host.wait(run, &id).await.exit_code, code);
        assert!(!exists(pid_in(&case.stdout).unwrap()));
        host.forget_run(run);
    }
}

#[tokio::test]
async fn a_killed_zygote_takes_nobody_with_it_and_is_replaced_at_the_next_start() {
    let host = Mode::Supervised.host();
    let (first, second) = (sh("exec sleep 1000"), sh("exit 3"));
    let id = start(&host, &first.spec).await.unwrap();
    let identity = host.identity(&first.spec.run_id, &id).unwrap();
    let zygote = zygote_of(&identity);
    kill(zygote, Signal::KILL);
    until("the zygote is dead", || !exists(zygote)).await;
    assert_eq!(to_end(&host, &second.spec).await.exit_code, Some(3));
    assert!(identity::is_alive(&identity));
    assert_eq!(state_of(zygote), None, "not even a zombie");
    forget(&host, &first.spec.run_id, &id).await;
}

#[tokio::test]
async fn the_zygote_ends_with_its_host_and_the_task_does_not() {
    let exits = scratch().join("ends");
    let host = supervised_host(&exits);
    let case = sh("exec sleep 1000");
    let id = start(&host, &case.spec).await.unwrap();
    let identity = host.identity(&case.spec.run_id, &id).unwrap();
    let zygote = zygote_of(&identity);
    let line = match &host.inner.way {
        ForkMode::Supervised(line) => line.clone(),
        ForkMode::Here(_) => panic!("supervised"),
    };
    // As if the agent had been killed: nobody kills the zygote, its socket closes.
    line.close_for_test();
    until("the zygote is gone", || !exists(zygote)).await;
    assert!(identity::is_alive(&identity));
    forget(&host, &case.spec.run_id, &id).await;
}

#[test]
fn a_program_that_cannot_be_a_zygote_is_an_error_at_the_start() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let made = ProcessHost::new(ProcessOptions {
        control: runtime.handle().clone(),
        kill_with_agent: false,
        supervision: Some(Supervision {
            program: "/no/such/program".into(),
            records: scratch().join("none"),
        }),
        cgroup_parent: None,
        clock: Clock::system(),
    });
    assert!(matches!(made, Err(ProcessError::System { .. })), "{made:?}");
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_neither_task_nor_supervisor_nor_record() {
    let exits = scratch().join("given-up");
    let host = supervised_host(&exits);
    let mut case = sh("exit 0");
    case.spec.record_identity = Arc::new(|_| Box::pin(async { Err("no".to_owned()) }));
    host.spawn(case.spec.clone()).await.unwrap_err();
    assert_eq!(records(&exits), 0);
    // Held, and never let go.
    case.spec.record_identity = recorded();
    let id = host.spawn(case.spec.clone()).await.unwrap();
    let identity = host.identity(&case.spec.run_id, &id).unwrap();
    forget(&host, &case.spec.run_id, &id).await;
    until("the supervisor is gone", || !exists(supervisor(&identity))).await;
    until("its record is gone", || records(&exits) == 0).await;
}

#[tokio::test]
async fn what_a_released_run_spawns_later_is_not_held() {
    for mode in [Mode::Here, Mode::Supervised] {
        let (host, case) = (mode.host(), sh("exit 5"));
        let first = start(&host, &case.spec).await.unwrap();
        let second = host.spawn(case.spec.clone()).await.unwrap();
        for id in [first, second] {
            assert_eq!(host.wait(&case.spec.run_id, &id).await.exit_code, Some(5));
        }
        host.forget_run(&case.spec.run_id);
    }
}

#[tokio::test]
async fn held_processes_end_without_user_code_when_their_run_is_killed() {
    for mode in [Mode::Here, Mode::Supervised] {
        let (host, case) = (mode.host(), sh("echo ran"));
        let id = host.spawn(case.spec.clone()).await.unwrap();
        assert_eq!(host.state(&case.spec.run_id, &id).unwrap(), ProcessState::Running);
        host.kill_run(&case.spec.run_id);
        assert_eq!(host.wait(&case.spec.run_id, &id).await.signal, Some(9), "{mode:?}");
        assert_eq!(case.stdout.text(), "");
        host.forget_run(&case.spec.run_id);
    }
}

#[tokio::test]
async fn a_task_whose_log_directory_is_removed_goes_on() {
    let (host, dir) = (Mode::Supervised.host(), tempfile::tempdir().unwrap());
    let logs = dir.path().join("logs");
    std::fs::create_dir(&logs).unwrap();
    let mut case = sh("echo one; while [ ! -e stop ]; do echo more; sleep 0.001; done; exit 7");
    case.spec.cwd = dir.path().to_owned();
    case.spec.stdout = Arc::new(KeptIn(logs.clone()));
    let id = start(&host, &case.spec).await.unwrap();
    until("it prints", || printed(&logs).contains("more")).await;
    std::fs::remove_dir_all(&logs).unwrap();
    std::fs::write(dir.path().join("stop"), "").unwrap();
    assert_eq!(host.wait(&case.spec.run_id, &id).await.exit_code, Some(7));
    host.forget_run(&case.spec.run_id);
}

#[tokio::test]
async fn a_supervisor_keeps_open_only_what_is_its_own() {
    let host = Mode::Supervised.host();
    let cases: Vec<_> = (0..10).map(|_| sh("exec sleep 1000")).collect();
    let mut started = Vec::new();
    for case in &cases {
        started.push((case, host.spawn(case.spec.clone()).await.unwrap()));
    }
    // Ends of pipes: two of its task's output; and the two that keep the task, while it is held.
    for (expected, release) in [(4, true), (2, false)] {
        for (case, id) in &started {
            let run = &case.spec.run_id;
            let shim = supervisor(&host.identity(run, id).unwrap());
            until("its descriptors are its own", || {
                let links: Vec<_> = std::fs::read_dir(format!("/proc/{shim}/fd"))
                    .unwrap()
                    .filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok())
                    .map(|link| link.display().to_string())
                    .collect();
                let pipes = links.iter().filter(|link| link.starts_with("pipe:")).count();
                let sockets = links.iter().filter(|link| link.starts_with("socket:")).count();
                (pipes, sockets) == (expected, 0) && links.len() <= 14
            })
            .await;
            if release {
                host.release(run).await.unwrap();
            }
        }
    }
    for (case, id) in started {
        forget(&host, &case.spec.run_id, &id).await;
    }
}
