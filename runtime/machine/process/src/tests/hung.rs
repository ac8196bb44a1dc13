//! A zygote that hangs while it begins a task.

use super::outlive::{kill, supervisor, zygote_of};
use super::*;

/// Children of all threads of a process: the zygote of these tests is not the first one of its process.
fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let texts = threads.filter_map(|of| std::fs::read_to_string(of.path().join("children")).ok());
    let pids = texts.flat_map(|text| {
        text.split_ascii_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<u32>>()
    });
    pids.collect()
}

/// Stop the first child of a process that it had not `before`, and then the process; the child, which lives as long as
/// its task.
fn stop_with_next_child(pid: u32, before: &[u32]) -> u32 {
    loop {
        if let Some(new) = children(pid).into_iter().find(|child| !before.contains(child)) {
            kill(new, Signal::STOP);
            kill(pid, Signal::STOP);
            return new;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_zygote_had_begun_before_it_hung_takes_nothing_from_what_is_begun_after_it() {
    let exits = scratch().join("hung");
    let host = supervised_host(&exits);
    let first = sh("exec sleep 1000");
    let id = start(&host, &first.spec).await.unwrap();
    let zygote = zygote_of(&host.identity(&first.spec.run_id, &id).unwrap());
    let before = children(zygote);
    let stopping = tokio::task::spawn_blocking(move || stop_with_next_child(zygote, &before));
    let case = sh("echo ran; exit 0");
    let (asking, spec) = (host.clone(), case.spec.clone());
    let held = tokio::spawn(async move { asking.spawn(spec).await });
    let begun = stopping.await.unwrap();
    // By the zygote after it, or by this one just before it was stopped.
    let held = held.await.unwrap().unwrap();
    for stopped in [begun, zygote].into_iter().filter(|pid| exists(*pid)) {
        kill(stopped, Signal::CONT);
    }
    let run = &case.spec.run_id;
    let own = supervisor(&host.identity(run, &held).unwrap());
    until("what was begun first has given up", || begun == own || !exists(begun)).await;
    host.release(run).await.unwrap();
    let exit = host.wait(run, &held).await;
    assert_eq!((exit.exit_code, exit.error), (Some(0), None));
    host.forget_run(run);
    assert_eq!(case.stdout.text(), "ran\n", "once");
    forget(&host, &first.spec.run_id, &id).await;
}
