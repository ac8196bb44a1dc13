use super::*;
use crate::host::process;
use crate::testing::{self, FakeHost};
use std::collections::BTreeMap;

/// A driver of processes that implements only what it must.
struct Least;

impl Driver for Least {
    type Runs = Process;

    fn describe() -> DriverInfo {
        DriverInfo::new("least", "0.1.0")
    }

    fn start(task: TaskConfig) -> Result<Started, Error> {
        let id = process::spawn(&process::SpawnRequest {
            command: "true".to_owned(),
            search: vec![],
            args: vec![],
            env: task.env,
            cwd: task.task_dir,
            user: None,
        })?;
        let state = BTreeMap::from([("colour", "red")]);
        Started::remembering::<Self>(id, &state)
    }
}

fn started() -> Started {
    Least::start(testing::task("{}")).unwrap()
}

fn raw_exit() -> RawExit {
    RawExit { exit_code: None, signal: None, oom_killed: false, error: None, finished_at: 1 }
}

#[test]
fn a_recovered_task_is_the_one_that_was_started() {
    let _host = FakeHost::install();
    let started = started();
    let recovered = Least::recover(started.handle.clone()).unwrap();
    assert_eq!(recovered, started);
    assert_eq!(recovered.workload, Workload::Process("p1".to_owned()));
}

#[test]
fn recovering_starts_nothing() {
    let host = FakeHost::install();
    let handle = started().handle;
    Least::recover(handle).unwrap();
    assert_eq!(host.processes().len(), 1);
}

#[test]
fn the_state_comes_back_as_it_was_stored() {
    let _host = FakeHost::install();
    let state: BTreeMap<String, String> = started().handle.state().unwrap();
    assert_eq!(state.get("colour").map(String::as_str), Some("red"));
}

#[test]
fn a_foreign_handle_is_not_found() {
    let _host = FakeHost::install();
    let garbage = Handle { version: 1, data: vec![0xff, 0x00] };
    let newer = Handle { version: 2, ..started().handle };
    for handle in [garbage, newer] {
        assert!(matches!(Least::recover(handle.clone()), Err(Error::NotFound(_))));
        assert!(matches!(Least::kill(handle), Err(Error::NotFound(_))));
    }
}

#[test]
fn a_running_task_is_destroyed_only_by_force() {
    let host = FakeHost::install();
    let handle = started().handle;
    assert!(matches!(Least::destroy(handle.clone(), false), Err(Error::Fatal(_))));
    assert!(host.is_running("p1"));
    Least::destroy(handle, true).unwrap();
    assert!(!host.is_running("p1"));
}

#[test]
fn a_task_that_ended_or_is_unknown_is_destroyed_without_force() {
    let host = FakeHost::install();
    let handle = started().handle;
    host.exit("p1");
    Least::destroy(handle.clone(), false).unwrap();
    FakeHost::install();
    Least::destroy(handle, false).unwrap();
}

#[test]
fn inspect_says_that_the_process_runs_and_leaves_its_exit_to_the_host() {
    let host = FakeHost::install();
    let handle = started().handle;
    assert_eq!(Least::inspect(handle.clone()).unwrap().state, RunState::Running);
    host.exit("p1");
    let status = Least::inspect(handle).unwrap();
    assert_eq!((status.state, status.exit.is_none()), (RunState::Unknown, true));
}

#[test]
fn signals_reach_the_process_and_unknown_ones_are_an_error() {
    let host = FakeHost::install();
    let handle = started().handle;
    Least::signal(handle.clone(), "SIGHUP".to_owned()).unwrap();
    assert!(Least::signal(handle, "HUGH".to_owned()).is_err());
    assert_eq!(host.signals(), [("p1".to_owned(), "SIGHUP".to_owned())]);
}

#[test]
fn an_exit_means_what_the_host_saw() {
    let _host = FakeHost::install();
    let handle = started().handle;
    let killed = RawExit { signal: Some(9), oom_killed: true, ..raw_exit() };
    let result = Least::exited(handle.clone(), killed).unwrap();
    assert_eq!((result.exit_code, result.signal, result.oom_killed), (137, 9, true));
    let unknown = Least::exited(handle, raw_exit()).unwrap();
    assert_eq!((unknown.exit_code, unknown.error.is_some()), (255, true));
}

#[test]
fn the_schemas_given_by_default_are_json() {
    let info = Least::describe();
    for schema in [info.config_schema, info.task_config_schema] {
        serde_json::from_str::<serde_json::Value>(&schema).unwrap();
    }
}
