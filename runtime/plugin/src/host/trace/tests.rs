#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use wasmtime_wasi::p2::bindings::filesystem::types::{DescriptorType, ErrorCode};
use wasmtime_wasi::p2::{FsError, StreamError};

use super::*;
use ostler_sandbox::HostcallBudgetExceeded;

const MARK: HostCall = HostCall { function: number::FS_STAT, arguments: 7 };

/// Record answers, and the player of them.
fn recorded(record: impl FnOnce(&Tracer)) -> Player {
    let (tracer, trace) = Tracer::recording();
    record(&tracer);
    let trace = trace.lock().unwrap().clone();
    Player::new(trace)
}

fn put<A: Answer>(tracer: &Tracer, answer: &A) {
    tracer.begin(|| MARK);
    tracer.end(answer);
}

#[test]
fn answers_are_given_again_as_they_were() {
    let stat = DescriptorStat {
        type_: DescriptorType::Fifo,
        link_count: 1,
        size: u64::MAX,
        data_access_timestamp: None,
        data_modification_timestamp: None,
        status_change_timestamp: None,
    };
    let mut player = recorded(|tracer| {
        put::<FsResult<DescriptorStat>>(tracer, &Ok(stat));
        put::<FsResult<()>>(tracer, &Err(ErrorCode::CrossDevice.into()));
        put::<StreamResult<Vec<u8>>>(tracer, &Ok(b"read".to_vec()));
        put::<StreamResult<Vec<u8>>>(tracer, &Err(StreamError::Closed));
    });
    let again = player.next::<FsResult<DescriptorStat>>(MARK).unwrap();
    assert_eq!((again.type_, again.size), (DescriptorType::Fifo, u64::MAX));
    let error: FsError = player.next::<FsResult<()>>(MARK).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&ErrorCode::CrossDevice));
    assert_eq!(player.next::<StreamResult<Vec<u8>>>(MARK).unwrap(), b"read");
    let closed = player.next::<StreamResult<Vec<u8>>>(MARK);
    assert!(matches!(closed, Err(StreamError::Closed)));
    assert_eq!((player.departure.clone(), player.left_over()), (None, 0));
}

#[test]
fn an_error_that_ended_the_call_ends_it_again_for_the_same_reason() {
    let spent = HostcallBudgetExceeded { what: "host calls", limit: 9 };
    let mut player = recorded(|tracer| put::<wasmtime::Result<u64>>(tracer, &Err(spent.into())));
    let error = player.next::<wasmtime::Result<u64>>(MARK).unwrap_err();
    assert_eq!(error.downcast_ref::<HostcallBudgetExceeded>(), Some(&spent));
}

#[test]
fn whoever_leaves_the_recording_is_told_where() {
    let play = |player: &mut Player, function| {
        let _ended = player.next::<wasmtime::Result<u64>>(HostCall { function, arguments: 0 });
        player.departure.clone().unwrap()
    };
    let one = |tracer: &Tracer| put::<wasmtime::Result<u64>>(tracer, &Ok(1));
    let mut other = recorded(one);
    let text = play(&mut other, number::RANDOM_U64).to_string();
    assert!(text.contains("random.get-random-u64") && text.contains("descriptor.stat"), "{text}");
    let mut longer = recorded(one);
    longer.next::<wasmtime::Result<u64>>(MARK).unwrap();
    assert!(matches!(play(&mut longer, MARK.function), Departure::Longer { at: 2, .. }));
    let mut waiting = recorded(|tracer| tracer.begin(|| MARK));
    assert!(matches!(play(&mut waiting, MARK.function), Departure::GivenUp { at: 1, .. }));
}

#[test]
fn other_arguments_are_noticed_and_answered() {
    let mut player = recorded(|tracer| put::<wasmtime::Result<u64>>(tracer, &Ok(5)));
    let other = HostCall { arguments: 8, ..MARK };
    assert_eq!(player.next::<wasmtime::Result<u64>>(other).unwrap(), 5);
    assert_eq!(player.other_arguments, Some((1, "descriptor.stat")));
}

#[test]
fn a_trace_is_cut_between_answers_and_says_so() {
    let large = vec![1_u8; PLUGIN_TRACE_BYTES_MAX / 2];
    let mut player = recorded(|tracer| {
        for _ in 0..4 {
            put::<wasmtime::Result<Vec<u8>>>(tracer, &Ok(large.clone()));
        }
    });
    assert!(player.trace.bytes.len() <= PLUGIN_TRACE_BYTES_MAX && player.trace.calls == 4);
    player.next::<wasmtime::Result<Vec<u8>>>(MARK).unwrap();
    assert!(player.next::<wasmtime::Result<Vec<u8>>>(MARK).is_err());
    assert_eq!(player.departure, Some(Departure::Cut { at: 2 }));
}

proptest! {
    #[test]
    fn arbitrary_traces_never_panic_and_come_to_an_end(bytes: Vec<u8>) {
        Player::new(Trace { bytes, ..Trace::default() }).exhaust();
    }
}
