//! The layouts, one record at a time.

use proptest::prelude::*;

use super::*;
use crate::model::time::Timestamp;

fn variant<const N: u32>() -> impl Strategy<Value = v1::Variant<N>> {
    (0..N).prop_map(|number| v1::Variant::try_from(number).unwrap())
}

fn old_event() -> impl Strategy<Value = v1::TaskEvent> {
    let details = prop::collection::btree_map(".{0,6}", ".{0,6}", 0..3);
    (variant(), any::<u64>(), ".{0,12}", details, any::<bool>()).prop_map(
        |(kind, time, message, details, fails_task)| v1::TaskEvent {
            kind,
            time,
            message,
            details,
            fails_task,
        },
    )
}

fn old_task() -> impl Strategy<Value = v1::TaskState> {
    let exit = (any::<i32>(), any::<u32>(), any::<bool>(), any::<Option<String>>());
    let exit = exit.prop_map(|(exit_code, signal, oom_killed, error)| v1::ExitResult {
        exit_code,
        signal,
        oom_killed,
        error,
    });
    let times = any::<(Option<u64>, Option<u64>, Option<u64>)>();
    let events = prop::collection::vec(old_event(), 0..8);
    let rest = (prop::option::of(exit), events);
    (variant(), any::<(bool, u64)>(), times, rest).prop_map(
        |(status, (failed, restarts), times, (last_exit, events))| v1::TaskState {
            status,
            failed,
            restarts,
            last_restart: times.0,
            started_at: times.1,
            finished_at: times.2,
            last_exit,
            events,
        },
    )
}

fn old_local() -> impl Strategy<Value = v2::TaskLocal> {
    let process = (any::<u32>(), any::<u64>(), ".{0,12}", any::<Option<String>>()).prop_map(
        |(pid, start_ticks, boot_id, cgroup)| v2::ProcessIdentity {
            pid,
            start_ticks,
            boot_id,
            cgroup: cgroup.map(PathBuf::from),
        },
    );
    let workload = prop_oneof![
        ".{0,8}".prop_map(v2::Workload::Process),
        ".{0,8}".prop_map(v2::Workload::WasmTask),
        any::<u64>().prop_map(v2::Workload::Poll),
    ];
    let started = (".{0,8}", any::<(u32, Vec<u8>)>(), workload).prop_map(
        |(plugin, (version, data), workload)| v2::StartedRecord {
            handle: v2::DriverHandle { plugin, version, data },
            workload,
        },
    );
    let run = (".{0,20}", prop::collection::vec(process, 0..4), prop::option::of(started))
        .prop_map(|(id, identities, started)| v2::RunRecord { id, identities, started });
    (prop::option::of(run), any::<(u32, u64, bool)>()).prop_map(
        |(run, (count, window_start, run_complete))| v2::TaskLocal {
            run,
            tracker: v2::RestartTracker { count, window_start },
            run_complete,
        },
    )
}

proptest! {
    /// The body of schema 2 is that of schema 1 followed by the count, so the living type must read
    /// it and write it back as it is: for as long as no later schema changes it.
    #[test]
    fn any_task_state_keeps_all_it_had_and_counts_its_events(old in old_task()) {
        let before = postcard::to_stdvec(&old).unwrap();
        let after = upgrade(Kind::TaskState, 1, &before).unwrap();
        prop_assert_eq!(&after[..before.len()], &before[..]);
        let task: TaskState = codec::decode_body(&after).unwrap();
        prop_assert_eq!(task.events_total, u64::try_from(old.events.len()).unwrap());
        prop_assert_eq!(task.restarts, old.restarts);
        prop_assert_eq!(task.events.len(), old.events.len());
        prop_assert_eq!(postcard::to_stdvec(&task).unwrap(), after.into_owned());
    }

    /// Layout by layout: a body of schema 2, and what the living type reads after the step.
    #[test]
    fn any_record_of_a_task_keeps_all_it_had(old in old_local()) {
        let before = postcard::to_stdvec(&old).unwrap();
        let after = upgrade(Kind::TaskLocal, 2, &before).unwrap();
        let local: LocalState = codec::decode_body(&after).unwrap();
        prop_assert_eq!(local.delayed_until, None);
        prop_assert_eq!(local.run_complete, old.run_complete);
        prop_assert_eq!(local.tracker.count(), old.tracker.count);
        prop_assert_eq!(local.tracker.window_start().nanos(), old.tracker.window_start);
        prop_assert_eq!(local.run.is_some(), old.run.is_some());
        for (is, was) in local.run.iter().zip(&old.run) {
            prop_assert_eq!(is.id.as_str(), &was.id);
            prop_assert_eq!(is.identities.len(), was.identities.len());
            for (is, was) in is.identities.iter().zip(&was.identities) {
                let all = (is.pid, is.start_ticks, &is.boot_id, &is.cgroup);
                prop_assert_eq!(all, (was.pid, was.start_ticks, &was.boot_id, &was.cgroup));
                prop_assert_eq!(is.supervisor, None);
            }
            let started = postcard::to_stdvec(&is.started).unwrap();
            prop_assert_eq!(started, postcard::to_stdvec(&was.started).unwrap());
        }
        prop_assert_eq!(postcard::to_stdvec(&local).unwrap(), after.into_owned());
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        kind in prop::sample::select(vec![
            Kind::Alloc, Kind::AllocState, Kind::TaskLocal, Kind::TaskState,
        ]),
        schema in 1..SCHEMA,
        body: Vec<u8>,
    ) {
        let _ = upgrade(kind, schema, &body);
    }

    /// Closer to the mark than arbitrary bytes: a true body with one byte changed, or cut off.
    #[test]
    fn a_damaged_body_never_panics(which: prop::sample::Index, at: prop::sample::Index, byte: u8) {
        let bodies = bodies();
        let (kind, mut body) = bodies[which.index(bodies.len())].clone();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = upgrade(kind, 2, &body);
        body.truncate(at);
        prop_assert!(upgrade(kind, 2, &body).is_err());
    }
}

