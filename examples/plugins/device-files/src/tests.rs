use super::*;
use ostler_sdk::testing::FakeHost;
use plugin_support::testing::Tree;

/// A directory with `a` (4 bytes), `b` (1 byte) and a subdirectory.
fn dir(name: &str, more: &str) -> Tree {
    let tree = Tree::new(&format!("files-{name}"));
    tree.file("sub/inside", "").file("b", "").file("a", "abc");
    let root = tree.root().display();
    FakeHost::install().set_config(&format!(r#"{{"dir": "{root}"{more}}}"#));
    tree
}

fn claim(ids: &[&str]) -> Claim {
    Claim {
        vendor: "ostler".to_owned(),
        type_: "file".to_owned(),
        name: "files".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn ids() -> Vec<String> {
    let groups = Files::fingerprint().unwrap().groups;
    groups.into_iter().flat_map(|group| group.instances).map(|one| one.id).collect()
}

#[test]
fn each_regular_file_is_a_device() {
    let tree = dir("fingerprint", "");
    assert_eq!(ids(), ["a", "b"]);
    let found = Files::fingerprint().unwrap();
    assert_eq!(found.next_check, Some(5_000));
    assert_eq!(found.watch.paths, [tree.root().display().to_string()]);
}

#[test]
fn what_cannot_be_an_id_or_is_not_meant_to_be_one_does_not_spoil_the_others() {
    let tree = dir("odd", r#", "ignored_ids": ["b"]"#);
    tree.file(".hidden", "").file("a,b", "").file("bell\u{7}", "").link("link", "a");
    tree.file(" space", "");
    assert_eq!(ids(), ["a"]);
    for id in [".hidden", "a,b", "bell\u{7}", "link", "b"] {
        assert!(matches!(Files::reserve(claim(&[id])), Err(Error::NotFound(_))), "{id}");
    }
}

#[test]
fn no_more_files_are_devices_than_the_agent_takes() {
    let tree = dir("many", "");
    for n in 0..groups::INSTANCES_MAX {
        tree.file(&format!("n{n}"), "");
    }
    assert_eq!(ids().len(), groups::INSTANCES_MAX);
}

#[test]
fn a_reservation_mounts_each_file_and_names_them_in_the_environment() {
    let tree = dir("reserve", "");
    let reserved = Files::reserve(claim(&["a", "b"])).unwrap();
    assert_eq!(
        reserved.env,
        [EnvVar::new("FILE_DEVICE_PATHS", "/local/devices/a,/local/devices/b")]
    );
    assert_eq!(reserved.mounts[0].host_path, tree.path("a").display().to_string());
    assert!(reserved.mounts.iter().all(|mount| mount.read_only));
    assert_eq!(reserved, Files::reserve(claim(&["a", "b"])).unwrap(), "same answer twice");
}

#[test]
fn files_can_be_assigned_for_writing_and_shown_elsewhere() {
    let _tree = dir("writable", r#", "writable": true, "task_dir": "/data/""#);
    let reserved = Files::reserve(claim(&["a"])).unwrap();
    assert!(!reserved.mounts[0].read_only);
    assert_eq!(reserved.mounts[0].task_path, "/data/a");
    let writable = NamedAttribute::new("writable", true);
    assert_eq!(Files::fingerprint().unwrap().groups[0].attributes, [writable]);
}

#[test]
fn a_file_that_is_gone_and_a_path_out_of_the_directory_are_not_found() {
    let tree = dir("gone", "");
    tree.remove("b");
    for id in ["b", "gone", "../a", "sub", "sub/inside", ""] {
        let refused = Files::reserve(claim(&[id]));
        assert!(matches!(refused, Err(Error::NotFound(_))), "{id}");
    }
}

#[test]
fn an_absent_directory_has_no_devices_and_nothing_to_measure() {
    FakeHost::install().set_config(r#"{"dir": "/nowhere/at/all"}"#);
    assert_eq!(Files::fingerprint().unwrap().groups, []);
    assert_eq!(Files::stats().unwrap(), []);
}

#[test]
fn sizes_are_measured() {
    let _tree = dir("stats", "");
    let groups = Files::stats().unwrap();
    let summary = groups[0].instances[0].summary.as_ref().unwrap();
    assert_eq!(summary.int_numerator, Some(4));
}
