use super::*;
use ostler_sdk::testing::FakeHost;
use std::path::PathBuf;

/// A directory with `a` (3 bytes), `b` (empty) and a subdirectory, removed at the end.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("device-files-{name}-{}", std::process::id()));
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("b"), "").unwrap();
        fs::write(dir.join("a"), "abc").unwrap();
        FakeHost::install().set_config(&format!(r#"{{"dir": "{}"}}"#, dir.display()));
        Self(dir)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn claim(ids: &[&str]) -> Claim {
    Claim {
        vendor: "ostler".to_owned(),
        type_: "file".to_owned(),
        name: "files".to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

#[test]
fn each_regular_file_is_a_device() {
    let _dir = Dir::new("fingerprint");
    let found = Files::fingerprint().unwrap();
    let ids: Vec<_> = found.groups[0].instances.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(found.next_check, Some(5_000));
}

#[test]
fn a_reservation_mounts_each_file_and_names_them_in_the_environment() {
    let dir = Dir::new("reserve");
    let reserved = Files::reserve(claim(&["a", "b"])).unwrap();
    assert_eq!(
        reserved.env,
        [EnvVar::new("FILE_DEVICE_PATHS", "/local/devices/a,/local/devices/b")]
    );
    assert_eq!(reserved.mounts[0].host_path, dir.0.join("a").display().to_string());
    assert!(reserved.mounts.iter().all(|mount| mount.read_only));
    assert_eq!(reserved, Files::reserve(claim(&["a", "b"])).unwrap(), "same answer twice");
}

#[test]
fn a_file_that_is_gone_and_a_path_out_of_the_directory_are_not_found() {
    let _dir = Dir::new("gone");
    for id in ["gone", "../a", "sub"] {
        let refused = Files::reserve(claim(&[id]));
        assert!(matches!(refused, Err(Error::NotFound(_))), "{id}");
    }
}

#[test]
fn an_absent_directory_has_no_devices() {
    FakeHost::install().set_config(r#"{"dir": "/nowhere/at/all"}"#);
    assert_eq!(Files::fingerprint().unwrap().groups, []);
}

#[test]
fn sizes_are_measured() {
    let _dir = Dir::new("stats");
    let groups = Files::stats().unwrap();
    let summary = groups[0].instances[0].summary.as_ref().unwrap();
    assert_eq!(summary.int_numerator, Some(3));
}
