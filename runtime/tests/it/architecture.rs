//! The invariants of ARCHITECTURE.md that Cargo cannot say, read off the source.
//!
//! Comments, test modules and the `testing` module are left out: what counts is what is shipped.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::circles::named_paths;

/// A crate of the workspace below `runtime/`, other than the one of the program itself.
struct Crate {
    name: &'static str,
    dir: PathBuf,
}

/// The members that the manifest of the workspace lists. What each may import is in its own manifest.
fn crates() -> &'static [Crate] {
    static CRATES: LazyLock<Vec<Crate>> = LazyLock::new(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
        let manifest: &str = manifest.leak();
        let (_, members) = manifest.split_once("\nmembers = [").unwrap();
        let (members, _) = members.split_once(']').unwrap();
        let members = members.split('"').filter(|text| text.starts_with("runtime/"));
        let crates = members.map(|member| {
            let (_, name) = member.rsplit_once('/').unwrap();
            Crate { name, dir: root.join(member) }
        });
        crates.collect()
    });
    assert!(CRATES.len() > 30, "the crates are read");
    &CRATES
}

/// Crates that no program of a user has: doubles, fuzz targets, and what compiles the guests.
const FOR_TESTS: &[&str] = &["fuzz", "guests", "sim", "testing"];

/// A source file: its path under the `src` of a crate with the name of that before it; and its code
/// without comments and tests.
pub(crate) struct Source {
    path: String,
    pub(crate) code: String,
    lines: usize,
}

impl Source {
    /// `alloc::runner` for `alloc/runner.rs`.
    pub(crate) fn module(&self) -> String {
        self.path.trim_end_matches(".rs").replace('/', "::")
    }

    pub(crate) fn top(&self) -> &str {
        self.path.split(['/', '.']).next().unwrap()
    }
}

fn files(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(path);
        }
    }
}

fn is_test(path: &str) -> bool {
    path.split('/').next().is_some_and(|name| FOR_TESTS.contains(&name))
        || path == "node/watch/testing.rs"
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || path.ends_with("_tests.rs")
        || path == "state/testing.rs"
}

/// Everything before an inline test module, without what stands after `//` in a line.
fn shipped(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("#[cfg(test)]") {
            // Test modules stand at the end; between may be other attributes.
            let rest: Vec<&str> = lines.clone().take(12).collect();
            let module = rest.iter().find(|line| line.starts_with("mod "));
            if module.is_some_and(|line| line.ends_with('{')) {
                break;
            }
        }
        code.push_str(line.split("//").next().unwrap_or_default());
        code.push('\n');
    }
    code
}

fn sources() -> Vec<Source> {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR"));
    let roots = crates().iter().map(|of| (of.name, of.dir.join("src")));
    let roots = roots.chain([("ostler", runtime.join("src"))]);
    let mut sources = Vec::new();
    for (name, root) in roots {
        let mut paths = Vec::new();
        files(&root, &mut paths);
        assert!(!paths.is_empty(), "{}", root.display());
        sources.extend(paths.iter().map(|path| {
            let text = std::fs::read_to_string(path).unwrap();
            let below = Path::new(name).join(path.strip_prefix(&root).unwrap());
            let path = below.to_string_lossy().into_owned();
            Source { path, code: shipped(&text), lines: text.lines().count() }
        }));
    }
    assert!(sources.len() > 300, "the sources are read");
    sources
}

/// Read once: they are many.
pub(crate) fn shipped_sources() -> &'static [Source] {
    static SHIPPED: LazyLock<Vec<Source>> =
        LazyLock::new(|| sources().into_iter().filter(|source| !is_test(&source.path)).collect());
    &SHIPPED
}

/// Every line of the shipped code that holds one of `needles`, where `allowed` does not allow it.
fn lines_with(needles: &[&str], allowed: impl Fn(&Source) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for source in shipped_sources().iter().filter(|source| !allowed(source)) {
        for line in source.code.lines() {
            if needles.iter().any(|needle| line.contains(needle)) {
                found.push(format!("{}: {}", source.path, line.trim()));
            }
        }
    }
    found
}

const NOTHING: [String; 0] = [];

