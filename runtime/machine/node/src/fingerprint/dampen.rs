//! Keeps the known value of facts that changed too little to be worth a report.

use super::Facts;
use ostler_model::attribute::AttributeValue;
use ostler_model::limits::MIB;

/// Free space that changed by less than this, and by less than a hundredth of the whole,
/// counts as unchanged.
const FREE_STEP_MIN: u64 = 64 * MIB;

const FREE: &str = "unique.storage.bytesfree";
const TOTAL: &str = "unique.storage.bytestotal";
const CORES: &str = "cpu.numcores";
/// Facts that are reported once for the same cores. Where the nominal frequency is not known,
/// `cpu.frequency` is the present one, which changes all the time.
const OF_CORES: [&str; 3] = ["cpu.frequency", "cpu.totalcompute", "cpu.usablecompute"];

/// Merge `fresh` facts with the `known` ones that were reported before. Small changes of free space
/// are left out, and the frequency of the same cores stays as it was reported. Pure.
#[must_use]
pub fn dampen(known: &Facts, mut fresh: Facts) -> Facts {
    let bytes = |facts: &Facts, name: &str| match facts.get(name).map(|fact| &fact.value) {
        Some(AttributeValue::Int(bytes)) => u64::try_from(*bytes).ok(),
        _ => None,
    };
    let mut keep = Vec::new();
    if let (Some(before), Some(now)) = (bytes(known, FREE), bytes(&fresh, FREE)) {
        let total = bytes(&fresh, TOTAL).unwrap_or(0);
        if bytes(known, TOTAL) == Some(total)
            && now.abs_diff(before) < FREE_STEP_MIN.max(total / 100)
        {
            keep.push(FREE);
        }
    }
    if known.contains_key(CORES) && known.get(CORES) == fresh.get(CORES) {
        keep.extend(OF_CORES);
    }
    for name in keep {
        match known.get(name) {
            Some(value) => fresh.insert(name.to_owned(), value.clone()),
            None => fresh.remove(name),
        };
    }
    fresh
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use proptest::prelude::*;

    use super::*;
    use ostler_model::attribute::Attribute;

    const GIB: i64 = 1 << 30;

    fn facts(free: i64, total: i64, cores: i64, mhz: i64) -> Facts {
        let pairs = [(FREE, free), (TOTAL, total), (CORES, cores), ("cpu.frequency", mhz)];
        pairs.map(|(name, value)| (name.to_owned(), Attribute::from(value))).into()
    }

    #[test]
    fn free_space_is_told_when_a_hundredth_of_the_whole_came_or_went() {
        let told = facts(50 * GIB, 100 * GIB, 2, 2_000);
        for (free, kept) in [
            (50 * GIB - 1, true),
            (49 * GIB + 1, true),
            (51 * GIB - 1, true),
            (49 * GIB, false),
            (51 * GIB, false),
        ] {
            let dampened = dampen(&told, facts(free, 100 * GIB, 2, 2_000));
            let expected = if kept { 50 * GIB } else { free };
            assert_eq!(dampened[FREE], Attribute::from(expected), "{free}");
        }
        // Of a small disk a hundredth is nothing.
        let small = facts(GIB, 2 * GIB, 2, 2_000);
        assert_eq!(dampen(&small, facts(GIB - 60 * 1_048_576, 2 * GIB, 2, 2_000)), small);
        // Another disk is another disk.
        let other = facts(50 * GIB, 101 * GIB, 2, 2_000);
        assert_eq!(dampen(&told, other.clone()), other);
    }

    #[test]
    fn the_frequency_of_the_same_cores_stays_and_that_of_others_is_told() {
        let told = facts(GIB, GIB, 2, 2_000);
        assert_eq!(dampen(&told, facts(GIB, GIB, 2, 2_345)), told);
        let more = facts(GIB, GIB, 4, 2_345);
        assert_eq!(dampen(&told, more.clone()), more);
    }

    #[test]
    fn what_is_gone_is_gone() {
        let mut told = facts(GIB, GIB, 2, 2_000);
        told.insert("unique.network.ip-address".into(), Attribute::from("10.0.0.1"));
        let fresh = facts(GIB, GIB, 2, 2_000);
        assert_eq!(dampen(&told, fresh.clone()), fresh);
        assert_eq!(dampen(&told, Facts::new()), Facts::new());
    }

    proptest! {
        #[test]
        fn dampened_facts_stay_as_they_are(
            a in 0_i64..200, b in 0_i64..200, c in 0_i64..200, step in 1_i64..GIB,
        ) {
            let at = |n: i64| facts(n * step, 200 * step, 2, n);
            let once = dampen(&at(a), at(b));
            prop_assert_eq!(dampen(&once, at(b)), once.clone());
            prop_assert_eq!(dampen(&once, once.clone()), once.clone());
            let told = |facts: &Facts| facts[FREE].clone();
            // Never further off than the step.
            let dampened = dampen(&once, at(c));
            let off = match (told(&dampened).value, told(&at(c)).value) {
                (AttributeValue::Int(a), AttributeValue::Int(b)) => a.abs_diff(b),
                _ => u64::MAX,
            };
            prop_assert!(off < FREE_STEP_MIN.max(u64::try_from(200 * step).unwrap() / 100));
        }
    }
}
