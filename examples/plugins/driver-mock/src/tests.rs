use super::*;
use ostler_sdk::testing::{self, FakeHost};

fn start(config: &str) -> Result<Started> {
    Mock::start(testing::task(config))
}

#[test]
fn a_task_ends_when_its_time_is_over_with_the_code_it_was_told() {
    let host = FakeHost::install();
    let handle = start(r#"{"run_for": "5s", "exit_code": 3}"#).unwrap().handle;
    host.advance(Duration::from_secs(4));
    assert_eq!(Mock::inspect(handle.clone()).unwrap().state, RunState::Running);
    host.advance(Duration::from_secs(1));
    let status = Mock::inspect(handle).unwrap();
    assert_eq!(status.state, RunState::Exited);
    assert_eq!(status.exit.unwrap().exit_code, Some(3));
}

#[test]
fn a_task_killed_by_a_signal_has_no_exit_code() {
    let host = FakeHost::install();
    let handle = start(r#"{"run_for": "1s", "exit_signal": 9, "exit_err_msg": "ouch"}"#);
    host.advance(Duration::from_secs(2));
    let exit = Mock::inspect(handle.unwrap().handle).unwrap().exit.unwrap();
    assert_eq!((exit.exit_code, exit.signal, exit.error), (None, Some(9), Some("ouch".to_owned())));
}

#[test]
fn without_run_for_a_task_runs_on() {
    let host = FakeHost::install();
    let started = start("{}").unwrap();
    assert_eq!(started.workload, Workload::Poll(POLL_AT_REST_MS));
    let handle = started.handle;
    host.advance(Duration::from_secs(1_000_000));
    assert_eq!(Mock::inspect(handle).unwrap().state, RunState::Running);
}

#[test]
fn a_failing_start_is_fatal_or_recoverable_as_told() {
    FakeHost::install();
    let fatal = start(r#"{"start_error": "no"}"#);
    assert_eq!(fatal.unwrap_err(), Error::fatal("no"));
    let again = start(r#"{"start_error": "no", "start_error_recoverable": true}"#);
    assert_eq!(again.unwrap_err(), Error::recoverable("no"));
}

#[test]
fn a_blocking_start_takes_its_time() {
    FakeHost::install();
    let before = clock::monotonic();
    // The fake clock moves by a microsecond for each look.
    start(r#"{"start_block_for": "20us"}"#).unwrap();
    assert!(clock::monotonic() - before >= 20_000);
}

#[test]
fn stop_says_the_task_is_gone_unless_it_does_not_listen() {
    FakeHost::install();
    let listens = start("{}").unwrap().handle;
    assert!(matches!(Mock::stop(listens, None, 0), Err(Error::NotFound(_))));
    let deaf = start(r#"{"kill_after": "10s"}"#).unwrap().handle;
    Mock::stop(deaf.clone(), None, 0).unwrap();
    Mock::kill(deaf).unwrap();
    let undying = start(r#"{"kill_error": "no"}"#).unwrap().handle;
    assert_eq!(Mock::kill(undying), Err(Error::fatal("no")));
}

#[test]
fn a_recovered_task_goes_on_from_its_first_start() {
    let host = FakeHost::install();
    let started =
        start(r#"{"run_for": "5s", "driver_ip": "10.0.0.1", "driver_port_map": "db:80,web:81"}"#);
    let started = started.unwrap();
    assert_eq!(started.workload, Workload::Poll(POLL_MS));
    host.advance(Duration::from_secs(6));
    let recovered = Mock::recover(started.handle.clone()).unwrap();
    assert_eq!(recovered, started);
    assert_eq!(recovered.network.as_ref().unwrap().ports.len(), 2);
    assert_eq!(Mock::inspect(recovered.handle).unwrap().state, RunState::Exited);
}

#[test]
fn what_the_mock_cannot_do_is_refused_all_at_once() {
    FakeHost::install();
    let refused = start(r#"{"stdout_string": "x", "stderr_repeat": 2, "driver_advertise": true}"#);
    let Err(Error::InvalidConfig(found)) = refused else { unreachable!("{refused:?}") };
    let paths: Vec<_> = found.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(paths, ["stdout_string", "stderr_repeat", "driver_advertise"]);
}

#[test]
fn a_signal_fails_when_told_to() {
    FakeHost::install();
    let handle = start(r#"{"signal_error": "deaf"}"#).unwrap().handle;
    assert_eq!(Mock::signal(handle, "SIGHUP".to_owned()), Err(Error::fatal("deaf")));
}

#[test]
fn the_driver_disappears_after_the_configured_time() {
    let host = FakeHost::install();
    host.set_config(r#"{"shutdown_periodic_after": true, "shutdown_periodic_duration": 3}"#);
    assert_eq!(Mock::fingerprint().unwrap().health.state, HealthState::Healthy);
    host.advance(Duration::from_secs(3));
    assert_eq!(Mock::fingerprint().unwrap().health.state, HealthState::Undetected);
}