/// Files and directories that only compute: same input, same output.
const PURE: &[&str] = &[
    "agent/events/ring.rs",
    "agent/held_runs/decide.rs",
    "agent/upgrade/step.rs",
    "cluster-agent/disk_request.rs",
    "cluster/assigned_allocs.rs",
    "cluster/msgpack.rs",
    "cluster/previous.rs",
    "cluster/reports.rs",
    "cluster/rpc.rs",
    "cluster/updates.rs",
    "cluster/wanted_allocs.rs",
    "control/admission",
    "control/ended_places.rs",
    "control/gc/choice.rs",
    "control/unowned_runs.rs",
    "control/machine",
    "control/ports",
    "control/proposal.rs",
    "control/reconcile",
    "control/tables",
    "control/views.rs",
    "device/inventory.rs",
    "device/ledger.rs",
    "device/matching",
    "device/reservation.rs",
    "device/stats.rs",
    "explain",
    "jobsdir/hold.rs",
    "jobsdir/step.rs",
    "plugin/host/log_meter.rs",
    "jobspec/decode",
    "jobspec/encode.rs",
    "jobspec/encode_services.rs",
    "jobspec/hcl",
    "jobspec/inputs.rs",
    "jobspec/json",
    "jobspec/keys",
    "jobspec/text.rs",
    "lifecycle/alloc/checks/state.rs",
    "lifecycle/alloc/coordinator.rs",
    "lifecycle/alloc/fetch_tries.rs",
    "lifecycle/alloc/health",
    "lifecycle/alloc/machine",
    "lifecycle/alloc/services/offer.rs",
    "lifecycle/alloc/services/resolve.rs",
    "lifecycle/alloc/snapshot/place.rs",
    "lifecycle/alloc/status.rs",
    "lifecycle/alloc/update.rs",
    "lifecycle/task/env.rs",
    "lifecycle/task/events.rs",
    "lifecycle/task/interpolate.rs",
    "lifecycle/task/machine",
    "lifecycle/task/restart.rs",
    "lifecycle/task/templates/env_file.rs",
    "logs/plan.rs",
    "model",
    "node/constraint",
    "nomad-plugin/schema.rs",
    "nomad-plugin/values.rs",
    "node/fingerprint/dampen.rs",
    "node/version.rs",
    "node/watch/uevent.rs",
    "plugin/convert",
    "plugin/manifest.rs",
    "health/metrics.rs",
    "health/policy.rs",
    "plugin-tools/recording/file.rs",
    "plugin/schema_cost.rs",
    "template",
    "text",
    "health/strikes.rs",
    "fetch/inside.rs",
    "artifact/registry/auth.rs",
    "artifact/registry/manifest.rs",
    "sandbox/prescan.rs",
    "sandbox/share.rs",
    "state/dedup.rs",
    "state/journal",
    "state/keys",
    "artifact/trust/signature.rs",
    "artifact/trust/verdict.rs",
    "wire",
];

#[test]
fn pure_files_know_neither_runtime_nor_sandbox_nor_disk() {
    // The two doors of the model, and the streams of a command inside a task, which are named there alone.
    let doors = ["model/clock.rs", "model/disk_work.rs", "model/rng.rs", "model/session.rs"];
    let is_pure = |source: &Source| {
        PURE.iter().any(|pure| {
            source.path == *pure
                || source.path.strip_prefix(pure).is_some_and(|r| r.starts_with('/') || r == ".rs")
        }) && !doors.contains(&&*source.path)
    };
    for pure in PURE {
        let there = shipped_sources().iter().any(|source| source.path.starts_with(pure));
        assert!(there, "{pure} is listed as pure and not there: correct the list");
    }
    let impure =
        ["tokio", "wasmtime", "redb::", "std::fs", "std::process", "std::thread", "async "];
    let found = lines_with(&impure, |source| !is_pure(source));
    assert_eq!(found, NOTHING);
}

#[test]
fn only_the_sandbox_and_the_plugins_know_wasmtime() {
    let allowed = ["engine", "sandbox", "plugin", "wasm-task"];
    assert_eq!(lines_with(&["wasmtime"], |s| allowed.contains(&s.top())), NOTHING);
    let others = |of: &&Crate| !allowed.contains(&of.name) && !FOR_TESTS.contains(&of.name);
    for of in crates().iter().filter(others) {
        let manifest = std::fs::read_to_string(of.dir.join("Cargo.toml")).unwrap();
        assert!(!manifest.contains("wasmtime"), "{}", of.name);
    }
}

