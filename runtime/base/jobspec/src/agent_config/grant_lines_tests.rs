//! What a refusal prints is read as the grant that was missing.

use proptest::prelude::*;

use super::*;
use ostler_model::device::{DeviceNode, Mount, Reservation};
use ostler_model::grants::answers::AnswerCheck;
use ostler_model::grants::{Authority, GrantAddition, Grants, PUT, grant_lines};
use ostler_model::plugin::{PluginKind, PluginManifest};

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

/// What an operator gets who does what a message says.
fn pasted(lines: &str, plugin: &str) -> Grants {
    let config = parse_agent_config(lines.as_bytes(), Path::new("/etc/ostler/ostler.hcl"));
    config.unwrap().plugins[plugin].grants.clone().unwrap()
}

#[test]
fn the_lines_of_missing_grants_are_one_block_that_keeps_what_is_granted_and_lets_the_plugin_run() {
    let asks = manifest(&[
        "ostler:plugin/process@0.1.0",
        "ostler:plugin/command@0.1.0",
        "ostler:plugin/wasm-task@0.1.0",
        "wasi:filesystem/types@0.2.6",
        "wasi:sockets/tcp@0.2.6",
    ]);
    let granted = Grants {
        files: vec![FileGrant { path: "/sys".into(), write: true }],
        users: args(&["web-*"]),
        programs: Some(args(&["/usr/bin/*"])),
        env: args(&["LC_*"]),
        ..Grants::default()
    };
    let missing = granted.find_missing("mine", &asks).unwrap();
    assert!(missing.to_string().contains(PUT), "{missing}");
    // `users` and `programs` need `process`, which is among what is missing.
    let now = pasted(&missing.lines, "mine");
    assert_eq!(now.find_missing("mine", &asks), None, "{}", missing.lines);
    assert_eq!(now.files, granted.files);
    assert_eq!((now.users, now.programs, now.env), (granted.users, granted.programs, granted.env));
}

#[test]
fn a_command_without_argument_lists_runs_with_none_at_all() {
    let text = "plugin \"x\" {\n grants {\n command \"/bin/true\" {}\n }\n}";
    let grant = &pasted(text, "x").commands[0];
    assert!(grant.allows("true", &[]));
    assert!(!grant.allows("true", &args(&["--version"])));
}

#[test]
fn the_lines_for_a_denied_command_allow_that_command_and_no_other() {
    let granted = Grants {
        commands: vec![CommandGrant { program: "/bin/x".into(), args: vec![args(&["a"])] }],
        ..Grants::default()
    };
    for program in ["x", "/bin/x", "/opt/y"] {
        let list = args(&["say \"${hi}\"", "100%{", "\\n", "tab\there"]);
        let added = GrantAddition::Command { program: program.to_owned(), args: list.clone() };
        let lines = grant_lines("mine", &granted, &[added]);
        let now = pasted(&lines, "mine");
        let allows = |list: &[String]| now.commands.iter().any(|one| one.allows(program, list));
        assert!(allows(&list), "{lines}");
        assert!(!allows(&args(&["b"])), "{lines}");
        assert!(now.commands.iter().any(|one| one.allows("x", &args(&["a"]))), "{lines}");
    }
}

#[test]
fn a_refusal_names_everything_and_its_lines_grant_it() {
    let grants = Grants { process: true, ..Grants::default() };
    let cards = AnswerCheck { name: "cards", grants: &grants };
    let asked = Reservation {
        env: vec![("CUDA".to_owned(), String::new())],
        mounts: vec![Mount {
            host_path: "/srv/a".into(),
            task_path: "/local/a".into(),
            read_only: false,
        }],
        device_nodes: vec![DeviceNode {
            host_path: "/dev/a".into(),
            task_path: "/dev/a".into(),
            permissions: "rw".to_owned(),
        }],
    };
    let refused = cards
        .check_reservation(&asked, &|path: &Path| Some(path.to_owned()))
        .unwrap_err()
        .to_string();
    for part in ["the variable CUDA", "a mount of /srv/a (writable)", "the device node /dev/a (rw)"]
    {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let lines = refused.split_once(":\n").unwrap().1;
    let config = parse_agent_config(lines.as_bytes(), Path::new("x.hcl")).unwrap();
    let grants = config.plugins["cards"].grants.clone().unwrap();
    assert!(grants.process, "what was granted stays: {lines}");
    let cards = AnswerCheck { name: "cards", grants: &grants };
    assert_eq!(cards.check_reservation(&asked, &|path: &Path| Some(path.to_owned())), Ok(()));
}

proptest! {
    #[test]
    fn whatever_a_plugin_wanted_to_run_the_lines_that_grant_it_can_be_pasted(
        list in prop::collection::vec("[^\0\u{fffe}\u{ffff}]{0,12}", 0..4), user in "[a-z*-]{1,8}"
    ) {
        prop_assume!(list.iter().all(|arg| !arg.contains('*')));
        let added = [
            GrantAddition::Command { program: "/bin/x".to_owned(), args: list.clone() },
            GrantAddition::Ask(Authority::Process),
            GrantAddition::User(user.clone()),
            GrantAddition::Mount { path: format!("/srv/{user}"), write: true },
            GrantAddition::Node { path: format!("/dev/{user}"), permissions: "r".to_owned() },
            GrantAddition::TaskEnv(format!("X{user}")),
            GrantAddition::Group(format!("{user}/t/*")),
            GrantAddition::Attribute(user.clone()),
        ];
        let lines = grant_lines("mine", &Grants::default(), &added);
        let now = pasted(&lines, "mine");
        prop_assert!(now.commands[0].allows("x", &list), "{}", lines);
        prop_assert!(now.allow_user(Some(&user)));
        let answers = now.answers;
        prop_assert_eq!(answers.mounts.unwrap()[0].path.clone(), Path::new("/srv").join(&user));
        prop_assert_eq!(answers.device_nodes.unwrap()[0].path.clone(), format!("/dev/{user}"));
        prop_assert_eq!(answers.groups, Some(vec![format!("{user}/t/*")]));
    }
}
