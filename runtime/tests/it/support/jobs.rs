//! Job texts.

use std::path::Path;

use ostler_agent::JobResult;
use ostler_guests::fixtures;
use ostler_model::event::EventKind;
use ostler_model::ids::TaskName;
use ostler_model::task::{ExitResult, TaskState};

/// `"guest:toolbox"` becomes the path of that compiled guest.
pub fn with_guests(job: &str) -> String {
    fixtures::ALL.iter().fold(job.to_owned(), |job, path| {
        let name = Path::new(path).file_stem().unwrap().to_string_lossy();
        job.replace(&format!("\"guest:{name}\""), &quoted(path))
    })
}

/// What failed gets no successor.
pub const STAYS_FAILED: &str = "reschedule {\n attempts = 0\n unlimited = false\n }";

/// A batch job `j` with one group `g` of these blocks; nothing is started twice.
pub fn batch(blocks: &str) -> String {
    groups([blocks])
}

/// The same with a group for each of them, so that one that fails does not end the others.
pub fn groups<B: AsRef<str>>(groups: impl IntoIterator<Item = B>) -> String {
    let group = |(number, blocks): (usize, B)| {
        format!(
            "group \"g{number}\" {{\n restart {{\n attempts = 0\n mode = \"fail\"\n }}\n {}\n }}\n",
            blocks.as_ref()
        )
    };
    let groups: String = groups.into_iter().enumerate().map(group).collect();
    with_guests(&format!("job \"j\" {{\n type = \"batch\"\n {groups}\n}}"))
}

/// A task of `/bin/sh` that may do what this process may; `more` goes into the task block.
pub fn shell(name: &str, script: &str, more: &str) -> String {
    task(name, "raw_exec", "command = \"/bin/sh\"", &["-c", script], more)
}

/// The same, isolated.
pub fn isolated_shell(name: &str, script: &str, more: &str) -> String {
    task(name, "exec", "command = \"/bin/sh\"", &["-c", script], more)
}

/// A task of a WASM guest or a `.wasm` file; `more` goes into the task block.
pub fn wasm(name: &str, module: &str, args: &[&str], more: &str) -> String {
    task(name, "wasm", &format!("module = {}", quoted(module)), args, more)
}

fn task(name: &str, driver: &str, program: &str, args: &[&str], more: &str) -> String {
    let args: Vec<String> = args.iter().map(|arg| quoted(arg)).collect();
    let args = args.join(", ");
    let resources =
        if more.contains("resources {") { "" } else { "resources {\n cpu = 20\n memory = 64\n }" };
    format!(
        "task \"{name}\" {{\n driver = \"{driver}\"\n config {{\n {program}\n args = [{args}]\n }}\n \
         {resources}\n {more}\n}}\n"
    )
}

/// For a group: healthy soon after it runs, which `job run` waits for. Without it, after ten seconds.
pub const SOON_HEALTHY: &str = "update {\n min_healthy_time = \"50ms\"\n }";

/// For a group: a new version replaces all of its allocations at once, without a deployment.
pub const AT_ONCE: &str = "update {\n max_parallel = 0\n }";

/// A lifecycle block.
pub fn lifecycle(hook: &str, sidecar: bool) -> String {
    format!("lifecycle {{\n hook = \"{hook}\"\n sidecar = {sidecar}\n }}")
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// The last state of the first task of this name.
#[track_caller]
pub fn state<'a>(result: &'a JobResult, task: &str) -> &'a TaskState {
    let name = TaskName::new(task).unwrap();
    let found = result.allocs.iter().find_map(|alloc| alloc.state.tasks.get(&name));
    found.unwrap_or_else(|| panic!("no task {task}: {result:#?}"))
}

/// How that task ended.
#[track_caller]
pub fn exit<'a>(result: &'a JobResult, task: &str) -> &'a ExitResult {
    let state = state(result, task);
    state.last_exit.as_ref().unwrap_or_else(|| panic!("{task} did not run: {state:#?}"))
}

/// Kinds of its events, in order.
pub fn events(result: &JobResult, task: &str) -> Vec<EventKind> {
    state(result, task).events.iter().map(|event| event.kind).collect()
}

/// The job ended well.
#[track_caller]
pub fn assert_successful(result: &JobResult) {
    assert!(result.is_successful(), "{result:#?}");
}