/// The bodies of the file of schema 2 that the step to schema 3 changes.
fn bodies() -> Vec<(Kind, Vec<u8>)> {
    let (_dir, path) = TWO.copy();
    let backend = RedbBackend::open(&path).unwrap();
    let mut bodies = Vec::new();
    let visit = &mut |key: &[u8], record: &[u8]| {
        let kind = Key::parse(key).unwrap().kind();
        if matches!(kind, Kind::Alloc | Kind::AllocState | Kind::TaskLocal) {
            bodies.push((kind, Envelope::open(record).unwrap().body.to_vec()));
        }
        ControlFlow::Continue(())
    };
    backend.scan(&[], visit).unwrap();
    bodies
}

/// What a supervisor is, the frozen layout and the living type must agree on too: no migrated record
/// has one.
#[test]
fn the_layout_of_a_task_in_schema_3_is_that_of_the_living_type() {
    let process = v3::ProcessIdentity {
        pid: 300,
        start_ticks: 1 << 40,
        boot_id: "boot".into(),
        cgroup: Some("/cgroup".into()),
        supervisor: Some(v3::SupervisorIdentity { pid: 299, start_ticks: 7 }),
    };
    let handle = v2::DriverHandle { plugin: "exec".into(), version: 2, data: vec![0, 255] };
    let started = v2::StartedRecord { handle, workload: v2::Workload::Poll(250) };
    let run = v3::RunRecord { id: "run".into(), identities: vec![process], started: Some(started) };
    let tracker = v2::RestartTracker { count: 3, window_start: 5 };
    let frozen =
        v3::TaskLocal { run: Some(run), tracker, run_complete: true, delayed_until: Some(9) };
    let body = postcard::to_stdvec(&frozen).unwrap();
    let living: LocalState = codec::decode_body(&body).unwrap();
    assert_eq!(postcard::to_stdvec(&living).unwrap(), body);
    assert_eq!(living.delayed_until.map(Timestamp::nanos), Some(9));
    let supervisor = living.run.unwrap().identities[0].supervisor.unwrap();
    assert_eq!((supervisor.pid, supervisor.start_ticks), (299, 7));
}

/// The layouts that schema 3 left alone are still those of schema 2, the new kinds of events aside.
#[test]
fn what_schema_3_leaves_alone_is_byte_for_byte_the_same() {
    let (_dir, path) = TWO.copy();
    let backend = RedbBackend::open(&path).unwrap();
    let mut same = 0;
    let visit = &mut |key: &[u8], record: &[u8]| {
        let key = Key::parse(key).unwrap();
        let before = Envelope::open(record).unwrap().body;
        let after = current(&key, record).unwrap();
        match key.kind() {
            Kind::Alloc | Kind::AllocState | Kind::TaskLocal => assert_ne!(&*after, before),
            _ => {
                assert_eq!(&*after, before, "{key}");
                same += 1;
            }
        }
        ControlFlow::Continue(())
    };
    backend.scan(&[], visit).unwrap();
    assert_eq!(same, 23);
}
