//! Users by name.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;

use super::error::ProcessError;

/// Largest buffer for one user entry, bytes.
const ENTRY_BYTES_MAX: usize = 1024 * 1024;
/// Most groups of one user.
const GROUPS_MAX: usize = 65_536;

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
    let entry = look_up(&name)
        .map_err(|source| ProcessError::system("looking up a user", source))?
        .ok_or_else(unknown)?;
    if !rustix::process::geteuid().is_root() {
        return if rustix::process::geteuid().as_raw() == entry.0 {
            Ok(None)
        } else {
            Err(ProcessError::UserNotPermitted { user: user.to_owned() })
        };
    }
    let groups = groups(&name, entry.1);
    Ok(Some(Ids { uid: entry.0, gid: entry.1, groups }))
}

fn look_up(name: &CStr) -> io::Result<Option<(u32, u32)>> {
    let mut buffer = vec![0; 4096];
    loop {
        let mut entry = MaybeUninit::<libc::passwd>::zeroed();
        let mut found = std::ptr::null_mut();
        // SAFETY: all pointers are valid for the call and the length is the buffer's.
        let code = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        match code {
            libc::ERANGE if buffer.len() < ENTRY_BYTES_MAX => buffer.resize(buffer.len() * 4, 0),
            libc::EINTR => {}
            // Some C libraries report these for a name that does not exist.
            _ if found.is_null() && matches!(code, 0 | libc::ENOENT | libc::ESRCH) => {
                return Ok(None);
            }
            0 => {
                // SAFETY: `found` is not null, so the call has filled `entry`.
                let entry = unsafe { entry.assume_init() };
                return Ok(Some((entry.pw_uid, entry.pw_gid)));
            }
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
}

fn groups(name: &CStr, gid: u32) -> Vec<u32> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = i32::try_from(groups.len()).unwrap_or(i32::MAX);
        // SAFETY: `count` is the length of `groups`; the call writes at most that many.
        let code =
            unsafe { libc::getgrouplist(name.as_ptr(), gid, groups.as_mut_ptr(), &raw mut count) };
        if code >= 0 {
            groups.truncate(usize::try_from(count).unwrap_or(0));
            return groups;
        }
        if groups.len() >= GROUPS_MAX {
            return vec![gid];
        }
        groups.resize(groups.len() * 4, 0);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_and_nobody_of_this_name_is_not() {
        assert_eq!(look_up(c"root").unwrap(), Some((0, 0)));
        assert_eq!(look_up(c"no-such-user-here").unwrap(), None);
        assert!(groups(c"root", 0).contains(&0));
        assert!(matches!(
            resolve("no-such-user-here"),
            Err(ProcessError::UnknownUser { user }) if user == "no-such-user-here"
        ));
        assert!(matches!(resolve("a\0b"), Err(ProcessError::UnknownUser { .. })));
    }
}
