#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::bindings::since_0_1::driver_export as drv;
use crate::bindings::since_0_1::host::types as wit;

const SECRET: &str = "correct horse battery";

fn recorder(calls: u32) -> Recorder {
    let identity = Identity {
        plugin: "mine".to_owned(),
        kind: PluginKind::Driver,
        interface_version: "0.1.0".to_owned(),
        digest: "00".to_owned(),
        config: format!("{{\"api_key\": \"{SECRET}\"}}"),
    };
    let limits = PluginLimits { recorded_calls_max: calls, ..PluginLimits::default() };
    Recorder::new(identity, &limits, None)
}

/// A call that answered, with so many bytes from the host.
fn keep(recorder: &Recorder, function: &str, input: Input, bytes: &[u8]) -> u64 {
    let (_tracer, trace) = recorder.tracer();
    if let Some(trace) = &trace {
        trace.lock().unwrap().bytes = bytes.to_vec();
    }
    let (at, took) = (Timestamp::from_nanos(1), Duration::ZERO);
    recorder.keep(function, at, took, input, trace, CallOutcome::answered())
}

fn start(secret: &str) -> Input {
    let task = drv::TaskConfig {
        id: String::new(),
        alloc_id: String::new(),
        job_id: String::new(),
        group_name: String::new(),
        task_name: String::new(),
        config_json: "{}".to_owned(),
        env: vec![wit::EnvVar { name: "DB".to_owned(), value: secret.to_owned() }],
        resources: drv::Resources { cpu_mhz: 1, memory_bytes: 1, memory_max_bytes: None },
        ports: vec![],
        mounts: vec![],
        device_nodes: vec![],
        task_dir: String::new(),
        alloc_dir: String::new(),
        user: None,
    };
    Input::of(&(&task,))
}

#[test]
fn the_last_calls_are_kept_up_to_their_number_and_their_bytes() {
    let by_number = recorder(3);
    for _ in 0..5 {
        keep(&by_number, "stats", Input::default(), b"x");
    }
    assert_eq!(by_number.recording(None).unwrap().calls.len(), 3);
    assert_eq!(by_number.recording(Some(4)).unwrap().calls.len(), 2, "those up to a call");
    let by_bytes = recorder(8);
    for _ in 0..5 {
        keep(&by_bytes, "stats", Input::default(), &vec![0; PLUGIN_RING_BYTES_MAX / 2]);
    }
    assert_eq!(by_bytes.recording(None).unwrap().calls.len(), 1);
    let none = recorder(0);
    assert_eq!(keep(&none, "stats", Input::default(), b"x"), 0);
    assert!(none.recording(None).is_none());
}

#[test]
fn an_answer_found_wrong_later_is_the_end_of_its_call() {
    let recorder = recorder(3);
    let number = keep(&recorder, "stats", Input::default(), b"");
    keep(&recorder, "fingerprint", Input::default(), b"");
    recorder.failed(number, || CallOutcome::broken("no".to_owned()));
    let calls = recorder.recording(None).unwrap().calls;
    let ends: Vec<&str> = calls.iter().map(|call| call.outcome.end.as_str()).collect();
    assert_eq!(ends, ["broken-answer", "answered"]);
}

fn holds(recording: &Recording, text: &str) -> bool {
    let bytes = postcard::to_stdvec(recording).unwrap();
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn the_secrets_of_configuration_and_tasks_are_taken_out_of_every_call() {
    let recorder = recorder(2);
    keep(&recorder, "start", start("postgres://u:p@host"), SECRET.as_bytes());
    let handle = drv::Handle { version: 1, data: b"\xffpostgres://u:p@host".to_vec() };
    keep(&recorder, "stop", Input::of(&(&handle, None::<String>, 5_u64)), b"");
    let recording = recorder.recording(None).unwrap();
    assert!(!holds(&recording, SECRET) && !holds(&recording, "postgres"), "{recording:?}");
    assert_eq!(recording.calls.first().unwrap().trace.len(), SECRET.len(), "nothing moved");

    // The start leaves the ring; what it told stays secret.
    keep(&recorder, "stop", Input::of(&(&handle, None::<String>, 5_u64)), b"");
    let recording = recorder.recording(None).unwrap();
    assert!(recording.calls.iter().all(|call| call.function == "stop"));
    assert!(!holds(&recording, "postgres"), "{recording:?}");
    let arguments: (drv::Handle, Option<String>, u64) =
        postcard::from_bytes(&recording.calls.first().unwrap().input).unwrap();
    assert_eq!(arguments.2, 5);
}

#[test]
fn what_a_handle_holds_under_a_secret_key_is_taken_out_of_an_unknown_start() {
    let recorder = recorder(2);
    let data = br#"{"config":{"db_password":"hunter22"},"id":"p1"}"#.to_vec();
    let handle = drv::Handle { version: 1, data };
    keep(&recorder, "kill", Input::of(&(&handle,)), b"");
    let recording = recorder.recording(None).unwrap();
    assert!(!holds(&recording, "hunter22") && holds(&recording, "p1"));
}
