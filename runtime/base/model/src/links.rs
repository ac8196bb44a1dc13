//! Where a symbolic link in an untrusted directory tree may lead. Pure.

/// Whether the target of a link stays inside of the tree. `depth` is the number of names in the
/// link's own path. The target may go through other links of the tree, which stay inside as well.
/// Because these may lead anywhere in the tree, a target may go up only before it goes down.
#[must_use]
pub fn stays_inside(depth: usize, target: &[u8]) -> bool {
    if target.is_empty() || target.first() == Some(&b'/') || target.contains(&0) {
        return false;
    }
    let (mut up, mut down) = (0_usize, false);
    for name in target.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if down => return false,
            b".." => up = up.saturating_add(1),
            _ => down = true,
        }
    }
    // The link itself is one name, which does not count as a level.
    up < depth
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn links_stay_in_the_tree() {
        assert!(stays_inside(1, b"b"));
        assert!(stays_inside(3, b"../../b/c"));
        assert!(!stays_inside(1, b"../b"));
        assert!(!stays_inside(3, b"x/../../../b"));
        assert!(!stays_inside(9, b"/etc"));
        assert!(!stays_inside(9, b""));
    }

    proptest::proptest! {
        #[test]
        fn a_link_never_leads_above_the_top(depth in 1..6_usize, target in "[a./]{0,16}") {
            if stays_inside(depth, target.as_bytes()) {
                let mut level = i64::try_from(depth).unwrap() - 1;
                for name in target.split('/') {
                    level += match name { "" | "." => 0, ".." => -1, _ => 1 };
                    assert!(level >= 0);
                }
            }
        }
    }
}
