//! NUMA nodes: `numa.node.count` and, for each, `numa.node<n>.cores` (`0-3,8-11`).

use std::path::Path;

use super::{Facts, add_number, add_text, read_line};
use ostler_model::cores::CoreSet;

/// Nodes whose cores are reported. No machine has more.
const NODES_MAX: usize = 64;

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    let Some(online) = read_line(root, "sys/devices/system/node/online") else {
        return;
    };
    let Some(nodes) = numbers(&online, NODES_MAX) else {
        return;
    };
    add_number(facts, "numa.node.count", u64::try_from(nodes.len()).ok());
    for node in nodes {
        let cores = read_line(root, &format!("sys/devices/system/node/node{node}/cpulist"));
        add_text(facts, &format!("numa.node{node}.cores"), cores);
    }
}

/// `0-1,3` → 0, 1, 3. `None` when the text is no such list or has more than `most` numbers. The
/// kernel writes lists of nodes in the form of lists of cores.
fn numbers(list: &str, most: usize) -> Option<Vec<u32>> {
    let numbers = list.parse::<CoreSet>().ok().filter(|list| !list.is_empty())?;
    (numbers.len() <= most).then(|| numbers.iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_numbers_is_read_and_an_endless_one_is_not() {
        assert_eq!(numbers("0-2,7", 64), Some(vec![0, 1, 2, 7]));
        assert_eq!(numbers("0", 64), Some(vec![0]));
        for bad in ["", "x", "3-1", "0-4294967295", "0-64", "0,,1"] {
            assert_eq!(numbers(bad, 64), None, "{bad}");
        }
    }
}
