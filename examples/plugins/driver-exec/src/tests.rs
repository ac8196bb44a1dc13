use super::*;
use ostler_sdk::testing::{self, FakeHost};

fn started(config: &str) -> Result<Started> {
    Exec::start(testing::task(config))
}

#[test]
fn a_program_starts_in_its_own_root_with_what_programs_expect_in_their_environment() {
    let host = FakeHost::install();
    started(r#"{"command": "sh", "args": ["-c", "true"]}"#).unwrap();
    let asked = &host.processes()[0];
    assert_eq!((asked.command.as_str(), asked.cwd.as_str()), ("sh", "/"));
    let value = |name: &str| asked.env.iter().find(|var| var.name == name).map(|v| &*v.value);
    assert_eq!(value("NOMAD_TASK_NAME"), Some("web"));
    assert_eq!((value("PATH"), value("HOME")), (Some(PATH_DEFAULT), Some("/local")));
    let mut own = testing::task(r#"{"command": "sh"}"#);
    own.env.push(EnvVar::new("PATH", "/opt/bin"));
    Exec::start(own).unwrap();
    let of_job = host.processes()[1].env.iter().filter(|var| var.name == "PATH").count();
    assert_eq!(of_job, 1, "the job's own stays");
}

#[test]
fn all_that_is_demanded_is_required_and_the_rest_is_wanted() {
    let host = FakeHost::install();
    host.set_part(IsolationPart::Network, None, true);
    host.set_part(IsolationPart::Landlock, None, true);
    started(r#"{"command": "sh"}"#).unwrap();
    started(r#"{"command": "sh", "network_mode": "none"}"#).unwrap();
    let asked = host.isolations();
    let (first, second) = (&asked[0], &asked[1]);
    assert_eq!(first.required.len(), 6);
    assert_eq!(first.wanted, [IsolationPart::Landlock]);
    assert!(!first.required.contains(&IsolationPart::Network));
    assert!(second.required.contains(&IsolationPart::Network));
}

#[test]
fn what_this_node_lacks_is_in_the_fingerprint_and_only_what_is_demanded_makes_it_unhealthy() {
    let host = FakeHost::install();
    let attribute = |found: &Fingerprint, name: &str| {
        let found = found.attributes.iter().find(|attribute| attribute.name == name);
        found.unwrap().attribute.value.clone()
    };
    host.set_part(IsolationPart::Pids, Some("no pid namespace"), true);
    let found = Exec::fingerprint().unwrap();
    assert_eq!(found.health, Health::healthy());
    assert_eq!(attribute(&found, "isolation.pids"), Scalar::from(false));
    assert_eq!(attribute(&found, "isolation.mounts"), Scalar::from(true));
    host.set_part(IsolationPart::Mounts, Some("no mount namespace"), false);
    let found = Exec::fingerprint().unwrap();
    assert!(found.health.reason.contains("mounts (no mount namespace)"));
}

#[test]
fn a_task_that_lacks_a_part_says_so() {
    let host = FakeHost::install();
    host.set_part(IsolationPart::Pids, Some("no pid namespace"), true);
    started(r#"{"command": "sh"}"#).unwrap();
    assert_eq!(host.events(), ["the task is not isolated by pids (no pid namespace)"]);
}

#[test]
fn without_mounts_a_task_has_the_nodes_paths() {
    let host = FakeHost::install();
    host.set_part(IsolationPart::Mounts, Some("no mount namespace"), true);
    assert_eq!(Exec::describe().capabilities.fs_isolation, FsIsolation::None);
    started(r#"{"command": "sh"}"#).unwrap();
    started(r#"{"command": "sh", "cwd": "local"}"#).unwrap();
    let cwds: Vec<_> = host.processes().into_iter().map(|asked| asked.cwd).collect();
    assert_eq!(cwds, ["/alloc/web", "/alloc/web/local"]);
    let mut task = testing::task(r#"{"command": "sh"}"#);
    task.mounts.push(Mount::read_only("/srv/x", "/local/devices/x"));
    assert!(matches!(Exec::start(task), Err(Error::Unsupported(text)) if text.contains("/srv/x")));
}

#[test]
fn mounts_devices_and_capabilities_of_the_job_are_asked_for() {
    let host = FakeHost::install();
    assert_eq!(Exec::describe().capabilities.fs_isolation, FsIsolation::Chroot);
    let mut task = testing::task(
        r#"{"command": "sh", "cap_add": ["chown"],
            "mounts": [{"source": "/srv", "target": "/data", "read_only": true}]}"#,
    );
    task.mounts.push(Mount::read_only("/srv/x", "/local/devices/x"));
    Exec::start(task).unwrap();
    let asked = &host.isolations()[0];
    assert_eq!(asked.capabilities, ["chown"]);
    assert_eq!(asked.mounts[1], Mount::read_only("/srv", "/data"));
    assert_eq!(asked.mounts.len(), 2);
}

#[test]
fn stop_sends_sigint_unless_the_job_names_another_signal() {
    let host = FakeHost::install();
    let handle = started(r#"{"command": "sh"}"#).unwrap().handle;
    Exec::stop(handle.clone(), None, 5000).unwrap();
    Exec::stop(handle, Some("SIGTERM".to_owned()), 5000).unwrap();
    let sent: Vec<_> = host.signals().into_iter().map(|(_, name)| name).collect();
    assert_eq!(sent, ["SIGINT", "SIGTERM"]);
}

#[test]
fn a_command_inside_the_task_gets_the_same_directory_and_environment() {
    FakeHost::install();
    let handle = started(r#"{"command": "sh", "cwd": "local"}"#).unwrap().handle;
    let plan = Exec::exec(handle, vec!["ls".to_owned()], false).unwrap();
    assert_eq!(plan.cwd, "/local");
    assert_eq!(plan.env.first(), Some(&EnvVar::new("NOMAD_TASK_NAME", "web")));
}

#[test]
fn a_missing_grant_is_passed_on_as_permission_denied() {
    FakeHost::install().deny();
    assert!(matches!(started(r#"{"command": "sh"}"#), Err(Error::PermissionDenied(_))));
}
