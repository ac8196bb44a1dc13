//! The valid name nearest to a mistyped one.

/// Longest name compared, characters: the cost grows with the product of both lengths.
const LENGTH_MAX: usize = 64;

/// The name of `valid` that `given` is most likely a slip of: same but for case, or at most a third
/// of its letters wrong, missing, extra or swapped. The first of equals.
pub fn nearest<'a>(given: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given: Vec<char> =
        given.chars().take(LENGTH_MAX + 1).flat_map(char::to_lowercase).collect();
    if given.is_empty() || given.len() > LENGTH_MAX {
        return None;
    }
    let mut best: Option<(usize, &str)> = None;
    for name in valid {
        let letters: Vec<char> =
            name.chars().take(LENGTH_MAX).flat_map(char::to_lowercase).collect();
        let allowed = (given.len().max(letters.len()) / 3).max(1);
        if given.len().abs_diff(letters.len()) > allowed {
            continue;
        }
        // One letter for another is no likeness when there is only one.
        if given.len().min(letters.len()) < 2 && given != letters {
            continue;
        }
        let cost = distance(&given, &letters);
        if cost <= allowed && best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, name));
        }
    }
    best.map(|(_, name)| name)
}

/// Edits (insert, delete, replace, swap of neighbours) from `a` to `b`.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    let mut previous_a = None;
    for (i, x) in a.iter().enumerate() {
        let mut row = Vec::with_capacity(b.len() + 1);
        row.push(i + 1);
        let mut previous_b = None;
        for (j, y) in b.iter().enumerate() {
            let at =
                |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX / 2);
            let mut cost =
                (at(&last, j) + usize::from(x != y)).min(at(&last, j + 1) + 1).min(at(&row, j) + 1);
            if previous_a == Some(y) && previous_b == Some(x) && j > 0 {
                cost = cost.min(at(&before, j - 1) + 1);
            }
            row.push(cost);
            previous_b = Some(y);
        }
        before = std::mem::replace(&mut last, row);
        previous_a = Some(x);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = ["driver", "kill_timeout", "kill_signal", "env", "to", "count"];

    #[test]
    fn a_slip_finds_its_name() {
        for (given, expected) in [
            ("drivr", "driver"),
            ("dirver", "driver"),
            ("Driver", "driver"),
            ("kill_timeuot", "kill_timeout"),
            ("killtimeout", "kill_timeout"),
            ("envs", "env"),
            ("counts", "count"),
        ] {
            assert_eq!(nearest(given, NAMES), Some(expected), "{given}");
        }
    }

    #[test]
    fn something_else_finds_nothing() {
        for given in ["", "x", "network", "zzzzzzzz", &"driver".repeat(100)] {
            assert_eq!(nearest(given, NAMES), None, "{given}");
        }
    }
}
