//! Explains why a place of a job is empty, and what would fill it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commands;

/// The most holders that are named.
const HOLDERS_MAX: usize = 6;

/// A place that waits to be filled, as the agent reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockedPlace {
    /// Name of the task group.
    pub group: String,
    /// Index of the place in its group, 0 to count − 1.
    pub index: u32,
    /// The place is filled when what gives way to it has ended.
    pub soon: bool,
    /// Everything that keeps the place from being filled.
    pub problems: Vec<BlockedProblem>,
}

/// One thing that keeps a place from being filled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlockedProblem {
    /// The kind of problem: `resource`, `port`, `device` …
    pub kind: String,
    /// The problem in words.
    pub text: String,
    /// The problem as data; its form depends on `kind`.
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

    /// The problem in words. A plugin that is loaded and finds nothing is mentioned as well.
    pub(crate) fn reason_text(&self) -> String {
        let text = self.text.replace('\n', " ");
        let silent = self.silent_plugins().into_iter().map(|(name, why)| match why {
            "" => format!("; plugin {name} is loaded and finds no device"),
            why => format!("; plugin {name} is loaded and finds no device: {why}"),
        });
        std::iter::once(text).chain(silent).collect()
    }

    /// Advice on what would solve the problem.
    pub(crate) fn advice(&self, holders: &Holders<'_>) -> Vec<String> {
        let one = |text: String| vec![text];
        let task = self.text_of("/task");
        match self.kind.as_str() {
            "resource" => self.resource_advice(),
            "port" => self.port_advice(holders),
            "device" => self.device_advice(holders),
            "device_held" | "cores" => one(format!(
                "stop a job whose allocation holds what it asks for, or let task {task} ask for fewer"
            )),
            "no_cores" | "driver_gives_no_cores" => {
                one(format!("ask for cpu instead of cores in resources of task {task}"))
            }
            "no_shared_core" => {
                one("ask for fewer cores: one must stay for tasks without their own".to_owned())
            }
            "unknown_driver" => self.unknown_driver_advice(),
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
            "held_back" => self.held_back_advice(),
            "too_many_tasks" => one("lower count, or split the job".to_owned()),
            _ => Vec::new(),
        }
    }

    fn resource_advice(&self) -> Vec<String> {
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

    /// A run of this agent is ended by a command; a run of another agent is left to that agent.
    fn held_back_advice(&self) -> Vec<String> {
        let end = self.text_of("/end_with");
        if end.contains(" state end-run ") {
            vec![format!("`{end}` ends what runs, or wait for its end")]
        } else {
            vec![
                "start this agent with a data directory of its own (--data-dir): what runs belongs to the agent \
                 whose directory this one is a copy of, and is not to be ended from here"
                    .to_owned(),
                format!("`{end}` ends the job at that agent, where it is not wanted there; or wait for its end"),
            ]
        }
    }

    fn port_advice(&self, holders: &Holders<'_>) -> Vec<String> {
        let taken = self.data.pointer("/error/Taken");
        let label =
            self.data.pointer("/error/Taken/label").or(self.data.pointer("/error/InUse/label"));
        let label = label.and_then(Value::as_str).unwrap_or_default();
        let dynamic = format!("leave static out of port \"{label}\": it then gets a free one");
        if let Some(taken) = taken {
            let holder = taken.pointer("/holder/alloc").and_then(Value::as_str);
            let port = taken.pointer("/port").and_then(Value::as_u64).unwrap_or(0);
            let stop = holder.map(|id| {
                if !holders.is_own(id) {
                    return holders.stop(id);
                }
                format!(
                    "the job's own allocation {} has port {port}, which there is once on a node: set count = 1 in \
                     the group, or another static port where that one is of another group",
                    short(id)
                )
            });
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

    fn unknown_driver_advice(&self) -> Vec<String> {
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

    fn device_advice(&self, holders: &Holders<'_>) -> Vec<String> {
        let request = self.text_of("/refusal/request");
        let count = self.number("/refusal/count");
        let candidates = self.data.pointer("/refusal/candidates").and_then(Value::as_array);
        let mut next = Vec::new();
        let mut ill = UnhealthyInstances::default();
        let mut offered = false;
        for candidate in candidates.into_iter().flatten() {
            let Some(why) = candidate.pointer("/why") else { continue };
            offered |= why.as_str() != Some("Name");
            let Some(few) = why.pointer("/TooFew") else { continue };
            let number = |path: &str| few.pointer(path).and_then(Value::as_u64).unwrap_or(0);
            let missing = count.saturating_sub(number("/free"));
            let held =
                few.pointer("/held").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
            let mut names: Vec<String> = held
                .iter()
                .filter_map(|held| Some(holders.name(held.pointer("/holder/alloc")?.as_str()?)))
                .collect();
            names.dedup();
            names.truncate(HOLDERS_MAX);
            if number("/healthy") >= count && !names.is_empty() {
                next.push(format!(
                    "free {missing} of {request}: held by {}",
                    crate::words::list(&names)
                ));
            }
            ill.add(candidate, few);
            if number("/healthy") < count && number("/healthy") > 0 {
                ill.fewer.push(format!("ask for {} of {request} or fewer", number("/healthy")));
            }
        }
        next.extend(ill.advice());
        if !offered {
            let silent = self.silent_plugins();
            let ways = silent.iter().map(|(name, _)| {
                format!("{} says what plugin {name} lacks", commands::explain_plugin(name))
            });
            next.extend(ways);
            let devices = commands::devices();
            next.push(if silent.is_empty() {
                format!(
                    "load a device plugin that offers {request}, or ask for a device that is there ({devices})"
                )
            } else {
                format!("ask for a device that is there ({devices})")
            });
        }
        next.extend(self.refused_plugins());
        next
    }

    /// Device plugins that are loaded, find nothing, and may be meant by the request, each
    /// with its reason.
    fn silent_plugins(&self) -> Vec<(&str, &str)> {
        let silent = self.data.pointer("/silent").and_then(Value::as_object);
        let request = self.text_of("/refusal/request");
        let all = silent.into_iter().flatten();
        all.filter(|(name, _)| name_fits(name, request))
            .map(|(name, why)| (name.as_str(), why.as_str().unwrap_or_default()))
            .collect()
    }

    /// Where to look for each plugin that is present and refused.
    fn refused_plugins(&self) -> impl Iterator<Item = String> {
        let refused = self.data.pointer("/refused").and_then(Value::as_object);
        let names = refused.into_iter().flat_map(|all| all.keys());
        names.map(|name| {
            format!("{} says why that plugin is refused", commands::explain_plugin(name))
        })
    }
}

/// Does the name of a plugin fit a request for devices, as `nvidia` fits `nvidia/gpu`? A plugin
/// that finds nothing does not tell the vendor of its devices. A request for a type alone fits
/// every vendor.
fn name_fits(plugin: &str, request: &str) -> bool {
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase).collect()
    };
    let (plugin, wanted) = (words(plugin), words(request));
    !request.contains('/') || plugin.iter().any(|word| wanted.contains(word))
}

/// Instances that are not healthy, grouped by the reason, so that there is one piece of advice for
/// all that share it.
#[derive(Default)]
struct UnhealthyInstances<'a> {
    /// The plugin, where it is known, the reason, and the instances.
    by_reason: Vec<(&'a str, &'a str, Vec<&'a str>)>,
    /// Smaller requests that would fit meanwhile.
    fewer: Vec<String>,
}

impl<'a> UnhealthyInstances<'a> {
    fn add(&mut self, candidate: &'a Value, few: &'a Value) {
        let plugin = candidate.pointer("/plugin").and_then(Value::as_str).unwrap_or_default();
        let all = few.pointer("/unhealthy").and_then(Value::as_array);
        for one in all.into_iter().flatten() {
            let part = |at: usize| one.get(at).and_then(Value::as_str);
            let (Some(id), Some(why)) = (part(0), part(1)) else { continue };
            let known =
                self.by_reason.iter_mut().find(|(of, known, _)| (*of, *known) == (plugin, why));
            match known {
                Some((_, _, ids)) => ids.push(id),
                None => self.by_reason.push((plugin, why, vec![id])),
            }
        }
    }

    fn advice(self) -> Vec<String> {
        let told = self.by_reason.into_iter().map(|(plugin, why, ids)| {
            let (devices, count) = (if ids.len() == 1 { "device" } else { "devices" }, ids.len());
            if why.contains("in quarantine since ") && !plugin.is_empty() {
                return format!(
                    "{} has plugin {plugin} and its {} tried again now; {} says why it failed",
                    commands::lift_plugin(plugin),
                    ostler_model::words::count_noun(count, "device"),
                    commands::explain_plugin(plugin)
                );
            }
            let mut names: Vec<String> =
                ids.iter().take(HOLDERS_MAX).map(|id| (*id).to_owned()).collect();
            let more = count.saturating_sub(names.len());
            names.extend((more > 0).then(|| format!("{more} more")));
            format!("fix {devices} {}: {why}", crate::words::list(&names))
        });
        told.chain(self.fewer).collect()
    }
}

/// The allocations that have what a job asks for.
pub(crate) struct Holders<'a> {
    /// Id of the job that asks.
    pub own: &'a str,
    /// Job of each allocation, by the allocation's id, where it is known.
    pub jobs: &'a BTreeMap<String, String>,
}

impl Holders<'_> {
    /// Is it an allocation of the job itself?
    fn is_own(&self, alloc: &str) -> bool {
        self.jobs.get(alloc).is_some_and(|job| job == self.own)
    }

    /// Advice that frees what an allocation holds. An allocation that is stopped alone is replaced
    /// by its job.
    fn stop(&self, id: &str) -> String {
        match self.jobs.get(id) {
            Some(job) => format!(
                "{} stops the job whose allocation {} has it; one that is stopped alone gets a successor",
                commands::stop_job(job),
                short(id)
            ),
            None => format!("{} stops the allocation that has it", commands::stop_alloc(short(id))),
        }
    }

    /// `allocation 0f01c0de of job web`
    fn name(&self, id: &str) -> String {
        match self.jobs.get(id) {
            Some(_) if self.is_own(id) => format!("allocation {} of this job", short(id)),
            Some(job) => format!("allocation {} of job {job}", short(id)),
            None => format!("allocation {}", short(id)),
        }
    }
}

fn short(id: &str) -> &str {
    id.get(..8).unwrap_or(id)
}
