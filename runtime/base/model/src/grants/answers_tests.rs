//! Tests of what answers may cause.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::*;
use crate::config::{AnswerGrants, NodeGrant};

fn key(vendor: &str, kind: &str, name: &str) -> GroupKey {
    GroupKey { vendor: vendor.to_owned(), kind: kind.to_owned(), name: name.to_owned() }
}

fn mount(host: &str, task: &str, read_only: bool) -> Mount {
    Mount { host_path: host.to_owned(), task_path: task.to_owned(), read_only }
}

fn node(path: &str, permissions: &str) -> DeviceNode {
    let path = path.to_owned();
    DeviceNode { host_path: path.clone(), task_path: path, permissions: permissions.to_owned() }
}

fn env(name: &str) -> Reservation {
    Reservation { env: vec![(name.to_owned(), "x".to_owned())], ..Reservation::default() }
}

fn mounting(mounts: &[Mount]) -> Reservation {
    Reservation { mounts: mounts.to_vec(), ..Reservation::default() }
}

fn granted(answers: AnswerGrants) -> Grants {
    Grants { answers, ..Grants::default() }
}

/// A resolver for paths of which none is a link.
fn as_it_is(path: &Path) -> Option<PathBuf> {
    Some(path.to_owned())
}

#[test]
fn without_a_grant_a_plugin_has_its_own_names_and_nothing_else() {
    let nothing = Grants::default();
    let cards = AnswerCheck { name: "my-cards", grants: &nothing };
    assert_eq!(cards.check_groups([key("my-cards", "gpu", "x")].iter()), Ok(()));
    assert_eq!(cards.check_reservation(&env("MY_CARDS_IDS"), &as_it_is), Ok(()));
    assert_eq!(cards.check_driver("my-cards"), Ok(()));
    for other in ["nvidia", "ostler", "my-cards2", "MY-CARDS", "my-cards/gpu"] {
        assert!(cards.check_groups([key(other, "gpu", "x")].iter()).is_err(), "{other}");
    }
    for other in ["FOO", "MY_CARDS", "MY_CARDSX", "my_cards_ids", "CUDA_VISIBLE_DEVICES"] {
        assert!(cards.check_reservation(&env(other), &as_it_is).is_err(), "{other}");
    }
    let gst = AnswerCheck { name: "gst", grants: &nothing };
    let refused =
        gst.check_reservation(&env("GST_PLUGIN_PATH"), &as_it_is).unwrap_err().to_string();
    assert!(refused.contains("task_env = [\"GST_PLUGIN_PATH\"]"), "what would allow it: {refused}");
    assert!(cards.check_driver("exec").is_err());
    for path in ["/", "/etc/passwd", "/srv"] {
        let assigned = mounting(&[mount(path, "/local/x", true)]);
        assert!(cards.check_reservation(&assigned, &as_it_is).is_err(), "{path}");
    }
    let assigned =
        Reservation { device_nodes: vec![node("/dev/null", "r")], ..Reservation::default() };
    assert!(cards.check_reservation(&assigned, &as_it_is).is_err());
}

#[test]
fn no_grant_lets_a_plugin_say_what_a_task_runs() {
    let all = granted(AnswerGrants { task_env: Some(vec!["*".to_owned()]), ..Default::default() });
    for name in ["all", "ld", "bash"] {
        let all = AnswerCheck { name, grants: &all };
        for name in ["LD_PRELOAD", "PATH", "BASH_ENV", "ENV", "IFS", "NOMAD_TASK_DIR"] {
            let refused = all.check_reservation(&env(name), &as_it_is).unwrap_err().to_string();
            assert!(refused.contains("what no plugin may"), "{refused}");
            assert!(!refused.contains("to grant it"), "{refused}");
        }
        assert_eq!(all.check_reservation(&env("ANYTHING"), &as_it_is), Ok(()));
    }
}