#[test]
fn only_state_knows_its_database() {
    assert_eq!(lines_with(&["redb::", "use redb"], |s| s.top() == "state"), NOTHING);
}

#[test]
fn only_clock_reads_time() {
    let reads = ["Instant::now", "SystemTime::now", "tokio::time", "thread::sleep"];
    assert_eq!(lines_with(&reads, |s| s.path == "model/clock.rs"), NOTHING);
}

#[test]
fn only_rng_reads_randomness() {
    let reads = ["getrandom", "new_v4", "thread_rng", "RandomState", "/dev/urandom"];
    assert_eq!(lines_with(&reads, |s| s.path == "model/rng.rs"), NOTHING);
}

/// The names of the crates of Ostler that a crate depends on, its tests included.
fn own_dependencies(name: &str) -> Vec<String> {
    let found = crates().iter().find(|of| of.name == name).unwrap();
    let manifest = std::fs::read_to_string(found.dir.join("Cargo.toml")).unwrap();
    let named = manifest.lines().filter(|line| line.starts_with("ostler-"));
    named.filter_map(|line| line.split(['.', ' ']).next().map(str::to_owned)).collect()
}

/// The folders below `runtime/`, from top to bottom.
const FOLDERS: [&str; 5] = ["faces", "core", "plugins", "machine", "base"];

#[test]
fn a_crate_uses_only_crates_of_its_own_folder_and_of_those_below() {
    let floor = |of: &Crate| {
        let folder = of.dir.parent().unwrap().file_name().unwrap();
        FOLDERS.iter().position(|name| folder == *name)
    };
    for of in crates() {
        // Tools are for tests, and may use all.
        let Some(own) = floor(of) else {
            assert!(FOR_TESTS.contains(&of.name), "{} is in no folder", of.name);
            continue;
        };
        let manifest = std::fs::read_to_string(of.dir.join("Cargo.toml")).unwrap();
        let shipped = manifest.split("[dev-dependencies]").next().unwrap();
        for line in shipped.lines().filter_map(|line| line.strip_prefix("ostler-")) {
            let name = line.split(['.', ' ']).next().unwrap();
            let used = crates().iter().find(|other| other.name == name).unwrap();
            let below = floor(used).is_some_and(|floor| floor >= own);
            assert!(below, "{} uses {name}, which is in a folder above", of.name);
        }
    }
}

/// What reads the text of strangers can be read, tested and given away without the rest.
#[test]
fn the_languages_of_templates_and_of_job_files_know_nothing_of_nodes() {
    assert_eq!(own_dependencies("text"), NOTHING);
    assert_eq!(own_dependencies("template"), ["ostler-text"]);
    let is_hcl = |source: &Source| {
        source.path == "jobspec/hcl.rs" || source.path.starts_with("jobspec/hcl/")
    };
    // Of the model: bounds, whether somebody still waits, and randomness.
    let outside = [
        "ostler_text::",
        "ostler_model::limits",
        "ostler_model::cancellation",
        "ostler_model::rng",
    ];
    let mut foreign = lines_with(&["ostler_"], |source| !is_hcl(source));
    foreign.retain(|line| !outside.iter().any(|path| line.contains(path)));
    assert_eq!(foreign, NOTHING);
    // Of its own crate: problems with their places, the tree that it makes, and what it reads.
    let beside = ["diagnostic", "tree", "inputs", "disk", "json"];
    let hcl: Vec<_> = shipped_sources().iter().filter(|source| is_hcl(source)).collect();
    assert!(hcl.len() > 20, "the reader of HCL is found");
    for source in hcl {
        for path in paths_after("crate::", &source.code) {
            let module = path.split("::").next().unwrap();
            assert!(beside.contains(&module), "{}: crate::{path}", source.path);
        }
    }
}

