#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;
use crate::held_runs::alive::WasmRun;
use ostler_control::node_records::KnownTask;
use ostler_lifecycle::task::handle::StartedRecord;
use ostler_model::ids::{JobId, RunId};
use ostler_model::ports::ProcessIdentity;
use ostler_model::task::{DriverHandle, Workload};
use ostler_process::live::{LiveRun, RunPlace};

fn task() -> TaskName {
    TaskName::new("web").unwrap()
}

fn alloc(number: u128) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(number))
}

fn identity(pid: u32) -> ProcessIdentity {
    ProcessIdentity {
        pid: pid + 1,
        start_ticks: 11,
        boot_id: "boot".to_owned(),
        cgroup: None,
        supervisor: Some(SupervisorIdentity { pid, start_ticks: 10 }),
    }
}

fn record(of: AllocId, pid: u32) -> RunRecord {
    RunRecord {
        id: RunId::new(of, &task(), pid),
        identities: vec![identity(pid)],
        started: Some(StartedRecord {
            handle: DriverHandle { plugin: "exec".to_owned(), version: 1, data: vec![1, 2, 3] },
            workload: Workload::Process("p".to_owned()),
            network: None,
        }),
    }
}

fn place(of: AllocId) -> RunPlace {
    RunPlace {
        alloc: of,
        task: task(),
        job: JobId::new("job").unwrap(),
        group: "group".parse().unwrap(),
        index: 0,
    }
}

fn native(of: AllocId, pid: u32) -> LiveRun {
    LiveRun {
        supervisor: SupervisorIdentity { pid, start_ticks: 10 },
        identity: identity(pid),
        run: Some(record(of, pid).id.to_string()),
        place: Some(place(of)),
        record: Some(serde_json::to_value(record(of, pid)).unwrap()),
        elsewhere: None,
    }
}

fn live(of: AllocId, pid: u32) -> AliveRun {
    AliveRun::Native(native(of, pid))
}

/// The record of a run whose task is in a worker.
fn wasm_record(of: AllocId, number: u32) -> RunRecord {
    let mut record = RunRecord { identities: Vec::new(), ..record(of, number) };
    record.started.as_mut().unwrap().workload = Workload::WasmTask("wasm-1".to_owned());
    record
}

fn wasm(of: AllocId, number: u32) -> WasmRun {
    let record = wasm_record(of, number);
    WasmRun {
        worker: crate::held_runs::alive::worker(77, 1, "boot"),
        run: Some(record.id.clone()),
        task: Some("wasm-1".to_owned()),
        place: Some(place(of)),
        record: Some(serde_json::to_value(record).unwrap()),
        elsewhere: false,
    }
}

fn known(owned: bool, run: Option<RunRecord>) -> BTreeMap<AllocId, KnownAlloc> {
    let tasks = BTreeMap::from([(task(), KnownTask { run, ended: false })]);
    BTreeMap::from([(alloc(1), KnownAlloc { owned, place: None, tasks })])
}

#[test]
fn a_run_that_is_on_record_is_its_owners() {
    let known = known(true, Some(record(alloc(1), 5)));
    assert_eq!(decide(&[live(alloc(1), 5)], &known), [RunDecision::Owned]);
}

#[test]
fn an_allocation_is_owned_when_a_run_of_it_that_is_on_record_lives() {
    let known = known(true, Some(record(alloc(1), 5)));
    assert_eq!(owned_allocs(&[live(alloc(1), 5)], &known), BTreeSet::from([alloc(1)]));
    assert_eq!(owned_allocs(&[live(alloc(1), 6)], &known), BTreeSet::new());
    assert_eq!(owned_allocs(&[], &known), BTreeSet::new());
}

#[test]
fn a_later_run_of_a_task_on_record_is_adopted_by_its_note() {
    for before in [None, Some(record(alloc(1), 3))] {
        let verdicts = decide(&[live(alloc(1), 5)], &known(true, before));
        assert_eq!(verdicts, [RunDecision::Adopt(record(alloc(1), 5))]);
    }
}

#[test]
fn a_process_that_got_the_pid_of_one_on_record_is_not_taken_for_it() {
    let known = known(true, Some(record(alloc(1), 5)));
    let mut other = native(alloc(2), 5);
    other.supervisor.start_ticks = 99;
    assert_eq!(
        decide(&[AliveRun::Native(other)], &known),
        [RunDecision::Hold(HoldReason::Unknown)]
    );
}

#[test]
fn a_run_of_an_allocation_that_nobody_knows_is_held_back() {
    assert_eq!(
        decide(&[live(alloc(2), 5)], &known(true, None)),
        [RunDecision::Hold(HoldReason::Unknown)]
    );
    assert_eq!(
        decide(&[live(alloc(1), 5)], &BTreeMap::new()),
        [RunDecision::Hold(HoldReason::Unknown)]
    );
}

#[test]
fn a_run_of_an_allocation_that_gets_no_owner_is_held_back_also_when_it_is_on_record() {
    let known = known(false, Some(record(alloc(1), 5)));
    assert_eq!(decide(&[live(alloc(1), 5)], &known), [RunDecision::Hold(HoldReason::Over)]);
}

