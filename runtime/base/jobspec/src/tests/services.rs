//! `service` and `check`.

use std::time::Duration;

use super::check;
use super::{good, in_group};
use ostler_model::job::{
    AddressMode, CheckKind, CheckRestart, CheckStatus, CheckTls, HttpCheck, OnUpdate, Service,
};
use ostler_model::limits::GROUP_CHECKS_MAX;

const NETWORK: &str = "network {\nport \"http\" {}\nport \"admin\" {}\n}\n";

/// A group with two ports; the body begins in line 8.
fn with_ports(body: &str) -> String {
    in_group(&format!("{NETWORK}{body}"))
}

fn services(body: &str) -> Vec<Service> {
    good(&with_ports(body)).groups[0].services.clone()
}

#[test]
fn every_key_of_a_service_and_its_checks_arrives() {
    let services = services(
        r#"
        service {
          name = "web-${NOMAD_ALLOC_INDEX}"
          port = "http"
          provider = "nomad"
          tags = []
          check {
            type = "http"
            path = "/health?full=1"
            method = "HEAD"
            interval = "10s"
            timeout = "2s"
          }
          check {
            name = "admin"
            type = "tcp"
            port = "admin"
            interval = "1s"
            timeout = "1ms"
          }
        }
        task "other" {
          driver = "mock"
          service { name = "other" }
          service { port = "admin" }
        }"#,
    );
    let [web, other, unnamed] = services.as_slice() else { panic!("{services:?}") };
    assert_eq!(
        (web.name.as_str(), web.port.as_deref()),
        ("web-${NOMAD_ALLOC_INDEX}", Some("http"))
    );
    assert_eq!(web.task, None);
    let [http, tcp] = web.checks.as_slice() else { panic!("two checks") };
    assert_eq!(http.name, "service: \"web-${NOMAD_ALLOC_INDEX}\" check");
    let asked = CheckKind::Http(Box::new(HttpCheck::new("HEAD", "/health?full=1")));
    assert_eq!((&http.kind, &http.port), (&asked, &None));
    assert_eq!((http.interval, http.timeout), (Duration::from_secs(10), Duration::from_secs(2)));
    assert_eq!((tcp.name.as_str(), &tcp.kind), ("admin", &CheckKind::Tcp));
    assert_eq!(tcp.port.as_deref(), Some("admin"));
    assert_eq!(other.task.as_ref().unwrap().as_str(), "other");
    assert_eq!((other.name.as_str(), &other.port), ("other", &None));
    assert_eq!(unnamed.name, "j-g-other");
}

#[test]
fn a_service_has_the_name_of_its_group_unless_it_has_another() {
    assert_eq!(services("service {}")[0].name, "j-g");
}

#[test]
fn problems_of_a_service_have_their_places() {
    for (body, expected) in [
        (
            "service { port = \"htpp\" }",
            "8:18: the group's network has no port \"htpp\" … a number (did you mean http?)",
        ),
        (
            "service { provider = \"consul\" }",
            "8:22: provider consul needs a Consul agent, and this agent uses none; write provider = \"nomad\"",
        ),
        (
            "service { provider = \"nomda\" }",
            "8:22: \"nomda\" is not a provider … (did you mean nomad?)",
        ),
        ("service { name = \"a b\" }", "8:18: service name \"a b\" must have 1 to 63 letters"),
        ("service { name = \"\" }", "8:18: service name \"\" must have 1 to 63 letters"),
        ("service { port = 0 }", "8:18: 0 is not a port; ports are 1 to 65535"),
        ("service { port = 65536 }", "8:18: 65536 is not a port"),
        ("service { task = \"x\" }", "8:18: the group has no task \"x\""),
        ("service { address_mode = \"alloc\" }", "8:26: alloc needs a network that the allocation"),
        ("service { address_mode = \"driver\" }", "8:26: driver is only for services of a task"),
        (
            "service { address_mode = \"hots\" }",
            "8:26: \"hots\" is not a valid address_mode … (did you mean host?)",
        ),
        (
            "service {\naddress = \"1.2.3.4\"\naddress_mode = \"host\"\n}",
            "9:11: a service with an address of its own has address_mode auto",
        ),
        ("service { tags = [\"a\\n\"] }", "8:19: a tag has at most 512 bytes"),
        (
            "service {\nid = \"x\"\n}",
            "9:1: id is valid in Nomad, not supported by Ostler yet; the agent",
        ),
        (
            "service {\nweights {}\n}",
            "9:1: weights is valid in Nomad, not supported by Ostler yet; it belongs to",
        ),
        (
            "service {\nconnect {}\n}",
            "9:1: connect is valid in Nomad, not supported by Ostler; it belongs to Consul's service mesh",
        ),
        ("service {}\nservice {}", "9:1: a service \"j-g\" with this port is already defined"),
        ("service \"web\" {}", "8:9: service takes no label"),
        (
            "service { prot = \"http\" }",
            "8:11: \"prot\" is unknown in a service (did you mean port?)",
        ),
    ] {
        check(&with_ports(body), &[expected]);
    }
    check(
        &in_group("service { port = \"http\" }"),
        &["4:18: the group's network has no port \"http\""],
    );
}

