#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;

use super::*;
use crate::task::env::NodeFacts;
use ostler_model::job::{JobKind, TaskGroup};
use ostler_model::rng::Rng;
use ostler_testing::fixtures;

fn port(label: &str, value: u16, to: u16) -> AllocatedPort {
    AllocatedPort { label: label.to_owned(), value, to, host_ip: "10.0.0.1".to_owned(), task: None }
}

fn at(address: &str, port: u16) -> Result<(String, u16), ResolveError> {
    Ok((address.to_owned(), port))
}

#[test]
fn each_mode_has_its_address_and_its_port() {
    use AddressMode::{Alloc, Auto, Driver, Host};
    let ports = [port("web", 8080, 80)];
    let host = ServiceNetworks { ports: &ports, host_ip: "10.0.0.9", ..ServiceNetworks::default() };
    let of_driver = DriverNetwork {
        ip: "172.17.0.3".parse().unwrap(),
        ports: [("admin".to_owned(), 8_081)].into(),
    };
    let of_driver = Some(&of_driver);
    let all = ServiceNetworks { alloc_ip: Some("172.26.0.2"), of_driver, ..host };
    let bridge = ServiceNetworks { of_driver: None, ..all };
    for (mode, port, networks, expected) in [
        (Auto, Some("web"), host, at("10.0.0.1", 8080)),
        (Auto, Some("web"), bridge, at("10.0.0.1", 8080)),
        (Auto, Some("web"), all, at("172.17.0.3", 80)),
        (Auto, Some("9000"), host, at("10.0.0.9", 9000)),
        (Auto, None, host, at("10.0.0.9", 0)),
        (Host, Some("web"), all, at("10.0.0.1", 8080)),
        (Host, Some("9000"), all, at("10.0.0.9", 9000)),
        (Alloc, Some("web"), all, at("172.26.0.2", 80)),
        (Alloc, Some("9000"), all, at("172.26.0.2", 9000)),
        (Alloc, None, all, at("172.26.0.2", 0)),
        (Driver, Some("web"), all, at("172.17.0.3", 80)),
        (Driver, Some("9000"), all, at("172.17.0.3", 9000)),
        (Driver, Some("admin"), all, at("172.17.0.3", 8081)),
        (Auto, Some("admin"), all, at("172.17.0.3", 8081)),
    ] {
        assert_eq!(resolve_address(mode, None, port, networks), expected, "{mode:?} {port:?}");
    }
    assert_eq!(resolve_address(Auto, Some("x.example"), Some("web"), all), at("x.example", 8080));
    let none = |mode| resolve_address(mode, None, Some("web"), host).unwrap_err().to_string();
    assert!(none(Alloc).starts_with("address_mode alloc needs a network"), "{}", none(Alloc));
    assert!(none(Driver).starts_with("address_mode driver needs a driver"), "{}", none(Driver));
    for wrong in ["other", "0", "65536", ""] {
        let error = resolve_address(Auto, None, Some(wrong), host).unwrap_err();
        assert_eq!(error, ResolveError::Port { port: wrong.to_owned() });
    }
    let anywhere = AllocatedPort { host_ip: "0.0.0.0".to_owned(), ..port("web", 8080, 80) };
    let ports = [anywhere];
    let networks = ServiceNetworks { ports: &ports, host_ip: "::", ..ServiceNetworks::default() };
    assert_eq!(resolve_address(Host, None, Some("web"), networks), at("127.0.0.1", 8080));
    assert_eq!(resolve_address(Host, None, Some("1"), networks), at("::1", 1));
}

fn group(services: &str) -> TaskGroup {
    let text = format!(
        "job \"j\" {{\ngroup \"g\" {{\nmeta {{\nversion = \"v1\"\n}}\nnetwork {{\nport \"web\" {{}}\n}}\n\
         task \"t\" {{\ndriver = \"mock\"\n}}\n{services}\n}}\n}}"
    );
    let parsed = ostler_jobspec::parse(text.as_bytes(), Path::new("-"), None);
    parsed.unwrap_or_else(|found| panic!("{}", found.render(&text, false))).groups.remove(0)
}

/// An allocation of a group, with variables of that.
fn allocation(group: TaskGroup) -> (Allocation, TaskEnv) {
    let tasks = vec![fixtures::task("t").unwrap()];
    let mut allocation = fixtures::allocation(JobKind::Service, tasks, &Rng::from_seed(1)).unwrap();
    allocation.group = group.name.clone();
    Arc::make_mut(&mut allocation.job).groups = vec![group];
    allocation.ports = vec![port("web", 8080, 8080)];
    let node = NodeFacts { datacenter: "dc7".to_owned(), ..NodeFacts::default() };
    let env = TaskEnv::of_group(&allocation, &Arc::new(node), None).unwrap();
    (allocation, env)
}

#[test]
fn a_canary_is_listed_with_its_own_tags_until_it_is_accepted() {
    let group = group(
        r#"
        service {
          name = "web"
          port = "web"
          tags = ["live"]
          canary_tags = ["try-${NOMAD_ALLOC_INDEX}"]
          meta { of = "live" }
          canary_meta { of = "canary" }
        }
        service {
          name = "plain"
          port = "web"
          tags = ["live"]
        }"#,
    );
    let (mut allocation, env) = allocation(group);
    let listed = |allocation: &Allocation, at: usize| {
        let networks = ServiceNetworks { ports: &allocation.ports, ..ServiceNetworks::default() };
        let service = &allocation.task_group().unwrap().services[at];
        let listed = instance(service, allocation, &env, networks).unwrap();
        (listed.tags, listed.meta.get("of").cloned().unwrap_or_default())
    };
    let live = (vec!["live".to_owned()], "live".to_owned());
    assert_eq!(listed(&allocation, 0), live);
    let mut of = ostler_model::alloc::AllocDeployment {
        id: "d".into(),
        since: ostler_model::time::Timestamp::default(),
        canary: true,
    };
    allocation.deployment = Some(of.clone());
    assert_eq!(listed(&allocation, 0), (vec!["try-0".to_owned()], "canary".to_owned()));
    assert_eq!(listed(&allocation, 1).0, ["live"], "where it has none of its own");
    of.canary = false;
    allocation.deployment = Some(of);
    assert_eq!(listed(&allocation, 0), live);
}

