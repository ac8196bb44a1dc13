//! Measurements that lie, and those that do not.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::time::Duration;

use super::*;

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

fn unset() -> wit::StatValue {
    wit::StatValue {
        description: None,
        unit: None,
        int_numerator: None,
        int_denominator: None,
        float_numerator: None,
        float_denominator: None,
        text: None,
        boolean: None,
    }
}

fn entry(path: &[&str], value: wit::StatValue) -> wit::StatEntry {
    wit::StatEntry { path: path.iter().map(|part| (*part).to_owned()).collect(), value }
}

fn instance(id: &str, stats: Vec<wit::StatEntry>) -> dev::InstanceStats {
    dev::InstanceStats { id: id.into(), summary: None, stats, taken_at: NOW.nanos() }
}

fn group(name: &str, instances: Vec<dev::InstanceStats>) -> dev::GroupStats {
    dev::GroupStats { vendor: "v".into(), type_: "t".into(), name: name.into(), instances }
}

fn one(stats: Vec<wit::StatEntry>) -> AnswerResult<StatObject> {
    let mut found = device_stats(vec![group("a", vec![instance("1", stats)])], NOW)?;
    let found = found.pop().unwrap().instances.pop_first().unwrap().1;
    Ok(found.stats.clone())
}

#[test]
fn unset_zero_false_and_the_empty_text_arrive_as_what_they_are() {
    let zero = wit::StatValue { int_numerator: Some(0), boolean: Some(false), ..unset() };
    let empty = wit::StatValue { text: Some(String::new()), ..unset() };
    let found = one(vec![
        entry(&["nothing"], unset()),
        entry(&["fans", "0"], zero),
        entry(&["fans", "1"], empty),
    ]);
    let found = found.unwrap();
    assert_eq!(found.attributes["nothing"], StatValue::default());
    let fans = &found.nested["fans"].attributes;
    assert_eq!((fans["0"].int_numerator, fans["0"].boolean), (Some(0), Some(false)));
    assert_eq!((fans["0"].float_numerator, &fans["0"].text), (None, &None));
    assert_eq!(fans["1"].text.as_deref(), Some(""));
}

#[test]
fn a_number_that_is_none_is_refused_wherever_it_stands() {
    for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let above = wit::StatValue { float_numerator: Some(number), ..unset() };
        let below = wit::StatValue { float_denominator: Some(number), ..unset() };
        for value in [above, below] {
            let error = one(vec![entry(&["power", "draw"], value.clone())]).unwrap_err();
            assert!(error.place.ends_with("instance 1: power.draw"), "{error}");
            assert!(error.problem.contains("not a finite number"), "{error}");
            let mut summed = instance("1", vec![]);
            summed.summary = Some(value);
            assert!(device_stats(vec![group("a", vec![summed])], NOW).is_err());
        }
    }
    for number in [0.0, -0.0, f64::MIN, f64::MIN_POSITIVE] {
        let value = wit::StatValue { float_numerator: Some(number), ..unset() };
        assert!(one(vec![entry(&["x"], value)]).is_ok());
    }
}

#[test]
fn every_place_is_named_and_named_once() {
    let text = |stats| device_stats(stats, NOW).unwrap_err().to_string();
    let twice = vec![instance("1", vec![]), instance("1", vec![])];
    assert!(text(vec![group("a", twice)]).contains("instance \"1\" is listed twice"));
    assert!(text(vec![group("a", vec![]), group("a", vec![])]).contains("v/t/a: are listed twice"));
    assert!(text(vec![group("a", vec![instance("", vec![])])]).contains("instance id: is empty"));
    let at = |path: &[&str]| one(vec![entry(path, unset())]);
    assert!(at(&[]).unwrap_err().to_string().contains("path: is empty"));
    assert!(at(&["a", ""]).unwrap_err().to_string().contains("path: is empty"));
    assert!(at(&["a\u{1b}[2J"]).is_err());
    let same = vec![entry(&["a", "b"], unset()), entry(&["a", "b"], unset())];
    assert!(one(same).unwrap_err().to_string().contains("a.b: is listed twice"));
}

#[test]
fn oversized_measurements_are_refused() {
    let parts = vec!["x"; STAT_DEPTH_MAX + 1];
    assert!(one(vec![entry(&parts, unset())]).is_err());
    assert!(one(vec![entry(&parts[1..], unset())]).is_ok());
    let many = |count: usize| (0..count).map(|n| entry(&[&n.to_string()], unset())).collect();
    assert!(one(many(STAT_ENTRIES_MAX + 1)).is_err());
    assert!(one(many(STAT_ENTRIES_MAX)).is_ok());
    let instances = (0..=DEVICE_INSTANCES_MAX).map(|n| instance(&n.to_string(), vec![]));
    assert!(device_stats(vec![group("a", instances.collect())], NOW).is_err());
    let groups = (0..=DEVICE_GROUPS_MAX).map(|n| group(&n.to_string(), vec![]));
    assert!(device_stats(groups.collect(), NOW).is_err());
}

#[test]
fn a_measurement_may_be_old_but_not_unset_or_from_the_future() {
    let taken = |at: Timestamp| {
        let mut given = instance("1", vec![]);
        given.taken_at = at.nanos();
        device_stats(vec![group("a", vec![given])], NOW)
    };
    assert!(taken(Timestamp::from_nanos(1)).is_ok());
    assert!(taken(NOW.plus(STATS_AHEAD_MAX)).is_ok(), "clocks differ a little");
    assert!(taken(NOW.plus(STATS_AHEAD_MAX + Duration::from_nanos(1))).is_err());
    assert!(taken(Timestamp::from_nanos(u64::MAX)).is_err());
    assert!(taken(Timestamp::default()).is_err());
}
