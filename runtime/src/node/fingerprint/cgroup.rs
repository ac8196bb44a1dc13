//! Control groups: `os.cgroups.version`, `unique.cgroup.mountpoint`.

use std::path::Path;

use super::{Facts, add_number, add_text};

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
    add_text(facts, "unique.cgroup.mountpoint", version.map(|_| format!("/{MOUNT}")));
}