#[test]
fn problems_of_a_check_have_their_places() {
    let times = "interval = \"5s\"\ntimeout = \"1s\"";
    for (body, expected) in [
        ("type = \"tpc\"", "9:8: \"tpc\" is not a valid type of check … (did you mean tcp?)"),
        ("", "8:1: a check needs a type; write type = \"http\", \"tcp\", \"grpc\" or \"script\""),
        ("type = \"http\"", "8:1: an http check needs a path; write path = \"/\" or another"),
        ("type = \"http\"\npath = \"http://x/\"", "10:8: path \"/http://x/\" must be relative"),
        ("type = \"http\"\npath = \"//x\"", "10:8: path \"//x\" must begin with one slash"),
        ("type = \"http\"\npath = \"/a b\"", "10:8: \" \" is not allowed in a path"),
        (
            "type = \"http\"\npath = \"/\"\nmethod = \"GTE\"",
            "11:10: \"GTE\" is not a valid method … (did you mean GET?)",
        ),
        (
            "type = \"tcp\"\nexpose = true",
            "10:1: expose is valid in Nomad, not supported by Ostler yet; it belongs",
        ),
        ("type = \"tcp\"\naddress_mode = \"auto\"", "10:16: auto is only for services"),
        (
            "type = \"tcp\"\ninitial_status = \"good\"",
            "10:18: \"good\" is not a valid initial_status",
        ),
        ("type = \"tcp\"\ntask = \"t\"", "10:8: only script and grpc checks have a task"),
        (
            "type = \"http\"\npath = \"/\"\nheader = { \"a b\" = [\"c\"] }",
            "11:12: \"a b\" is not a valid header name",
        ),
        ("type = \"tcp\"\nport = \"x\"", "10:8: the group's network has no port \"x\""),
        ("type = \"tcp\"\nname = \"\"", "10:8: check name \"\" must have 1 to 128 bytes"),
    ] {
        let text =
            with_ports(&format!("service {{\nport = \"http\"\ncheck {{\n{body}\n{times}\n}}\n}}"));
        let at = expected.split_once(':').unwrap();
        let line: usize = at.0.parse::<usize>().unwrap() + 2;
        check(&text, &[&format!("{line}:{}", at.1)]);
    }
    for (body, expected) in [
        ("timeout = \"1s\"", "10:1: a check needs interval; write for example interval = \"2s\""),
        ("interval = \"1s\"", "10:1: a check needs timeout; write for example timeout = \"2s\""),
        ("interval = \"999ms\"\ntimeout = \"1s\"", "12:12: interval must be 1s to 1day, not 999ms"),
        ("interval = \"25h\"\ntimeout = \"1s\"", "12:12: interval must be 1s to 1day, not 1day 1h"),
        ("interval = \"1s\"\ntimeout = \"0s\"", "13:11: timeout must be 1ms to 1h, not 0s"),
    ] {
        let text = with_ports(&format!(
            "service {{\nport = \"http\"\ncheck {{\ntype = \"tcp\"\n{body}\n}}\n}}"
        ));
        check(&text, &[expected]);
    }
}

#[test]
fn a_check_needs_a_port_and_a_name_of_its_own() {
    let tcp = "check {\ntype = \"tcp\"\ninterval = \"1s\"\ntimeout = \"1s\"\n}";
    check(&with_ports(&format!("service {{\n{tcp}\n}}")), &["9:1: a check needs a port"]);
    check(
        &with_ports(&format!("service {{\nport = \"http\"\n{tcp}\n{tcp}\n}}")),
        &["15:1: a check \"service: \\\"j-g\\\" check\" is already defined"],
    );
}

#[test]
fn a_group_has_a_bounded_number_of_checks() {
    let group = |count: usize| {
        let check = |i| {
            format!(
                "check {{\nname = \"{i}\"\ntype = \"tcp\"\ninterval = \"1s\"\ntimeout = \"1s\"\n}}\n"
            )
        };
        let checks: String = (0..count).map(check).collect();
        with_ports(&format!("service {{\nport = \"http\"\n{checks}}}"))
    };
    assert_eq!(good(&group(GROUP_CHECKS_MAX)).groups[0].services[0].checks.len(), GROUP_CHECKS_MAX);
    check(&group(GROUP_CHECKS_MAX + 1), &["2:1: the group has 65 checks; at most 64 are allowed"]);
}

