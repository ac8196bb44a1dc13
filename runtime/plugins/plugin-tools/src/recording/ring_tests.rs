#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use ostler_model::clock::Timestamp;
use ostler_model::plugin::PluginKind;
use ostler_plugin::bindings::since_0_1::driver_export as drv;
use ostler_plugin::bindings::since_0_1::host::types as wit;

const SECRET: &str = "correct horse battery";

fn recorder(calls: u32) -> Option<Arc<Recorder>> {
    let identity = PluginIdentity {
        plugin: "mine".to_owned(),
        kind: PluginKind::Driver,
        interface_version: "0.1.0".to_owned(),
        digest: "00".to_owned(),
        config: format!("{{\"api_key\": \"{SECRET}\"}}"),
    };
    let limits = PluginLimits { recorded_calls_max: calls, ..PluginLimits::default() };
    Recorder::new(identity, &limits, None).map(Arc::new)
}

/// Record a call that answered, with these bytes from the host.
fn keep(recorder: &Arc<Recorder>, function: &str, arguments: Vec<u8>, bytes: &[u8]) -> u64 {
    let call = Arc::clone(recorder).begin_call();
    call.host_calls().end_call(&|out| out.extend_from_slice(bytes));
    let (at, took) = (Timestamp::from_nanos(1), Duration::ZERO);
    call.end_call(EndedCall { function, at, took, arguments, end: CallEnd::Answered })
}

fn of(arguments: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_stdvec(arguments).unwrap()
}

fn start(secret: &str) -> Vec<u8> {
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
    of(&(&task,))
}

#[test]
fn the_last_calls_are_kept_up_to_their_number_and_their_bytes() {
    let by_number = recorder(3).unwrap();
    for _ in 0..5 {
        keep(&by_number, "stats", vec![], b"x");
    }
    assert_eq!(by_number.recording(None).unwrap().calls.len(), 3);
    assert_eq!(by_number.recording(Some(4)).unwrap().calls.len(), 2, "those up to a call");
    let by_bytes = recorder(8).unwrap();
    for _ in 0..5 {
        keep(&by_bytes, "stats", vec![], &vec![0; PLUGIN_RING_BYTES_MAX / 2]);
    }
    assert_eq!(by_bytes.recording(None).unwrap().calls.len(), 1);
    assert!(recorder(0).is_none(), "none is kept, so none is observed");
}

#[test]
fn an_answer_found_wrong_later_is_the_end_of_its_call() {
    let recorder = recorder(3).unwrap();
    let number = keep(&recorder, "stats", vec![], b"");
    keep(&recorder, "fingerprint", vec![], b"");
    recorder.mark_broken(number, "no".to_owned());
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
    let recorder = recorder(2).unwrap();
    keep(&recorder, "start", start("postgres://u:p@host"), SECRET.as_bytes());
    let handle = drv::Handle { version: 1, data: b"\xffpostgres://u:p@host".to_vec() };
    keep(&recorder, "stop", of(&(&handle, None::<String>, 5_u64)), b"");
    let recording = recorder.recording(None).unwrap();
    assert!(!holds(&recording, SECRET) && !holds(&recording, "postgres"), "{recording:?}");
    assert_eq!(recording.calls.first().unwrap().trace.len(), SECRET.len(), "nothing moved");

    // The start leaves the ring, but its secrets stay secret.
    keep(&recorder, "stop", of(&(&handle, None::<String>, 5_u64)), b"");
    let recording = recorder.recording(None).unwrap();
    assert!(recording.calls.iter().all(|call| call.function == "stop"));
    assert!(!holds(&recording, "postgres"), "{recording:?}");
    let arguments: (drv::Handle, Option<String>, u64) =
        postcard::from_bytes(&recording.calls.first().unwrap().input).unwrap();
    assert_eq!(arguments.2, 5);
}

#[test]
fn what_a_handle_holds_under_a_secret_key_is_taken_out_of_an_unknown_start() {
    let recorder = recorder(2).unwrap();
    let data = br#"{"config":{"db_password":"hunter22"},"id":"p1"}"#.to_vec();
    let handle = drv::Handle { version: 1, data };
    keep(&recorder, "kill", of(&(&handle,)), b"");
    let recording = recorder.recording(None).unwrap();
    assert!(!holds(&recording, "hunter22") && holds(&recording, "p1"));
}
