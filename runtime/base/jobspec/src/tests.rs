//! Whole files: what is accepted, what is refused, and that nothing panics.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod artifacts;
mod bad;
mod good;
mod health;
mod hostile;
mod language;
mod placement;
mod places;
mod rollout;
mod same_text;
mod services;
mod shell_text;
mod unreadable;
mod warnings;

use std::path::Path;

use super::{Diagnostics, Syntax, parse};
use ostler_model::job::{Job, Task};

/// A job with one group and one task around what is tested.
fn in_task(body: &str) -> String {
    format!("job \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{\ndriver = \"mock\"\n{body}\n}}\n}}\n}}\n")
}

fn in_group(body: &str) -> String {
    format!("job \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{ driver = \"mock\" }}\n{body}\n}}\n}}\n")
}

fn in_job(body: &str) -> String {
    format!("job \"j\" {{\ngroup \"g\" {{\ntask \"t\" {{ driver = \"mock\" }}\n}}\n{body}\n}}\n")
}

fn read(text: &str) -> Result<Job, Diagnostics> {
    parse(text.as_bytes(), Path::new("dir/job.hcl"), None)
}

/// What is accepted as HCL is accepted as JSON, and is the same job.
fn good(text: &str) -> Job {
    match read(text) {
        Ok(job) => {
            let json = super::nomad_json(&job).to_string();
            match parse(json.as_bytes(), Path::new("-"), Some(Syntax::Json)) {
                Ok(again) => assert_eq!(again, job, "{text}"),
                Err(found) => panic!("{text}\n{}", found.render(&json, false)),
            }
            job
        }
        Err(found) => panic!("{}", found.render(text, false)),
    }
}

fn task(body: &str) -> Task {
    (*good(&in_task(body)).groups[0].tasks[0]).clone()
}

/// `line:column message (did you mean x?)` for each problem.
fn problems(text: &str) -> Vec<String> {
    let found = read(text).expect_err("the file is accepted");
    check_places(text, &found);
    let short = |d: &super::FileDiagnostic| d.to_string().replacen("dir/job.hcl:", "", 1);
    found.iter().map(short).collect()
}

/// Every problem is somewhere in the file.
fn check_places(text: &str, found: &Diagnostics) {
    assert!(!found.is_empty());
    let lines: Vec<&str> = text.trim_start_matches('\u{feff}').split('\n').collect();
    for problem in found {
        assert!(problem.line >= 1 && problem.column >= 1 && problem.length >= 1, "{problem}");
        let line = lines.get(problem.line as usize - 1).unwrap_or_else(|| panic!("{problem}"));
        let width = line.chars().count();
        assert!(problem.column as usize <= width + 1, "{problem} in {line:?}");
        assert!(!problem.message.is_empty());
    }
    let _ = found.render(text, true);
}

#[test]
fn the_syntax_is_found_out() {
    assert_eq!(Syntax::guess("\n  {", Path::new("x")), Syntax::Json);
    assert_eq!(Syntax::guess("# {\njob", Path::new("x")), Syntax::Hcl);
    assert_eq!(Syntax::guess("job", Path::new("x.JSON")), Syntax::Json);
}

#[test]
fn the_directory_of_the_file_is_kept_where_something_refers_to_it() {
    let text = in_task("env = { DIR = \"${job.dir}\" }");
    let dir = |name: &str| parse(text.as_bytes(), Path::new(name), None).unwrap().source_dir;
    assert_eq!(dir("a/b/job.hcl").unwrap(), Path::new("a/b"));
    assert_eq!(dir("job.hcl").unwrap(), Path::new("."));
    assert_eq!(dir("-"), None);
    assert_eq!(dir(""), None);
}

/// One file, and the problems it must give: the start of each line and of the message.
fn check(text: &str, expected: &[&str]) {
    let found = problems(text);
    assert_eq!(found.len(), expected.len(), "{text}\n{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        let (start, end) = expected.split_once(" … ").unwrap_or((expected, ""));
        assert!(
            found.starts_with(start) && found.ends_with(end),
            "{text}\nexpected {expected}\nfound    {found}"
        );
    }
}