#[test]
fn every_way_of_checking_arrives() {
    let services = services(
        r#"
        service {
          name = "${JOB}-${TASKGROUP}-x"
          port = "http"
          task = "t"
          tags = ["a", "b-${NOMAD_ALLOC_INDEX}"]
          canary_tags = ["c"]
          meta { version = 3 }
          canary_meta { version = "new" }
          address = "${attr.unique.network.ip-address}"
          on_update = "ignore_warnings"
          check_restart {
            limit = 3
            grace = "90s"
          }
          check {
            type = "http"
            path = "health"
            protocol = "https"
            tls_skip_verify = true
            method = "post"
            body = "{}"
            header {
              Authorization = ["Basic x"]
              X-One = "1"
            }
            initial_status = "passing"
            success_before_passing = 2
            failures_before_critical = 4
            failures_before_warning = 3
            interval = "10s"
            timeout = "2s"
          }
          check {
            name = "g"
            type = "grpc"
            port = 9000
            grpc_service = "x.Y"
            grpc_use_tls = true
            on_update = "ignore"
            interval = "10s"
            timeout = "2s"
            check_restart {
              limit = 1
              ignore_warnings = true
            }
          }
          check {
            name = "s"
            type = "script"
            command = "/bin/sh"
            args = ["-c", "exit ${NOMAD_ALLOC_INDEX}"]
            interval = "10s"
            timeout = "2s"
          }
        }
        service {
          name = "plain"
          port = "${NOMAD_PORT_http}"
        }"#,
    );
    let [service, plain] = services.as_slice() else { panic!("{services:?}") };
    assert_eq!(service.name, "j-g-x");
    assert_eq!(service.runs_in.as_ref().map(|task| task.as_str()), Some("t"));
    assert_eq!(service.tags, ["a", "b-${NOMAD_ALLOC_INDEX}"]);
    assert_eq!((&service.canary_tags[0][..], &service.canary_meta["version"][..]), ("c", "new"));
    assert_eq!(service.meta["version"], "3");
    assert_eq!(service.address_mode, AddressMode::Auto);
    let [http, grpc, script] = service.checks.as_slice() else { panic!("three checks") };
    let CheckKind::Http(request) = &http.kind else { panic!("{http:?}") };
    assert_eq!(
        (&request.method[..], &request.path[..], &request.body[..]),
        ("POST", "/health", "{}")
    );
    assert_eq!(request.tls, Some(CheckTls { skip_verify: true, server_name: None }));
    assert_eq!(request.headers["Authorization"], ["Basic x"]);
    assert_eq!(request.headers["X-One"], ["1"]);
    assert_eq!((http.initial, http.on_update), (CheckStatus::Passing, OnUpdate::IgnoreWarnings));
    let counts =
        [http.success_before_passing, http.failures_before_critical, http.failures_before_warning];
    assert_eq!(counts, [2, 4, 3]);
    let grace = Duration::from_secs(90);
    let restart = CheckRestart { limit: 3, grace, ignore_warnings: false };
    assert_eq!((http.restart, script.restart), (Some(restart), Some(restart)));
    let own = CheckRestart { limit: 1, grace, ignore_warnings: true };
    assert_eq!((grpc.restart, grpc.on_update), (Some(own), OnUpdate::Ignore));
    let tls = Some(CheckTls::default());
    assert_eq!(grpc.kind, CheckKind::Grpc { service: "x.Y".to_owned(), tls });
    assert_eq!(grpc.port.as_deref(), Some("9000"));
    let CheckKind::Script { command, args } = &script.kind else { panic!("{script:?}") };
    assert_eq!((&command[..], args.len()), ("/bin/sh", 2));
    assert_eq!(plain.port.as_deref(), Some("${NOMAD_PORT_http}"));
}

#[test]
fn a_number_is_a_port_and_two_ports_may_have_one_name() {
    let services = services(
        "service {\nname = \"a\"\nport = 8080\n}\nservice {\nname = \"a\"\nport = \"8081\"\n}",
    );
    let ports: Vec<_> = services.iter().map(|service| service.port.as_deref()).collect();
    assert_eq!(ports, [Some("8080"), Some("8081")]);
}

#[test]
fn a_script_says_in_which_task_it_runs_and_needs_a_command_and_no_port() {
    let script = |more: &str| {
        format!(
            "service {{\n{more}\ncheck {{\ntype = \"script\"\ncommand = \"/x\"\ninterval = \"1s\"\n\
             timeout = \"1s\"\n}}\n}}"
        )
    };
    check(
        &with_ports(&script("")),
        &["10:1: a script runs inside a task; say which: task = \"name\""],
    );
    assert_eq!(services(&script("task = \"t\"")).len(), 1);
    let without = script("task = \"t\"").replace("command = \"/x\"\n", "");
    check(&with_ports(&without), &["10:1: a script check needs a command"]);
    let counted =
        script("task = \"t\"").replace("command", "failures_before_critical = 2\ncommand");
    check(
        &with_ports(&counted),
        &["12:28: a check of type script has no failures_before_critical"],
    );
}
