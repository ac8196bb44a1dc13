//! `service` and `check`.

use std::time::Duration;

use super::bad::check;
use super::{good, in_group};
use ostler_model::job::{CheckKind, Service};
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
    assert_eq!(http.name, "service: web-${NOMAD_ALLOC_INDEX} check");
    let asked = CheckKind::Http { method: "HEAD".to_owned(), path: "/health?full=1".to_owned() };
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
            "8:18: the group's network has no port \"htpp\" … (did you mean http?)",
        ),
        (
            "service { provider = \"consul\" }",
            "8:22: provider consul is valid in Nomad, not supported by Ostler yet; write provider = \"nomad\"",
        ),
        (
            "service { provider = \"nomda\" }",
            "8:22: \"nomda\" is no provider … (did you mean nomad?)",
        ),
        ("service { name = \"a b\" }", "8:18: service name \"a b\" must have 1 to 63 letters"),
        ("service { name = \"\" }", "8:18: service name \"\" must have 1 to 63 letters"),
        ("service { tags = [\"a\"] }", "8:11: tags is valid in Nomad"),
        ("service { task = \"t\" }", "8:18: task in a service is valid in Nomad"),
        ("service {\nconnect {}\n}", "9:1: connect is valid in Nomad"),
        ("service {}\nservice {}", "9:1: a service \"j-g\" is here already"),
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
        ("type = \"tpc\"", "9:8: \"tpc\" is no type of check … (did you mean tcp?)"),
        ("type = \"script\"", "9:8: checks of type script are valid in Nomad"),
        ("type = \"grpc\"", "9:8: checks of type grpc are valid in Nomad"),
        ("", "8:1: a check needs a type; write type = \"http\" or \"tcp\""),
        ("type = \"http\"", "8:1: an http check needs a path; write path = \"/\" or another"),
        ("type = \"http\"\npath = \"x\"", "10:8: path \"x\" must begin with one slash"),
        ("type = \"http\"\npath = \"//x\"", "10:8: path \"//x\" must begin with one slash"),
        ("type = \"http\"\npath = \"/a b\"", "10:8: \" \" must not stand in a path"),
        ("type = \"http\"\npath = \"/${meta.x}\"", "10:8: ${…} in a path is valid in Nomad"),
        (
            "type = \"http\"\npath = \"/\"\nmethod = \"GTE\"",
            "11:10: \"GTE\" is no method … (did you mean GET?)",
        ),
        ("type = \"tcp\"\npath = \"/\"", "10:8: a tcp check only connects"),
        ("type = \"tcp\"\nprotocol = \"https\"", "10:1: protocol is valid in Nomad"),
        ("type = \"tcp\"\nheader {}", "10:1: header is valid in Nomad"),
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
        &["15:1: a check \"service: j-g check\" is here already"],
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