#[test]
fn a_granted_path_leads_nowhere_else() {
    let mounts = vec![
        FileGrant { path: "/srv/cards".into(), write: false },
        FileGrant { path: "/srv/open".into(), write: true },
    ];
    let grants = granted(AnswerGrants { mounts: Some(mounts), ..AnswerGrants::default() });
    let cards = AnswerCheck { name: "cards", grants: &grants };
    let real = |path: &Path| {
        let text = path.to_str().unwrap();
        match text {
            "/srv/cards/out" => Some("/etc".into()),
            "/srv/cards/in" => Some("/srv/cards/a".into()),
            "/srv/cards/to-open" => Some("/srv/open/a".into()),
            "/srv/open/to-cards" => Some("/srv/cards/a".into()),
            "/srv/cards/absent" => None,
            _ => Some(path.to_owned()),
        }
    };
    let may = |host: &str, read_only| {
        cards.check_reservation(&mounting(&[mount(host, "/local/x", read_only)]), &real).is_ok()
    };
    for path in ["/srv/cards", "/srv/cards/a", "/srv/cards/in", "/srv/cards/to-open"] {
        assert!(may(path, true), "{path}");
        assert!(!may(path, false), "{path} is read-only");
    }
    assert!(may("/srv/cards/absent", true));
    assert!(may("/srv/open/a", false) && !may("/srv/open/to-cards", false));
    for path in ["/srv/cards/out", "/srv/cards2", "/srv", "/"] {
        assert!(!may(path, true), "{path}");
    }
}

#[test]
fn a_device_node_is_granted_by_pattern_and_permission() {
    let nodes = vec![NodeGrant { path: "/dev/dri/*".to_owned(), permissions: "rw".to_owned() }];
    let grants = granted(AnswerGrants { device_nodes: Some(nodes), ..AnswerGrants::default() });
    let cards = AnswerCheck { name: "cards", grants: &grants };
    let may = |path: &str, permissions: &str, real: &dyn Fn(&Path) -> Option<PathBuf>| {
        let nodes = vec![node(path, permissions)];
        let assigned = Reservation { device_nodes: nodes, ..Reservation::default() };
        cards.check_reservation(&assigned, real).is_ok()
    };
    assert!(may("/dev/dri/card0", "rw", &as_it_is) && may("/dev/dri/card0", "r", &as_it_is));
    assert!(!may("/dev/dri/card0", "rwm", &as_it_is));
    assert!(!may("/dev/sda", "r", &as_it_is) && !may("/dev/dri/../sda", "r", &as_it_is));
    assert!(!may("/dev/dri/card0", "r", &|_| Some("/etc/shadow".into())));
}

#[test]
fn the_parts_of_a_group_are_patterns_of_their_own() {
    let fits = |pattern: &str, vendor: &str, kind: &str, name: &str| {
        group_fits(pattern, &key(vendor, kind, name))
    };
    assert!(fits("nvidia/gpu/*", "nvidia", "gpu", "H100 80GB"));
    assert!(fits("*/display/*", "1a2b", "display", "x/y"));
    assert!(fits("nvidia", "nvidia", "gpu", "x") && fits("*", "a", "b", "c"));
    assert!(!fits("*/display/*", "x", "gpu", "display/y"), "a part does not reach into the next");
    assert!(!fits("nvidia/gpu/*", "nvidia", "gpux", "x") && !fits("nvidia", "nvidia2", "g", "x"));
}

#[test]
fn the_narrowest_grant_of_a_group_counts_most() {
    let claim = |name: &str, patterns: &[&str]| {
        let groups = Some(patterns.iter().map(|one| (*one).to_owned()).collect());
        let grants = granted(AnswerGrants { groups, ..AnswerGrants::default() });
        AnswerCheck { name, grants: &grants }.claim(&key("acme", "gpu", "x"))
    };
    let claims = [
        claim("a", &[]),
        claim("a", &["*"]),
        claim("a", &["*/gpu/*"]),
        claim("a", &["acme/*"]),
        claim("a", &["*", "acme/gpu/*"]),
        claim("a", &["acme/gpu/x"]),
        claim("acme", &[]),
    ];
    assert!(claims.is_sorted_by(|a, b| a < b), "{claims:?}");
}

#[test]
fn attributes_are_all_its_own_until_some_are_granted() {
    let named = |name: &str| NamedAttribute { name: name.to_owned(), attribute: true.into() };
    let (nothing, some) = (
        Grants::default(),
        granted(AnswerGrants { attributes: Some(vec!["v*".to_owned()]), ..Default::default() }),
    );
    let of =
        |grants, name: &str| AnswerCheck { name: "d", grants }.check_attributes(&[named(name)]);
    assert_eq!((of(&nothing, "version"), of(&nothing, "x")), (Ok(()), Ok(())));
    assert_eq!(of(&some, "version"), Ok(()));
    assert!(of(&some, "x").unwrap_err().to_string().contains("attributes = [\"v*\", \"x\"]"));
}

