//! The operating system: `os.name`, `os.version`, `os.signals`, `unique.hostname`,
//! `ostler.version`.

use std::path::Path;

use super::{Facts, add_text, read, read_line};

/// Signals a job may name.
const SIGNALS: &str = "SIGABRT,SIGALRM,SIGCHLD,SIGCONT,SIGHUP,SIGINT,SIGIO,SIGKILL,SIGPIPE,\
    SIGPROF,SIGQUIT,SIGSTOP,SIGTERM,SIGTRAP,SIGTSTP,SIGTTIN,SIGTTOU,SIGURG,SIGUSR1,SIGUSR2,\
    SIGWINCH,SIGXCPU,SIGXFSZ";

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let release = read(root, "etc/os-release").or_else(|| read(root, "usr/lib/os-release"));
    let release = release.unwrap_or_default();
    add_text(facts, "os.name", release_value(&release, "ID"));
    add_text(facts, "os.version", release_value(&release, "VERSION_ID"));
    add_text(facts, "os.signals", Some(SIGNALS));
    add_text(facts, "unique.hostname", read_line(root, "proc/sys/kernel/hostname"));
    add_text(facts, "ostler.version", Some(env!("CARGO_PKG_VERSION")));
}

/// A value of `os-release`, without the quotes around it.
fn release_value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix(key)?.strip_prefix('=')?;
        Some(value.trim_matches(['"', '\'']))
    })
}
