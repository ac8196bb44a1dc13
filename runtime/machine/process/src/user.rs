//! Users by name, and what the environment of their processes says of them.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use nix::errno::Errno;
use nix::unistd::{Gid, Uid, User, getgrouplist};

use super::ProcessHost;
use super::error::ProcessError;
use ostler_model::isolation::IsolationKind;
use ostler_model::ports::FileOwner;

/// The ids of a user.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ids {
    /// Id of the user.
    pub uid: u32,
    /// Id of the user's primary group.
    pub gid: u32,
    /// All groups, the primary one included.
    pub groups: Vec<u32>,
}

impl Ids {
    /// Make this user and its primary group the owners of an open file, such as a pipe.
    pub(crate) fn chown_file(&self, file: impl AsFd) -> io::Result<()> {
        let uid = rustix::fs::Uid::from_raw(self.uid);
        let gid = rustix::fs::Gid::from_raw(self.gid);
        Ok(rustix::fs::fchown(file, Some(uid), Some(gid))?)
    }
}

/// `PATH` of tasks that set none.
pub const PATH_USUAL: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// `LANG` of tasks that set none.
pub const LANG_USUAL: &str = "C.UTF-8";
/// Variables that hold the name of the user that a process runs as.
pub const NAMES: [&str; 2] = ["USER", "LOGNAME"];
/// Variables that hold the user's name or home directory.
pub const WHO: [&str; 3] = [NAMES[0], NAMES[1], "HOME"];

/// The user that an isolated process runs as when its job names none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UserDefault {
    /// A user of the node, by name.
    Named(String),
    /// An id that no user of the node has, with a group of the same number.
    Id(u32),
}

impl std::fmt::Display for UserDefault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Named(name) => f.write_str(name),
            Self::Id(id) => id.fmt(f),
        }
    }
}

/// The user that a process runs as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserAccount {
    /// The ids to switch to; `None` when the agent runs as this user already.
    pub ids: Option<Ids>,
    /// Value of `USER` and `LOGNAME`; empty when it is not known.
    name: String,
    /// Value of `HOME`; empty when it is not known.
    home: String,
    /// The node has no name for the user id.
    unknown: bool,
}

/// Name for a user id that the node has no name for: `alloc-` and the id.
#[must_use]
pub fn name_of_id(id: u32) -> String {
    format!("alloc-{id}")
}

impl UserAccount {
    /// The agent's own account, as the first call found it.
    pub fn of_agent() -> Self {
        static OWN: OnceLock<UserAccount> = OnceLock::new();
        let look_up = || {
            let found = User::from_uid(Uid::effective()).ok().flatten();
            found.map_or_else(Self::default, |user| Self::from_user(&user, None))
        };
        OWN.get_or_init(look_up).clone()
    }

    /// The account of an id that the node has no name for.
    fn from_id(id: u32) -> Self {
        let ids = Ids { uid: id, gid: id, groups: vec![id] };
        Self { ids: Some(ids), name: name_of_id(id), home: String::new(), unknown: true }
    }

    /// The user id, where the node has no name for it.
    pub(crate) fn unknown_id(&self) -> Option<u32> {
        self.ids.as_ref().filter(|_| self.unknown).map(|ids| ids.uid)
    }

    fn from_user(user: &User, ids: Option<Ids>) -> Self {
        // Names come from outside; one that is not text is left out.
        let home = user.dir.to_str().unwrap_or_default().to_owned();
        Self { ids, name: user.name.clone(), home, unknown: false }
    }

    /// `env`, with the variables that name the user and its home where `env` has none.
    pub fn environment(&self, env: &[(String, String)]) -> Vec<(String, String)> {
        let said = WHO.into_iter().zip([&self.name, &self.name, &self.home]);
        let new = said.filter(|(name, value)| {
            !value.is_empty() && !env.iter().any(|(known, _)| known == name)
        });
        let new = new.map(|(name, value)| (name.to_owned(), value.clone()));
        env.iter().cloned().chain(new).collect()
    }
}

/// The variables that name a user and its home, for a program whose job and driver do not set them.
/// Empty for a user that is not known. May ask the network: call it where blocking is allowed.
#[must_use]
pub fn user_environment(user: Option<&str>) -> Vec<(String, String)> {
    let account = user.map_or_else(|| Ok(UserAccount::of_agent()), resolve_user);
    account.map(|account| account.environment(&[])).unwrap_or_default()
}

/// The account that a task runs as, which also owns its files: the user that its job names;
/// without one, where the agent is root, the user that isolation has for the task; otherwise the
/// agent's own.
///
/// # Errors
/// [`ProcessError::UnknownUser`], [`ProcessError::UserNotPermitted`] when the agent is not root,
/// [`ProcessError::System`] when the look-up failed.
pub fn account_of_task(
    named: Option<&str>,
    isolated_as: Option<&UserDefault>,
) -> Result<UserAccount, ProcessError> {
    let isolated_as = isolated_as.filter(|_| rustix::process::geteuid().is_root());
    match (named, isolated_as) {
        (Some(name), _) => resolve_user(name),
        (None, Some(UserDefault::Named(name))) => resolve_user(name),
        (None, Some(UserDefault::Id(id))) => Ok(UserAccount::from_id(*id)),
        (None, None) => Ok(UserAccount::of_agent()),
    }
}

