//! Programs nobody here wrote, as WASM tasks over real files of several megabytes. What they print
//! is compared byte for byte with what a native program makes of the same files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

use ostler_agent::JobResult;

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, batch, exit, groups, lifecycle, shell, wasm};
use crate::support::needs::{Need, not_asked, skipped};
use crate::support::programs::{COREUTILS, HEXYL, HTMLQ, JAQ, Program, RIPGREP, SD, WASIP1, all};

/// The paths of programs, or an early end of the test.
macro_rules! programs {
    ($($program:expr),*) => {
        ($(match $program.path() {
            Ok(path) => path,
            Err(why) => return skipped(Need::Programs, &why),
        }),*,)
    };
}

const MEMORY: &str = "resources {\n cpu = 50\n memory = 256\n }\n logs {\n max_file_size = 100\n }";

/// This repository's own sources, several times over, as text and as JSON lines.
struct Corpus {
    dir: TempDir,
}

impl Corpus {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut files = Vec::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("faces/cli/src"), &mut files);
        files.sort();
        let (mut text, mut json) = (String::new(), String::new());
        while text.len() < 4 << 20 {
            for file in &files {
                let name = file.file_name().unwrap().to_string_lossy();
                let content = std::fs::read_to_string(file).unwrap();
                for (number, line) in content.lines().enumerate() {
                    let line = serde_json::json!({"file": name, "line": number + 1, "text": line});
                    writeln!(json, "{line}").unwrap();
                }
                text.push_str(&content);
            }
        }
        std::fs::write(dir.path().join("source.txt"), &text).unwrap();
        std::fs::write(dir.path().join("lines.json"), &json).unwrap();
        Self { dir }
    }

    fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A prestart task that brings the files into the directory the tasks share.
    fn fetch(&self) -> String {
        let script = format!("cp {}/* $NOMAD_ALLOC_DIR/data/", self.dir.path().display());
        shell("fetch", &script, &lifecycle("prestart", false))
    }
}

fn sources(dir: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|end| end == "rs") {
            into.push(path);
        }
    }
}

/// What a program of this machine does.
fn native(program: impl AsRef<std::ffi::OsStr>, args: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(args).env_clear().env("PATH", "/usr/bin:/bin").env("LC_ALL", "C.UTF-8");
    command.output().unwrap()
}

