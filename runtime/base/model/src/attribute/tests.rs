#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::cmp::Ordering::{self, Equal, Greater, Less};

use proptest::prelude::*;

use super::*;

fn order(left: &str, right: &str) -> Option<Ordering> {
    Attribute::parse(left).compare(&Attribute::parse(right)).order()
}

#[test]
fn units_of_one_dimension_compare_without_truncation_or_overflow() {
    assert_eq!(order("1500 mW", "1 W"), Some(Greater));
    assert_eq!(order("9 EiB", "9 EB"), Some(Greater));
    assert_eq!(order("0.5 GiB", "512 MiB"), Some(Equal));
    assert_eq!(order("9223372036854775807 EiB", "9223372036854775806 EiB"), Some(Greater));
    assert_eq!(order("-9223372036854775808 EiB", "9223372036854775807 EB"), Some(Less));
    assert_eq!(order("1 kB", "1 KB"), Some(Equal));
    assert_eq!(order("2.5 GHz", "2500 MHz"), Some(Equal));
    assert_eq!(order("1 GiB/s", "1 GB/s"), Some(Greater));
}

#[test]
fn every_unit_is_a_thousand_or_1024_of_the_one_before() {
    let families: [(&[&str], u64); 4] = [
        (&["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], 1024),
        (&["KB", "MB", "GB", "TB", "PB", "EB"], 1000),
        (&["mW", "W", "kW", "MW", "GW"], 1000),
        (&["MHz", "GHz"], 1000),
    ];
    for (names, step) in families {
        for pair in names.windows(2) {
            for rate in ["", "/s"] {
                let (small, large) = (format!("{step} {}{rate}", pair[0]), pair[1]);
                if Unit::parse(&format!("{large}{rate}")).is_some() {
                    assert_eq!(order(&small, &format!("1 {large}{rate}")), Some(Equal), "{small}");
                }
            }
        }
    }
    assert_eq!(order("1024 KB", "1000 KiB"), Some(Equal));
    assert_eq!(order("1024 KB/s", "1000 KiB/s"), Some(Equal));
    assert_eq!(Unit::ALL.len(), 33);
}

#[test]
fn a_float_means_the_decimal_it_is_written_as() {
    assert_eq!(order("0.1 GB", "100 MB"), Some(Equal));
    assert_eq!(order("0.3", "0.30"), Some(Equal));
    assert_eq!(order("1e300", "1"), Some(Greater));
    assert_eq!(order("1e-300 W", "0 mW"), Some(Greater));
    assert_eq!(order("-0.0", "0"), Some(Equal));
    assert_eq!(order("1152921504606846976.0", "1152921504606846976"), Some(Equal));
    assert_eq!(order("18446744073709551616 EiB", "9223372036854775807 EiB"), Some(Greater));
}

#[test]
fn different_kinds_dimensions_and_missing_units_are_not_comparable() {
    for (left, right) in
        [("1 GiB", "1"), ("1 GiB", "1 GiB/s"), ("1 W", "1 MHz"), ("true", "1"), ("abc", "1")]
    {
        let result = Attribute::parse(left).compare(&Attribute::parse(right));
        assert_eq!(result, Comparison::NotComparable, "{left} and {right}");
    }
}

#[test]
fn truth_values_are_equal_or_not_and_never_larger() {
    let (yes, no) = (Attribute::from(true), Attribute::from(false));
    assert_eq!(yes.compare(&no), Comparison::EqualOnly(false));
    assert_eq!(yes.compare(&yes), Comparison::EqualOnly(true));
    assert_eq!(yes.compare(&no).order(), None);
}

#[test]
fn text_is_parsed_into_the_narrowest_kind() {
    let number = |value, unit: Option<&str>| Attribute { value, unit: unit.map(str::to_owned) };
    assert_eq!(Attribute::parse("10 GiB"), number(AttributeValue::Int(10), Some("GiB")));
    assert_eq!(Attribute::parse(" 10GiB/s "), number(AttributeValue::Int(10), Some("GiB/s")));
    assert_eq!(Attribute::parse("5"), Attribute::from(5));
    assert_eq!(Attribute::parse("-0.5 kW"), number(AttributeValue::Float(-0.5), Some("kW")));
    assert_eq!(Attribute::parse("true"), Attribute::from(true));
    for text in ["abc", "", "nan", "inf", "-infinity", "GiB", "10 gib", "10 B", "1.2.3", "NaN W"] {
        assert_eq!(Attribute::parse(text), Attribute::from(text), "{text:?}");
    }
}

#[test]
fn an_attribute_that_breaks_the_rules_is_refused() {
    use AttributeError as E;
    let new = Attribute::new;
    assert!(matches!(new(AttributeValue::Float(f64::NAN), None), Err(E::NotFinite { .. })));
    assert!(matches!(
        new(AttributeValue::Float(f64::INFINITY), Some("W")),
        Err(E::NotFinite { .. })
    ));
    assert!(matches!(new(AttributeValue::Int(1), Some("gib")), Err(E::UnknownUnit { .. })));
    assert!(matches!(new(AttributeValue::Bool(true), Some("W")), Err(E::UnitWithoutNumber { .. })));
    let long = AttributeValue::Text("x".repeat(ANSWER_TEXT_BYTES_MAX + 1));
    assert!(matches!(new(long, None), Err(E::TooLong { .. })));
    assert!(new(AttributeValue::Float(1.5), Some("GiB")).is_ok());
}

#[test]
fn reading_an_attribute_checks_it() {
    let good = r#"{"value":1,"unit":"GiB"}"#;
    let bad = r#"{"value":1,"unit":"parsec"}"#;
    assert_eq!(serde_json::from_str::<Attribute>(good).unwrap(), Attribute::parse("1 GiB"));
    let error = serde_json::from_str::<Attribute>(bad).unwrap_err().to_string();
    assert!(error.contains("parsec"), "{error}");
}

#[test]
fn a_hand_built_nan_compares_with_nothing() {
    let nan = Attribute { value: AttributeValue::Float(f64::NAN), unit: None };
    assert_eq!(nan.compare(&nan), Comparison::NotComparable);
}

fn numbers() -> impl Strategy<Value = Attribute> {
    let units = prop::sample::select(vec!["mW", "W", "kW", "MW", "GW"]);
    let value = prop_oneof![
        any::<i64>().prop_map(AttributeValue::Int),
        (-2_000_i64..2_000).prop_map(AttributeValue::Int),
        (-2_000_i32..2_000).prop_map(|n| AttributeValue::Float(f64::from(n) / 1000.0)),
        any::<f64>().prop_filter("finite", |f| f.is_finite()).prop_map(AttributeValue::Float),
        any::<i64>().prop_map(|n| AttributeValue::Float(n as f64)),
    ];
    (value, units).prop_map(|(value, unit)| Attribute::new(value, Some(unit)).unwrap())
}

fn cmp(a: &Attribute, b: &Attribute) -> Ordering {
    a.compare(b).order().unwrap()
}

proptest! {
    /// Whole numbers of up to 2^63 EiB fit into 128 bits: the model only multiplies.
    #[test]
    fn whole_numbers_compare_as_multiples_of_the_smallest_unit(
        a in any::<i64>(), b in any::<i64>(),
        units in prop::sample::select(vec![
            ("KiB", 1_024_i128), ("MiB", 1 << 20), ("GiB", 1 << 30), ("EiB", 1 << 60),
            ("kB", 1_000), ("GB", 1_000_000_000), ("EB", 1_000_000_000_000_000_000),
        ]).prop_flat_map(|first| (Just(first), prop::sample::select(vec![
            ("KiB", 1_024_i128), ("TiB", 1 << 40), ("PB", 1_000_000_000_000_000), ("EiB", 1 << 60),
        ]))),
        near in prop::bool::ANY,
    ) {
        let ((one, of_one), (other, of_other)) = units;
        // Half of the time two that lie as close as they can.
        let b = if near {
            i64::try_from(i128::from(a) * of_one / of_other).unwrap_or(b)
        } else {
            b
        };
        let left = Attribute::new(AttributeValue::Int(a), Some(one)).unwrap();
        let right = Attribute::new(AttributeValue::Int(b), Some(other)).unwrap();
        prop_assert_eq!(cmp(&left, &right), (i128::from(a) * of_one).cmp(&(i128::from(b) * of_other)));
    }

    #[test]
    fn order_is_antisymmetric_and_transitive(a in numbers(), b in numbers(), c in numbers()) {
        prop_assert_eq!(cmp(&a, &b), cmp(&b, &a).reverse());
        prop_assert_eq!(cmp(&a, &a), Equal);
        let mut three = [a, b, c];
        three.sort_by(cmp);
        prop_assert_ne!(cmp(&three[0], &three[2]), Greater);
        if cmp(&three[0], &three[1]) == Equal && cmp(&three[1], &three[2]) == Equal {
            prop_assert_eq!(cmp(&three[0], &three[2]), Equal);
        }
    }

    #[test]
    fn the_order_of_floats_is_kept(
        a in any::<f64>().prop_filter("finite", |f| f.is_finite()), ulps in 0_u64..3,
    ) {
        let b = f64::from_bits(a.to_bits().saturating_add(ulps));
        prop_assume!(b.is_finite());
        let (left, right) = (AttributeValue::Float(a), AttributeValue::Float(b));
        let order = cmp(&Attribute::new(left, None).unwrap(), &Attribute::new(right, None).unwrap());
        prop_assert_eq!(Some(order), a.partial_cmp(&b));
    }

    #[test]
    fn what_is_shown_reads_back_equal(attribute in numbers()) {
        let shown = attribute.to_string();
        prop_assert_eq!(cmp(&Attribute::parse(&shown), &attribute), Equal, "{}", shown);
    }

    #[test]
    fn parsing_never_makes_a_broken_attribute(text in ".{0,40}") {
        prop_assert!(Attribute::parse(&text).check().is_ok());
    }
}

#[test]
fn a_value_is_itself_in_json_and_keeps_its_kind_in_both_codecs() {
    for (value, json) in [
        (AttributeValue::Int(-2), "-2"),
        (AttributeValue::Float(2.0), "2.0"),
        (AttributeValue::Bool(true), "true"),
        (AttributeValue::Text("2".into()), "\"2\""),
    ] {
        assert_eq!(serde_json::to_string(&value).unwrap(), json);
        assert_eq!(serde_json::from_str::<AttributeValue>(json).unwrap(), value);
        let bytes = postcard::to_stdvec(&value).unwrap();
        assert_eq!(postcard::from_bytes::<AttributeValue>(&bytes).unwrap(), value);
    }
}