/// The account of the user with this name.
/// May ask the network (name services): call it where blocking is allowed.
///
/// # Errors
/// [`ProcessError::UnknownUser`], [`ProcessError::UserNotPermitted`] when the agent is not root,
/// [`ProcessError::System`] when the look-up failed.
fn resolve_user(user: &str) -> Result<UserAccount, ProcessError> {
    let unknown = || ProcessError::UnknownUser { user: user.to_owned() };
    let name = CString::new(user).map_err(|_| unknown())?;
    let entry = look_up_user(user)
        .map_err(|source| ProcessError::system("looking up a user", source))?
        .ok_or_else(unknown)?;
    if !rustix::process::geteuid().is_root() {
        return if rustix::process::geteuid().as_raw() == entry.uid.as_raw() {
            Ok(UserAccount::from_user(&entry, None))
        } else {
            Err(ProcessError::UserNotPermitted { user: user.to_owned() })
        };
    }
    let groups = groups_of_user(&name, entry.gid);
    let ids = Ids { uid: entry.uid.as_raw(), gid: entry.gid.as_raw(), groups };
    Ok(UserAccount::from_user(&entry, Some(ids)))
}

impl ProcessHost {
    /// The owner of the files of a task: the user that its job names, or else the user
    /// `isolated_as` of an isolated task. `None` for the agent's own user. May ask name services.
    ///
    /// # Errors
    /// When there is no such user.
    pub async fn owner(
        &self,
        named: Option<String>,
        isolated_as: Option<String>,
    ) -> Result<Option<FileOwner>, ProcessError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let isolated_as = match isolated_as {
            Some(user) if named.is_none() && self.abilities().await.can(IsolationKind::User) => {
                Some(UserDefault::Named(user))
            }
            _ => None,
        };
        let found = tokio::task::spawn_blocking(move || {
            account_of_task(named.as_deref(), isolated_as.as_ref())
        });
        let ids = found.await.unwrap_or(Err(ProcessError::Stopped))?.ids;
        Ok(ids.map(|ids| FileOwner { uid: ids.uid, gid: ids.gid }))
    }
}

/// Look up a user by name. Some C libraries report a name that does not exist as an error.
fn look_up_user(name: &str) -> io::Result<Option<User>> {
    loop {
        match User::from_name(name) {
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            // A name service was asked over a socket.
            Err(Errno::EINTR) => {}
            found => return Ok(found?),
        }
    }
}

fn groups_of_user(name: &CStr, gid: Gid) -> Vec<u32> {
    let groups = getgrouplist(name, gid).unwrap_or_else(|_| vec![gid]);
    groups.into_iter().map(Gid::as_raw).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nobody_of_this_name_is_not() {
        let root = look_up_user("root").unwrap().unwrap();
        assert_eq!((root.uid.as_raw(), root.gid.as_raw()), (0, 0));
        assert_eq!(look_up_user("no-such-user-here").unwrap(), None);
        assert!(groups_of_user(c"root", root.gid).contains(&0));
        assert_eq!(groups_of_user(c"no-such-user-here", 7.into()), [7]);
        assert!(matches!(
            resolve_user("no-such-user-here"),
            Err(ProcessError::UnknownUser { user }) if user == "no-such-user-here"
        ));
        assert!(matches!(resolve_user("a\0b"), Err(ProcessError::UnknownUser { .. })));
    }

    #[test]
    fn a_program_is_told_who_it_runs_as_where_the_task_does_not_say_it() {
        let pair = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let root = UserAccount::from_user(&look_up_user("root").unwrap().unwrap(), None);
        let said = root.environment(&[("HOME", "/local"), ("A", "b")].map(pair));
        let all = [("HOME", "/local"), ("A", "b"), ("USER", "root"), ("LOGNAME", "root")];
        assert_eq!(said, all.map(pair));
        let home = root.environment(&[]).into_iter().find(|(name, _)| name == "HOME");
        assert_eq!(home.unwrap().1, "/root");
        assert_eq!(UserAccount::default().environment(&[]), []);
    }

    #[test]
    fn an_id_without_a_name_is_called_by_its_number_and_has_no_home() {
        let account = UserAccount::from_id(80_001);
        assert_eq!(account.ids, Some(Ids { uid: 80_001, gid: 80_001, groups: vec![80_001] }));
        let said = NAMES.map(|name| (name.to_owned(), "alloc-80001".to_owned()));
        assert_eq!(
            (account.unknown_id(), UserAccount::of_agent().unknown_id()),
            (Some(80_001), None)
        );
        assert_eq!(account.environment(&[]), said);
    }
}
