//! The user ids of allocations: those of the configuration, where they are nobody's: neither a user's or group's of the
//! node, nor of those that users may give their containers, and known in the user namespace that the agent is in.

use std::ops::RangeInclusive;
use std::path::Path;

use super::{AgentError, AgentOptions};
use ostler_lifecycle::alloc::users::AllocUsers;
use ostler_model::clock;
use ostler_model::limits::DYNAMIC_USERS;

/// Files that are read: `name:…`, with a number or a begin and a count.
const NAMED: [&str; 2] = ["/etc/passwd", "/etc/group"];
const SUBORDINATE: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
const MAPS: [&str; 2] = ["/proc/self/uid_map", "/proc/self/gid_map"];

/// Who gives allocations their ids: nobody, where the agent is not root, or is there for one command, beside which
/// another may give out the same. Usual ids that are somebody's are told and not given.
///
/// # Errors
/// Where ids of the configuration are somebody's, or the directories of allocations cannot be read.
pub(super) async fn users(
    options: &AgentOptions,
    data_dir: &Path,
    notices: &mut Vec<String>,
) -> Result<AllocUsers, AgentError> {
    if !options.mode.serves() || !rustix::process::geteuid().is_root() {
        return Ok(AllocUsers::default());
    }
    let given = options.config.client.users.clone();
    let ids = given.clone().unwrap_or(DYNAMIC_USERS);
    let (first, last) = (*ids.start(), *ids.end());
    let looked_at = ids.clone();
    let taken = clock::blocking(move || taken(&looked_at)).await;
    let taken = taken.map_err(|_| AgentError::GivenUp("looking for user ids that are nobody's"))?;
    match (taken, given) {
        (None, _) => {}
        (Some(taken), Some(_)) => return Err(AgentError::UserIds { first, last, taken }),
        (Some(taken), None) => {
            notices.push(format!(
                "allocations have no user ids of their own, their isolated tasks share one user: of {first} to {last}, \
                 {taken}; give others with client {{ users {{ dynamic_user_min, dynamic_user_max }} }}"
            ));
            return Ok(AllocUsers::default());
        }
    }
    let root = data_dir.join("allocs");
    let found = clock::blocking(move || AllocUsers::find(&root, ids)).await;
    Ok(found.map_err(|_| AgentError::GivenUp("looking for the user ids of allocations"))??)
}

/// Why the range cannot be used; `None`: it can. Users that the node knows from elsewhere (a directory service) are
/// not looked at. Blocks.
fn taken(range: &RangeInclusive<u32>) -> Option<String> {
    // The name of somebody may be no text.
    let read = |path: &str| {
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let named = NAMED.iter().find_map(|path| named(&read(path), range, Path::new(path)));
    let named = named.or_else(|| {
        SUBORDINATE.iter().find_map(|path| subordinate(&read(path), range, Path::new(path)))
    });
    named.or_else(|| MAPS.iter().find_map(|path| unmapped(&read(path), range, Path::new(path))))
}

/// `name:x:1000:…`
fn named(text: &str, range: &RangeInclusive<u32>, path: &Path) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, id) = (parts.next()?, parts.nth(1)?.parse::<u32>().ok()?);
        range.contains(&id).then(|| format!("{id} is {name:?} of {}", path.display()))
    })
}

/// The first and the last of so many ids from one on; none, where there are none.
fn block(first: &str, count: &str) -> Option<(u32, u32)> {
    let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
    Some((first, first.saturating_add(count.checked_sub(1)?)))
}

/// `name:100000:65536`
fn subordinate(text: &str, range: &RangeInclusive<u32>, path: &Path) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        let (first, last) = block(parts.next()?, parts.next()?)?;
        let both = first <= *range.end() && *range.start() <= last;
        both.then(|| format!("{first} to {last} are those of {name:?} in {}", path.display()))
    })
}

/// Lines of three numbers: from here, from there, so many. What is in none of them nobody can be.
fn unmapped(text: &str, range: &RangeInclusive<u32>, path: &Path) -> Option<String> {
    let maps = |line: &str| {
        let mut parts = line.split_whitespace();
        let (first, last) = block(parts.next()?, parts.nth(1)?)?;
        Some(first <= *range.start() && *range.end() <= last)
    };
    let known = text.lines().any(|line| maps(line) == Some(true));
    (!known).then(|| {
        format!("{} has not all of them: the agent is in a user namespace", path.display())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RANGE: RangeInclusive<u32> = 80_000..=89_999;

    #[test]
    fn a_range_is_nobodys_where_no_file_names_one_of_it() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\nbroken\nweb:x:80001:80001::/:/bin/false\n";
        let path = Path::new("/etc/passwd");
        assert_eq!(named(passwd, &RANGE, path), Some("80001 is \"web\" of /etc/passwd".to_owned()));
        assert_eq!(named(passwd, &(90_000..=90_001), path), None);
        let subuid = "me:100000:65536\nyou:79000:1001\nnone:80000:0\n";
        let path = Path::new("/etc/subuid");
        let said = Some("79000 to 80000 are those of \"you\" in /etc/subuid".to_owned());
        assert_eq!(subordinate(subuid, &RANGE, path), said);
        assert_eq!(subordinate("me:100000:65536\nlast:4294967295:9", &RANGE, path), None);
    }

    #[test]
    fn ids_that_the_agents_namespace_does_not_know_are_nobodys_to_be() {
        let path = Path::new("/proc/self/uid_map");
        assert_eq!(unmapped("         0          0 4294967295\n", &RANGE, path), None);
        assert_eq!(unmapped("0 1000 1\n1 100000 90000\n", &RANGE, path), None);
        for less in ["0 100000 65536\n", "0 0 85000\n85000 200000 9999\n", ""] {
            assert!(unmapped(less, &RANGE, path).is_some(), "{less}");
        }
    }
}
