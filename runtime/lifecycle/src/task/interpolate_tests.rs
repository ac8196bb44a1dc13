#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::*;
use serde_json::json;

use super::*;

type Vars = BTreeMap<String, String>;

struct World {
    env: Vars,
    attributes: Vars,
    meta: Vars,
    facts: BTreeMap<&'static str, String>,
}

fn vars(pairs: &[(&str, &str)]) -> Vars {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn world() -> World {
    World {
        env: vars(&[("NOMAD_PORT_http", "8080"), ("X", "x"), ("a}b", "brace"), ("EVIL", "${X}")]),
        attributes: vars(&[("cpu.arch", "amd64"), ("kernel.name", "linux")]),
        meta: vars(&[("rack", "r1")]),
        facts: BTreeMap::from([("node.class", "big".to_owned()), ("job.dir", "/jobs".to_owned())]),
    }
}

impl World {
    fn scope(&self) -> Variables<'_> {
        Variables {
            env: &self.env,
            attributes: &self.attributes,
            meta: &self.meta,
            facts: &self.facts,
        }
    }

    fn text(&self, text: &str) -> Result<String, InterpolateError> {
        interpolate(text, self.scope())
    }
}

fn nearest(text: &str) -> Option<String> {
    match world().text(text).unwrap_err() {
        InterpolateError::Unknown(mut unknown) => unknown.remove(0).nearest,
        other => panic!("{other}"),
    }
}

#[test]
fn every_kind_of_reference_is_replaced() {
    for (text, expected) in [
        ("http://h:${NOMAD_PORT_http}/", "http://h:8080/"),
        ("${env.X}${env[\"X\"]}${X}", "xxx"),
        ("${env[\"a}b\"]}!", "brace!"),
        ("${attr.cpu.arch} ${attr[\"kernel.name\"]}", "amd64 linux"),
        ("${meta.rack}/${meta[\"rack\"]}", "r1/r1"),
        ("${ node.class }", "big"),
        ("${job.dir}/x.wasm", "/jobs/x.wasm"),
        ("", ""),
    ] {
        assert_eq!(world().text(text).as_deref(), Ok(expected), "{text}");
    }
}

#[test]
fn an_escaped_reference_reaches_the_task_as_written() {
    assert_eq!(
        world().text("echo $${HOME} $${X} $$ $5 ${X}").unwrap(),
        "echo ${HOME} ${X} $$ $5 x"
    );
    assert_eq!(world().text("$$${X}").unwrap(), "$${X}");
}

#[test]
fn a_replaced_value_is_not_looked_at_again() {
    assert_eq!(world().text("${EVIL}").unwrap(), "${X}");
}

#[test]
fn all_unknown_references_are_reported_once_with_the_nearest_known_name() {
    let error = world().text("${NOMAD_PORT_htp} ${meta.rak} ${NOMAD_PORT_htp} ${}").unwrap_err();
    let InterpolateError::Unknown(unknown) = &error else { panic!("{error}") };
    let names: Vec<_> = unknown.iter().map(|u| u.reference.as_str()).collect();
    assert_eq!(names, ["NOMAD_PORT_htp", "meta.rak", ""]);
    assert_eq!(unknown[0].nearest.as_deref(), Some("NOMAD_PORT_http"));
    assert_eq!(unknown[1].nearest.as_deref(), Some("meta.rack"));
    let text = error.to_string();
    assert!(text.contains("${meta.rak} (nearest: ${meta.rack})"), "{text}");
    assert!(text.contains("write $${…}"), "{text}");
}

#[test]
fn a_name_like_none_has_no_suggestion() {
    assert_eq!(nearest("${something_entirely_different}"), None);
    assert_eq!(nearest("${attr.cpu.arhc}"), Some("attr.cpu.arch".to_owned()));
    assert_eq!(nearest("${env.NOMAD_PORT_htt}"), Some("env.NOMAD_PORT_http".to_owned()));
}

#[test]
fn an_open_brace_without_its_end_is_an_error_that_shows_where() {
    assert_eq!(
        world().text("a ${X} b ${node.cla"),
        Err(InterpolateError::Unclosed { near: "node.cla".to_owned() })
    );
    let odd_quote = world().text("${env[\"X]} and more").unwrap_err();
    assert!(matches!(odd_quote, InterpolateError::Unknown(_)), "{odd_quote}");
}

