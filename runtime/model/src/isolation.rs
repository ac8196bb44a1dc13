//! What keeps a native task apart from the node and from other tasks: its parts, and what the
//! configuration demands and allows of them. Pure.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// User of isolated tasks whose job names none and whose allocation has no user id of its own, where the agent may
/// switch users.
pub const USER_DEFAULT: &str = "nobody";

/// What a task sees of the system, read-only, unless the configuration says otherwise. What is not
/// there is left out.
pub const BASE_DEFAULT: [&str; 11] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    // Where links of /etc/resolv.conf lead.
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/run/NetworkManager/resolv.conf",
];

/// What of the base is not shown whatever the rights of its files.
pub const HIDDEN_DEFAULT: [&str; 13] = [
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/security/opasswd",
    "/etc/krb5.keytab",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/pki/tls/private",
    "/etc/ostler",
    "/etc/credstore",
];

/// One of the ways in which a process is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// A root of its own.
    Mounts,
    /// Its own processes only.
    Pids,
    /// Shared memory and message queues of its own.
    Ipc,
    /// No network but a loopback of its own.
    Network,
    /// A user that is not root.
    User,
    /// No capabilities but those asked for and allowed, none more later.
    Privileges,
    /// A filter of system calls.
    Seccomp,
    /// Rules on files that the kernel keeps for the process.
    Landlock,
}

impl Part {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Mounts,
        Self::Pids,
        Self::Ipc,
        Self::Network,
        Self::User,
        Self::Privileges,
        Self::Seccomp,
        Self::Landlock,
    ];

    /// As configuration, fingerprint and messages call it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Mounts => "mounts",
            Self::Pids => "pids",
            Self::Ipc => "ipc",
            Self::Network => "network",
            Self::User => "user",
            Self::Privileges => "privileges",
            Self::Seccomp => "seccomp",
            Self::Landlock => "landlock",
        }
    }

    /// The part of this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|part| part.word() == word)
    }
}

/// An `isolation` block of a plugin's grants: processes are started apart or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationGrant {
    /// Parts that a process may lack.
    pub without: Vec<Part>,
    /// What is shown read-only, in place of [`BASE_DEFAULT`].
    pub base: Option<Vec<PathBuf>>,
    /// What of that is not shown, beside [`HIDDEN_DEFAULT`].
    pub hidden: Vec<PathBuf>,
    /// Directories of the node that jobs may have mounted: absolute paths or patterns.
    pub mounts: Vec<String>,
    /// Capabilities that jobs may ask for.
    pub capabilities: Vec<String>,
    /// User of tasks whose job names none; an id of the allocation's own, or [`USER_DEFAULT`], unless given.
    pub user: Option<String>,
    /// Processes and threads of one task.
    pub processes_max: Option<u32>,
}

impl IsolationGrant {
    /// Whatever is possible is done, and nothing is demanded.
    #[must_use]
    pub fn as_far_as_possible() -> Self {
        Self { without: Part::ALL.to_vec(), ..Self::default() }
    }

    /// May a process lack this part? Network is asked for by jobs, and rules on files are a second
    /// wall behind a root of its own: they are demanded where that is not.
    #[must_use]
    pub fn may_lack(&self, part: Part) -> bool {
        let without = |part| self.without.contains(&part);
        match part {
            Part::Network => true,
            Part::Landlock => without(Part::Landlock) || !without(Part::Mounts),
            part => without(part),
        }
    }

    /// What every process has to have.
    #[must_use]
    pub fn demanded(&self) -> Vec<Part> {
        Part::ALL.into_iter().filter(|part| !self.may_lack(*part)).collect()
    }

    /// What is shown read-only.
    #[must_use]
    pub fn base(&self) -> Vec<PathBuf> {
        let default = || BASE_DEFAULT.map(PathBuf::from).to_vec();
        self.base.clone().unwrap_or_else(default)
    }

    /// What of that is not.
    #[must_use]
    pub fn hidden(&self) -> Vec<PathBuf> {
        HIDDEN_DEFAULT.iter().map(PathBuf::from).chain(self.hidden.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_found_by_its_name() {
        for part in Part::ALL {
            assert_eq!(Part::from_word(part.word()), Some(part));
        }
        assert_eq!(Part::from_word("chroot"), None);
    }

    #[test]
    fn all_is_demanded_but_what_jobs_ask_for_and_the_second_wall_behind_the_first() {
        use Part::{Ipc, Landlock, Mounts, Pids, Privileges, Seccomp, User};
        let demanded = |without: &[Part]| {
            IsolationGrant { without: without.to_vec(), ..IsolationGrant::default() }.demanded()
        };
        assert_eq!(demanded(&[]), [Mounts, Pids, Ipc, User, Privileges, Seccomp]);
        assert_eq!(demanded(&[Mounts]), [Pids, Ipc, User, Privileges, Seccomp, Landlock]);
        assert_eq!(demanded(&[Mounts, Landlock]), [Pids, Ipc, User, Privileges, Seccomp]);
        assert_eq!(IsolationGrant::as_far_as_possible().demanded(), []);
    }
}
