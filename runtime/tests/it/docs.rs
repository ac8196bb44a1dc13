//! What the documents name is there.

use std::path::{Path, PathBuf};

use ostler_guests::fixtures;
use ostler_model::clock;

use crate::support::binary::unconfigured;
use crate::support::programs::set_by_cargo;
use crate::support::{OSTLER, PATIENCE};

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

/// The folder of the crate of this name.
fn crate_dir(name: &str) -> Option<PathBuf> {
    let folders = std::fs::read_dir(root().join("runtime")).unwrap().flatten();
    let mut dirs = folders.map(|folder| folder.path().join(name));
    dirs.find(|dir| dir.join("Cargo.toml").exists())
}

/// `path` is a file or directory of the sources (of a crate: with or without its `src`), of the tests (`it/…`),
/// or a module.
fn is_there(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let (name, rest) = path.split_once('/').unwrap_or((path, ""));
    let in_crate = crate_dir(name).map(|dir| [dir.join("src").join(rest), dir.join(rest)]);
    let crates = ["agent", "lifecycle"].map(|name| crate_dir(name).unwrap().join("src"));
    let below = ["runtime/tests", "runtime", "."].map(|below| root().join(below));
    let whole = crates.iter().chain(&below).map(|below| below.join(path));
    in_crate
        .into_iter()
        .flatten()
        .chain(whole)
        .any(|at| at.exists() || at.with_extension("rs").exists())
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
    let (list, suite) = (read("docs/containment.md"), read("runtime/tests/it/hostile.rs"));
    let names: Vec<&str> =
        quoted(&list).filter_map(|name| name.strip_prefix("hostile::")).collect();
    assert!(!names.is_empty());
    for name in names {
        assert!(suite.contains(&format!("fn {name}(")), "{name}");
    }
}

/// `cargo run` takes the one program that a default member names as its own.
#[test]
fn the_first_command_of_the_readme_knows_which_program_it_means() {
    assert!(read("README.md").contains("\ncargo run --release -- run "));
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]).current_dir(root());
    let told = cargo.output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    let workspace: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    let members = workspace["workspace_default_members"].as_array().unwrap();
    let packages = workspace["packages"].as_array().unwrap().iter();
    let named: Vec<_> = packages
        .filter(|package| members.contains(&package["id"]))
        .filter_map(|package| package["default_run"].as_str())
        .collect();
    assert_eq!(named, ["ostler"]);
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

/// What a page has its reader do.
#[derive(Debug)]
enum Step<'a> {
    /// A listing under its name: `Cargo.toml`, say.
    Write(&'a str, String),
    /// What is typed after a `$`, and what is seen then.
    Type(&'a str, Vec<&'a str>),
}

/// All listings and commands of a page, in order.
fn steps(page: &str) -> Vec<Step<'_>> {
    let (mut steps, mut named) = (vec![], "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            named = if line.is_empty() { named } else { line };
            continue;
        };
        let listing = lines.by_ref().take_while(|line| *line != "```");
        if language == "console" {
            for line in listing {
                match (line.strip_prefix("$ "), steps.last_mut()) {
                    (Some(typed), _) => steps.push(Step::Type(typed, vec![])),
                    (None, Some(Step::Type(_, seen))) => seen.push(line),
                    (None, _) => panic!("nothing was typed before {line:?}"),
                }
            }
        } else {
            let name = named.strip_prefix('`').and_then(|name| name.strip_suffix("`:"));
            let name = name.unwrap_or_else(|| panic!("a listing without a name after {named:?}"));
            steps.push(Step::Write(name, listing.flat_map(|line| [line, "\n"]).collect()));
        }
    }
    steps
}

/// Follows a page in a directory of its own.
struct Reader {
    home: tempfile::TempDir,
    dir: PathBuf,
}

impl Reader {
    /// The same with places of this machine.
    fn here(&self, text: &str) -> String {
        let sdk = root().join("guest-sdk").canonicalize().unwrap();
        let srv = self.home.path().join("srv");
        text.replace("../ostler/guest-sdk", sdk.to_str().unwrap())
            .replace("/srv", srv.to_str().unwrap())
    }

    /// Everything that is shown.
    async fn type_in(&self, typed: &str) -> String {
        let mut shell = unconfigured("sh");
        for name in set_by_cargo() {
            shell.env_remove(name);
        }
        let own = [Path::new(OSTLER), Path::new(env!("CARGO"))].map(|file| file.parent().unwrap());
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = own.iter().map(PathBuf::from).chain(std::env::split_paths(&path));
        shell.env("PATH", std::env::join_paths(path).unwrap()).env("CARGO_NET_OFFLINE", "true");
        shell.current_dir(&self.dir).args(["-c", &self.here(typed)]);
        // Cargo compiles.
        let ended = clock::timeout(4 * PATIENCE, shell.output()).await;
        let output = ended.unwrap_or_else(|| panic!("{typed} does not end")).unwrap();
        let shown = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "$ {typed}\n{shown}");
        shown
    }

    /// What others have already: the versions of the guests' dependencies, and what is compiled of them.
    fn furnish(&self, package: &Path) {
        let lock = root().join("examples/Cargo.lock");
        std::fs::copy(lock, package.join("Cargo.lock")).unwrap();
        std::os::unix::fs::symlink(fixtures::TARGET_DIR, package.join("target")).unwrap();
    }
}

#[tokio::test]
async fn the_first_plugins_of_the_authors_page_are_made_checked_and_used_as_it_says() {
    let page = read("docs/plugin-authors.md");
    let home = tempfile::tempdir().unwrap();
    let mut reader = Reader { dir: home.path().to_owned(), home };
    let (mut written, mut typed) = (0, 0);
    for step in steps(&page) {
        match step {
            Step::Write(name, text) => {
                std::fs::write(reader.dir.join(name), reader.here(&text)).unwrap();
                written += 1;
            }
            // The build of the guests has added the target.
            Step::Type(line, _) if line.starts_with("rustup ") => {}
            Step::Type(line, seen) => {
                if let Some(dir) = line.strip_prefix("cd ") {
                    reader.dir = reader.dir.join(dir).canonicalize().unwrap();
                    continue;
                }
                let shown = reader.type_in(line).await;
                for text in seen {
                    let text = reader.here(text);
                    let there = shown.lines().any(|line| line == text);
                    assert!(there, "$ {line}\nno line {text:?} in:\n{shown}");
                }
                if let Some(name) = line.strip_prefix("cargo new --lib ") {
                    reader.furnish(&reader.dir.join(name));
                }
                let warned = !shown.contains(", 0 warnings, ");
                assert!(!line.starts_with("ostler plugin check") || !warned, "$ {line}\n{shown}");
                typed += 1;
            }
        }
    }
    assert!(written >= 7 && typed >= 10, "{written} listings, {typed} commands");
}
