#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::path::Path;

use super::*;
use crate::plugin::PluginKind;

fn manifest(imports: &[&str]) -> PluginManifest {
    PluginManifest {
        kind: PluginKind::Driver,
        interface_version: "0.1.0".into(),
        exports: vec![],
        imports: imports.iter().map(|s| (*s).to_owned()).collect(),
        size_bytes: 0,
        digest: String::new(),
    }
}

fn args(list: &[&str]) -> Vec<String> {
    list.iter().map(|s| (*s).to_owned()).collect()
}

#[test]
fn nothing_but_the_harmless_is_granted_by_default() {
    let asks = manifest(&[
        "ostler:plugin/log@0.1.0",
        "wasi:io/streams@0.2.6",
        "ostler:plugin/process@0.1.0",
        "wasi:sockets/tcp@0.2.6",
    ]);
    let missing = Grants::default().find_missing("x", &asks).unwrap().missing;
    let authorities: Vec<_> = missing.iter().map(|m| m.authority).collect();
    assert_eq!(authorities, [Authority::Process, Authority::Network]);
}

#[test]
fn what_no_grant_exists_for_says_so() {
    let text = Grants::default().find_missing("x", &manifest(&["evil:all/things@1.0.0"])).unwrap();
    assert!(text.to_string().contains("no grant exists for it"), "{text}");
    assert_eq!(text.lines, "");
}

#[test]
fn a_command_grant_is_narrowed_by_its_argument_patterns() {
    let grant = CommandGrant {
        program: "/usr/bin/nvidia-smi".into(),
        args: vec![vec!["--query-gpu=*".into(), "--format=csv".into()]],
    };
    assert!(grant.allows("nvidia-smi", &args(&["--query-gpu=name", "--format=csv"])));
    assert!(grant.allows("/usr/bin/nvidia-smi", &args(&["--query-gpu=", "--format=csv"])));
    assert!(!grant.allows("/tmp/nvidia-smi", &args(&["--query-gpu=name", "--format=csv"])));
    assert!(!grant.allows("nvidia-smi", &args(&["--reset", "--format=csv"])));
    assert!(!grant.allows("nvidia-smi", &args(&["--query-gpu=name"])));
    assert!(!grant.allows("nvidia-smi", &[]));
}

#[test]
fn a_value_pattern_lets_no_option_in() {
    let grant =
        |pattern: &[&str]| CommandGrant { program: "/bin/x".into(), args: vec![args(pattern)] };
    let show = grant(&["show", "*"]);
    assert!(show.allows("x", &args(&["show", "all"])));
    assert!(!show.allows("x", &args(&["show", "--output=/etc/passwd"])));
    assert!(!show.allows("x", &args(&["show", "-"])));
    assert!(grant(&["-o*"]).allows("x", &args(&["-ofile"])));
    let any = grant(&["show", "**"]);
    assert!(any.allows("x", &args(&["show"])) && any.allows("x", &args(&["show", "-a", "b"])));
    assert!(!any.allows("x", &args(&["reset", "-a"])));
}

#[test]
fn tasks_run_as_users_that_are_named_and_from_programs_that_are_named() {
    let bare = Grants { process: true, ..Grants::default() };
    assert!(bare.allow_user(None) && !bare.allow_user(Some("root")));
    let named = Grants { users: args(&["web-*", "nobody"]), ..bare };
    assert!(named.allow_user(Some("web-1")) && named.allow_user(Some("nobody")));
    assert!(!named.allow_user(Some("root")) && !named.allow_user(Some("xnobody")));
    assert!(named.allow_program("sh"), "any program where none is named");
    let narrow = Grants { programs: Some(args(&["/opt/app/*"])), ..named };
    assert!(narrow.allow_program("/opt/app/run"));
    for other in ["/bin/sh", "sh", "opt/app/run", "/opt/app/../../bin/sh"] {
        assert!(!narrow.allow_program(other), "{other}");
    }
}

#[test]
fn a_plugin_sees_the_variables_that_are_named_and_no_others() {
    let of_agent = ["LC_ALL", "HOME", "SECRET"].map(|name| (name.to_owned(), "x".to_owned()));
    let seen = |env: &[&str]| {
        let grants = Grants { env: args(env), ..Grants::default() };
        let names = grants.environment(of_agent.clone().into_iter()).map(|(name, _)| name);
        names.collect::<Vec<_>>()
    };
    assert_eq!(seen(&[]), Vec::<String>::new());
    assert_eq!(seen(&["LC_*", "HOME"]), ["LC_ALL", "HOME"]);
}

#[test]
fn a_plugin_is_told_of_changes_only_where_it_may_read() {
    let files = vec![FileGrant { path: "/sys/class".into(), write: false }];
    let grants = Grants { files, ..Grants::default() };
    assert!(grants.allow_watch(Path::new("/sys/class/net/eth0")));
    for other in ["/sys", "/sys/classy", "/etc/shadow", "/sys/class/../../etc"] {
        assert!(!grants.allow_watch(Path::new(other)), "{other}");
    }
}

#[test]
fn what_is_denied_is_not_missing_and_not_granted() {
    let imports = [
        "ostler:plugin/command@0.1.0",
        "wasi:sockets/tcp@0.2.6",
        "wasi:http/outgoing-handler@0.2.6",
        "wasi:httpx/other@0.2.6",
    ];
    let manifest = manifest(&imports);
    let deny = |words: &[&str]| Grants { deny: args(words), ..Grants::default() };
    let grants = deny(&["connect", "command", "wasi:http", "wasi:httpx/other"]);
    assert_eq!(grants.find_missing("x", &manifest), None);
    assert!(!grants.allow(Authority::Command) && !grants.allow(Authority::Network));
    let some = deny(&["connect", "wasi:http"]);
    let missing = some.find_missing("x", &manifest).unwrap();
    let imports: Vec<&str> =
        missing.missing.iter().flat_map(|one| &one.imports).map(String::as_str).collect();
    assert_eq!(imports, ["ostler:plugin/command@0.1.0", "wasi:httpx/other@0.2.6"]);
    assert!(missing.to_string().contains("if it can do without, refuse it with deny"), "{missing}");
    assert!(!deny(&["wasi:clocks"]).denies("wasi:clocks/wall-clock@0.2.6"), "the harmless stays");
    let near = Grants { process: true, wasm_task: true, ..grants };
    assert!(near.opens_only_files(), "their starts leave the thread of the caller");
    assert!(!Grants { env: args(&["HOME"]), ..near }.opens_only_files());
}

#[test]
fn wildcards_match_whole_texts_only() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("*", "dc1", true),
        ("**", "x", true),
        ("", "dc1", false),
        ("dc1", "dc1", true),
        ("dc1", "dc10", false),
        ("dc*", "dc10", true),
        ("*-eu", "a-eu", true),
        ("*-eu", "a-us", false),
        ("a*a", "a", false),
        ("a*c", "abcd", false),
        ("a*b*c", "aXbYc", true),
        ("a*b*c", "aXc", false),
        ("a*b*c", "acb", false),
    ] {
        assert_eq!(wildcard(pattern, text), expected, "{pattern} on {text}");
    }
}