#[test]
fn only_the_process_crate_starts_processes_and_the_sandbox_its_compile_child() {
    let starts = ["Command::new", "Command::from", "posix_spawn", "libc::fork", "vfork"];
    let allowed = |s: &Source| s.top() == "process" || s.path == "sandbox/compile.rs";
    assert_eq!(lines_with(&starts, allowed), NOTHING);
}

/// What is made in one may be any user's, and stands below a directory that all users of the node may enter.
#[test]
fn temporary_directories_are_for_their_owner_alone() {
    assert_eq!(lines_with(&["tempfile::tempdir", "TempDir::new"], |_| false), NOTHING);
    let makes = |source: &Source| source.code.contains(".tempdir");
    let closed = |source: &Source| source.code.contains(".permissions(");
    assert_eq!(lines_with(&[".tempdir"], |source| closed(source)), NOTHING);
    assert!(shipped_sources().iter().any(makes), "they are found");
}

#[test]
fn nothing_but_tests_uses_the_testing_module() {
    assert_eq!(lines_with(&["ostler_testing", "proptest"], |_| false), NOTHING);
}

#[test]
fn a_types_name_means_one_thing_also_where_the_type_is_private() {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for source in shipped_sources() {
        for name in source.code.lines().filter_map(type_name) {
            places.entry(name.to_owned()).or_default().push(source.path.clone());
        }
    }
    assert!(places.len() > 2_000, "the types are read");
    let shared: Vec<_> = places.into_iter().filter(|(_, paths)| paths.len() > 1).collect();
    assert_eq!(shared, [], "give each the name of what it is, as `ClaimEvent`");
}

/// The type that a line defines. An alias counts where it is public: others shorten what a file says.
fn type_name(line: &str) -> Option<&str> {
    let text = line.trim_start();
    let text = match text.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
        Some(rest) => rest.strip_prefix(' ')?,
        None => text,
    };
    let (kind, name) = text.split_once(' ')?;
    let end = name.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(name.len());
    let is_type = ["struct", "enum", "union", "trait"].contains(&kind)
        || (kind == "type" && line.starts_with("pub "));
    (is_type && end > 0).then(|| &name[..end])
}

#[test]
fn the_names_of_types_are_read_whoever_sees_them() {
    assert_eq!(type_name("pub struct Claim<'a> {"), Some("Claim"));
    assert_eq!(type_name("pub type CommitResult = Result<(), ()>;"), Some("CommitResult"));
    assert_eq!(type_name("    pub(super) enum Event {"), Some("Event"));
    assert_eq!(type_name("struct A;"), Some("A"));
    for line in [
        "pub fn claim() {",
        "    type Output = u8;",
        "type Row = [u8; 4];",
        "$(#[$doc])* pub struct $name {",
    ] {
        assert_eq!(type_name(line), None, "{line}");
    }
}

#[test]
fn every_crate_begins_with_few_lines_that_say_what_it_is_for() {
    for Crate { name, dir } in crates() {
        let text = std::fs::read_to_string(dir.join("src/lib.rs")).unwrap();
        let lines = text.lines().take_while(|line| line.starts_with("//!")).count();
        assert!((3..=15).contains(&lines), "{name}: {lines} lines");
        let doc = text.lines().take(lines).collect::<Vec<_>>().join(" ");
        assert!(doc.contains("Start "), "{name} does not say where to start reading");
    }
}

#[test]
fn no_file_is_longer_than_a_person_reads_at_once() {
    const LINES_MAX: usize = 600;
    let long: Vec<String> = sources()
        .iter()
        .filter(|source| source.lines > LINES_MAX)
        .map(|source| format!("{}: {} lines", source.path, source.lines))
        .collect();
    assert_eq!(long, NOTHING);
}

#[test]
fn a_module_is_a_file_and_a_folder_beside_it_has_more_than_one() {
    let runtime = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    for of in crates() {
        files(&of.dir.join("src"), &mut paths);
    }
    files(&runtime.join("tests/it"), &mut paths);
    assert!(paths.len() > 500, "the files are found");
    let mut wrong = Vec::new();
    for path in paths {
        let (dir, name) = (path.parent().unwrap(), path.file_name().unwrap().to_string_lossy());
        let folder = name.strip_suffix("_tests.rs").map(|of| dir.join(of));
        let entries = std::fs::read_dir(dir).unwrap().count();
        if name == "mod.rs"
            || (entries == 1 && dir.file_name().is_some_and(|dir| dir != "src"))
            || folder.is_some_and(|folder| folder.is_dir())
        {
            wrong.push(path.display().to_string());
        }
    }
    assert_eq!(wrong, NOTHING);
}

