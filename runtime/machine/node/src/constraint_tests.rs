#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;

use super::*;

fn resolve(name: &str) -> Option<Attribute> {
    Some(match name {
        "attr.cpu.numcores" => Attribute::from(8),
        "attr.memory" => Attribute::parse("80 GiB"),
        "attr.kernel.version" => Attribute::from("6.18.44"),
        "attr.text" => Attribute::from("1.10"),
        "attr.ten" => Attribute::from("10"),
        "attr.flag" => Attribute::from(true),
        "attr.set" => Attribute::from("a, b,c"),
        "meta.rack" => Attribute::from("r1"),
        _ => return None,
    })
}

fn check(left: &str, operator: Operator, right: &str) -> Result<(), Box<UnmetConstraint>> {
    let constraint = Constraint { left: left.to_owned(), operator, right: right.to_owned() };
    evaluate(&constraint, &resolve)
}

fn holds(left: &str, operator: Operator, right: &str) -> bool {
    check(left, operator, right).is_ok()
}

#[test]
fn numbers_compare_as_numbers_whatever_their_kind() {
    use Operator as O;
    assert!(holds("${attr.cpu.numcores}", O::GreaterOrEqual, "4"));
    assert!(holds("${attr.cpu.numcores}", O::Equal, "8.0"));
    assert!(holds("${attr.memory}", O::Greater, "80000 MB"));
    assert!(!holds("${attr.memory}", O::Less, "80 GiB"));
    assert!(holds("${attr.ten}", O::Greater, "9"));
    assert!(holds("${attr.ten}", O::Greater, "${attr.cpu.numcores}"));
}

#[test]
fn texts_are_equal_only_letter_by_letter() {
    assert!(!holds("${attr.text}", Operator::Equal, "1.1"));
    assert!(holds("${attr.text}", Operator::Equal, "1.10"));
    assert!(holds("${meta.rack}", Operator::Less, "r2"));
    assert!(holds("rack-${meta.rack}", Operator::Equal, "rack-r1"));
}

#[test]
fn what_cannot_be_compared_does_not_hold_either_way() {
    for operator in [Operator::Equal, Operator::NotEqual, Operator::Less, Operator::Greater] {
        let unmet = check("${attr.memory}", operator, "80").unwrap_err();
        assert_eq!(unmet.why, UnmetReason::NotComparable);
    }
    assert!(!holds("${attr.flag}", Operator::Greater, "false"));
    assert!(holds("${attr.flag}", Operator::NotEqual, "false"));
}

#[test]
fn an_unset_side_is_different_from_a_set_one_and_nothing_else() {
    assert!(holds("${attr.gone}", Operator::NotEqual, "x"));
    assert!(!holds("${attr.gone}", Operator::NotEqual, "${attr.lost}"));
    assert!(!holds("${attr.gone}", Operator::Equal, "${attr.lost}"));
    assert!(holds("${attr.gone}", Operator::IsNotSet, ""));
    assert!(!holds("${attr.gone}", Operator::IsSet, ""));
    assert!(holds("${attr.flag}", Operator::IsSet, ""));
    assert!(!holds("x${attr.gone}", Operator::Regexp, "x"));
}

#[test]
fn sets_contain_all_or_any() {
    assert!(holds("${attr.set}", Operator::SetContainsAll, "c, a"));
    assert!(!holds("${attr.set}", Operator::SetContainsAll, "a,d"));
    assert!(holds("${attr.set}", Operator::SetContainsAny, "d,b"));
    assert!(!holds("${attr.set}", Operator::SetContainsAny, "d"));
}

#[test]
fn versions_and_patterns_are_read_from_the_right_side() {
    assert!(holds("${attr.kernel.version}", Operator::Version, ">= 5.10, < 7"));
    assert!(holds("${attr.kernel.version}", Operator::Semver, "> 6.1.0"));
    assert!(holds("${attr.cpu.numcores}", Operator::Version, ">= 8"));
    assert!(holds("${meta.rack}", Operator::Regexp, "^r[0-9]$"));
    assert!(!holds("${meta.rack}", Operator::Regexp, "^x"));
}

#[test]
fn a_broken_or_huge_pattern_is_a_reason_not_a_hang() {
    for pattern in ["(", "a{1000}{1000}{1000}", "[a-"] {
        let unmet = check("${meta.rack}", Operator::Regexp, pattern).unwrap_err();
        assert!(matches!(unmet.why, UnmetReason::Regexp { .. }), "{pattern}");
    }
}

#[test]
fn a_pattern_is_compiled_once_and_looked_at_often() {
    // Compiling one takes ten milliseconds where it is optimised.
    let patterns: Vec<String> = (0..5).map(|i| format!("^\\p{{L}}{{9}}{i}$")).collect();
    let watch = ostler_model::clock::Stopwatch::start();
    for pattern in &patterns {
        assert!(!holds("${meta.rack}", Operator::Regexp, pattern));
    }
    let first = watch.elapsed();
    let watch = ostler_model::clock::Stopwatch::start();
    for _ in 0..100 {
        for pattern in &patterns {
            assert!(!holds("${meta.rack}", Operator::Regexp, pattern));
        }
    }
    // A hundred times as often.
    assert!(watch.elapsed() < 20 * first, "{:?}, first {first:?}", watch.elapsed());
}