#[track_caller]
fn assert_same(task: &str, ours: &str, theirs: &Output) {
    let theirs = String::from_utf8_lossy(&theirs.stdout);
    assert!(!theirs.is_empty(), "{task}: nothing to compare with");
    if ours != theirs {
        let differ = ours.lines().zip(theirs.lines()).find(|(a, b)| a != b);
        panic!(
            "{task}: {} bytes, natively {}; first difference {differ:?}",
            ours.len(),
            theirs.len()
        );
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn data(agent: &TestAgent, result: &JobResult) -> PathBuf {
    agent.handle.data_dir().join(format!("allocs/{}/alloc/data", result.allocs[0].id))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_of_real_programs_gives_the_bytes_of_native_ones() {
    let (rg, jaq, native_jaq) = programs!(RIPGREP, JAQ, JAQ.native());
    let corpus = Corpus::new();
    let pattern = "fn [a-z_]+[(]";
    let filter =
        "select(.line % 3 == 0) | {file, size: (.text | length), words: (.text | split(\" \"))}";
    let agent = TestAgent::start().await;
    let table = "{function: ., size: length}";
    // Files, then search and query side by side, then a table of what the search found: its log.
    let poststop = format!("{MEMORY}\n {}", lifecycle("poststop", false));
    let result = agent
        .run(&batch(
            &[
                corpus.fetch(),
                wasm("search", &text(&rg), &["-N", pattern, "/alloc/data/source.txt"], MEMORY),
                wasm("query", &text(&jaq), &["-c", filter, "/alloc/data/lines.json"], MEMORY),
                wasm(
                    "table",
                    &text(&jaq),
                    &["-R", "-c", table, "/alloc/logs/search.stdout.0"],
                    &poststop,
                ),
            ]
            .concat(),
        ))
        .await;
    assert_successful(&result);
    let found = native("grep", &["-E", pattern, &corpus.file("source.txt")]);
    assert_same("search", &agent.stdout(&result, "search"), &found);
    let queried = native(&native_jaq, &["-c", filter, &corpus.file("lines.json")]);
    assert_same("query", &agent.stdout(&result, "query"), &queried);
    std::fs::write(corpus.file("found"), &found.stdout).unwrap();
    let listed = native(&native_jaq, &["-R", "-c", table, &corpus.file("found")]);
    assert_same("table", &agent.stdout(&result, "table"), &listed);
    assert!(found.stdout.len() > 100_000, "the files are large enough to mean something");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_over_a_whole_tree_finds_what_grep_finds() {
    let (rg,) = programs!(RIPGREP);
    let corpus = Corpus::new();
    let agent = TestAgent::start().await;
    let count = ["-c", "--no-filename", "Result<", "/alloc/data/source.txt"];
    let args = ["-N", "--no-heading", "--sort", "path", "unwrap", "/alloc/data"];
    let blocks = [
        corpus.fetch(),
        wasm("tree", &text(&rg), &args, MEMORY),
        wasm("count", &text(&rg), &count, MEMORY),
    ];
    let result = agent.run(&batch(&blocks.concat())).await;
    assert_successful(&result);
    let dir = data(&agent, &result);
    let (json, source) = (dir.join("lines.json"), dir.join("source.txt"));
    let theirs = native("grep", &["-H", "unwrap", &text(&json), &text(&source)]);
    let ours =
        agent.stdout(&result, "tree").replace("/alloc/data/", &format!("{}/", dir.display()));
    assert_same("tree", &ours, &theirs);
    let theirs = native("grep", &["-c", "Result<", &text(&source)]);
    assert_same("count", &agent.stdout(&result, "count"), &theirs);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preview_1_programs_keep_their_exit_codes() {
    let (jaq, native_jaq) = programs!(JAQ, JAQ.native());
    let agent = TestAgent::start().await;
    let tries: [(&str, &[&str]); 4] = [
        ("good", &["-n", "1"]),
        ("false", &["-n", "-e", "false"]),
        ("nonsense", &["-n", "]["]),
        ("absent", &[".", "/nowhere"]),
    ];
    let tasks = tries.iter().map(|(name, args)| wasm(name, &text(&jaq), args, MEMORY));
    let result = agent.run(&groups(tasks)).await;
    let mut seen = Vec::new();
    for (name, args) in tries {
        let theirs = native(&native_jaq, args).status.code();
        assert_eq!(Some(exit(&result, name).exit_code), theirs, "{name}");
        seen.push(theirs.unwrap());
    }
    seen.dedup();
    assert!(seen.len() >= 3, "the codes tell something: {seen:?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sd_refuses_a_wrong_pattern_with_its_code_and_message() {
    if !all() {
        return not_asked("sd is built with OSTLER_REAL_PROGRAMS=all");
    }
    let (sd,) = programs!(SD);
    let agent = TestAgent::start().await;
    let result = agent.run(&batch(&wasm("t", &text(&sd), &["(", "x"], MEMORY))).await;
    assert_eq!(exit(&result, "t").exit_code, 1);
    assert!(agent.log(&result, "t", "stderr").contains("unclosed group"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn uutils_sort_count_and_sum_as_the_tools_of_this_machine() {
    if !all() {
        return not_asked("coreutils takes minutes to build; OSTLER_REAL_PROGRAMS=all runs it");
    }
    let (coreutils,) = programs!(COREUTILS);
    let corpus = Corpus::new();
    let agent = TestAgent::start().await;
    let tools: [(&str, &[&str]); 5] = [
        ("sort", &["sort", "/alloc/data/source.txt"]),
        ("reverse", &["sort", "-r", "-u", "/alloc/data/lines.json"]),
        ("wc", &["wc", "-lc", "/alloc/data/source.txt"]),
        ("cksum", &["cksum", "/alloc/data/lines.json"]),
        ("cut", &["cut", "-d ", "-f5-6", "/alloc/data/source.txt"]),
    ];
    let tasks = tools.iter().map(|(name, args)| wasm(name, &text(&coreutils), args, MEMORY));
    let result = agent.run(&batch(&(corpus.fetch() + &tasks.collect::<String>()))).await;
    assert_successful(&result);
    for (name, args) in tools {
        let here = |arg: &&str| arg.replace("/alloc/data", &text(corpus.dir.path()));
        let args: Vec<String> = args.iter().map(here).collect();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut ours = agent.stdout(&result, name);
        // These say the name of the file; what is in it may say such a name too, and must not change.
        if ["wc", "cksum"].contains(&name) {
            ours = ours.replace("/alloc/data", &text(corpus.dir.path()));
        }
        assert_same(name, &ours, &native(args[0], &args[1..]));
    }
    agent.stop().await;
}

async fn same_as_its_native_twin(program: Program, args: &[&str], files: &[(&str, &[u8])]) {
    let (ours, theirs) = match (program.path(), program.native().path()) {
        (Ok(ours), Ok(theirs)) => (ours, theirs),
        (Err(why), _) | (_, Err(why)) => return skipped(Need::Programs, &why),
    };
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        std::fs::write(dir.path().join(name), content).unwrap();
    }
    let agent = TestAgent::start().await;
    let fetch = format!("cp {}/* $NOMAD_ALLOC_DIR/data/", dir.path().display());
    let blocks = [
        shell("fetch", &fetch, &lifecycle("prestart", false)),
        wasm("t", &text(&ours), args, MEMORY),
    ];
    let result = agent.run(&batch(&blocks.concat())).await;
    assert_successful(&result);
    let here: Vec<String> =
        args.iter().map(|arg| arg.replace("/alloc/data", &text(dir.path()))).collect();
    let here: Vec<&str> = here.iter().map(String::as_str).collect();
    assert_same("t", &agent.stdout(&result, "t"), &native(theirs, &here));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hexyl_dumps_a_binary_as_natively() {
    if !all() {
        return not_asked("hexyl and its native twin are built with OSTLER_REAL_PROGRAMS=all");
    }
    let binary = std::fs::read(ostler_guests::fixtures::TOOLBOX_P1).unwrap();
    let binary: Vec<u8> = binary.into_iter().cycle().take(1 << 20).collect();
    let args = ["--color=never", "--terminal-width=80", "/alloc/data/binary"];
    same_as_its_native_twin(HEXYL, &args, &[("binary", &binary)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn htmlq_selects_as_natively() {
    if !all() {
        return not_asked("htmlq and its native twin are built with OSTLER_REAL_PROGRAMS=all");
    }
    let mut page = String::from("<html><body>");
    for number in 0..40_000 {
        let class = ["plain", "marked"][number % 2];
        writeln!(page, "<p class=\"{class}\">paragraph <b>{number}</b> &amp; more</p>").unwrap();
    }
    let args = ["--text", "--filename", "/alloc/data/page.html", "p.marked b"];
    same_as_its_native_twin(HTMLQ, &args, &[("page.html", page.as_bytes())]).await;
}

#[test]
fn the_programs_are_of_both_kinds() {
    let path = |program: Program| program.path();
    let (Ok(component), Ok(module)) = (path(RIPGREP), path(JAQ)) else {
        return skipped(Need::Programs, "the programs are not built");
    };
    let layer = |file: PathBuf| std::fs::read(file).unwrap()[6];
    assert_eq!((layer(component), layer(module)), (1, 0), "a component, and a module of {WASIP1}");
}