#[test]
fn the_command_line_touches_the_agent_only_through_its_handle_and_plain_data() {
    // `sandbox::compile_child_main` and `host::process::supervise::main` are other programs in the
    // same file, not the agent.
    let allowed = [
        "lifecycle::alloc",
        "process::supervise::main",
        "plugin::manifest",
        "sandbox::compile_child_main",
        "sandbox::threads",
    ];
    assert_eq!(imports_beyond("cli", &allowed), NOTHING);
}

#[test]
fn the_api_touches_the_agent_only_through_its_handle_and_plain_data() {
    let allowed = [
        "lifecycle::alloc::AllocHandle",
        "lifecycle::alloc::dir",
        "lifecycle::task::RequestError",
        "sandbox::threads",
    ];
    assert_eq!(imports_beyond("api", &allowed), NOTHING);
}

fn imports_beyond(module: &str, allowed: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for source in shipped_sources().iter().filter(|source| source.top() == module) {
        // Of the layers below only these have more than plain data.
        let layers = ["device", "lifecycle", "plugin", "process", "sandbox"];
        let below = layers.iter().flat_map(|name| {
            let paths = paths_after(&format!("ostler_{name}::"), &source.code).into_iter();
            paths.map(move |path| format!("{name}::{path}"))
        });
        for path in below {
            let fits = |unit: &&str| path == **unit || path.starts_with(&format!("{unit}::"));
            if !allowed.iter().any(fits) {
                wrong.push(format!("{}: {path}", source.path));
            }
        }
    }
    wrong
}

/// What may import what inside the crate of plugins: each unit may use those above it; `*` is whatever
/// is not named.
const ORDER_OF_PLUGINS: &[&str] = &["manifest", "bindings", "host", "*", "drivers"];

/// The `a::b` of every `crate::a::b` in some code, or of another start; of `crate::{a, b::c}` both.
fn paths_after(start: &str, code: &str) -> Vec<String> {
    let paths = named_paths(code).into_iter();
    paths
        .filter_map(|path| Some(path.strip_prefix(start)?.trim_end_matches(':').to_owned()))
        .collect()
}

#[test]
fn paths_are_found_alone_and_in_braces() {
    let code = "use crate::{clock, limits::MIB};\nlet x = crate::model::ids::AllocId;";
    assert_eq!(paths_after("crate::", code), ["clock", "limits::MIB", "model::ids::AllocId"]);
}

/// The place of a path: that of the longest unit that it is in.
fn place(path: &str, order: &[&str]) -> Option<usize> {
    let fits = |unit: &str| unit == "*" || path == unit || path.starts_with(&format!("{unit}::"));
    let units = order.iter().enumerate().filter(|(_, unit)| fits(unit));
    units.max_by_key(|(_, unit)| if **unit == "*" { 0 } else { unit.len() }).map(|(index, _)| index)
}

fn upward(of: impl Fn(&Source) -> bool, prefix: &str, order: &[&str]) -> Vec<String> {
    let mut wrong = Vec::new();
    for source in shipped_sources().iter().filter(|source| of(source)) {
        let module = source.module();
        let module = module.strip_prefix(prefix).unwrap_or(&module);
        if module == "lib" {
            continue;
        }
        let Some(from) = place(module, order) else {
            wrong.push(format!("{} has no place in the order", source.path));
            continue;
        };
        for path in paths_after("crate::", &source.code) {
            match place(&path, order) {
                None => wrong.push(format!("{}: crate::{path} has no place", source.path)),
                Some(to) if to > from => {
                    wrong.push(format!("{}: crate::{path} points upwards", source.path));
                }
                Some(_) => {}
            }
        }
    }
    wrong
}

#[test]
fn imports_between_modules_of_a_crate_point_one_way() {
    let of_plugins = |source: &Source| source.top() == "plugin";
    assert_eq!(upward(of_plugins, "plugin::", ORDER_OF_PLUGINS), NOTHING);
}