#[test]
fn an_endless_side_is_refused_without_a_search() {
    let long = "a,".repeat(CONSTRAINT_SIDE_BYTES_MAX);
    let unmet = check("${attr.set}", Operator::SetContainsAny, &long).unwrap_err();
    assert_eq!(unmet.why, UnmetReason::TooLong);
}

#[test]
fn the_message_names_both_values() {
    let unmet = check("${attr.cpu.numcores}", Operator::GreaterOrEqual, "64").unwrap_err();
    assert_eq!(unmet.to_string(), "${attr.cpu.numcores} >= 64 is false: ${attr.cpu.numcores} is 8");
    let unmet = check("${attr.gone}", Operator::Equal, "${meta.rack}").unwrap_err();
    assert_eq!(
        unmet.to_string(),
        "${attr.gone} = ${meta.rack} is false: ${attr.gone} is not set, ${meta.rack} is r1"
    );
    let unmet = check("${attr.memory}", Operator::Equal, "1 W").unwrap_err();
    assert!(unmet.to_string().ends_with("check kinds and units"), "{unmet}");
}

#[test]
fn a_version_that_is_left_out_as_a_pre_release_is_said_to_be_one() {
    let said = |release: &str, operator, wanted: &str| {
        let resolve = |_: &str| Some(Attribute::from(release));
        let rule = Constraint { left: "${v}".into(), operator, right: wanted.into() };
        evaluate(&rule, &resolve).map_err(|unmet| unmet.to_string())
    };
    use Operator::{Semver, Version};
    let text = said("6.18.44-fc", Version, ">= 5.10").unwrap_err();
    assert!(text.starts_with("${v} version >= 5.10 is false: ${v} is 6.18.44-fc; "), "{text}");
    assert!(text.contains("operator semver"), "{text}");
    assert_eq!(said("6.18.44-fc", Semver, ">= 5.10.0"), Ok(()), "what is said to hold does");
    for (release, wanted) in [
        ("6.18.44-fc", ">= 7"),
        ("6.18.44-fc", "~> 6.18"),
        ("6.18.44-fc", ">= 5, = 6.18.44"),
        ("6.18-rc2", ">= 5"),
        ("6.18.44", ">= 7"),
    ] {
        let text = said(release, Version, wanted).unwrap_err();
        assert!(!text.contains("semver"), "{release} {wanted}: {text}");
    }
}

fn value() -> impl Strategy<Value = Attribute> {
    prop_oneof![
        any::<i64>().prop_map(Attribute::from),
        any::<bool>().prop_map(Attribute::from),
        "[a-c]{0,2}".prop_map(Attribute::from),
        (any::<i32>(), prop::sample::select(vec!["MiB", "GB", "W", "MHz", "GHz"])).prop_map(
            |(number, unit)| Attribute::new(AttributeValue::Int(number.into()), Some(unit))
                .unwrap()
        ),
    ]
}

proptest! {
    /// Of two values that can be ordered exactly one of `<`, `=`, `>` holds, and the other operators
    /// follow from it; of two that cannot none of them holds, `=` and `!=` of truth values left out.
    #[test]
    fn the_relations_agree_with_each_other(left in value(), right in value()) {
        let resolve = |name: &str| Some(match name {
            "l" => left.clone(),
            _ => right.clone(),
        });
        let holds = |operator| {
            let rule = Constraint { left: "${l}".into(), operator, right: "${r}".into() };
            evaluate(&rule, &resolve).is_ok()
        };
        use Operator as O;
        let (less, equal, more) = (holds(O::Less), holds(O::Equal), holds(O::Greater));
        let sum = [less, equal, more].into_iter().filter(|one| *one).count();
        match left.compare(&right) {
            Comparison::Ordered(order) => {
                prop_assert_eq!(sum, 1);
                prop_assert_eq!((less, more), (order.is_lt(), order.is_gt()));
                prop_assert_eq!(holds(O::NotEqual), !equal);
                prop_assert_eq!(holds(O::LessOrEqual), less || equal);
                prop_assert_eq!(holds(O::GreaterOrEqual), more || equal);
            }
            Comparison::EqualOnly(same) => {
                prop_assert_eq!((less, equal, more), (false, same, false));
                prop_assert_eq!(holds(O::NotEqual), !same);
                prop_assert!(!holds(O::LessOrEqual) && !holds(O::GreaterOrEqual));
            }
            // A text takes the kind of the other side: that is another comparison.
            Comparison::NotComparable if matches!((&left.value, &right.value),
                (AttributeValue::Text(_), _) | (_, AttributeValue::Text(_))) => {}
            Comparison::NotComparable => {
                prop_assert_eq!(sum, 0);
                prop_assert!(!holds(O::NotEqual) && !holds(O::LessOrEqual));
            }
        }
    }

    #[test]
    fn a_set_contains_what_its_members_say(
        has in prop::collection::btree_set("[a-d]", 0..4),
        wanted in prop::collection::btree_set("[a-d]", 1..4),
    ) {
        let list = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(" , ");
        let resolve = |_: &str| Some(Attribute::from(list(&has)));
        let holds = |operator| {
            let rule = Constraint { left: "${s}".into(), operator, right: list(&wanted) };
            evaluate(&rule, &resolve).is_ok()
        };
        prop_assert_eq!(holds(Operator::SetContainsAll), wanted.is_subset(&has));
        prop_assert_eq!(holds(Operator::SetContainsAny), !wanted.is_disjoint(&has));
    }
}
