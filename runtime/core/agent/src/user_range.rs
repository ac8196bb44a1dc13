//! The user ids of allocations. The configured ids are used if they are free: they must belong to
//! no user or group of the node, must not be subordinate ids for containers, and must be mapped in
//! the agent's user namespace.

use std::ops::RangeInclusive;
use std::path::Path;

use super::{AgentError, AgentOptions};
use ostler_lifecycle::alloc::users::AllocUsers;
use ostler_model::clock;
use ostler_model::limits::DYNAMIC_USERS;

/// The files that are checked. Their lines are `name:…`, with an id, or with a first id and
/// a count.
const NAMED: [&str; 2] = ["/etc/passwd", "/etc/group"];
const SUBORDINATE: [&str; 2] = ["/etc/subuid", "/etc/subgid"];
const MAPS: [&str; 2] = ["/proc/self/uid_map", "/proc/self/gid_map"];

/// The allocator of user ids for allocations. It gives out none if the agent is not root, or runs
/// for one command, beside which another may give out the same ids. If default ids belong to
/// somebody, a notice says so and they are not given out.
///
/// # Errors
/// When configured ids belong to somebody, or the directories of allocations cannot be read.
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
    let taken = clock::run_blocking(move || find_conflict(&looked_at)).await;
    let taken = taken.map_err(|_| AgentError::GivenUp("looking for unused user ids"))?;
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
    let found = clock::run_blocking(move || AllocUsers::find(&root, ids)).await;
    Ok(found.map_err(|_| AgentError::GivenUp("looking for the user ids of allocations"))??)
}

/// Why the range cannot be used; `None` if it can. Users that the node knows from elsewhere (a
/// directory service) are not checked. Blocks.
fn find_conflict(range: &RangeInclusive<u32>) -> Option<String> {
    // A user's name may not be valid UTF-8.
    let read = |path: &str| {
        let bytes = std::fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let named = NAMED.iter().find_map(|path| find_named_user(&read(path), range, Path::new(path)));
    let named = named.or_else(|| {
        SUBORDINATE.iter().find_map(|path| find_subordinate(&read(path), range, Path::new(path)))
    });
    named
        .or_else(|| MAPS.iter().find_map(|path| find_unmapped(&read(path), range, Path::new(path))))
}

/// Find an id of the range in lines such as `name:x:1000:…`.
fn find_named_user(text: &str, range: &RangeInclusive<u32>, path: &Path) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let (name, id) = (parts.next()?, parts.nth(1)?.parse::<u32>().ok()?);
        range.contains(&id).then(|| format!("{id} is {name:?} of {}", path.display()))
    })
}

/// The first and the last id of a block given by its first id and its count; `None` if the count
/// is 0.
fn id_block(first: &str, count: &str) -> Option<(u32, u32)> {
    let (first, count) = (first.parse::<u32>().ok()?, count.parse::<u32>().ok()?);
    Some((first, first.saturating_add(count.checked_sub(1)?)))
}

/// Find ids of the range in lines such as `name:100000:65536`.
fn find_subordinate(text: &str, range: &RangeInclusive<u32>, path: &Path) -> Option<String> {
    text.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        let (first, last) = id_block(parts.next()?, parts.next()?)?;
        let both = first <= *range.end() && *range.start() <= last;
        both.then(|| format!("{first} to {last} are those of {name:?} in {}", path.display()))
    })
}

/// Check that the range is mapped. Each line has three numbers: the first id inside, the first id
/// outside, and the count. Nobody can have an id that is in no line.
fn find_unmapped(text: &str, range: &RangeInclusive<u32>, path: &Path) -> Option<String> {
    let maps = |line: &str| {
        let mut parts = line.split_whitespace();
        let (first, last) = id_block(parts.next()?, parts.nth(1)?)?;
        Some(first <= *range.start() && *range.end() <= last)
    };
    let known = text.lines().any(|line| maps(line) == Some(true));
    (!known).then(|| {
        format!("{} does not have all of them: the agent is in a user namespace", path.display())
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
        assert_eq!(
            find_named_user(passwd, &RANGE, path),
            Some("80001 is \"web\" of /etc/passwd".to_owned())
        );
        assert_eq!(find_named_user(passwd, &(90_000..=90_001), path), None);
        let subuid = "me:100000:65536\nyou:79000:1001\nnone:80000:0\n";
        let path = Path::new("/etc/subuid");
        let said = Some("79000 to 80000 are those of \"you\" in /etc/subuid".to_owned());
        assert_eq!(find_subordinate(subuid, &RANGE, path), said);
        assert_eq!(find_subordinate("me:100000:65536\nlast:4294967295:9", &RANGE, path), None);
    }

    #[test]
    fn ids_that_the_agents_namespace_does_not_know_are_nobodys_to_be() {
        let path = Path::new("/proc/self/uid_map");
        assert_eq!(find_unmapped("         0          0 4294967295\n", &RANGE, path), None);
        assert_eq!(find_unmapped("0 1000 1\n1 100000 90000\n", &RANGE, path), None);
        for less in ["0 100000 65536\n", "0 0 85000\n85000 200000 9999\n", ""] {
            assert!(find_unmapped(less, &RANGE, path).is_some(), "{less}");
        }
    }
}
