//! The binary as people and scripts use it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_model::clock;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, BufReader};

use crate::support::binary::{Ended, command, ostler, run};
use crate::support::jobs::{batch, isolated_shell as shell, wasm};
use crate::support::system::{eventually, isolated_processes_of, pid_in, processes_of, runs};
use crate::support::{DataDir, PATIENCE};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");

fn example(job: &str) -> PathBuf {
    Path::new(EXAMPLES).join("jobs").join(job)
}

fn written(dir: &DataDir, job: &str) -> PathBuf {
    let file = dir.path().join("job.hcl");
    std::fs::write(&file, job).unwrap();
    file
}

/// Lines of `--json` output.
fn objects(stdout: &str) -> Vec<Value> {
    let parse = |line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    stdout.lines().map(parse).collect()
}

fn json(ended: &Ended) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|e| panic!("{e}: {ended:#?}"))
}

/// The arguments with `--data-dir` of a fresh directory that has compiled plugins.
async fn with_data(args: &[&str]) -> Ended {
    let data = DataDir::new();
    let dir = data.path().to_str().unwrap();
    ostler(args.iter().copied().chain(["--data-dir", dir])).await
}

#[tokio::test]
async fn the_first_example_runs_both_kinds_of_tasks_and_shows_their_output() {
    let data = DataDir::new();
    let ended = run(data.path(), &example("hello.hcl")).await;
    ended.said(
        0,
        &["placed hello.greeters[0]", "ostler/file/files [sample]", "job hello is complete"],
    );
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(lines.contains(&"wasm   | I am task wasm."), "{ended:#?}");
    assert!(
        lines.iter().any(|l| l.starts_with("wasm   | device /local/devices/sample: Every file"))
    );
    let native = |l: &&str| {
        l.starts_with("native | hello from process") && l.ends_with("task native of hello")
    };
    assert!(lines.iter().any(native), "{ended:#?}");
    assert!(ended.stderr.contains("wasm   | This line goes to stderr."), "{ended:#?}");
    assert_eq!(processes_of(data.path()), [0_u32; 0]);
}

#[tokio::test]
async fn it_runs_from_the_directory_of_the_job_and_without_a_data_directory() {
    let mut command = command(["run", "hello.hcl"]);
    command.current_dir(Path::new(EXAMPLES).join("jobs"));
    let output = clock::timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(stdout.contains("wasm   | I am task wasm."), "{stdout}");
}