#[test]
fn every_string_of_an_object_is_replaced_and_no_key_is() {
    let object = json!({
        "command": "${X}", "${X}": 1, "args": ["-p", "${NOMAD_PORT_http}", true, null],
        "nested": {"deep": [{"dir": "${job.dir}"}]}
    });
    let object = JsonObject::from(object.as_object().unwrap().clone());
    let got = interpolate_json(&object, world().scope()).unwrap();
    assert_eq!(
        serde_json::Value::Object(got.into_map()),
        json!({
            "command": "x", "${X}": 1, "args": ["-p", "8080", true, null],
            "nested": {"deep": [{"dir": "/jobs"}]}
        })
    );
}

#[test]
fn unknown_references_of_a_whole_object_come_in_one_error() {
    let object = json!({"a": "${one}", "b": ["${two}"]});
    let object = JsonObject::from(object.as_object().unwrap().clone());
    let InterpolateError::Unknown(unknown) =
        interpolate_json(&object, world().scope()).unwrap_err()
    else {
        panic!("another error");
    };
    assert_eq!(unknown.len(), 2);
}

#[test]
fn an_object_nested_without_end_is_refused() {
    let mut value = Value::String("x".to_owned());
    for _ in 0..=JOB_NESTING_MAX + 1 {
        value = Value::Array(vec![value]);
    }
    let object = JsonObject::from(Map::from_iter([("a".to_owned(), value)]));
    assert_eq!(
        interpolate_json(&object, world().scope()),
        Err(InterpolateError::TooDeep { max: JOB_NESTING_MAX })
    );
}

#[test]
fn a_short_text_cannot_grow_without_bound() {
    let mut world = world();
    world.env.insert("BIG".to_owned(), "x".repeat(INTERPOLATED_BYTES_MAX / 4));
    assert!(world.text(&"${BIG}".repeat(4)).is_ok());
    let too_long = Err(InterpolateError::TooLong { max: INTERPOLATED_BYTES_MAX });
    assert_eq!(world.text(&"${BIG}".repeat(5)), too_long);
    let many = json!({"a": ["${BIG}", "${BIG}", "${BIG}"], "b": "${BIG}", "c": "${BIG}"});
    let object = JsonObject::from(many.as_object().unwrap().clone());
    assert!(
        interpolate_json(&object, world.scope()).is_err(),
        "the bound is over the whole object"
    );
}

#[test]
fn an_endless_list_of_unknown_references_gives_a_short_error() {
    let text: String = (0..5_000).map(|i| format!("${{unknown_{i}{}}}", "y".repeat(200))).collect();
    assert!(world().text(&text).unwrap_err().to_string().len() < 4_096);
}

proptest! {
    #[test]
    fn text_without_a_reference_is_unchanged(text in "\\PC*") {
        prop_assume!(!text.contains("${"));
        prop_assert_eq!(world().text(&text), Ok(text));
    }

    #[test]
    fn escaping_and_interpolating_gives_the_text_back(text in "[a-zX{}$\" .]{0,40}") {
        let escaped = text.replace("${", "$${");
        prop_assert_eq!(world().text(&escaped), Ok(text));
    }

    #[test]
    fn any_text_gives_one_that_can_be_escaped_or_an_error_that_names_a_part_of_it(
        text in "([$]|[{]|[}]|[$][{]|[\"]|X|env|attr|[.\\[\\]]|é|\\PC){0,40}",
    ) {
        match world().text(&text) {
            Ok(read) => {
                let refers = text.contains("${");
                prop_assert!(refers || read == text);
                prop_assert_eq!(world().text(&read.replace("${", "$${")), Ok(read));
            }
            Err(InterpolateError::Unclosed { near }) => {
                let from_there = ["${", &near].concat();
                prop_assert!(text.contains(&from_there), "{}", near);
            }
            Err(InterpolateError::Unknown(unknown)) => {
                prop_assert!(!unknown.is_empty());
                for one in unknown {
                    prop_assert!(text.contains(&one.reference), "{:?}", one);
                    prop_assert!(world().scope().get(&one.reference).is_none(), "{:?}", one);
                }
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn a_known_reference_between_any_texts_is_replaced(before in "[^$]*", after in "[^$]*") {
        let text = format!("{before}${{X}}{after}");
        prop_assert_eq!(world().text(&text), Ok(format!("{before}x{after}")));
    }
}
