//! Rules on files that the kernel keeps for the process (Landlock): nothing but what is named here.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, PathBeneath, Ruleset, RulesetAttr as _, RulesetCreated,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};
use serde::{Deserialize, Serialize};

/// The newest rules that were looked at; a kernel keeps those of them that it has.
const RULES: ABI = ABI::V6;

/// What a process may do with which files, as it sees them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rules {
    /// Read and execute.
    pub read: Vec<PathBuf>,
    /// Everything.
    pub write: Vec<PathBuf>,
    /// Of `read`: not these, and what is below.
    pub except: Vec<PathBuf>,
    /// Signals and abstract sockets reach processes with these rules only.
    pub scoped: bool,
    /// Nothing is executed, and no device is made or told anything.
    pub data_only: bool,
}

impl Rules {
    /// In force from [`RulesetCreated::restrict_self`] on. What is not there is left out.
    pub fn prepare(&self) -> io::Result<RulesetCreated> {
        self.created().map_err(io::Error::other)
    }

    fn created(&self) -> Result<RulesetCreated, RulesetError> {
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
        let readable = self.read.iter().flat_map(|path| around(path, &self.except));
        rules
            .create()?
            .add_rules(path_beneath_rules(readable, read))?
            .add_rules(path_beneath_rules(&self.write, given))
    }
}

/// What a terminal needs, wherever it is mounted: it may be opened by its name in `/dev` then.
pub(super) fn with_terminal(
    rules: RulesetCreated,
    terminal: impl AsFd,
) -> Result<RulesetCreated, RulesetError> {
    let may = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev;
    rules.add_rule(PathBeneath::new(terminal, may))
}

/// `path` where nothing of `except` is below it; otherwise the entries beside that.
fn around(path: &Path, except: &[PathBuf]) -> Vec<PathBuf> {
    if except.iter().any(|hidden| path.starts_with(hidden)) {
        return Vec::new();
    }
    if !except.iter().any(|hidden| hidden.starts_with(path)) {
        return vec![path.to_owned()];
    }
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.flat_map(|entry| around(&entry.path(), except)).collect()
}

/// The version of the kernel's rules, where they were switched on; otherwise why there are none.
pub(crate) fn version() -> Result<i64, String> {
    possible().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no Landlock".to_owned(),
        Some(libc::EOPNOTSUPP) => "Landlock is switched off (boot parameter lsm=)".to_owned(),
        _ => format!("no Landlock: {error}"),
    })
}

fn possible() -> io::Result<i64> {
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
        let mut found = around(&at("etc"), &except);
        found.sort();
        assert_eq!(found, [at("etc/passwd"), at("etc/ssl/certs")]);
        assert_eq!(around(&at("usr"), &except), [at("usr")]);
        assert!(around(&at("etc/ssl/private/keys"), &except).is_empty());
    }
}
