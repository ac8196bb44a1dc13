//! The engine takes the longest to compile by far. Cargo compiles it once for each set of features and each profile
//! that it or anything below it is asked for with: `runtime/plugins/guests/Cargo.toml` asks for the same features
//! everywhere, and `build-override` in `Cargo.toml` for the same profile.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use serde_json::Value;

use crate::support::programs::cargo;

fn cargo_here(command: &[&str]) -> std::process::Output {
    let mut cargo = cargo();
    cargo.args(command).arg("--offline");
    // The profile is looked at, so it is not the quick one of tests.
    for name in ["OPT_LEVEL", "LTO", "CODEGEN_UNITS", "DEBUG"] {
        cargo.env_remove(format!("CARGO_PROFILE_RELEASE_{name}"));
    }
    // Asked for by an unstable option of the version that is pinned.
    cargo.env("RUSTC_BOOTSTRAP", "1");
    cargo.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).output().unwrap()
}

/// What cargo would compile for a command: its units, each with what it depends on.
fn units(command: &[&str]) -> Vec<Value> {
    let output = cargo_here(&[command, &["--unit-graph", "-Z", "unstable-options"]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let graph: Value = serde_json::from_slice(&output.stdout).unwrap();
    graph["units"].as_array().unwrap().clone()
}

/// What tells one compilation of a unit from another, with everything below it.
fn identity(units: &[Value], index: usize, known: &mut [Option<u64>]) -> u64 {
    if let Some(identity) = known[index] {
        return identity;
    }
    let unit = &units[index];
    let mut hasher = DefaultHasher::new();
    let mut profile = unit["profile"].clone();
    profile.as_object_mut().unwrap().remove("name");
    for part in
        [&unit["pkg_id"], &unit["mode"], &unit["features"], &unit["target"]["kind"], &profile]
    {
        part.to_string().hash(&mut hasher);
    }
    let below = unit["dependencies"].as_array().unwrap().iter();
    let below: Vec<_> = below.map(|one| one["index"].as_u64().unwrap() as usize).collect();
    let below: BTreeSet<_> = below.into_iter().map(|one| identity(units, one, known)).collect();
    below.hash(&mut hasher);
    let identity = hasher.finish();
    known[index] = Some(identity);
    identity
}

/// What of other people takes five seconds and more to compile, with optimisation, or stands below much that does.
const LONG: &[&str] = &[
    "clap_builder",
    "cranelift_assembler_x64",
    "cranelift_codegen",
    "h2",
    "hyper",
    "jsonschema",
    "object",
    "pulley_interpreter",
    "ratatui_widgets",
    "redb",
    "regalloc2",
    "regex_automata",
    "regex_syntax",
    "ring",
    "rustls",
    "rustix",
    "serde_json",
    "syn",
    "tokio",
    "tokio_util",
    "wasm_encoder",
    "wasmparser",
    "wasmprinter",
    "wasmtime",
    "wasmtime_environ",
    "wasmtime_internal_cranelift",
    "wasmtime_internal_component_macro",
    "wasmtime_wasi",
    "winnow",
    "wit_parser",
];

/// How often each version of these libraries would be compiled for all these commands together.
fn compiled(commands: &[&[&str]], names: &[&str]) -> BTreeMap<String, usize> {
    let mut found: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for command in commands {
        let units = units(command);
        let mut known = vec![None; units.len()];
        for index in 0..units.len() {
            let unit = &units[index];
            let kind = unit["target"]["kind"][0].as_str().unwrap();
            // As programs name it: a dash is none.
            let name = unit["target"]["name"].as_str().unwrap().replace('-', "_");
            if unit["mode"] == "build"
                && matches!(kind, "lib" | "proc-macro")
                && names.contains(&&*name)
            {
                let version = unit["pkg_id"].as_str().unwrap().to_owned();
                found.entry(version).or_default().insert(identity(&units, index, &mut known));
            }
        }
    }
    for name in names {
        let there = |version: &String| version.replace('-', "_").contains(&format!("#{name}@"));
        assert!(found.keys().any(there), "nothing of {commands:?} compiles {name}");
    }
    found.into_iter().map(|(version, compiled)| (version, compiled.len())).collect()
}

fn assert_once(commands: &[&[&str]], names: &[&str]) {
    let more: Vec<_> =
        compiled(commands, names).into_iter().filter(|(_, times)| *times > 1).collect();
    assert!(
        more.is_empty(),
        "compiled more than once for {commands:?}, and how often: {more:#?}\nsomething below them is asked for with \
         other features (see `cargo tree --duplicates`, and what runtime/plugins/guests/Cargo.toml asks for) or \
         another profile (see `build-override` in Cargo.toml)"
    );
}

/// What tests and benches do not need of a command was not always fetched.
fn all_is_fetched() -> bool {
    cargo_here(&["fetch", "--locked"]).status.success()
}

#[test]
fn the_engine_is_compiled_once_for_the_tests_and_for_all_that_the_gate_checks() {
    let all = ["--workspace", "--features", "ostler-fuzz/libfuzzer"];
    let check = [&["check"], &all[..]].concat();
    let of_tests = [&["check", "--all-targets"], &all[..]].concat();
    let mut commands = vec![&["test"][..]];
    // What tests do not need was fetched too, or those that need it are not compiled here.
    if all_is_fetched() {
        commands.extend([&check[..], &of_tests]);
    }
    assert_once(&commands, &["wasmtime"]);
}

#[test]
fn what_takes_long_is_compiled_once_for_a_build_and_the_tests() {
    assert_once(&[&["build"], &["test"]], LONG);
}

/// The first command of the README is `cargo run`, for which Cargo chooses features as for `cargo build`.
#[test]
fn what_takes_long_is_compiled_once_for_the_first_command_an_installation_and_the_benches() {
    let mut commands = vec![&["build", "--release"][..], &["build", "--release", "-p", "ostler"]];
    if all_is_fetched() {
        commands.extend([&["bench", "--no-run"][..], &["bench", "-p", "ostler-benches"]]);
    }
    assert_once(&commands, LONG);
}
