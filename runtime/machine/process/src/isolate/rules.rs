//! Rules on files that the kernel enforces for the process (Landlock): it reaches what is named
//! here and nothing else.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use serde::{Deserialize, Serialize};

/// The newest version of the rules that this code was written for. A kernel enforces those that
/// it knows.
const RULES: ABI = ABI::V6;

/// What a process may do with which files, as it sees them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct LandlockRules {
    /// Files and directories that may be read and executed, at any depth.
    pub read: Vec<PathBuf>,
    /// Files and directories where everything is allowed, at any depth.
    pub write: Vec<PathBuf>,
    /// Paths below those of `read` that are not allowed, at any depth.
    pub except: Vec<PathBuf>,
    /// Signals and abstract sockets reach only processes with these same rules.
    pub scoped: bool,
    /// No file is executed, no device or pipe is made, and no device is controlled.
    pub data_only: bool,
}

impl LandlockRules {
    /// Make the rule set, which is in force from [`RulesetCreated::restrict_self`] on. Paths that
    /// do not exist are left out.
    pub fn prepare(&self) -> io::Result<RulesetCreated> {
        self.create_ruleset().map_err(io::Error::other)
    }

    fn create_ruleset(&self) -> Result<RulesetCreated, RulesetError> {
        let all = AccessFs::from_all(RULES);
        let no_data = AccessFs::Execute
            | AccessFs::MakeChar
            | AccessFs::MakeBlock
            | AccessFs::MakeFifo
            | AccessFs::IoctlDev;
        let given = if self.data_only { all & !no_data } else { all };
        let read: BitFlags<AccessFs> = AccessFs::from_read(RULES) & given;
        let mut rules = Ruleset::default().handle_access(all)?;
        if self.scoped {
            rules = rules.scope(Scope::from_all(RULES))?;
        }
        let readable = self.read.iter().flat_map(|path| paths_around(path, &self.except));
        rules
            .create()?
            .add_rules(path_beneath_rules(readable, read))?
            .add_rules(path_beneath_rules(&self.write, given))
    }
}

/// Add what a terminal needs, so that it may be opened by its name in `/dev`, wherever it
/// is mounted.
pub(super) fn allow_terminal(
    rules: RulesetCreated,
    terminal: impl AsFd,
) -> Result<RulesetCreated, RulesetError> {
    let may = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    rules.add_rule(PathBeneath::new(terminal, may))
}

/// The paths that stand for `path` without `except`: `path` itself where nothing of `except` is
/// below it, otherwise the entries beside those.
fn paths_around(path: &Path, except: &[PathBuf]) -> Vec<PathBuf> {
    if except.iter().any(|hidden| path.starts_with(hidden)) {
        return Vec::new();
    }
    if !except.iter().any(|hidden| hidden.starts_with(path)) {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.flat_map(|entry| paths_around(&entry.path(), except)).collect()
}

/// The version of the kernel's rules, where they were switched on; otherwise why there are none.
pub(crate) fn version() -> Result<i64, String> {
    landlock_version().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no Landlock".to_owned(),
        Some(libc::EOPNOTSUPP) => "Landlock is switched off (boot parameter lsm=)".to_owned(),
        _ => format!("no Landlock: {error}"),
    })
}

fn landlock_version() -> io::Result<i64> {
    /// `LANDLOCK_CREATE_RULESET_VERSION`
    const VERSION: libc::c_uint = 1;
    let none = std::ptr::null::<libc::c_void>();
    // SAFETY: asks for the version; nothing is read or written.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0_usize, VERSION) };
    if version > 0 { Ok(version) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn what_is_excepted_splits_the_directories_above_it_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("etc/ssl/private")).unwrap();
        std::fs::create_dir_all(at("etc/ssl/certs")).unwrap();
        std::fs::write(at("etc/passwd"), "").unwrap();
        std::fs::write(at("etc/shadow"), "").unwrap();
        let except = [at("etc/shadow"), at("etc/ssl/private")];
        let mut found = paths_around(&at("etc"), &except);
        found.sort();
        assert_eq!(found, [at("etc/passwd"), at("etc/ssl/certs")]);
        assert_eq!(paths_around(&at("usr"), &except), [at("usr")]);
        assert!(paths_around(&at("etc/ssl/private/keys"), &except).is_empty());
    }
}
