//! What is made of an exit, whoever reads it.

use super::*;
use ostler_model::limits::MIB;
use ostler_model::ports::PluginCallError;
use ostler_model::task::{ExitResult, RawExit};
use ostler_testing::fake_driver::Reply;

/// The exit and the kinds of the events of a task whose workload ends like this.
async fn read(exited: Reply, raw: RawExit) -> (ExitResult, Vec<&'static str>) {
    let bench = Bench::new(Task { restart: fixtures::restart(0, SECOND), ..web() });
    bench.node.script("web", [Script { exited, ..Script::runs() }]);
    let handle = bench.spawn();
    until_running(&handle).await;
    let run = bench.node.contexts()[0].run_id.clone();
    bench.node.end_with(&run, raw);
    let state = until(&handle, |s| s.status == TaskStatus::Dead).await;
    let kinds = kinds(&state);
    (state.last_exit.clone().unwrap(), kinds)
}

fn trap() -> Reply {
    let (plugin, reason) = ("fake".to_owned(), "it trapped".to_owned());
    Reply::Fail(PluginCallError::CallFailed { plugin, call: "exited", reason })
}

#[tokio::test(start_paused = true)]
async fn an_exit_is_the_same_whether_its_driver_can_read_it_or_traps() {
    let silent = RawExit::default();
    let signal = RawExit { signal: Some(9), ..RawExit::default() };
    let lost = RawExit { error: Some("lost".to_owned()), ..RawExit::default() };
    for (raw, code) in [(silent, 255), (signal, 137), (lost, 255)] {
        let (answered, _) = read(Reply::Ok, raw.clone()).await;
        let (trapped, kinds) = read(trap(), raw.clone()).await;
        assert_eq!(answered, trapped, "{raw:?}");
        assert_eq!((answered.exit_code, answered.is_successful()), (code, false), "{raw:?}");
        assert!(kinds.contains(&"Driver Failure"), "{kinds:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_kill_for_memory_names_the_limit() {
    let raw = RawExit { signal: Some(9), oom_killed: true, ..RawExit::default() };
    let (exit, _) = read(Reply::Ok, raw).await;
    let mib = web().resources.memory_limit_bytes() / MIB;
    let said = exit.cause();
    assert_eq!((exit.exit_code, said), (137, Some(format!("out of memory at {mib} MiB"))));
}
