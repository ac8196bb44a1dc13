//! What a stock client makes of templates, and what this engine makes of them.
//!
//! `recorded.json` has the answers of Nomad 1.0.18's own engine (consul-template 0.25.2, Go 1.19): `output`,
//! or none where it refuses; `strict`: the answer with `error_on_missing_key` where that differs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ostler_template::{Delimiters, Dependency, Options, Outside, OutsideAnswer, Template};

struct Task;

impl Outside for Task {
    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_709_211_845)
    }

    fn variable(&self, name: &str) -> Option<String> {
        let known = match name {
            "A" => "one",
            "NOMAD_PORT_http" => "8080",
            "LIST" => "a,b,c",
            _ => return None,
        };
        Some(known.to_owned())
    }

    fn ask(&self, _what: &Dependency) -> OutsideAnswer {
        OutsideAnswer::Missing
    }
}

/// Templates that are answered otherwise, and why.
const OTHERWISE: &[(&str, &str)] = &[
    ("{{ .a | }}", "an empty command is a mistake"),
    ("{{ 0b101 }} {{ 0o17 }} {{ 017 }} {{ 1_000 }} {{ 0x1p4 }}", "no hexadecimal fractions"),
    ("{{ 1i }}", "no complex numbers"),
    ("{{ key \"a\" }}", "there is no Consul: it says so where the other engine waits for ever"),
    (
        "{{ toYAML (parseYAML \"a: 1\") }}",
        "maps of YAML are maps like any others, as in newer engines",
    ),
    ("{{ toJSON (parseYAML \"a: 1\") }}", "likewise"),
    ("{{ parseYAML \"1: a\\ntrue: b\" }}", "likewise: keys are texts, and sorted so"),
    (
        "{{ join \",\" (parseJSON `[\"a\",\"b\"]`) }}",
        "a list of texts is one, wherever it comes from",
    ),
    ("{{ parseYAML \": :\" }}", "an empty key is one"),
    ("{{with false}}a{{else with true}}b{{end}}", "as newer engines do"),
];

fn render(template: &str, strict: bool) -> Result<String, String> {
    let parsed = Template::parse("recorded", template, &Delimiters::default());
    let options = Options { error_on_missing_key: strict, ..Options::default() };
    let rendered = parsed.and_then(|template| template.render(&Task, options));
    rendered
        .map(|rendered| String::from_utf8_lossy(&rendered.output).into_owned())
        .map_err(|error| error.to_string())
}

#[test]
fn templates_read_as_a_stock_client_renders_them() {
    let recorded: Vec<BTreeMap<String, Option<String>>> =
        serde_json::from_str(include_str!("recorded.json")).unwrap();
    assert!(recorded.len() > 300, "{}", recorded.len());
    let mut wrong = Vec::new();
    for row in &recorded {
        let template = row["template"].clone().unwrap();
        if OTHERWISE.iter().any(|(known, _)| *known == template) {
            continue;
        }
        let output = row.get("output").cloned().flatten();
        let strict = row.get("strict").cloned().unwrap_or_else(|| output.clone());
        for (strict, expected) in [(false, output), (true, strict)] {
            let made = render(&template, strict);
            if made.as_ref().ok() != expected.as_ref() {
                wrong.push(format!(
                    "{template:?} strict={strict}\n  theirs {expected:?}\n  ours   {made:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), recorded.len(), wrong.join("\n"));
}

#[test]
fn every_exception_is_one() {
    let recorded: Vec<BTreeMap<String, Option<String>>> =
        serde_json::from_str(include_str!("recorded.json")).unwrap();
    for (template, reason) in OTHERWISE {
        let row = recorded.iter().find(|row| row["template"].as_deref() == Some(template));
        let output = row.unwrap_or_else(|| panic!("{template}")).get("output").cloned().flatten();
        assert_ne!(render(template, false).ok(), output, "{template}: {reason}");
    }
}
