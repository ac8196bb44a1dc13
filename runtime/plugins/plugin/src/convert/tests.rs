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

fn check(groups: Vec<dev::Group>) -> AnswerResult<DeviceFingerprint> {
    check_with(wit::HealthState::Healthy, groups)
}

fn check_with(state: wit::HealthState, groups: Vec<dev::Group>) -> AnswerResult<DeviceFingerprint> {
    let health = wit::Health { state, reason: "why\n".into() };
    let watch = wit::Watches { paths: vec!["/dev/card".into()], subsystems: vec![] };
    let given = dev::DeviceFingerprint { health, groups, next_check: Some(0), watch };
    device_fingerprint(&plugin(), given)
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
fn an_undetected_plugin_says_why_and_when_to_ask_again_and_has_no_groups() {
    let found = check_with(wit::HealthState::Undetected, vec![]).unwrap();
    assert_eq!(found.health.state, HealthState::Undetected);
    assert_eq!(found.health.reason, "why\\n", "what does not show is made visible");
    assert_eq!(found.next.paths, ["/dev/card"]);
    let refused = check_with(wit::HealthState::Undetected, vec![group("a", &["1"])]).unwrap_err();
    assert!(refused.to_string().contains("groups: are reported although health is undetected"));
    let found = check_with(wit::HealthState::Unhealthy, vec![group("a", &["1"])]).unwrap();
    assert_eq!((found.health.state, found.groups.len()), (HealthState::Unhealthy, 1));
}

#[test]
fn duplicate_and_empty_names_are_refused_with_their_place() {
    let text = |groups| check(groups).unwrap_err().to_string();
    assert!(text(vec![group("a", &["x", "x"])]).contains("instance \"x\" is listed twice"));
    assert!(text(vec![group("a", &[]), group("a", &[])]).contains("v/t/a is listed twice"));
    assert!(text(vec![group("a", &[""])]).contains("instance id: is empty"));
    assert!(text(vec![group("", &[])]).contains("group.name: is empty"));
    assert!(text(vec![group("a\u{1b}[2J", &[])]).contains("do not show"));
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
    assert_eq!(text("t", "a\u{1b}[2Jb\n".into()).unwrap(), r"a\u{1b}[2Jb\n");
    let error = plugin_error(wit::PluginError::Fatal("x\u{7}y".into()));
    assert_eq!(error, PluginCallError::Fatal(r"x\u{7}y".into()));
}

#[test]
fn no_text_forges_a_line_or_shows_another_name() {
    let forged = "no\n2026-01-01T00:00:00Z ERROR all is lost\u{202e}";
    let seen = r"no\n2026-01-01T00:00:00Z ERROR all is lost\u{202e}";
    for error in [
        plugin_error(wit::PluginError::Recoverable(forged.into())),
        plugin_error(wit::PluginError::PermissionDenied(forged.into())),
        plugin_error(wit::PluginError::PermissionDenied(format!("x:\n{forged}"))),
    ] {
        let text = error.to_string();
        assert!(text.contains(seen) && !text.contains('\n'), "{text}");
    }
    assert!(check(vec![group("gpu\u{202e}", &[])]).is_err());
    assert_eq!(text("reason", forged.into()).unwrap(), seen);
    let env = |value: &str| dev::Reservation {
        env: vec![wit::EnvVar { name: "A".into(), value: value.into() }],
        mounts: vec![],
        device_nodes: vec![],
    };
    assert!(reservation(env("a b")).is_ok());
    assert!(reservation(env("a\nb")).is_err(), "what a task gets is never altered");
}

#[test]
fn the_lines_that_would_grant_something_can_still_be_copied() {
    let lines = "plugin \"x\" {\n  grants {\n    process = true\n  }\n}\n";
    let error = plugin_error(wit::PluginError::PermissionDenied(format!("no; put this:\n{lines}")));
    assert_eq!(error, PluginCallError::PermissionDenied(format!("no; put this:\n{lines}")));
    let forged = lines.replace("    process", "2026-01-01T00:00:00Z ERROR process");
    let error = plugin_error(wit::PluginError::PermissionDenied(format!("no:\n{forged}")));
    assert!(!error.to_string().contains('\n'), "{error}");
}

#[test]
fn an_error_of_many_and_long_problems_is_told_within_bounds() {
    let one = wit::Diagnostic { path: "p".repeat(1 << 20), message: "m\n".repeat(1 << 20) };
    let text = plugin_error(wit::PluginError::InvalidConfig(vec![one; 50])).to_string();
    assert!(text.len() < 20 << 10 && text.contains("more)"), "{} bytes", text.len());
    let text = plugin_error(wit::PluginError::Fatal("\u{202e}".repeat(10 << 20))).to_string();
    assert!(text.len() < 5 << 10, "{} bytes", text.len());
}
