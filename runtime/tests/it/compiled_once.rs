//! The engine takes the longest to compile by far. Cargo compiles it once for each set of features that it or
//! anything below it is asked for with: `runtime/plugins/guests/Cargo.toml` asks for the same everywhere.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::Path;

use serde_json::Value;

use crate::support::programs::cargo;

fn cargo_here(command: &[&str]) -> std::process::Output {
    let mut cargo = cargo();
    cargo.args(command).arg("--offline");
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

#[test]
fn the_engine_is_compiled_once_for_the_tests_and_for_all_that_the_gate_checks() {
    let mut found = BTreeSet::new();
    let all = ["--workspace", "--features", "ostler-fuzz/libfuzzer"];
    let check = [&["check"], &all[..]].concat();
    let of_tests = [&["check", "--all-targets"], &all[..]].concat();
    let mut commands = vec![&["test"][..]];
    // What tests do not need was fetched too, or those that need it are not compiled here.
    if cargo_here(&["fetch", "--locked"]).status.success() {
        commands.extend([&check[..], &of_tests]);
    }
    for command in commands {
        let units = units(command);
        let mut known = vec![None; units.len()];
        let compiled = |unit: &Value| {
            unit["mode"] == "build"
                && unit["target"]["name"] == "wasmtime"
                && unit["target"]["kind"][0] == "lib"
        };
        let engines = (0..units.len()).filter(|index| compiled(&units[*index]));
        let engines: Vec<_> = engines.map(|index| identity(&units, index, &mut known)).collect();
        assert!(!engines.is_empty(), "{command:?}");
        found.extend(engines);
    }
    assert_eq!(
        found.len(),
        1,
        "something below wasmtime is asked for with other features: see `cargo tree --duplicates`, and what \
         runtime/plugins/guests/Cargo.toml asks for"
    );
}
