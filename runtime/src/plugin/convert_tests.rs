//! Lying, broken and oversized answers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;

fn plugin() -> PluginName {
    PluginName::new("p").unwrap()
}

fn instance(id: &str) -> dev::Instance {
    let health = wit::Health { state: wit::HealthState::Healthy, reason: String::new() };
    dev::Instance { id: id.into(), health, locality: None }
}

fn group(name: &str, ids: &[&str]) -> dev::Group {
    dev::Group {
        vendor: "v".into(),
        type_: "t".into(),
        name: name.into(),
        instances: ids.iter().map(|id| instance(id)).collect(),
        attributes: vec![],
    }
}

fn check(groups: Vec<dev::Group>) -> Checked<DeviceFingerprint> {
    let watch = wit::Watches { paths: vec![], subsystems: vec![] };
    device_fingerprint(&plugin(), dev::DeviceFingerprint { groups, next_check: Some(0), watch })
}

fn number(name: &str, value: wit::Scalar, unit: Option<&str>) -> wit::NamedAttribute {
    let attribute = wit::Attribute { value, unit: unit.map(str::to_owned) };
    wit::NamedAttribute { name: name.into(), attribute }
}

#[test]
fn a_good_answer_is_taken_and_a_zero_interval_is_raised_to_the_least_allowed() {
    let found = check(vec![group("b", &["1", "2"]), group("a", &[])]).unwrap();
    assert_eq!(found.next.after, Some(NEXT_CHECK_MIN));
    assert_eq!(found.groups[0].key.name, "a", "groups are sorted");
    assert_eq!(found.groups[1].instances.len(), 2);
}

#[test]
fn duplicate_and_empty_names_are_refused_with_their_place() {
    let text = |groups| check(groups).unwrap_err().to_string();
    assert!(text(vec![group("a", &["x", "x"])]).contains("instance \"x\" is there twice"));
    assert!(text(vec![group("a", &[]), group("a", &[])]).contains("v/t/a is there twice"));
    assert!(text(vec![group("a", &[""])]).contains("instance id: is empty"));
    assert!(text(vec![group("", &[])]).contains("group.name: is empty"));
    assert!(text(vec![group("a\u{1b}[2J", &[])]).contains("control characters"));
}

#[test]
fn oversized_answers_are_refused() {
    let ids: Vec<String> = (0..=DEVICE_INSTANCES_MAX).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    assert!(check(vec![group("a", &ids)]).is_err());
    let many = (0..=DEVICE_GROUPS_MAX).map(|n| group(&n.to_string(), &[])).collect();
    assert!(check(many).is_err());
    assert!(check(vec![group(&"x".repeat(ANSWER_NAME_BYTES_MAX + 1), &[])]).is_err());
}

#[test]
fn not_a_number_and_unknown_units_are_refused() {
    let check = |item| attributes("a", vec![item]);
    assert!(check(number("x", wit::Scalar::Float(f64::NAN), None)).is_err());
    assert!(check(number("x", wit::Scalar::Float(f64::INFINITY), Some("MHz"))).is_err());
    assert!(check(number("x", wit::Scalar::Int(1), Some("parsec"))).is_err());
    assert!(check(number("x", wit::Scalar::Boolean(true), Some("MHz"))).is_err());
    assert!(check(number("x", wit::Scalar::Int(80), Some("GiB"))).is_ok());
}

#[test]
fn reservations_name_absolute_paths_and_valid_permissions_only() {
    let mount = |host: &str| dev::Reservation {
        env: vec![],
        mounts: vec![wit::Mount {
            host_path: host.into(),
            task_path: "/local/x".into(),
            read_only: true,
        }],
        device_nodes: vec![],
    };
    assert!(reservation(mount("/dev/x")).is_ok());
    assert!(reservation(mount("dev/x")).is_err());
    assert!(reservation(mount("/dev/../etc/shadow")).is_err());
    let node = |permissions: &str| dev::Reservation {
        env: vec![],
        mounts: vec![],
        device_nodes: vec![wit::DeviceNode {
            host_path: "/dev/x".into(),
            task_path: "/dev/x".into(),
            permissions: permissions.into(),
        }],
    };
    assert!(reservation(node("rw")).is_ok());
    assert!(reservation(node("rr")).is_err());
    assert!(reservation(node("x")).is_err());
}

#[test]
fn an_error_without_a_word_says_that_there_is_none() {
    let error = plugin_error(wit::PluginError::Fatal(" ".into()));
    assert_eq!(error, PluginCallError::Fatal("it gave no reason".into()));
}

#[test]
fn text_can_not_move_the_cursor_of_a_terminal() {
    assert_eq!(text("t", "a\u{1b}[2Jb\n".into()).unwrap(), "a [2Jb ");
    let error = plugin_error(wit::PluginError::Fatal("x\u{7}y".into()));
    assert_eq!(error, PluginCallError::Fatal("x y".into()));
}
