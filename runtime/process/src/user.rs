//! Users by name.

use std::ffi::{CStr, CString};
use std::io;

use nix::errno::Errno;
use nix::unistd::{Gid, User, getgrouplist};

use super::error::ProcessError;

/// Whom a process runs as.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Ids {
    /// User id.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one included.
    pub groups: Vec<u32>,
}

/// The ids to switch to; `None` when the agent runs as this user already and is not root.
/// May ask the network (name services): call it where blocking is allowed.
///
/// # Errors
/// [`ProcessError::UnknownUser`], [`ProcessError::UserNotPermitted`] when the agent is not root,
/// [`ProcessError::System`] when the look-up failed.
pub fn resolve(user: &str) -> Result<Option<Ids>, ProcessError> {
    let unknown = || ProcessError::UnknownUser { user: user.to_owned() };
    let name = CString::new(user).map_err(|_| unknown())?;
    let entry = look_up(user)
        .map_err(|source| ProcessError::system("looking up a user", source))?
        .ok_or_else(unknown)?;
    if !rustix::process::geteuid().is_root() {
        return if rustix::process::geteuid().as_raw() == entry.uid.as_raw() {
            Ok(None)
        } else {
            Err(ProcessError::UserNotPermitted { user: user.to_owned() })
        };
    }
    let groups = groups(&name, entry.gid);
    Ok(Some(Ids { uid: entry.uid.as_raw(), gid: entry.gid.as_raw(), groups }))
}

/// Some C libraries report a name that does not exist as an error.
fn look_up(name: &str) -> io::Result<Option<User>> {
    loop {
        match User::from_name(name) {
            Err(Errno::ENOENT | Errno::ESRCH) => return Ok(None),
            // A name service was asked over a socket.
            Err(Errno::EINTR) => {}
            found => return Ok(found?),
        }
    }
}

fn groups(name: &CStr, gid: Gid) -> Vec<u32> {
    let groups = getgrouplist(name, gid).unwrap_or_else(|_| vec![gid]);
    groups.into_iter().map(Gid::as_raw).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nobody_of_this_name_is_not() {
        let root = look_up("root").unwrap().unwrap();
        assert_eq!((root.uid.as_raw(), root.gid.as_raw()), (0, 0));
        assert_eq!(look_up("no-such-user-here").unwrap(), None);
        assert!(groups(c"root", root.gid).contains(&0));
        assert_eq!(groups(c"no-such-user-here", 7.into()), [7]);
        assert!(matches!(
            resolve("no-such-user-here"),
            Err(ProcessError::UnknownUser { user }) if user == "no-such-user-here"
        ));
        assert!(matches!(resolve("a\0b"), Err(ProcessError::UnknownUser { .. })));
    }
}
