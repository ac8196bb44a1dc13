//! Completion of the names of jobs, allocations and so on: shells run this program with `COMPLETE`
//! set, and it offers what the agent has.
//!
//! ```text
//! shell ─► ostler, COMPLETE=bash ─► the commands, whose value names say what can be offered
//!             ALLOC, JOB, PLUGIN, DEVICE, NAMESPACE, … ─► one request, within a moment ─► names
//! ```
//! Where no agent answers, nothing is completed and no message is printed.

use std::time::Duration;

use clap::{Command, CommandFactory as _};
use clap_complete::CompleteEnv;
use clap_complete::engine::{ArgValueCandidates, CompletionCandidate};
use serde_json::Value;

use super::args::Cli;
use super::args::client::AddressArgs;
use super::connect::{self, in_all_namespaces};
use super::output::short_id;
use super::terminal::one_line;
use ostler_api::request::ApiRequest;
use ostler_api::routes::endpoints as routes;
use ostler_model::clock;

/// How long a person may wait for a name.
const WALL_MAX: Duration = Duration::from_millis(500);
/// Most names that are offered. Where there are more, more of the beginning has to be typed.
const NAMES_MAX: usize = 1_000;

/// A list of the API, and how the name and the description of each item are found.
#[derive(Clone, Copy)]
struct NameSource {
    request: fn() -> ApiRequest<(), Vec<Value>>,
    /// The names of an item, each with its description.
    names: fn(&Value) -> Vec<(String, String)>,
}

const JOBS: NameSource = NameSource {
    request: || in_all_namespaces(routes::ListJobs::request([])).read_as(),
    names: |job| {
        one_name(text(job, "/ID"), format!("{} job, {}", text(job, "/Type"), text(job, "/Status")))
    },
};
const ALLOCS: NameSource = NameSource {
    request: || in_all_namespaces(routes::ListAllocs::request([])).read_as(),
    names: |alloc| {
        let more = format!("{}, {}", text(alloc, "/Name"), text(alloc, "/ClientStatus"));
        one_name(&short_id(text(alloc, "/ID")), more)
    },
};
const DEPLOYMENTS: NameSource = NameSource {
    request: || in_all_namespaces(routes::ListDeployments::request([])).read_as(),
    names: |one| {
        let more = format!("{}, {}", text(one, "/JobID"), text(one, "/Status"));
        one_name(&short_id(text(one, "/ID")), more)
    },
};
const PLUGINS: NameSource = NameSource {
    request: || routes::ListPluginStates::request([]).read_as(),
    names: |plugin| {
        let (kind, state) = (text(plugin, "/kind"), text(plugin, "/status/state"));
        one_name(text(plugin, "/name"), format!("{kind} plugin, {state}"))
    },
};
const NAMESPACES: NameSource = NameSource {
    request: || routes::ListNamespaces::request([]).read_as(),
    names: |namespace| {
        one_name(text(namespace, "/Name"), text(namespace, "/Description").to_owned())
    },
};
const DEVICES: NameSource =
    NameSource { request: || routes::ListDevices::request([]).read_as(), names: device_names };

/// A name with its description; none where the agent has none for the item.
fn one_name(name: &str, more: String) -> Vec<(String, String)> {
    if name.is_empty() { Vec::new() } else { vec![(name.to_owned(), more)] }
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Answer a shell that asks for completions, and end the program; return where none asks.
pub(super) fn answer_shell() {
    CompleteEnv::with_factory(command).complete();
}

/// The commands of the program, with candidates for values that name something.
pub(super) fn command() -> Command {
    add_candidates(Cli::command())
}

fn add_candidates(command: Command) -> Command {
    let command = command.mut_args(|arg| {
        let named =
            arg.get_value_names().and_then(|names| names.first()).map(|name| name.to_string());
        match named.as_deref() {
            Some("JOB") => arg.add(ArgValueCandidates::new(|| fetch_candidates(&[JOBS]))),
            Some("ALLOC") => arg.add(ArgValueCandidates::new(|| fetch_candidates(&[ALLOCS]))),
            Some("DEPLOYMENT") => {
                arg.add(ArgValueCandidates::new(|| fetch_candidates(&[DEPLOYMENTS])))
            }
            Some("PLUGIN") => arg.add(ArgValueCandidates::new(|| fetch_candidates(&[PLUGINS]))),
            Some("DEVICE") => arg.add(ArgValueCandidates::new(|| fetch_candidates(&[DEVICES]))),
            Some("NAMESPACE") => {
                arg.add(ArgValueCandidates::new(|| fetch_candidates(&[NAMESPACES])))
            }
            Some("WHAT") => arg.add(ArgValueCandidates::new(|| {
                fetch_candidates(&[JOBS, ALLOCS, PLUGINS, DEVICES])
            })),
            _ => arg,
        }
    });
    let names: Vec<String> =
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect();
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, add_candidates))
}

