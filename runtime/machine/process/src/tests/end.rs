//! Ending: exits, signals, output, forgetting.

use super::*;

in_both_modes!(
    exit_codes_and_fatal_signals_are_told_apart,
    a_signal_reaches_the_task_by_name,
    killing_the_task_kills_its_grandchildren,
    a_grandchild_that_holds_the_pipe_delays_the_exit_only_by_the_grace,
    what_left_the_process_group_is_killed_through_the_cgroup,
    five_megabytes_on_both_streams_arrive_whole,
    everyone_who_waits_gets_the_same_exit_also_after_it,
    forgetting_a_run_kills_it_and_a_wait_begun_before_gets_the_exit,
    a_process_answers_only_to_its_own_run,
);

async fn exit_codes_and_fatal_signals_are_told_apart(mode: Mode) {
    let host = mode.host();
    for code in [0, 1, 77, 255] {
        let exit = to_end(&host, &sh(&format!("exit {code}")).spec).await;
        assert_eq!((exit.exit_code, exit.signal, exit.error), (Some(code), None, None));
    }
    let exit = to_end(&host, &sh("kill -SEGV $$").spec).await;
    assert_eq!((exit.exit_code, exit.signal), (None, Some(11)));
    assert!(exit.finished_at.nanos() > 0 && !exit.oom_killed);
}

async fn a_signal_reaches_the_task_by_name(mode: Mode) {
    let (host, case) =
        (mode.host(), sh("trap 'echo caught; exit 3' USR1; echo up; while :; do sleep 0.01; done"));
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    until("the trap is set", || case.stdout.text().contains("up")).await;
    assert_eq!(host.state(run, &id).unwrap(), ProcessState::Running);
    assert!(matches!(host.signal(run, &id, "SIGWHAT"), Err(ProcessError::UnknownSignal(_))));
    host.signal(run, &id, "usr1").unwrap();
    assert_eq!(host.wait(run, &id).await.exit_code, Some(3));
    assert_eq!(host.state(run, &id).unwrap(), ProcessState::Exited);
    assert!(case.stdout.text().ends_with("caught\n"));
    // Signalling what has ended is not an error.
    host.signal(run, &id, "TERM").unwrap();
    host.kill(run, &id).unwrap();
}

async fn killing_the_task_kills_its_grandchildren(mode: Mode) {
    let (host, case) = (mode.host(), sh("sh -c 'sleep 1000 & echo $!; wait' & wait"));
    let id = start(&host, &case.spec).await.unwrap();
    until("the grandchild is there", || pid_in(&case.stdout).is_some_and(exists)).await;
    host.kill_run(&case.spec.run_id);
    let exit = host.wait(&case.spec.run_id, &id).await;
    assert_eq!(exit.signal, Some(9));
    let pid = pid_in(&case.stdout).unwrap();
    until("the grandchild is gone", || !exists(pid)).await;
}

async fn a_grandchild_that_holds_the_pipe_delays_the_exit_only_by_the_grace(mode: Mode) {
    let (host, case) = (mode.host(), sh("sleep 1000 & echo $!; exit 5"));
    let watch = ostler_model::clock::Stopwatch::start();
    let ended = ostler_model::clock::timeout(DRAIN_GRACE * 30, to_end(&host, &case.spec)).await;
    assert_eq!(ended.expect("the grandchild is not waited for").exit_code, Some(5));
    let took = watch.elapsed();
    assert!(took >= DRAIN_GRACE, "{took:?}");
    let pid = pid_in(&case.stdout).unwrap();
    until("the grandchild is gone", || !exists(pid)).await;
}

async fn what_left_the_process_group_is_killed_through_the_cgroup(mode: Mode) {
    let host = mode.host();
    if host.cgroup_status().parent.is_none() {
        eprintln!("skipped: {:?}", host.cgroup_status().unavailable);
        return;
    }
    let case = sh("setsid sleep 1000 >/dev/null 2>&1 & echo $!; sleep 1000");
    let id = start(&host, &case.spec).await.unwrap();
    let run = &case.spec.run_id;
    let cgroup = host.identity(run, &id).unwrap().cgroup.unwrap();
    assert!(cgroup.exists());
    until("the daemon has left", || {
        pid_in(&case.stdout).is_some_and(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|text| text.starts_with(b"sleep"))
        })
    })
    .await;
    host.kill(run, &id).unwrap();
    host.wait(run, &id).await;
    assert!(!exists(pid_in(&case.stdout).unwrap()));
    assert!(!cgroup.exists());
}

async fn five_megabytes_on_both_streams_arrive_whole(mode: Mode) {
    let host = mode.host();
    let case = sh("i=0; head -c 5000000 /dev/zero | tr '\\0' 'a' & \
                   head -c 5000000 /dev/zero | tr '\\0' 'b' >&2; wait");
    assert_eq!(to_end(&host, &case.spec).await.exit_code, Some(0));
    assert!(case.stdout.bytes().iter().all(|byte| *byte == b'a'));
    assert!(case.stderr.bytes().iter().all(|byte| *byte == b'b'));
    assert_eq!(case.stdout.bytes().len(), 5_000_000);
    assert_eq!(case.stderr.bytes().len(), 5_000_000);
}

async fn everyone_who_waits_gets_the_same_exit_also_after_it(mode: Mode) {
    let (host, case) = (mode.host(), sh("read x < /dev/null; exit 4"));
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let (one, two) = tokio::join!(host.wait(run, &id), host.wait(run, &id));
    let three = host.wait(run, &id).await;
    assert_eq!(one.exit_code, Some(4));
    assert!(one == two && two == three);
    host.forget_run(run);
    let gone = host.wait(run, &id).await;
    assert!(gone.error.unwrap().contains("no process"), "forgotten");
}

async fn forgetting_a_run_kills_it_and_a_wait_begun_before_gets_the_exit(mode: Mode) {
    let (host, case) = (mode.host(), sh("echo $$; sleep 1000"));
    let run = &case.spec.run_id;
    let id = start(&host, &case.spec).await.unwrap();
    let waiting = host.wait(run, &id);
    host.forget_run(run);
    assert_eq!(waiting.await.signal, Some(9));
    assert!(matches!(host.state(run, &id), Err(ProcessError::UnknownProcess { .. })));
}

async fn a_process_answers_only_to_its_own_run(mode: Mode) {
    let (host, case, other) = (mode.host(), sh("sleep 1000"), run_id(9));
    let id = start(&host, &case.spec).await.unwrap();
    assert!(matches!(host.signal(&other, &id, "KILL"), Err(ProcessError::UnknownProcess { .. })));
    assert!(matches!(host.kill(&other, &id), Err(ProcessError::UnknownProcess { .. })));
    assert!(matches!(host.state(&other, &id), Err(ProcessError::UnknownProcess { .. })));
    assert!(host.wait(&other, &id).await.error.is_some());
    host.kill_run(&other);
    host.forget_run(&other);
    assert_eq!(host.state(&case.spec.run_id, &id).unwrap(), ProcessState::Running);
    forget(&host, &case.spec.run_id, &id).await;
}