#[test]
fn a_run_of_a_task_that_ended_by_a_file_that_is_not_stale_does_not_bring_it_back() {
    let mut known = known(true, None);
    known.get_mut(&alloc(1)).unwrap().tasks.get_mut(&task()).unwrap().ended = true;
    assert_eq!(decide(&[live(alloc(1), 5)], &known), [RunDecision::Hold(HoldReason::Over)]);
}

#[test]
fn two_runs_of_one_task_are_not_both_owned() {
    let runs = [live(alloc(1), 5), live(alloc(1), 7)];
    let both = [RunDecision::Hold(HoldReason::Another), RunDecision::Hold(HoldReason::Another)];
    assert_eq!(decide(&runs, &known(true, None)), both);
    let one_known = known(true, Some(record(alloc(1), 5)));
    assert_eq!(
        decide(&runs, &one_known),
        [RunDecision::Owned, RunDecision::Hold(HoldReason::Another)]
    );
}

#[test]
fn without_a_note_that_can_be_used_nothing_is_adopted() {
    let no_note = LiveRun { record: None, ..native(alloc(1), 5) };
    let broken = LiveRun { record: Some(serde_json::json!({"id": 3})), ..native(alloc(1), 5) };
    let of_another = LiveRun {
        record: Some(serde_json::to_value(record(alloc(1), 6)).unwrap()),
        ..native(alloc(1), 5)
    };
    let unfinished = LiveRun {
        record: Some(
            serde_json::to_value(RunRecord { started: None, ..record(alloc(1), 5) }).unwrap(),
        ),
        ..native(alloc(1), 5)
    };
    for run in [no_note, broken, of_another, unfinished] {
        assert_eq!(
            decide(&[AliveRun::Native(run)], &known(true, None)),
            [RunDecision::Hold(HoldReason::NoNote)]
        );
    }
    let nameless = LiveRun { place: None, record: None, ..native(alloc(1), 5) };
    assert_eq!(
        decide(&[AliveRun::Native(nameless)], &known(true, None)),
        [RunDecision::Hold(HoldReason::Nameless)]
    );
}

#[test]
fn a_run_of_a_worker_is_owned_adopted_or_held_back_as_that_of_a_supervisor() {
    let this = || AliveRun::Wasm(wasm(alloc(1), 5));
    let on_record = known(true, Some(wasm_record(alloc(1), 5)));
    assert_eq!(decide(&[this()], &on_record), [RunDecision::Owned]);
    assert_eq!(owned_allocs(&[this()], &on_record), BTreeSet::from([alloc(1)]));
    for before in [None, Some(wasm_record(alloc(1), 3))] {
        let verdicts = decide(&[this()], &known(true, before));
        assert_eq!(verdicts, [RunDecision::Adopt(wasm_record(alloc(1), 5))]);
    }
    assert_eq!(decide(&[this()], &BTreeMap::new()), [RunDecision::Hold(HoldReason::Unknown)]);
    let mut over = known(true, None);
    over.get_mut(&alloc(1)).unwrap().tasks.get_mut(&task()).unwrap().ended = true;
    assert_eq!(decide(&[this()], &over), [RunDecision::Hold(HoldReason::Over)]);
    let no_note = AliveRun::Wasm(WasmRun { record: None, ..wasm(alloc(1), 5) });
    assert_eq!(decide(&[no_note], &known(true, None)), [RunDecision::Hold(HoldReason::NoNote)]);
    let other = serde_json::to_value(wasm_record(alloc(1), 6)).unwrap();
    let of_another = AliveRun::Wasm(WasmRun { record: Some(other), ..wasm(alloc(1), 5) });
    assert_eq!(decide(&[of_another], &known(true, None)), [RunDecision::Hold(HoldReason::NoNote)]);
}

#[test]
fn two_runs_of_one_task_in_workers_or_below_a_supervisor_are_not_both_owned() {
    let runs = [live(alloc(1), 5), AliveRun::Wasm(wasm(alloc(1), 7))];
    let both = [RunDecision::Hold(HoldReason::Another), RunDecision::Hold(HoldReason::Another)];
    assert_eq!(decide(&runs, &known(true, None)), both);
}

#[test]
fn what_works_for_another_data_directory_is_not_owned_though_it_is_on_record() {
    let dir = Some("/other".into());
    let run = AliveRun::Native(LiveRun { elsewhere: dir, ..native(alloc(1), 5) });
    let of_supervisor = known(true, Some(record(alloc(1), 5)));
    assert_eq!(owned_allocs(std::slice::from_ref(&run), &of_supervisor), BTreeSet::new());
    assert_eq!(decide(&[run], &of_supervisor), [RunDecision::Hold(HoldReason::Elsewhere)]);
    let run = AliveRun::Wasm(WasmRun { elsewhere: true, ..wasm(alloc(1), 5) });
    let of_worker = known(true, Some(wasm_record(alloc(1), 5)));
    assert_eq!(decide(&[run], &of_worker), [RunDecision::Hold(HoldReason::Elsewhere)]);
}
