//! Control groups: `os.cgroups.version`, `unique.cgroup.mountpoint`, `unique.cgroup.version` (`v1`,
//! `v2`: the name until Nomad 1.6), and ours: `os.cgroups.controllers`, a list for `set_contains`.

use std::path::Path;

use super::{Facts, add_number, add_text, read_line};

const MOUNT: &str = "sys/fs/cgroup";

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let mount = root.join(MOUNT);
    let version = if mount.join("cgroup.controllers").exists() {
        Some(2)
    } else if ["memory", "cpu", "cpu,cpuacct"].iter().any(|name| mount.join(name).is_dir()) {
        Some(1)
    } else {
        None
    };
    add_number(facts, "os.cgroups.version", version);
    add_text(facts, "unique.cgroup.version", version.map(|version| format!("v{version}")));
    let controllers = read_line(root, "sys/fs/cgroup/cgroup.controllers");
    add_text(facts, "os.cgroups.controllers", controllers.map(list));
    add_text(facts, "unique.cgroup.mountpoint", version.map(|_| format!("/{MOUNT}")));
}

/// `cpuset cpu io` → `cpu,cpuset,io`: the kernel's order has no meaning.
fn list(names: String) -> String {
    let mut names: Vec<&str> = names.split_whitespace().collect();
    names.sort_unstable();
    names.join(",")
}
