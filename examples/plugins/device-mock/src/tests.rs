use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use ostler_sdk::testing::FakeHost;

/// Two devices, one of them with a place in the machine.
const TWO: &str = r#""groups": [{"count": 1, "instances": [{"id": "b", "numa_node": 1}],
    "attributes": [{"name": "memory", "value": 2, "unit": "GiB"}],
    "mounts": [{"host_path": "/dev/shm/{id}", "task_path": "/local/{id}"}],
    "stats": [{"path": ["load", "now"], "int_numerator": 0}]}]"#;

fn host(script: &str) -> FakeHost {
    let host = FakeHost::install();
    host.set_config(script);
    host
}

fn failing(function: &str, fault: &str) -> FakeHost {
    host(&format!(r#"{{{TWO}, "{function}": [{fault}]}}"#))
}

fn claim(ids: &[&str]) -> Claim {
    Claim {
        vendor: "mock".to_owned(),
        type_: "device".to_owned(),
        name: "mock".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split_whitespace()
}

fn ids() -> Vec<String> {
    let groups = Mock::fingerprint().unwrap().groups;
    groups.into_iter().flat_map(|group| group.instances).map(|one| one.id).collect()
}

/// A granted directory, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("device-mock-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn without_a_script_there_are_no_devices_and_no_faults() {
    host("{}");
    assert_eq!(Mock::describe().name, "mock_device");
    assert_eq!(Mock::fingerprint().unwrap(), Fingerprint::new(Health::healthy()));
    assert_eq!(Mock::stats().unwrap(), []);
}

#[test]
fn the_schema_and_the_script_know_the_same_faults() {
    let schema = script::SCHEMA.replace(char::is_whitespace, "");
    let names = schema.split("\"do\":{\"enum\":[").nth(1).unwrap().split(']').next().unwrap();
    for name in names.split(',') {
        let text = format!(r#"{{"fingerprint": [{{"do": {name}}}]}}"#);
        ostler_sdk::config::parse::<Script>(&text).unwrap();
    }
    let variants = include_str!("script.rs").split("pub enum What {").nth(1).unwrap();
    let variants = variants.split('}').next().unwrap().matches(',').count();
    assert_eq!(names.split(',').count(), variants);
}

#[test]
fn the_scripted_devices_are_found_assigned_and_measured() {
    host(&format!("{{{TWO}}}"));
    let found = Mock::fingerprint().unwrap();
    assert_eq!(ids(), ["0", "b"]);
    let memory = NamedAttribute::new("memory", 2_i64).unit("GiB");
    assert_eq!(found.groups[0].attributes, [memory]);
    assert_eq!(found.groups[0].instances[1].locality.as_ref().unwrap().numa_node, Some(1));
    let assigned = Mock::reserve(claim(&["0", "b"])).unwrap();
    assert_eq!(assigned.env, [EnvVar::new("MOCK_DEVICES", "0,b")]);
    assert_eq!(assigned.mounts[1].host_path, "/dev/shm/b");
    let stats = Mock::stats().unwrap();
    assert_eq!(stats[0].instances[0].stats[0].path, ["load", "now"]);
    assert_eq!(stats[0].instances[0].summary.as_ref().unwrap().int_numerator, Some(0));
}

#[test]
fn every_variant_of_the_error_can_be_answered_by_every_function() {
    let variants = |error: Error| match error {
        Error::NotFound(_) => "not_found",
        Error::InvalidConfig(_) => "invalid_config",
        Error::Recoverable(_) => "recoverable",
        Error::Fatal(_) => "fatal",
        Error::Unsupported(_) => "unsupported",
        Error::PermissionDenied(_) => "permission_denied",
    };
    for kind in words("not_found invalid_config recoverable fatal unsupported permission_denied") {
        let fault = format!(r#"{{"do": "error", "kind": "{kind}"}}"#);
        failing("fingerprint", &fault);
        assert_eq!(variants(Mock::fingerprint().unwrap_err()), kind);
        failing("reserve", &fault);
        assert_eq!(variants(Mock::reserve(claim(&["0"])).unwrap_err()), kind);
        failing("release", &fault);
        assert_eq!(variants(Mock::release(claim(&["0"])).unwrap_err()), kind);
        failing("stats", &fault);
        assert_eq!(variants(Mock::stats().unwrap_err()), kind);
    }
}

#[test]
fn each_spoiled_fingerprint_differs_from_the_sound_one() {
    host(&format!("{{{TWO}}}"));
    let sound = Mock::fingerprint().unwrap();
    for what in words(
        "duplicate_ids duplicate_groups duplicate_attributes empty_vendor empty_type \
         empty_name empty_id long_id control_characters too_many_groups \
         too_many_instances too_many_attributes nan infinite unknown_unit \
         unit_on_text huge_text huge_answer no_groups undetected undetected_groups \
         unhealthy",
    ) {
        failing("fingerprint", &format!(r#"{{"do": "{what}"}}"#));
        assert_ne!(Mock::fingerprint().unwrap(), sound, "{what}");
    }
}

#[test]
fn the_plugin_itself_is_not_healthy_as_the_script_says() {
    let found = |what: &str| {
        failing("fingerprint", &format!(r#"{{"do": "{what}", "message": "why"}}"#));
        let found = Mock::fingerprint().unwrap();
        (found.health, found.groups.len())
    };
    assert_eq!(found("undetected"), (Health::undetected("why"), 0));
    assert_eq!(found("undetected_groups"), (Health::undetected("why"), 1));
    assert_eq!(found("unhealthy"), (Health::unhealthy("why"), 1));
}

#[test]
fn each_spoiled_reservation_differs_from_the_sound_one() {
    host(&format!("{{{TWO}}}"));
    let sound = Mock::reserve(claim(&["0"])).unwrap();
    for what in words(
        "empty_answer empty_path relative_path climbing_path bad_permissions \
         bad_variable huge_text huge_answer too_many",
    ) {
        failing("reserve", &format!(r#"{{"do": "{what}"}}"#));
        assert_ne!(Mock::reserve(claim(&["0"])).unwrap(), sound, "{what}");
    }
}

#[test]
fn each_spoiled_measurement_differs_from_the_sound_one() {
    let untimed = |groups: Vec<GroupStats>| {
        let times = |group: &GroupStats| group.instances.iter().map(|i| i.taken_at).min();
        let oldest = groups.iter().filter_map(times).min().unwrap_or_default() / 1_000_000_000;
        let mut groups = groups;
        groups.iter_mut().flat_map(|g| &mut g.instances).for_each(|i| i.taken_at = 0);
        (groups, oldest)
    };
    let sound = {
        let host = host(&format!("{{{TWO}}}"));
        host.advance(Duration::from_secs(10_000));
        untimed(Mock::stats().unwrap())
    };
    for what in words(
        "nan infinite nothing_set foreign_ids foreign_group empty_id empty_path \
         duplicate_paths too_many huge_text huge_answer leave_out stale future \
         no_groups duplicate_groups duplicate_ids too_many_instances empty_vendor",
    ) {
        let host = failing("stats", &format!(r#"{{"do": "{what}"}}"#));
        host.advance(Duration::from_secs(10_000));
        assert_ne!(untimed(Mock::stats().unwrap()), sound, "{what}");
    }
}

#[test]
fn health_flaps_and_devices_come_and_go_by_the_clock() {
    let host = host(
        r#"{"groups": [{"instances": [
            {"id": "flaps", "unhealthy": "hot",
             "unhealthy_during": {"every_ms": 1000, "from_ms": 500}},
            {"id": "comes", "during": {"every_ms": 1000, "from_ms": 500}}]},
          {"name": "goes", "count": 1, "during": {"since_ms": 1000, "to_ms": 500}}]}"#,
    );
    let health = || Mock::fingerprint().unwrap().groups[0].instances[0].health.clone();
    assert_eq!((ids(), health()), (vec!["flaps".to_owned(), "0".to_owned()], Health::healthy()));
    host.advance(Duration::from_millis(600));
    assert_eq!(ids(), ["flaps", "comes"]);
    assert_eq!(health(), Health::unhealthy("hot"));
    assert!(Mock::reserve(claim(&["comes"])).is_ok());
    host.advance(Duration::from_millis(500));
    assert_eq!((ids(), health()), (vec!["flaps".to_owned()], Health::healthy()));
    assert!(matches!(Mock::reserve(claim(&["comes"])), Err(Error::NotFound(_))));
}

#[test]
fn a_fault_applies_to_the_instances_it_names() {
    failing("reserve", r#"{"do": "error", "kind": "fatal", "ids": ["b"]}"#);
    assert!(Mock::reserve(claim(&["0"])).is_ok());
    assert!(matches!(Mock::reserve(claim(&["0", "b"])), Err(Error::Fatal(_))));
}

#[test]
fn the_journal_has_each_call_and_counts_for_faults() {
    let dir = Dir::new("journal");
    let at = dir.path().display();
    let fault = r#"[{"do": "error", "calls": [1, 2]}]"#;
    host(&format!(r#"{{"dir": "{at}", "journal": true, "reserve": {fault}, {TWO}}}"#));
    assert!(Mock::reserve(claim(&["0"])).is_ok());
    Mock::release(claim(&["0"])).unwrap();
    assert!(matches!(Mock::reserve(claim(&["0", "b"])), Err(Error::Recoverable(_))));
    assert!(Mock::reserve(claim(&["b"])).is_ok());
    Mock::fingerprint().unwrap();
    let journal = fs::read_to_string(dir.path().join("journal")).unwrap();
    assert_eq!(
        journal.lines().collect::<Vec<_>>(),
        [
            "reserve mock/device/mock 0",
            "release mock/device/mock 0",
            "reserve mock/device/mock 0,b",
            "reserve mock/device/mock b",
            "fingerprint",
        ]
    );
}

#[test]
fn a_script_in_the_directory_replaces_the_configuration_from_the_next_call_on() {
    let dir = Dir::new("script");
    host(&format!(r#"{{"dir": "{}", {TWO}}}"#, dir.path().display()));
    assert_eq!(ids(), ["0", "b"]);
    fs::write(dir.path().join("script.json"), r#"{"groups": [{"count": 3}]}"#).unwrap();
    assert_eq!(ids(), ["0", "1", "2"]);
    fs::write(dir.path().join("script.json"), r#"{"grops": []}"#).unwrap();
    let Err(Error::InvalidConfig(found)) = Mock::fingerprint() else {
        unreachable!("accepted");
    };
    assert_eq!(found[0].path, "grops");
}