#[test]
fn a_refusal_stays_readable_however_much_is_asked() {
    let nothing = Grants::default();
    let keys: Vec<GroupKey> = (0..5_000).map(|n| key(&format!("v{n}"), "t", "n")).collect();
    let refused =
        AnswerCheck { name: "x", grants: &nothing }.check_groups(keys.iter()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("and 4984 more") && text.len() < 2_000, "{text}");
}

#[test]
fn nothing_hides_what_is_the_tasks_own_or_the_system() {
    let wrong =
        |host: &str, task: &str| check_mount_paths(&mounting(&[mount(host, task, true)])).is_err();
    for path in ["/", "/local", "/local/", "//local", "/./local", "/alloc", "/secrets/.", "/tmp"] {
        assert!(wrong("/srv/x", path), "{path}");
        assert!(wrong(path, path), "{path}");
    }
    for path in ["/etc", "/etc/ld.so.preload", "/usr/lib/x", "/bin", "/dev", "/proc/self", "/usr"] {
        assert!(wrong("/srv/x", path), "{path}");
    }
    for path in ["/local/devices/x", "/tmp/x", "/srv", "/locals", "/opt/tmp", "/alloc/data/x"] {
        assert!(!wrong("/srv/x", path), "{path}");
    }
    assert!(!wrong("/sys/devices/x", "/sys/devices/x"), "the node's own");
    assert!(!wrong("/sys/devices//x/", "/sys/devices/x"));
}

#[test]
fn one_thing_assigned_twice_is_there_once_and_two_are_not_in_one_place() {
    let twice = Reservation {
        device_nodes: vec![node("/dev/vfio/vfio", "rw"), node("/dev/vfio/vfio", "rw")],
        ..Reservation::default()
    };
    assert_eq!(check_mount_paths(&twice), Ok(()));
    let wrong = |a: Mount, b: Mount| check_mount_paths(&mounting(&[a, b])).is_err();
    assert!(wrong(mount("/a", "/x", true), mount("/b", "/x", true)));
    assert!(wrong(mount("/a", "/x/y", true), mount("/b", "/x", true)));
    assert!(!wrong(mount("/a", "/x/y", true), mount("/b", "/x/z", true)));
    assert!(!wrong(mount("/a", "/x", true), mount("/b", "/xy", true)));
}

/// A path of a few parts, written in one of many ways.
fn path() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec!["a", "b", "local", "tmp", "etc", ".", ""]);
    prop::collection::vec(part, 0..5).prop_map(|parts| format!("/{}", parts.join("/")))
}

proptest! {
    /// Of all paths that are allowed together, none covers another one, and none covers one of the
    /// task's own.
    #[test]
    fn what_is_let_through_hides_nothing(
        given in prop::collection::vec((path(), path(), any::<bool>()), 0..6)
    ) {
        let mounts: Vec<Mount> =
            given.iter().map(|(host, task, ro)| mount(host, task, *ro)).collect();
        let clean = |path: &str| -> Vec<String> {
            path.split('/').filter(|p| !p.is_empty() && *p != ".").map(str::to_owned).collect()
        };
        let hides = |place: &[String], other: &[String]| {
            place.iter().zip(other).all(|(a, b)| a == b) && place.len() <= other.len()
        };
        let mut wrong = false;
        for (at, one) in mounts.iter().enumerate() {
            let place = clean(&one.task_path);
            wrong |= ["local", "alloc", "secrets", "tmp"]
                .iter().any(|own| hides(&place, &[(*own).to_owned()]));
            wrong |= place.first().is_some_and(|top| top == "etc")
                && clean(&one.host_path) != place;
            for other in &mounts[at + 1..] {
                let (there, same) = (clean(&other.task_path), clean(&other.host_path));
                let both = (place.clone(), clean(&one.host_path)) == (there.clone(), same);
                wrong |= !both && (hides(&place, &there) || hides(&there, &place));
            }
        }
        prop_assert_eq!(check_mount_paths(&mounting(&mounts)).is_err(), wrong, "{:?}", mounts);
        let mut turned = mounts.clone();
        turned.reverse();
        prop_assert_eq!(check_mount_paths(&mounting(&turned)).is_err(), wrong);
    }
}