#[tokio::test]
async fn every_example_job_is_valid() {
    for entry in std::fs::read_dir(Path::new(EXAMPLES).join("jobs")).unwrap() {
        let file = entry.unwrap().path();
        let ended = with_data(&["job", "validate", file.to_str().unwrap()]).await;
        assert_eq!(ended.code, Some(0), "{}: {ended:#?}", file.display());
        let text = std::fs::read_to_string(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let hint = format!("ostler run examples/jobs/{name}");
        assert!(text.starts_with('#') && text.contains(&hint), "{name} says how to run it");
    }
}

#[tokio::test]
async fn the_example_of_a_lifecycle_runs_in_order() {
    let data = DataDir::new();
    let ended = run(data.path(), &example("lifecycle.hcl")).await;
    ended.said(0, &["job lifecycle is complete"]);
    let place = |text: &str| {
        let found = ended.stdout.lines().position(|line| line.contains(text));
        found.unwrap_or_else(|| panic!("{text} in {ended:#?}"))
    };
    assert!(place("| prepared") < place("| working with 3 lines"), "{ended:#?}");
    assert!(place("| working with 3 lines") < place("| cleaned up"), "{ended:#?}");
}

#[tokio::test]
async fn the_example_of_devices_assigns_them() {
    let data = DataDir::new();
    let ended = run(data.path(), &example("devices.hcl")).await;
    ended.said(0, &["job devices is complete"]);
    assert!(ended.stdout.contains("device /local/devices/sample"), "{ended:#?}");
}

#[tokio::test]
async fn with_json_every_line_is_an_object_and_the_last_one_is_the_result() {
    let data = DataDir::new();
    let job = batch(
        &[
            shell("native", "echo one; echo two >&2; printf three", ""),
            wasm("component", "guest:toolbox", &["args", "four"], ""),
        ]
        .concat(),
    );
    let file = written(&data, &job);
    let args =
        ["run", "--json", "--data-dir", data.path().to_str().unwrap(), file.to_str().unwrap()];
    let ended = ostler(args).await;
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:#?}");
    let objects = objects(&ended.stdout);
    let known =
        ["node", "plugin", "notice", "placed", "event", "output", "status", "progress", "result"];
    for object in &objects {
        assert!(known.contains(&object["type"].as_str().unwrap()), "{object}");
    }
    let mut printed: Vec<_> = objects
        .iter()
        .filter(|object| object["type"] == "output")
        .map(|o| [&o["task"], &o["stream"], &o["text"]].map(|v| v.as_str().unwrap()).join(" "))
        .collect();
    printed.sort();
    assert_eq!(
        printed,
        ["component stdout four", "native stderr two", "native stdout one", "native stdout three"]
    );
    let kinds: Vec<_> = objects
        .iter()
        .filter(|o| o["type"] == "event" && o["task"] == "native")
        .map(|o| o["event"]["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["Received", "Task Setup", "Started", "Terminated"]);
    let last = objects.last().unwrap();
    assert_eq!(
        (&last["type"], &last["successful"], &last["exit_code"]),
        (&"result".into(), &true.into(), &0.into())
    );
}

#[tokio::test]
async fn the_exit_code_is_that_of_the_task_that_failed() {
    let data = DataDir::new();
    let file = written(&data, &batch(&shell("t", "echo before; exit 37", "")));
    let ended = run(data.path(), &file).await;
    ended.said(37, &["job j failed with exit code 37", "task t of j.g0[0] failed: exit code 37"]);
    assert_eq!(ended.stdout, "t | before\n");
}

#[tokio::test]
async fn a_task_without_its_program_fails_and_says_so() {
    let data = DataDir::new();
    let job = batch(&wasm("t", "/nowhere/x.wasm", &[], ""));
    let ended = run(data.path(), &written(&data, &job)).await;
    ended.said(1, &["/nowhere/x.wasm is not there", "${job.dir}"]);
}

/// A job whose task ignores everything but being killed.
fn long_lived(more: &str) -> String {
    let script = "trap '' INT TERM; echo $$ > $NOMAD_TASK_DIR/pid; while :; do sleep 0.05; done";
    batch(&[shell("native", script, more), wasm("spins", "guest:toolbox", &["spin"], "")].concat())
}

/// The processes of the native task, once it ignores signals. It does not know its pid here.
async fn task_pids(data: &DataDir) -> Vec<u32> {
    let allocs = data.path().join("allocs");
    let find = || {
        let entry = std::fs::read_dir(&allocs).ok()?.flatten().next()?;
        Some(entry.path().join("native/local/pid"))
    };
    eventually("the task's directory", || find().is_some_and(|file| file.exists())).await;
    assert_eq!(pid_in(&find().unwrap()).await, 2, "process 1 is the agent's");
    isolated_processes_of(data.path())
}

async fn interrupted(data: &DataDir, job: &str, signals: &[Signal]) -> Ended {
    let file = written(data, job);
    let args = ["run", "--data-dir", data.path().to_str().unwrap(), file.to_str().unwrap()];
    let mut child = command(args).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let task = task_pids(data).await;
    assert!(task.len() >= 2, "{task:?}");
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    let mut said = String::new();
    let wait = async {
        for (number, signal) in signals.iter().enumerate() {
            kill_process(pid, *signal).unwrap();
            // The next one only when this one was taken.
            while number + 1 < signals.len() {
                let line = lines.next_line().await.unwrap().expect("it is still there");
                said += &format!("{line}\n");
                if line.contains("stopping job") {
                    break;
                }
            }
        }
        while let Some(line) = lines.next_line().await.unwrap() {
            said += &format!("{line}\n");
        }
        child.wait().await.unwrap()
    };
    let status = clock::timeout(PATIENCE, wait).await.expect("it ends");
    let left: Vec<u32> = task.into_iter().filter(|pid| runs(*pid)).collect();
    assert_eq!(left, [0; 0], "the task is gone");
    eventually("nothing is left", || processes_of(data.path()).is_empty()).await;
    Ended { code: status.code(), stdout: String::new(), stderr: said }
}

#[tokio::test]
async fn ctrl_c_stops_the_job_in_order() {
    let data = DataDir::new();
    let ended = interrupted(&data, &long_lived("kill_timeout = \"200ms\""), &[Signal::INT]).await;
    ended.said(130, &["Ctrl-C: stopping job j", "Killing", "Killed", "job j was stopped"]);
}

#[tokio::test]
async fn a_second_ctrl_c_does_not_wait_for_the_kill_timeout() {
    let data = DataDir::new();
    // Begun before the first signal: had the kill timeout been waited for, it would show here.
    let stopwatch = clock::Stopwatch::start();
    let signals = [Signal::INT, Signal::INT];
    let ended = interrupted(&data, &long_lived("kill_timeout = \"30s\""), &signals).await;
    ended.said(130, &["a second signal kills it at once"]);
    let last = ended.stderr.lines().last().unwrap_or_default();
    assert!(!last.is_empty(), "{ended:#?}");
    assert!(stopwatch.elapsed() < Duration::from_secs(30), "{:?}", stopwatch.elapsed());
}

#[tokio::test]
async fn a_termination_signal_ends_it_too() {
    let data = DataDir::new();
    let ended = interrupted(&data, &long_lived("kill_timeout = \"200ms\""), &[Signal::TERM]).await;
    ended.said(143, &["SIGTERM: stopping job j"]);
}

#[tokio::test]
async fn a_valid_job_file_is_called_valid() {
    let file = example("hello.hcl");
    let file = file.to_str().unwrap();
    let ended = with_data(&["job", "validate", file]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    assert!(ended.stdout.contains("is valid: job hello with 1 group, 2 tasks and 1 allocation"));
    let verdict = json(&with_data(&["job", "validate", "--json", file]).await);
    assert_eq!((&verdict["valid"], &verdict["drivers_checked"]), (&true.into(), &true.into()));
}

#[tokio::test]
async fn everything_wrong_in_a_job_file_is_shown_at_once_with_its_place() {
    let data = DataDir::new();
    let job = "job \"j\" {\n  group \"g\" {\n    cout = 2\n    task \"t\" {\n      driver = \"exec\"\n      \
               kill_timeout = \"soon\"\n      resources {\n        memory = \"much\"\n      }\n    }\n  }\n}\n";
    let file = written(&data, job);
    let name = file.to_str().unwrap();
    let ended = ostler(["job", "validate", name]).await;
    ended.said(
        2,
        &[&format!("{name}:3:5"), "    cout = 2", "^^^^", "count", ":6:", ":8:", "3 problems"],
    );
    assert_eq!(ended.stdout, "");
    let verdict = json(&ostler(["job", "validate", "--json", name]).await);
    assert_eq!(verdict["valid"], false);
    let places: Vec<_> =
        verdict["diagnostics"].as_array().unwrap().iter().map(|d| &d["line"]).collect();
    assert_eq!(places, [&Value::from(3), &6.into(), &8.into()], "{verdict:#}");
    // The same file is refused by `run`, in the same words.
    run(data.path(), &file).await.said(2, &["    cout = 2", "^^^^"]);
}

#[tokio::test]
async fn a_configuration_that_does_not_fit_its_driver_is_found_before_anything_runs() {
    let data = DataDir::new();
    let job = batch(&shell("t", "true", "").replace("command", "comand"));
    let file = written(&data, &job);
    let ended = with_data(&["job", "validate", file.to_str().unwrap()]).await;
    let line = 1 + job.lines().position(|line| line.contains("comand")).unwrap();
    let place = format!(":{line}:2: error: \"comand\" is unknown");
    let said = [place.as_str(), "did you mean command?", "2 problems"];
    ended.said(2, &said);
    run(data.path(), &file).await.said(2, &said);
    let syntax = ostler(["job", "validate", "--syntax-only", file.to_str().unwrap()]).await;
    assert_eq!(syntax.code, Some(0), "{syntax:#?}");
}

#[tokio::test]
async fn plugins_are_listed_with_what_they_may_do() {
    let ended = with_data(&["plugin", "list"]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let row = |name: &str| {
        let found = ended.stdout.lines().find(|line| line.starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in {}", ended.stdout))
    };
    assert!(row("exec").contains("driver") && row("exec").contains("process"));
    assert!(row("wasm").contains("wasm_task"));
    assert!(row("files").contains("device") && row("files").contains("loaded"));
    let list = json(&with_data(&["plugin", "list", "--json"]).await);
    let names: Vec<_> =
        list.as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    let built_in = [
        "exec",
        "files",
        "hwmon",
        "mock",
        "mock_device",
        "nvidia",
        "pci",
        "raw_exec",
        "usb",
        "wasm",
    ];
    assert_eq!(names, built_in);
}

#[tokio::test]
async fn a_plugin_file_tells_its_whole_authority_without_being_run() {
    let file = ostler_guests::fixtures::DRIVER_EXEC;
    let ended = ostler(["plugin", "inspect", file]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    for text in [
        "driver plugin",
        "ostler:plugin@0.1.0",
        "start and control task processes (needs a grant)",
        "ostler:plugin/process@0.1.0",
        "process = true",
    ] {
        assert!(ended.stdout.contains(text), "nothing of {text:?} in {}", ended.stdout);
    }
    let about = json(&ostler(["plugin", "inspect", "--json", file]).await);
    assert_eq!(about["kind"], "driver");
    assert_eq!(about["size_bytes"], std::fs::metadata(file).unwrap().len());
    let asks = about["asks"].as_array().unwrap();
    assert!(asks.iter().any(|ask| ask["authority"] == "process" && ask["always_granted"] == false));
    let greedy =
        ostler(["plugin", "inspect", ostler_guests::fixtures::HOSTILE_WANTS_SOCKETS]).await;
    assert!(
        greedy.stdout.contains("open TCP connections to granted places (needs a grant)"),
        "{greedy:#?}"
    );
    ostler(["plugin", "inspect", ostler_guests::fixtures::HELLO_P1])
        .await
        .said(2, &["is not a plugin"]);
}

#[tokio::test]
async fn the_node_shows_its_attributes_drivers_and_devices() {
    let ended = with_data(&["node", "status"]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    for text in
        ["kernel.name", "cpu.numcores", "mock_driver", "healthy", "ostler/file/files", "sample"]
    {
        assert!(ended.stdout.contains(text), "nothing of {text:?} in {}", ended.stdout);
    }
    let node = json(&with_data(&["node", "status", "--json"]).await);
    assert!(node["attributes"]["kernel.name"].to_string().contains("linux"), "{node:#}");
    assert_eq!(node["drivers"]["exec"]["health"]["state"], "healthy");
    assert!(node["devices"].as_array().unwrap().iter().any(|g| g["key"]["name"] == "files"));
}

#[tokio::test]
async fn shells_and_man_get_what_they_read() {
    for shell in ["bash", "zsh", "fish"] {
        let ended = ostler(["completions", shell]).await;
        assert_eq!(ended.code, Some(0));
        // The program itself completes: its script asks it.
        assert!(ended.stdout.contains("COMPLETE=") && ended.stdout.contains("ostler"), "{shell}");
    }
    let page = ostler(["man"]).await.stdout;
    assert!(page.contains(".TH ostler 1"), "{page}");
    let dir = tempfile::tempdir().unwrap();
    let ended = ostler(["man", "--dir", dir.path().to_str().unwrap()]).await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    assert!(dir.path().join("ostler-run.1").exists());
}

#[tokio::test]
async fn the_help_of_every_command_has_examples() {
    for words in [
        "",
        "run",
        "job validate",
        "plugin list",
        "plugin inspect",
        "node status",
        "completions",
        "man",
    ] {
        let ended = ostler(words.split_whitespace().chain(["--help"])).await;
        assert_eq!(ended.code, Some(0), "{words}");
        assert!(ended.stdout.contains("Examples:\n  ostler "), "{words}: {}", ended.stdout);
    }
}

#[tokio::test]
async fn wrong_usage_is_told_apart_from_a_failed_job() {
    ostler(["run"]).await.said(2, &["<FILE>"]);
    ostler(["rum", "x.hcl"]).await.said(2, &["run"]);
    ostler(["run", "/nowhere.hcl"]).await.said(2, &["/nowhere.hcl"]);
}

#[tokio::test]
async fn a_reader_that_leaves_stops_the_job() {
    let data = DataDir::new();
    let job = batch(&shell("t", "while :; do echo more; done", "kill_timeout = \"200ms\""));
    let file = written(&data, &job);
    let args = ["run", "--data-dir", data.path().to_str().unwrap(), file.to_str().unwrap()];
    let mut child = command(args).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = clock::timeout(PATIENCE, lines.next_line()).await.expect("output").unwrap();
    assert_eq!(first.as_deref(), Some("t | more"));
    drop(lines);
    let ended = clock::timeout(PATIENCE, child.wait_with_output()).await.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(141), "{said}");
    eventually("nothing is left", || processes_of(data.path()).is_empty()).await;
}
