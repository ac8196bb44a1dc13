#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use super::*;

#[test]
fn the_unified_mount_is_found_on_pure_and_on_hybrid_machines() {
    let pure = "25 30 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";
    assert_eq!(unified_mount(pure), Some(PathBuf::from("/sys/fs/cgroup")));
    let hybrid = "25 30 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
                  26 30 0:23 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw\n";
    assert_eq!(unified_mount(hybrid), Some(PathBuf::from("/sys/fs/cgroup/unified")));
    assert_eq!(unified_mount("25 30 0:22 / / rw - ext4 /dev/sda rw\n"), None);
}

#[test]
fn the_own_cgroup_is_the_version_two_line() {
    assert_eq!(own_cgroup("4:memory:/x\n0::/a/b\n"), Some("/a/b".to_owned()));
    assert_eq!(own_cgroup("4:memory:/x\n"), None);
}

#[test]
fn weights_keep_the_ratio_of_the_reservations_within_the_kernels_bounds() {
    assert_eq!(weight_of_mhz(1_000), 100);
    assert_eq!(weight_of_mhz(2_000), 200);
    assert_eq!(weight_of_mhz(0), 1);
    assert_eq!(weight_of_mhz(u32::MAX), CPU_WEIGHT_MAX);
}

#[test]
fn a_worker_is_weighed_anew_when_the_kernel_would_see_a_difference() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cpu.weight");
    let weighed = || fs::read_to_string(&file).unwrap();
    let status = CgroupStatus { cpu: true, ..CgroupStatus::none(CgroupUnavailable::NotMounted) };
    let worker = WorkerCgroup::new(Leaf { path: dir.path().to_owned() }, &status);
    fs::write(&file, "").unwrap();
    worker.set_cpu_weight(1_500).unwrap();
    assert_eq!(weighed(), "150");
    fs::remove_file(&file).unwrap();
    worker.set_cpu_weight(1_509).unwrap();
    worker.set_cpu_weight(2_000).unwrap_err();
    fs::write(&file, "").unwrap();
    worker.set_cpu_weight(2_000).unwrap();
    assert_eq!(weighed(), "200");
    let status = CgroupStatus { cpu: false, ..status };
    WorkerCgroup::new(Leaf { path: "/nowhere".into() }, &status).set_cpu_weight(1).unwrap();
}

#[test]
fn a_counter_counts_only_under_its_own_name() {
    assert!(is_counter_positive("oom 3\noom_kill 1\n", "oom_kill"));
    assert!(!is_counter_positive("oom 3\noom_kill 0\noom_group_kill 1\n", "oom_kill"));
}

#[test]
fn cgroups_of_dead_makers_are_swept_and_those_of_living_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let me = identity::read(std::process::id()).unwrap();
    let before = ProcessIdentity { start_ticks: me.start_ticks + 1, ..me.clone() };
    let (mine, dead) = (leaf_name("a/t/1", &me), leaf_name(&"ä/".repeat(200), &before));
    assert!(dead.len() < 255);
    assert_ne!(mine, leaf_name("a/t/1", &me), "one run may have several processes");
    for name in [mine.as_str(), dead.as_str(), "someone else's", "x-1"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    sweep(dir.path());
    assert!(dir.path().join(mine).exists() && !dir.path().join(dead).exists());
    assert!(dir.path().join("someone else's").exists() && dir.path().join("x-1").exists());
}

#[test]
fn a_directory_that_is_no_cgroup_gives_a_reason_and_no_cgroups() {
    let dir = tempfile::tempdir().unwrap();
    let status = prepare(Some(&dir.path().join("tasks")));
    assert_eq!(status, CgroupStatus::none(CgroupUnavailable::NotMounted));
    assert!(!dir.path().join("tasks").exists());
    assert!(
        Leaf::create(&status, "x", &Limits { cpu_mhz: 100, ..Limits::default() })
            .unwrap()
            .is_none()
    );
}
