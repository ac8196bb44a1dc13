//! Why a place of a job is empty, and what would fill it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commands;

/// Holders that are named at most.
const HOLDERS_MAX: usize = 6;

/// A place that waits to be filled, as the agent tells it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockedPlace {
    /// The group.
    pub group: String,
    /// 0 to count − 1.
    pub index: u32,
    /// It fits when what goes for it has ended.
    pub soon: bool,
    /// Everything that stands in the way.
    pub problems: Vec<BlockedProblem>,
}

/// One thing that stands in the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockedProblem {
    /// What it is about: `resource`, `port`, `device` …
    pub kind: String,
    /// In words.
    pub text: String,
    /// The same as data; by `kind`.
    #[serde(flatten)]
    pub data: Value,
}

impl BlockedProblem {
    fn text_of<'a>(&'a self, path: &str) -> &'a str {
        self.data.pointer(path).and_then(Value::as_str).unwrap_or_default()
    }

    fn number(&self, path: &str) -> u64 {
        self.data.pointer(path).and_then(Value::as_u64).unwrap_or(0)
    }

    /// What would change it; `job` names the jobs of allocations, where they are known.
    pub(crate) fn next(&self, job_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        let one = |text: String| vec![text];
        let task = self.text_of("/task");
        match self.kind.as_str() {
            "resource" => self.resource(),
            "port" => self.port(job_of),
            "device" => self.device(job_of),
            "device_held" | "cores" => one(format!(
                "stop a job whose allocation holds what it asks for, or let task {task} ask for fewer"
            )),
            "no_cores" | "driver_gives_no_cores" => {
                one(format!("ask for cpu in place of cores in resources of task {task}"))
            }
            "no_shared_core" => {
                one("ask for fewer cores: one must stay for tasks without their own".to_owned())
            }
            "unknown_driver" => self.unknown_driver(),
            "driver_still_loading" => {
                one("nothing: it is placed when its driver is loaded".to_owned())
            }
            "driver_not_ready" => {
                let driver = self.text_of("/driver");
                one(format!("{} says what its driver lacks", commands::explain_plugin(driver)))
            }
            "constraint" => one(format!(
                "change the constraint, or what this node is ({} shows what it has)",
                commands::node()
            )),
            "distinct" => one("lower count, or allow more of it on one node".to_owned()),
            "datacenter" => {
                let actual = self.text_of("/actual");
                one(format!("datacenters = [\"{actual}\"] in the job"))
            }
            "held_back" => one(format!("{}, or wait for its end", self.text_of("/end_with"))),
            "too_many_tasks" => one("lower count, or split the job".to_owned()),
            _ => Vec::new(),
        }
    }

    fn resource(&self) -> Vec<String> {
        let (total, assigned) = (self.number("/total"), self.number("/lent"));
        let (wanted, free) = (self.number("/wanted"), total.saturating_sub(assigned));
        let (key, unit) = match self.text_of("/resource") {
            "Cpu" | "cpu" => ("resources.cpu", "MHz"),
            _ => ("resources.memory", "MiB"),
        };
        let fewer = match free {
            0 => format!("lower {key} of its tasks"),
            free => format!("lower {key} of its tasks to {free} {unit} together or less"),
        };
        if wanted > total {
            return vec![format!(
                "{fewer}; this node has {total} {unit} in all, so it never fits as it is"
            )];
        }
        let room = wanted.saturating_sub(free);
        vec![
            format!(
                "stop jobs whose allocations have {room} {unit} or more together ({} lists them)",
                commands::allocs()
            ),
            fewer,
        ]
    }

    fn port(&self, job_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        let taken = self.data.pointer("/error/Taken");
        let label =
            self.data.pointer("/error/Taken/label").or(self.data.pointer("/error/InUse/label"));
        let label = label.and_then(Value::as_str).unwrap_or_default();
        let dynamic = format!("leave static out of port \"{label}\": it then gets a free one");
        if let Some(taken) = taken {
            let holder = taken.pointer("/holder/alloc").and_then(Value::as_str);
            let stop = holder.map(|id| stop_holder(id, job_of));
            return stop.into_iter().chain([dynamic]).collect();
        }
        if let Some(port) = self.data.pointer("/error/InUse/port").and_then(Value::as_u64) {
            return vec![
                format!("stop the program that listens on {port} (ss -ltnp 'sport = :{port}')"),
                dynamic,
            ];
        }
        Vec::new()
    }

    fn unknown_driver(&self) -> Vec<String> {
        let mut next = Vec::new();
        let task = self.text_of("/task");
        if let Some(nearest) = self.data.pointer("/nearest").and_then(Value::as_str) {
            next.push(format!("driver = \"{nearest}\" in task {task}"));
        }
        if self.text_of("/driver") == "raw_exec" {
            next.push("driver = \"exec\", or plugin \"raw_exec\" { enabled = true } in the agent's configuration".to_owned());
        }
        next.extend(self.refused_plugins());
        if next.is_empty() {
            next.push(format!(
                "load a plugin that is this driver ({} shows those there are)",
                commands::plugins()
            ));
        }
        next
    }

    fn device(&self, job_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
        let request = self.text_of("/refusal/request");
        let count = self.number("/refusal/count");
        let candidates = self.data.pointer("/refusal/candidates").and_then(Value::as_array);
        let mut next = Vec::new();
        let mut offered = false;
        for candidate in candidates.into_iter().flatten() {
            let Some(why) = candidate.pointer("/why") else { continue };
            offered |= why.as_str() != Some("Name");
            let Some(few) = why.pointer("/TooFew") else { continue };
            let number = |path: &str| few.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            let missing = count.saturating_sub(number("/free"));
            let held =
                few.pointer("/held").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let mut holders: Vec<String> = held
                .iter()
                .filter_map(|held| {
                    Some(holder_name(held.pointer("/holder/alloc")?.as_str()?, job_of))
                })
                .collect();
            holders.dedup();
            holders.truncate(HOLDERS_MAX);
            if number("/healthy") >= count && !holders.is_empty() {
                next.push(format!(
                    "free {missing} of {request}: held by {}",
                    crate::words::list(&holders)
                ));
            }
            let ill = few.pointer("/unhealthy").and_then(Value::as_array);
            next.extend(ill.into_iter().flatten().filter_map(|one| {
                let (id, why) = (one.get(0)?.as_str()?, one.get(1)?.as_str()?);
                Some(format!("mend device {id}: {why}"))
            }));
            if number("/healthy") < count && number("/healthy") > 0 {
                next.push(format!("ask for {} of {request} or fewer", number("/healthy")));
            }
        }
        if !offered {
            next.push(format!(
                "load a device plugin that offers {request}, or ask for a device that is there ({})",
                commands::devices()
            ));
        }
        next.extend(self.refused_plugins());
        next
    }

    /// Where to look for each plugin that is there and refused.
    fn refused_plugins(&self) -> impl Iterator<Item = String> {
        let refused = self.data.pointer("/refused").and_then(Value::as_object);
        let names = refused.into_iter().flat_map(|all| all.keys());
        names.map(|name| {
            format!("{} says why that plugin is refused", commands::explain_plugin(name))
        })
    }
}

/// What frees that which an allocation holds. In the place of one that is stopped alone its job puts another.
fn stop_holder(id: &str, job_of: &dyn Fn(&str) -> Option<String>) -> String {
    let short = id.get(..8).unwrap_or(id);
    match job_of(id) {
        Some(job) => format!(
            "{} stops the job whose allocation {short} has it; one that is stopped alone gets a successor",
            commands::stop_job(&job)
        ),
        None => format!("{} stops the allocation that has it", commands::stop_alloc(short)),
    }
}

/// `allocation 0f01c0de of job web`
fn holder_name(id: &str, job_of: &dyn Fn(&str) -> Option<String>) -> String {
    let short = id.get(..8).unwrap_or(id);
    match job_of(id) {
        Some(job) => format!("allocation {short} of job {job}"),
        None => format!("allocation {short}"),
    }
}
