//! What the documents name is there.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What stands between backticks in `text`.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `path` is a file or directory of the sources (of a crate below `runtime/`: without its `src`), of the
/// tests (`it/…`), or a module.
fn is_there(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let in_crate = path.split_once('/').map_or_else(
        || format!("runtime/{path}/src"),
        |(name, rest)| format!("runtime/{name}/src/{rest}"),
    );
    let below = ["runtime/src", "runtime/lifecycle/src", "runtime/tests", "runtime", "."];
    let in_crate = root().join(in_crate);
    in_crate.exists()
        || in_crate.with_extension("rs").exists()
        || below.iter().any(|below| {
            let whole = root().join(below).join(path);
            whole.exists() || whole.with_extension("rs").exists()
        })
}

#[test]
fn every_promise_of_the_threat_model_is_held_by_tests_that_are_there() {
    let text = read("docs/threat-model.md");
    let promises = text.split("## What is promised").nth(1).unwrap();
    let promises = promises.split("## What is not promised").next().unwrap();
    let rows: Vec<&str> = promises
        .lines()
        .filter(|line| line.starts_with("| ") && !line.contains("held by"))
        .collect();
    assert!(rows.len() > 10, "the table is read");
    for row in rows {
        let held_by = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let mut named = 0;
        for what in quoted(held_by) {
            named += 1;
            let bench = root().join(format!("benches/benches/{what}.rs"));
            assert!(is_there(what) || bench.exists(), "there is no {what}: {row}");
        }
        assert!(named > 0, "nothing holds: {row}");
    }
}

#[test]
fn the_test_that_the_list_of_attacks_is_about_is_there() {
    let (list, suite) = (read("docs/containment.md"), read("runtime/tests/it/hostile/mod.rs"));
    let names: Vec<&str> =
        quoted(&list).filter_map(|name| name.strip_prefix("hostile::")).collect();
    assert!(!names.is_empty());
    for name in names {
        assert!(suite.contains(&format!("fn {name}(")), "{name}");
    }
}

#[test]
fn the_readme_links_to_every_page() {
    let readme = read("README.md");
    let mut pages = 0;
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            pages += 1;
            assert!(readme.contains(&format!("](docs/{name})")), "no link to docs/{name}");
        }
    }
    assert!(pages > 3, "{pages}");
}
