//! Recorded histories, and the sentences that are made of them.
//!
//! Each `histories/NAME.json` has an answer of the agent, cut to what matters, and the time at which it is
//! looked at; `NAME.txt` beside it is what is said. `OSTLER_BLESS=1` writes the texts anew: a difference is
//! a decision.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};

use ostler_explain::{Explanation, alloc, device, job, plugin};
use ostler_model::time::Timestamp;
use ostler_testing::golden::has_text;
use serde::Deserialize;

/// A history, by what it is of.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Of {
    Alloc(Box<alloc::AllocHistory<'static>>),
    Job(Box<job::JobHistory<'static>>),
    Plugin(Box<plugin::PluginHistory>),
    Device(Box<device::DeviceHistory>),
}

#[derive(Deserialize)]
struct History {
    now: Timestamp,
    of: Of,
}

fn histories() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories");
    let mut files: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "json"));
    files.sort();
    files
}

fn explained(file: &Path) -> (Explanation, Timestamp) {
    let text = std::fs::read_to_string(file).unwrap();
    let History { now, of } =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let told = match of {
        Of::Alloc(record) => alloc::explain(&record, now),
        Of::Job(record) => job::explain(&record, now),
        Of::Plugin(record) => plugin::explain(&record, now),
        Of::Device(record) => device::explain(&record, now),
    };
    (told, now)
}

#[test]
fn each_recorded_history_is_told_in_the_sentences_beside_it() {
    let files = histories();
    assert!(files.len() >= 20, "the histories are there");
    let mut other = Vec::new();
    for file in files {
        let (told, now) = explained(&file);
        let text = told.text(now);
        if !has_text(&file.with_extension("txt"), &text).unwrap() {
            other.push(format!("{}:\n{text}", file.display()));
        }
    }
    assert!(other.is_empty(), "{}", other.join("\n"));
}

/// What the command line's tests read is all that is advised.
#[test]
fn command_lines_are_written_in_one_place_alone() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for entry in std::fs::read_dir(sources).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        let lines: Vec<_> = code.filter(|line| line.contains("ostler ")).collect();
        let place = path.file_name().is_some_and(|name| name == "commands.rs");
        assert!(place != lines.is_empty(), "{}: {lines:#?}", path.display());
    }
    for file in histories() {
        let (told, _) = explained(&file);
        for next in &told.next {
            let quoted = next.split('`').skip(1).step_by(2);
            let commands = quoted.filter(|text| text.starts_with("ostler ")).count();
            assert_eq!(next.matches("ostler ").count(), commands, "{next}");
        }
    }
}

#[test]
fn sentences_say_nothing_twice_and_have_an_end() {
    for file in histories() {
        let (told, _) = explained(&file);
        assert!(!told.because.is_empty(), "{}", file.display());
        for (at, sentence) in told.because.iter().enumerate() {
            assert!(sentence.ends_with(['.', '!', '?']), "{}: {sentence}", file.display());
            assert!(!told.because.iter().skip(at + 1).any(|other| other == sentence), "{sentence}");
        }
        for (at, next) in told.next.iter().enumerate() {
            assert!(!told.next.iter().skip(at + 1).any(|other| other == next), "{next}");
        }
    }
}
