//! The kernel: `kernel.name`, `kernel.version`, `kernel.arch`, `kernel.landlock` (`v5`; absent where
//! the kernel has none or it is switched off).

use std::path::Path;

use super::{Facts, add_text, read_line};

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let name = read_line(root, "proc/sys/kernel/ostype").map(|name| name.to_lowercase());
    add_text(facts, "kernel.name", name);
    add_text(facts, "kernel.version", read_line(root, "proc/sys/kernel/osrelease"));
    add_text(facts, "kernel.arch", Some(std::env::consts::ARCH));
    if root == Path::new("/") {
        add_text(facts, "kernel.landlock", landlock().map(|version| format!("v{version}")));
    }
}

/// The newest version of Landlock that this kernel has. Only the kernel itself knows it.
fn landlock() -> Option<i64> {
    const VERSION: libc::c_uint = 1;
    let nothing: *const libc::c_void = std::ptr::null();
    // SAFETY: with this flag the call reads no memory and makes no ruleset; it answers a number.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, nothing, 0_usize, VERSION) };
    (version > 0).then_some(version)
}
