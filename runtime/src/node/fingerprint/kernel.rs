//! The kernel: `kernel.name`, `kernel.version`, `kernel.arch`.

use std::path::Path;

use super::{Facts, add_text, read_line};

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let name = read_line(root, "proc/sys/kernel/ostype").map(|name| name.to_lowercase());
    add_text(facts, "kernel.name", name);
    add_text(facts, "kernel.version", read_line(root, "proc/sys/kernel/osrelease"));
    add_text(facts, "kernel.arch", Some(std::env::consts::ARCH));
}
