#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt::Debug;

use wasmtime_wasi::p2::bindings::filesystem::types::{DescriptorType, ErrorCode};
use wasmtime_wasi::p2::{FsError, StreamError};

use super::*;
use ostler_sandbox::HostcallBudgetExceeded;

/// An answer that went through bytes.
fn again<A: TraceAnswer>(answer: &A) -> A {
    let mut bytes = Vec::new();
    answer.put(&mut bytes);
    let mut reader = WireReader::new(&bytes);
    let again = A::get(&mut reader).unwrap();
    assert!(reader.is_empty(), "all of it is read");
    again
}

#[test]
fn answers_are_read_as_they_were_written() {
    let stat = DescriptorStat {
        type_: DescriptorType::Fifo,
        link_count: 1,
        size: u64::MAX,
        data_access_timestamp: None,
        data_modification_timestamp: None,
        status_change_timestamp: None,
    };
    let stat = again::<FsResult<DescriptorStat>>(&Ok(stat)).unwrap();
    assert_eq!((stat.type_, stat.size), (DescriptorType::Fifo, u64::MAX));
    let error: FsError = again::<FsResult<()>>(&Err(ErrorCode::CrossDevice.into())).unwrap_err();
    assert_eq!(error.downcast_ref(), Some(&ErrorCode::CrossDevice));
    assert_eq!(again::<StreamResult<Vec<u8>>>(&Ok(b"read".to_vec())).unwrap(), b"read");
    let closed = again::<StreamResult<Vec<u8>>>(&Err(StreamError::Closed));
    assert!(matches!(closed, Err(StreamError::Closed)));
}

#[test]
fn an_error_that_ended_the_call_ends_it_again_for_the_same_reason() {
    let spent = HostcallBudgetExceeded { what: "host calls", limit: 9 };
    let error = again::<wasmtime::Result<u64>>(&Err(spent.into())).unwrap_err();
    assert_eq!(error.downcast_ref::<HostcallBudgetExceeded>(), Some(&spent));
}

/// A stand-in that answers nothing.
struct Nobody;

impl HostStandIn for Nobody {
    fn answer(&self, call: HostCall, _read: &mut ReadAnswer<'_>) -> Result<(), NoAnswer> {
        Err(format!("{} is not answered", function_name(call.function)).into())
    }

    fn refuse_unrecorded(&self, asked: &'static str) -> NoAnswer {
        asked.into()
    }
}

#[test]
fn where_nobody_answers_in_the_hosts_place_the_call_ends_with_the_reason() {
    fn text<T: Debug>(answer: Option<wasmtime::Result<T>>) -> String {
        answer.unwrap().unwrap_err().to_string()
    }
    let tracer = Tracer::Playing(Arc::new(Nobody));
    let answer = tracer.play::<wasmtime::Result<u64>>(|| HostCall::new(number::NOW, []));
    assert_eq!(text(answer), "clock.now is not answered");
    assert_eq!(tracer.check_recorded("sockets").unwrap().to_string(), "sockets");
    let off = Tracer::Off.play::<wasmtime::Result<u64>>(|| HostCall::new(number::NOW, []));
    assert!(off.is_none(), "the host itself answers");
}
