//! The valid name nearest to a mistyped one.

/// The longest name that is compared, in characters: the cost grows with the product of both lengths.
const LENGTH_MAX: usize = 64;

/// The valid name that the given one most likely stands for: the names differ in case alone, or at most a third
/// of the letters is wrong, missing, extra or swapped. Of names that are equally near, it is the first one.
pub fn nearest<'a>(given: &str, valid: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = |name: &str| name.chars().flat_map(char::to_lowercase).collect::<String>();
    let letters = |name: &str| name.chars().count();
    if given.is_empty() || given.chars().nth(LENGTH_MAX).is_some() {
        return None;
    }
    let given = lower(given);
    let length = letters(&given);
    let mut best: Option<(usize, &str)> = None;
    for name in valid.into_iter().filter(|name| letters(name) <= LENGTH_MAX) {
        let known = lower(name);
        let (most, least) = (length.max(letters(&known)), length.min(letters(&known)));
        let allowed = (most / 3).max(1);
        // Names of one letter have nothing in common when that letter differs.
        if most - least > allowed || (least < 2 && given != known) {
            continue;
        }
        let cost = strsim::osa_distance(&given, &known);
        if cost <= allowed && best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, name));
        }
    }
    best.map(|(_, name)| name)
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
