//! Jobs in a machine, and what is seen of them there.

use std::collections::BTreeMap;

use serde_json::Value;

use super::vm::{Machine, Said};
use crate::support::PATIENCE;

/// A job of one group; `tasks` are task blocks. Without attempts a task is not started again after its
/// machine went down; going down uses up none.
pub fn job(id: &str, kind: &str, tasks: &str) -> String {
    format!(
        "job \"{id}\" {{\n type = \"{kind}\"\n group \"g\" {{\n restart {{\n attempts = 1\n \
         interval = \"24h\"\n delay = \"1s\"\n mode = \"fail\"\n }}\n {tasks}\n }}\n}}\n"
    )
}

/// A task that runs a program; `more` goes into the task block.
pub fn task(name: &str, command: &str, args: &[&str], memory_mib: u32, more: &str) -> String {
    let args: Vec<String> = args.iter().map(|arg| format!("{arg:?}")).collect();
    format!(
        "task \"{name}\" {{\n driver = \"exec\"\n config {{\n command = \"{command}\"\n \
         args = [{}]\n }}\n resources {{\n cpu = 20\n memory = {memory_mib}\n }}\n {more}\n}}\n",
        args.join(", ")
    )
}

/// A service whose one process is found by a number that no other has.
pub fn sleeper(id: &str, number: u32) -> String {
    job(id, "service", &task("t", "/bin/sleep", &[&number.to_string()], 16, ""))
}

impl Machine {
    /// Hand in a job; it is taken when the exit code is 0.
    pub async fn submit(&mut self, id: &str, text: &str) -> Said {
        let file = format!("/run/{id}.hcl");
        self.run(&format!("cat >{file} <<'END'\n{text}END\nostler job run --detach {file}")).await
    }

    /// The only allocation of a job; null while it waits for a driver that is still loaded.
    pub async fn alloc(&mut self, id: &str) -> Value {
        let text = self.ok(&format!("ostler job status --json {id}")).await;
        let status: Value = serde_json::from_str(&text).unwrap();
        let allocs = status["allocations"].as_array().unwrap();
        assert!(allocs.len() <= 1, "{allocs:#?}");
        allocs.first().cloned().unwrap_or_default()
    }

    /// Wait until the only allocation of a job has this status.
    pub async fn alloc_when(&mut self, id: &str, status: &str) -> Value {
        let last = std::cell::RefCell::new(Value::Null);
        let wait = async {
            loop {
                let alloc = self.alloc(id).await;
                let now = alloc["ClientStatus"].as_str().unwrap_or("pending");
                if now == status {
                    return alloc;
                }
                assert!(["pending", "running"].contains(&now), "{id} is {now}: {alloc:#?}");
                last.replace(alloc);
            }
        };
        let found = ostler_model::clock::timeout(PATIENCE, wait).await;
        if let Some(alloc) = found {
            return alloc;
        }
        let log = self.run("tail -n 20 /run/agent.log").await.text;
        panic!("{id} is never {status}: {:#?}\n{log}", last.into_inner())
    }

    /// How many processes of [`sleeper`]s there are, by number.
    pub async fn sleepers(&mut self) -> BTreeMap<u32, usize> {
        let script = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null";
        let mut found = BTreeMap::new();
        for line in self.ok(script).await.lines() {
            let mut words = line.split_whitespace();
            let (program, number) = (words.next(), words.next());
            if let (Some(program), Some(Ok(number))) = (program, number.map(str::parse::<u32>))
                && program.ends_with("sleep")
                && number >= 100_000
            {
                *found.entry(number).or_default() += 1;
            }
        }
        found
    }
}

/// How often a task was started.
pub fn starts(alloc: &Value, task: &str) -> usize {
    let events = alloc["TaskStates"][task]["Events"].as_array();
    let events = events.unwrap_or_else(|| panic!("no task {task}: {alloc:#?}"));
    events.iter().filter(|event| event["Type"] == "Started").count()
}

/// The texts of all events of a task.
pub fn said(alloc: &Value, task: &str) -> String {
    let events = alloc["TaskStates"][task]["Events"].as_array().unwrap();
    let texts = events.iter().map(|event| event["DisplayMessage"].as_str().unwrap());
    texts.collect::<Vec<_>>().join("\n")
}
