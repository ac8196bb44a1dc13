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

fn unknown(text: &str) -> Vec<UnknownReference> {
    unknown_references([text], world().scope())
}

fn config(value: serde_json::Value) -> JsonObject {
    JsonObject::from(value.as_object().unwrap().clone())
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
fn what_is_no_known_reference_is_text_and_stays_as_it_is() {
    for text in [
        "echo ${HOME} ${1} ${#} ${X:-2} ${Y:-${Z}} $5 $$ 100%",
        "${NOMAD_PORT_htp} ${meta.rak} ${}",
        "a ${ b ${node.cla",
        "%{if} %%{x} {{ env \"X\" }}",
        "${env[\"X]} and more \" ${",
        "\u{1F600} ${\u{e9}} \\${x",
    ] {
        assert_eq!(world().text(text).as_deref(), Ok(text));
    }
    assert_eq!(world().text("${Y:-${X}}").as_deref(), Ok("${Y:-x}"), "one inside of a text");
    assert_eq!(world().text("$${X} $$${X}").as_deref(), Ok("$x $$x"), "nothing is taken back");
}

#[test]
fn in_a_config_what_is_written_twice_is_taken_back() {
    let written = json!({"args": ["$${HOME} $${X} $$ $5 ${X}", "$$${X}", "%%{a} %{b} %%", "${1}"]});
    let got = interpolate_config(&config(written), world().scope()).unwrap();
    let expected = json!({"args": ["${HOME} ${X} $$ $5 x", "$${X}", "%{a} %{b} %%", "${1}"]});
    assert_eq!(serde_json::Value::Object(got.into_map()), expected);
}

#[test]
fn a_replaced_value_is_not_looked_at_again() {
    assert_eq!(world().text("${EVIL}").unwrap(), "${X}");
}

#[test]
fn what_reads_like_a_reference_and_is_none_is_told_once_with_the_nearest_known_name() {
    let found = unknown(
        "${NOMAD_PORT_htp} ${meta.rak} ${NOMAD_PORT_htp} ${X} ${node.class} ${device.model} \
         ${env[\"Y\"]} ${HOME} ${1} ${NOMAD_X:-1} ${attr.} ${foo.bar} $${attr.no} ${}",
    );
    let names: Vec<_> = found.iter().map(|u| u.reference.as_str()).collect();
    assert_eq!(names, ["NOMAD_PORT_htp", "meta.rak", "device.model", "env[\"Y\"]"]);
    assert_eq!(found[0].nearest.as_deref(), Some("NOMAD_PORT_http"));
    assert_eq!(found[1].to_string(), "${meta.rak} (nearest: ${meta.rack})");
}

#[test]
fn a_name_like_none_has_no_suggestion() {
    let nearest = |text: &str| unknown(text).remove(0).nearest;
    assert_eq!(nearest("${NOMAD_something_entirely_different}"), None);
    assert_eq!(nearest("${NOMAD_FOO}"), None, "all variables begin so");
    assert_eq!(nearest("${attr.cpu.arhc}"), Some("attr.cpu.arch".to_owned()));
    assert_eq!(nearest("${env.NOMAD_PORT_htt}"), Some("env.NOMAD_PORT_http".to_owned()));
}

#[test]
fn every_string_of_an_object_is_replaced_and_no_key_is() {
    let object = json!({
        "command": "${X}", "${X}": 1, "args": ["-p", "${NOMAD_PORT_http}", true, null],
        "nested": {"deep": [{"dir": "${job.dir}"}]}
    });
    let object = JsonObject::from(object.as_object().unwrap().clone());
    let got = interpolate_config(&object, world().scope()).unwrap();
    assert_eq!(
        serde_json::Value::Object(got.into_map()),
        json!({
            "command": "x", "${X}": 1, "args": ["-p", "8080", true, null],
            "nested": {"deep": [{"dir": "/jobs"}]}
        })
    );
}

#[test]
fn an_object_nested_without_end_is_refused() {
    let mut value = Value::String("x".to_owned());
    for _ in 0..=JOB_NESTING_MAX + 1 {
        value = Value::Array(vec![value]);
    }
    let object = JsonObject::from(Map::from_iter([("a".to_owned(), value)]));
    assert_eq!(
        interpolate_config(&object, world().scope()),
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
        interpolate_config(&object, world.scope()).is_err(),
        "the bound is over the whole object"
    );
}

#[test]
fn an_endless_list_of_unknown_references_is_told_in_short() {
    let text: String = (0..5_000).map(|i| format!("${{NOMAD_{i}{}}}", "y".repeat(200))).collect();
    let told: String = unknown(&text).iter().map(ToString::to_string).collect();
    assert!(told.len() < 4_096, "{}", told.len());
}

#[test]
fn a_text_of_open_references_is_read_once() {
    let started = ostler_model::clock::Stopwatch::start();
    for piece in ["${", "${env[\"", "${X", "$", "${ \"} "] {
        let text = piece.repeat(INTERPOLATED_BYTES_MAX / piece.len());
        assert_eq!(world().text(&text).as_deref(), Ok(text.as_str()));
        assert_eq!(unknown(&text), []);
    }
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
}

proptest! {
    #[test]
    fn text_without_a_reference_is_unchanged(text in "\\PC*") {
        prop_assume!(!text.contains("${"));
        prop_assert_eq!(world().text(&text), Ok(text));
    }

    #[test]
    fn a_text_without_known_names_reaches_the_task_as_it_is(
        text in "([$]|[{]|[}]|[$][{]|%%[{]|[\"]|Y|env|attr|[.\\[\\]]|\\\\|\n|é|\\PC){0,40}",
    ) {
        let nothing = BTreeMap::new();
        let facts = BTreeMap::new();
        let scope =
            Variables { env: &nothing, attributes: &nothing, meta: &nothing, facts: &facts };
        prop_assert_eq!(interpolate(&text, scope), Ok(text.clone()));
        // And in a config, written as there.
        let written = text.replace("${", "$${").replace("%{", "%%{");
        let got = interpolate_config(&config(json!({"a": written})), world().scope()).unwrap();
        prop_assert_eq!(&got.into_map()["a"], &json!(text));
    }

    #[test]
    fn a_known_reference_between_any_texts_is_replaced(before in "[^$]*", after in "[^$]*") {
        let text = format!("{before}${{X}}{after}");
        prop_assert_eq!(world().text(&text), Ok(format!("{before}x{after}")));
    }
}
