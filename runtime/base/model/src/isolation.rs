//! Isolation of a native task from the node and from other tasks: its parts, and those that the
//! configuration requires and allows. Pure.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// User of isolated tasks whose job names none and whose allocation has no user id of its own, where the agent may
/// switch users.
pub const USER_DEFAULT: &str = "nobody";

/// Paths of the system that a task sees, read-only, unless the configuration names others. Absent
/// paths are left out.
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

/// Paths of the base that are always hidden, whatever the rights of their files.
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

/// A part of isolation: one of the ways in which a process is kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationKind {
    /// The process has a root of its own.
    Mounts,
    /// The process sees only its own processes.
    Pids,
    /// The process has its own shared memory and message queues.
    Ipc,
    /// The process has no network but its own loopback.
    Network,
    /// The process runs as a user that is not root.
    User,
    /// The process has only the capabilities that were asked for and allowed, and can get no more.
    Privileges,
    /// The system calls of the process are filtered.
    Seccomp,
    /// The kernel enforces rules on files for the process.
    Landlock,
}

impl IsolationKind {
    /// All parts of isolation.
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

    /// Name of the part in the configuration, the fingerprint and messages.
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

/// An `isolation` block of a plugin's grants: processes are started isolated or not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationGrant {
    /// Parts that a process may lack.
    pub without: Vec<IsolationKind>,
    /// Paths that tasks see read-only, in place of [`BASE_DEFAULT`].
    pub base: Option<Vec<PathBuf>>,
    /// Paths below the base that tasks do not see, beside [`HIDDEN_DEFAULT`].
    pub hidden: Vec<PathBuf>,
    /// Directories of the node that jobs may have mounted: absolute paths or patterns.
    pub mounts: Vec<String>,
    /// Capabilities that jobs may ask for.
    pub capabilities: Vec<String>,
    /// User of tasks whose job names none. Unless given, it is the allocation's own user id, or
    /// [`USER_DEFAULT`].
    pub user: Option<String>,
    /// Most processes and threads of one task.
    pub processes_max: Option<u32>,
}

impl IsolationGrant {
    /// The grant under which all possible parts are used and none is required.
    #[must_use]
    pub fn best_effort() -> Self {
        Self { without: IsolationKind::ALL.to_vec(), ..Self::default() }
    }

    /// Whether a process may lack this part. Jobs ask for the network part themselves, so it may
    /// always be lacking. Rules on files are a second barrier behind a root of its own, so they are
    /// required where that root is not.
    #[must_use]
    pub fn may_lack(&self, part: IsolationKind) -> bool {
        let without = |part| self.without.contains(&part);
        match part {
            IsolationKind::Network => true,
            IsolationKind::Landlock => {
                without(IsolationKind::Landlock) || !without(IsolationKind::Mounts)
            }
            part => without(part),
        }
    }

    /// The parts that every process must have.
    #[must_use]
    pub fn required_parts(&self) -> Vec<IsolationKind> {
        IsolationKind::ALL.into_iter().filter(|part| !self.may_lack(*part)).collect()
    }

    /// The paths that tasks see read-only.
    #[must_use]
    pub fn base_paths(&self) -> Vec<PathBuf> {
        let default = || BASE_DEFAULT.map(PathBuf::from).to_vec();
        self.base.clone().unwrap_or_else(default)
    }

    /// The paths below the base that tasks do not see.
    #[must_use]
    pub fn hidden_paths(&self) -> Vec<PathBuf> {
        HIDDEN_DEFAULT.iter().map(PathBuf::from).chain(self.hidden.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_found_by_its_name() {
        for part in IsolationKind::ALL {
            assert_eq!(IsolationKind::from_word(part.word()), Some(part));
        }
        assert_eq!(IsolationKind::from_word("chroot"), None);
    }

    #[test]
    fn all_is_demanded_but_what_jobs_ask_for_and_the_second_wall_behind_the_first() {
        use IsolationKind::{Ipc, Landlock, Mounts, Pids, Privileges, Seccomp, User};
        let demanded = |without: &[IsolationKind]| {
            IsolationGrant { without: without.to_vec(), ..IsolationGrant::default() }
                .required_parts()
        };
        assert_eq!(demanded(&[]), [Mounts, Pids, Ipc, User, Privileges, Seccomp]);
        assert_eq!(demanded(&[Mounts]), [Pids, Ipc, User, Privileges, Seccomp, Landlock]);
        assert_eq!(demanded(&[Mounts, Landlock]), [Pids, Ipc, User, Privileges, Seccomp]);
        assert_eq!(IsolationGrant::best_effort().required_parts(), []);
    }
}
