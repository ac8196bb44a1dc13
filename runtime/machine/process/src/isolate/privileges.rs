//! User and capabilities of a process, and those that it may get later.

use std::io;

use rustix::process::{Gid, Resource, Rlimit, Uid, setrlimit};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid,
};

use crate::user::Ids;

/// The kernel's bit of a capability by its name, as in `net_bind_service` or
/// `CAP_NET_BIND_SERVICE`.
#[must_use]
pub fn capability(name: &str) -> Option<u64> {
    let upper = name.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("CAP_").unwrap_or(&upper);
    bitflags_of(bare).map(|set| set.bits())
}

fn bitflags_of(name: &str) -> Option<CapabilitySet> {
    CapabilitySet::all().iter_names().find(|(known, _)| *known == name).map(|(_, set)| set)
}

fn all_capabilities() -> impl Iterator<Item = CapabilitySet> {
    (0..63).map(|bit| CapabilitySet::from_bits_retain(1 << bit))
}

/// Switch the user, and with `drop` take away all capabilities but `kept`, so that the process and
/// its programs can never get them again.
pub(crate) fn drop_privileges(ids: Option<&Ids>, kept: u64, drop: bool) -> io::Result<()> {
    let kept = CapabilitySet::from_bits_retain(kept);
    if drop {
        for one in all_capabilities().filter(|one| !kept.contains(*one)) {
            match remove_capability_from_bounding_set(one) {
                Ok(()) => {}
                // The kernel has no more capabilities, or this process has none to give up.
                Err(rustix::io::Errno::INVAL) => break,
                Err(rustix::io::Errno::PERM) => break,
                Err(error) => return Err(error.into()),
            }
        }
        set_keep_capabilities(!kept.is_empty())?;
    }
    if let Some(ids) = ids {
        switch_user(ids)?;
    }
    if drop {
        let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: kept };
        set_capabilities(None, sets)?;
        clear_ambient_capability_set()?;
        for one in all_capabilities().filter(|one| kept.contains(*one)) {
            configure_capability_in_ambient_set(one, true)?;
        }
        set_no_new_privs(true)?;
    }
    Ok(())
}

/// Switch user and groups. Not through the C library, which would look for threads.
fn switch_user(ids: &Ids) -> io::Result<()> {
    let groups: Vec<Gid> = ids.groups.iter().copied().map(Gid::from_raw).collect();
    let (uid, gid) = (Uid::from_raw(ids.uid), Gid::from_raw(ids.gid));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

/// Bound the number of the user's processes. This comes after the switch, so that a user with too
/// many processes may still run this one program.
pub(super) fn bound_processes(most: u64) -> io::Result<()> {
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    Ok(setrlimit(Resource::Nproc, limit)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capability_is_known_with_and_without_prefix_and_in_any_case() {
        for name in ["net_bind_service", "CAP_NET_BIND_SERVICE", "Net_Bind_Service"] {
            assert_eq!(capability(name), Some(1 << 10), "{name}");
        }
        assert_eq!(capability("chown"), Some(1));
        assert_eq!(capability("everything"), None);
        assert_eq!(capability(""), None);
    }
}