#[test]
fn texts_of_a_service_and_its_checks_are_replaced() {
    let group = group(
        r#"
        service {
          name = "web-${NOMAD_ALLOC_INDEX}"
          port = "web"
          tags = ["${node.datacenter}", "urlprefix-/${NOMAD_META_version}", "$${plain}", "${attr.nope}"]
          meta { at = "${NOMAD_ADDR_web}" }
          check {
            type = "http"
            path = "/health?of=${NOMAD_GROUP_NAME}"
            header {
              X-Version = ["${NOMAD_META_version}"]
            }
            body = "${NOMAD_ALLOC_INDEX}"
            interval = "10s"
            timeout = "1s"
          }
          check {
            type = "script"
            name = "s"
            task = "t"
            command = "/bin/${NOMAD_META_version}"
            args = ["${NOMAD_PORT_web}"]
            interval = "10s"
            timeout = "1s"
          }
        }"#,
    );
    let (allocation, env) = allocation(group);
    let networks = ServiceNetworks { ports: &allocation.ports, ..ServiceNetworks::default() };
    let service = &allocation.task_group().unwrap().services[0];
    let listed = instance(service, &allocation, &env, networks).unwrap();
    assert_eq!((&listed.name[..], &listed.address[..], listed.port), ("web-0", "10.0.0.1", 8080));
    assert_eq!(listed.tags, ["dc7", "urlprefix-/v1", "${plain}", "${attr.nope}"]);
    assert_eq!(listed.meta["at"], "10.0.0.1:8080");
    assert_eq!(listed.id, format!("_nomad-task-{}-group-g-web-0-web", allocation.id));
    let Question::Network { kind: CheckKind::Http(http), target } =
        question(&service.checks[0], service, &env, networks).unwrap()
    else {
        panic!("a request")
    };
    assert_eq!((&http.path[..], &http.body[..]), ("/health?of=g", "0"));
    assert_eq!(http.headers["X-Version"], ["v1"]);
    assert_eq!(target.to_string(), "10.0.0.1:8080");
    let Question::Script { task, argv } =
        question(&service.checks[1], service, &env, networks).unwrap()
    else {
        panic!("a script")
    };
    assert_eq!((task.as_str(), argv), ("t", vec!["/bin/v1".to_owned(), "8080".to_owned()]));
    // That of a check without a name is made of its service's.
    let names = service.checks.iter().map(|check| check_name(check, &env));
    assert_eq!(names.collect::<Vec<_>>(), ["service: \"web-0\" check", "s"]);
}

#[test]
fn what_has_no_meaning_is_named() {
    for (service, expected) in [
        ("service { name = \"a-${nobody}\" }", "\"a-${nobody}\" is not a valid service name"),
        ("service { name = \"${NOMAD_ALLOC_NAME}\" }", "\"j.g[0]\" is not a valid service name"),
        ("service { port = \"${NOMAD_ALLOC_NAME}\" }", "the allocation has no port \"j.g[0]\""),
    ] {
        let (mut allocation, _) = allocation(group(service));
        allocation.name = "j.g[0]".to_owned();
        let env = TaskEnv::of_group(&allocation, &Arc::default(), None).unwrap();
        let service = &allocation.task_group().unwrap().services[0];
        let error = instance(service, &allocation, &env, ServiceNetworks::default()).unwrap_err();
        let text = ostler_model::causes::chain(&error);
        assert!(text.contains(expected), "{text:?} is not {expected:?}");
    }
}

#[test]
fn a_label_is_the_tasks_own_port_before_the_groups_and_never_that_of_another_task() {
    let of = |task: Option<&str>, value| AllocatedPort {
        task: task.map(|task| TaskName::new(task).unwrap()),
        ..port("web", value, value)
    };
    let ports = [of(Some("other"), 1), of(None, 2), of(Some("own"), 3)];
    let (own, third) = (TaskName::new("own").unwrap(), TaskName::new("third").unwrap());
    let reached_by = |task, ports| {
        let networks = ServiceNetworks { ports, task, ..ServiceNetworks::default() };
        resolve_address(AddressMode::Host, None, Some("web"), networks)
    };
    assert_eq!(reached_by(Some(&own), &ports[..]), at("10.0.0.1", 3));
    assert_eq!(reached_by(Some(&third), &ports[..]), at("10.0.0.1", 2));
    assert_eq!(reached_by(None, &ports[..]), at("10.0.0.1", 2));
    assert!(reached_by(None, &ports[..1]).is_err());
}

#[test]
fn what_would_be_more_than_a_line_once_its_references_are_replaced_is_not_listed() {
    let text = "service {\nname = \"s\"\nport = \"web\"\ntags = [\"${NOMAD_META_version}\"]\n}";
    let mut group = group(text);
    group.meta.insert("version".to_owned(), "a\nb".to_owned());
    let (allocation, env) = allocation(group);
    let networks = ServiceNetworks { ports: &allocation.ports, ..ServiceNetworks::default() };
    let service = &allocation.task_group().unwrap().services[0];
    let refused = instance(service, &allocation, &env, networks).unwrap_err();
    assert_eq!(refused, ResolveError::Hidden { what: "tags", text: "a\nb".to_owned() });
}
