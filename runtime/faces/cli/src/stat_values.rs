//! Measurements of devices, as text.
//!
//! A plugin should give a measurement one kind of value, but it may give several. Then, as in
//! Nomad, a truth value comes before a text, a text before a fraction, and a fraction before a
//! whole number. A missing measurement is `<none>`, a measurement without a value `<unknown>`.

use ostler_wire::{WireStatObject, WireStatValue};

/// A measurement as text, with its unit.
pub(super) fn value(value: Option<&WireStatValue>) -> String {
    let Some(value) = value else { return "<none>".to_owned() };
    let unit = match value.unit.as_deref() {
        None | Some("") => String::new(),
        Some(unit) => format!(" {unit}"),
    };
    if let Some(truth) = value.bool_val {
        return truth.to_string();
    }
    if let Some(text) = &value.string_val {
        return text.to_string();
    }
    let fraction = |number: f64| format!("{number:.3}");
    let number = match (value.float_numerator_val, value.int_numerator_val) {
        (Some(number), _) => Some((fraction(number), value.float_denominator_val.map(fraction))),
        (None, Some(number)) => {
            Some((number.to_string(), value.int_denominator_val.map(|of| of.to_string())))
        }
        (None, None) => None,
    };
    match number {
        Some((number, Some(of))) => format!("{number} / {of}{unit}"),
        Some((number, None)) => format!("{number}{unit}"),
        None => "<unknown>".to_owned(),
    }
}

/// Every value with its path (`memory.used`); the values of an object come before those of objects
/// inside it.
pub(super) fn rows(object: &WireStatObject) -> Vec<[String; 2]> {
    let mut rows = Vec::new();
    // Objects that are still to be shown, the next one last. This works at any depth without
    // recursion.
    let mut left = vec![(String::new(), object)];
    while let Some((prefix, object)) = left.pop() {
        let own = object.attributes.iter();
        rows.extend(own.map(|(name, one)| [format!("{prefix}{name}"), value(Some(one))]));
        let inside = object.nested.iter().rev();
        left.extend(inside.map(|(name, one)| (format!("{prefix}{name}."), one)));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_model::stats as model;

    fn int(number: i64) -> model::StatValue {
        model::StatValue { int_numerator: Some(number), ..model::StatValue::default() }
    }

    #[test]
    fn a_value_is_shown_by_its_kind_and_units_stand_behind_numbers_only() {
        let unit = Some("MiB".to_owned());
        for (given, shown) in [
            (int(5), "5"),
            (model::StatValue { unit: unit.clone(), ..int(5) }, "5 MiB"),
            (
                model::StatValue { unit: unit.clone(), int_denominator: Some(0), ..int(0) },
                "0 / 0 MiB",
            ),
            (model::StatValue { float_numerator: Some(0.5), ..int(1) }, "0.500"),
            (model::StatValue { text: Some("idle".into()), unit: unit.clone(), ..int(1) }, "idle"),
            (model::StatValue { text: Some(String::new()), ..int(1) }, ""),
            (model::StatValue { boolean: Some(false), text: Some("x".into()), ..int(1) }, "false"),
            (model::StatValue { unit: Some(String::new()), ..int(-1) }, "-1"),
            (model::StatValue { unit, ..model::StatValue::default() }, "<unknown>"),
        ] {
            assert_eq!(value(Some(&WireStatValue::from(&given))), shown);
        }
        assert_eq!(value(None), "<none>");
    }

    #[test]
    fn values_are_listed_by_path() {
        let mut object = model::StatObject::default();
        let path = |text: &str| text.split('.').map(str::to_owned).collect::<Vec<_>>();
        for name in ["b.x.y", "b.a", "z", "a.q"] {
            assert!(object.insert(&path(name), int(1)));
        }
        let names: Vec<String> =
            rows(&WireStatObject::from(&object)).into_iter().map(|[name, _]| name).collect();
        assert_eq!(names, ["z", "a.q", "b.a", "b.x.y"]);
    }
}
