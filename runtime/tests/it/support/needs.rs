//! What tests need of the machine beyond the agent, and what is done where it is missing.
//!
//! `OSTLER_TESTS_NEED` names what must be there, separated by commas: a test that lacks one of those
//! fails. The gate names what it has installed. Otherwise a test says that it is skipped, and why.

use std::fmt;
use std::io::Write as _;

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Kernel, emulator and busybox of `.ci/machine`.
    Machine,
    /// Programs of other people, built from their published sources.
    Programs,
    /// `redis-server`.
    Redis,
    /// To be root, and what of util-linux takes it away.
    Root,
    /// All parts of isolation.
    Isolation,
    /// To mount file systems.
    Mounts,
    /// Files that can be made immutable.
    Immutable,
    /// A kernel that tells of devices which come and go.
    DeviceEvents,
    /// To be root, CNI plugins and iptables, and a kernel that lets them work.
    Networks,
    /// Chromium and its driver.
    Browser,
    /// A terminal to be used by a test.
    Tmux,
    /// What checks unit files.
    Systemd,
    /// What counts system calls.
    Strace,
}

impl Need {
    const ALL: [Self; 13] = [
        Self::Machine,
        Self::Programs,
        Self::Redis,
        Self::Root,
        Self::Isolation,
        Self::Mounts,
        Self::Immutable,
        Self::DeviceEvents,
        Self::Networks,
        Self::Browser,
        Self::Tmux,
        Self::Systemd,
        Self::Strace,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Programs => "programs",
            Self::Redis => "redis",
            Self::Root => "root",
            Self::Isolation => "isolation",
            Self::Mounts => "mounts",
            Self::Immutable => "immutable",
            Self::DeviceEvents => "device-events",
            Self::Networks => "networks",
            Self::Browser => "browser",
            Self::Tmux => "tmux",
            Self::Systemd => "systemd",
            Self::Strace => "strace",
        }
    }
}

/// What has to be there, by `OSTLER_TESTS_NEED`.
fn needed() -> Vec<Need> {
    named(&std::env::var("OSTLER_TESTS_NEED").unwrap_or_default())
}

fn named(list: &str) -> Vec<Need> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let known = |name: &str| Need::ALL.into_iter().find(|need| need.name() == name);
    names.map(|name| known(name).unwrap_or_else(|| panic!("tests know no need {name:?}"))).collect()
}

/// A test can do nothing, or not all, because something is missing. Fails where that is needed.
#[track_caller]
pub fn skipped(need: Need, why: impl fmt::Display) {
    assert!(!needed().contains(&need), "{} is needed here and missing: {why}", need.name());
    say(why);
}

/// A test does nothing because nobody asked for it.
pub fn not_asked(why: &str) {
    say(why);
}

/// Also where the output of tests that pass is not shown.
fn say(why: impl fmt::Display) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

#[test]
fn needs_are_known_by_their_names() {
    assert_eq!(named("redis, machine"), [Need::Redis, Need::Machine]);
    assert_eq!(named(""), []);
    assert!(std::panic::catch_unwind(|| named("redis,docker")).is_err());
}