/// Ask the agent for the present names in these lists.
fn fetch_candidates(sources: &[NameSource]) -> Vec<CompletionCandidate> {
    let words: Vec<String> = std::env::args().collect();
    let Some(args) = find_address(&words) else { return Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let asked = async {
        let Ok(client) = connect::connect_silent(&args) else { return Vec::new() };
        if !client.is_there().await {
            return Vec::new();
        }
        let mut found = Vec::new();
        for source in sources {
            let items = client.send(&(source.request)()).await.unwrap_or_default();
            found.extend(items.iter().flat_map(source.names));
        }
        found
    };
    let found = runtime.block_on(clock::timeout(WALL_MAX, asked)).unwrap_or_default();
    let candidate = |(name, more): (String, String)| {
        CompletionCandidate::new(name).help(Some(one_line(&more).into()))
    };
    found.into_iter().take(NAMES_MAX).map(candidate).collect()
}

/// The name and the health of each device in a group.
fn device_names(group: &Value) -> Vec<(String, String)> {
    let of = |part: &str| text(group, part).to_owned();
    let key = format!("{}/{}/{}", of("/group/vendor"), of("/group/type"), of("/group/name"));
    let instances = group.pointer("/instances").and_then(Value::as_array);
    let instances = instances.map_or(&[][..], Vec::as_slice).iter();
    instances
        .map(|one| (format!("{key}/{}", text(one, "/id")), text(one, "/health/state").to_owned()))
        .collect()
}

/// The address of the agent, from the options of the line that is completed and the environment.
fn find_address(words: &[String]) -> Option<AddressArgs> {
    let mut given = Vec::new();
    let options = ["--address", "--data-dir", "--namespace"];
    let mut words = words.iter().skip_while(|word| *word != "--").skip(1);
    while let Some(word) = words.next() {
        if options.contains(&word.as_str()) {
            given.push(word.clone());
            given.push(words.next()?.clone());
        } else if options.iter().any(|option| word.starts_with(&format!("{option}="))) {
            given.push(word.clone());
        }
    }
    AddressArgs::from_words(given)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_named_is_taken_from_the_lists_of_the_agent() {
        let alloc = json!({ "ID": "0f01c0de-0000-4000-8000-000000000000", "Name": "web.g[0]", "ClientStatus": "running" });
        assert_eq!(
            (ALLOCS.names)(&alloc),
            [("0f01c0de".to_owned(), "web.g[0], running".to_owned())]
        );
        let group = json!({
            "group": { "vendor": "a", "type": "b", "name": "c" },
            "instances": [{ "id": "0", "health": { "state": "healthy" } }],
        });
        assert_eq!((DEVICES.names)(&group), [("a/b/c/0".to_owned(), "healthy".to_owned())]);
        assert_eq!((JOBS.names)(&json!({ "ID": 5 })), []);
    }

    #[test]
    fn the_line_that_is_completed_says_which_agent_is_meant() {
        let words = [
            "ostler",
            "--",
            "ostler",
            "job",
            "status",
            "--data-dir",
            "/x",
            "--address=unix:///y",
            "we",
        ];
        let args = find_address(&words.map(str::to_owned)).unwrap();
        assert_eq!(args.data_dir, Some("/x".into()));
        assert_eq!(args.address.as_deref(), Some("unix:///y"));
    }

    #[test]
    fn every_command_that_names_an_allocation_completes_it() {
        let command = command();
        let alloc = command.find_subcommand("alloc").unwrap();
        let arg = |name: &str| {
            let found = alloc.find_subcommand(name).unwrap();
            found.get_arguments().find(|arg| arg.get_id() == "alloc").unwrap().clone()
        };
        for name in ["status", "logs", "stop", "restart", "signal"] {
            assert!(arg(name).get::<ArgValueCandidates>().is_some(), "{name}");
        }
    }
}
