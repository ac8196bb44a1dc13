//! Every listing of the command line, as text and as JSON.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use ostler_guests::fixtures::{DEVICE_PCI, DRIVER_EXEC, HOSTILE_DEVICE};
use regex::Regex;
use serde_json::Value;

use super::{JOB, compare, placeholders, shape};
use crate::devices::sysfs;
use crate::support::agent_process::{AgentProcess, ask};
use crate::support::binary::{Ended, ostler};
use crate::support::http::Client;

/// Commands whose values are the machine's: of JSON the shape is compared, of a text the first two
/// lines of each section.
const OF_THE_MACHINE: &[&str] = &[
    "node status",
    "plugin check",
    "plugin list",
    "plugin replay",
    "plugin status",
    "state check",
    "state compact",
    "state dump",
    "state stats",
];

/// Runs commands, and keeps what they printed.
#[derive(Default)]
struct Recorder {
    known: Vec<(String, &'static str)>,
    seen: BTreeMap<String, String>,
}

impl Recorder {
    /// Keep what a command printed. Of one that ended well its messages are left out: they tell what
    /// happened meanwhile.
    fn keep(&mut self, args: &[&str], ended: &Ended) {
        static BLANKS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").unwrap());
        let word = |arg: &&&str| arg.chars().all(|c| c.is_ascii_lowercase());
        let command = args.iter().take(2).take_while(word).copied().collect::<Vec<_>>().join(" ");
        let machines = OF_THE_MACHINE.contains(&&*command) || args.contains(&"--stats");
        let out = match serde_json::from_str::<Value>(&ended.stdout) {
            Ok(value) if machines => format!("{:#}", shape(&value)),
            Err(_) if machines => sections(&ended.stdout),
            _ => ended.stdout.clone(),
        };
        let said = if ended.code == Some(0) { "" } else { ended.stderr.as_str() };
        let code = ended.code.unwrap();
        let text = format!("$ ostler {}\nexit {code}\n{out}\n{said}\n", args.join(" "));
        // Columns are as wide as what is replaced.
        let text = BLANKS.replace_all(&placeholders(&text, &self.known), "$1  ").into_owned();
        *self.seen.entry(command.replace(' ', "-") + ".txt").or_default() += &text;
    }

    async fn ask(&mut self, agent: &AgentProcess, args: &[&str]) -> Ended {
        let ended = agent.ask(args).await;
        self.keep(args, &ended);
        ended
    }

    /// As text, and as JSON.
    async fn both(&mut self, agent: &AgentProcess, args: &[&str]) {
        self.ask(agent, args).await;
        self.ask(agent, &[args, &["--json"]].concat()).await;
    }
}

/// The first two lines of each section: its headline and the heads of its columns. Of a line with
/// values the name before them.
fn sections(text: &str) -> String {
    let head = |line: &str| match line.split_once("  ") {
        Some((name, _)) if !name.starts_with(char::is_uppercase) => format!("{name}\n"),
        _ => format!("{line}\n"),
    };
    let heads = |section: &str| section.lines().take(2).map(head).collect::<String>();
    text.split("\n\n").map(heads).collect::<Vec<_>>().join("\n")
}

/// A card of the made up tree.
const CARD: &str = "0000:3b:00.0";

#[tokio::test]
async fn every_listing_of_the_command_line_is_the_golden_one() {
    let root = sysfs();
    let agent = super::agent(root.path()).await;
    let mut known = super::paths(&agent, root.path());
    for guest in [DEVICE_PCI, DRIVER_EXEC, HOSTILE_DEVICE] {
        known.push((guest.to_owned(), "<guest>"));
    }
    let mut cli = Recorder { known, seen: BTreeMap::new() };
    jobs(&mut cli, &agent).await;
    let alloc = agent.alloc("web").await;
    let client = Client(agent.data.path().join("ostler.sock"));
    cli.known.extend(super::names(&client, &alloc).await);
    looks(&mut cli, &agent, &alloc).await;
    acts(&mut cli, &agent, &alloc).await;
    agent.signal(rustix::process::Signal::TERM);
    let (_, home) = agent.ended().await;
    for command in ["check", "dump", "stats", "runs", "compact"] {
        for args in [&["state", command][..], &["state", command, "--json"]] {
            cli.keep(args, &ask(home.path(), args).await);
        }
    }
    compare("cli", &cli.seen);
}

/// Jobs validated, planned and run.
async fn jobs(cli: &mut Recorder, agent: &AgentProcess) {
    let right = path(agent, "web.hcl", JOB);
    let unknown = path(agent, "unknown.hcl", &JOB.replace("group \"g\"", "grup \"g\""));
    let misspelt = path(agent, "misspelt.hcl", &JOB.replace("command =", "comand ="));
    let huge = path(agent, "huge.hcl", &JOB.replace("cpu    = 20", "cpu    = 100000000"));
    cli.both(agent, &["job", "status"]).await;
    cli.both(agent, &["alloc", "status"]).await;
    for file in [&right, &unknown, &misspelt] {
        cli.both(agent, &["job", "validate", file]).await;
    }
    for file in [&right, &misspelt, &huge] {
        cli.both(agent, &["job", "plan", file]).await;
    }
    cli.both(agent, &["job", "run", "--detach", &right]).await;
    cli.both(agent, &["job", "run", &right]).await;
    cli.both(agent, &["job", "plan", &right]).await;
    cli.ask(agent, &["job", "run", "--check-index", "0", &right]).await;
}

fn path(agent: &AgentProcess, name: &str, text: &str) -> String {
    agent.file(name, text).to_str().unwrap().to_owned()
}

/// What shows a job that runs, its allocation, the node and what it has.
async fn looks(cli: &mut Recorder, agent: &AgentProcess, alloc: &str) {
    for args in [
        &["job", "status"][..],
        &["job", "status", "web"],
        &["alloc", "status"],
        &["alloc", "status", alloc],
        &["alloc", "status", "--stats", alloc],
        &["node", "status"],
        &["node", "status", "--stats"],
        &["device", "list"],
        &["device", "status", CARD],
        &["plugin", "list"],
        &["plugin", "status"],
        &["plugin", "status", "pci"],
        &["plugin", "lift", "pci"],
        &["state", "runs"],
        &["state", "stats"],
    ] {
        cli.both(agent, args).await;
    }
    for args in [
        &["job", "status", "none"][..],
        &["alloc", "status", "ffffffff"],
        &["alloc", "status", "none!"],
        &["device", "status", "none"],
        &["device", "status", "0000:"],
        &["plugin", "status", "none"],
        &["plugin", "lift", "none"],
        &["alloc", "logs", alloc],
        &["alloc", "logs", alloc, "none"],
    ] {
        cli.ask(agent, args).await;
    }
    let recorded = agent.json(&["plugin", "record", "pci", "--json"]).await;
    let recording = recorded[0]["file"].as_str().unwrap().to_owned();
    cli.known.insert(0, (recording.clone(), "<recording>"));
    cli.both(agent, &["plugin", "record", "none"]).await;
    for args in [
        &["plugin", "inspect", HOSTILE_DEVICE][..],
        &["plugin", "verify", HOSTILE_DEVICE],
        &["plugin", "check", DRIVER_EXEC],
        &["plugin", "replay", &recording, "--list"],
        &["plugin", "replay", &recording, "--component", DEVICE_PCI],
    ] {
        for args in [args, &[args, &["--json"]].concat()] {
            cli.keep(args, &ostler(args).await);
        }
    }
}

/// What changes an allocation or a job.
async fn acts(cli: &mut Recorder, agent: &AgentProcess, alloc: &str) {
    for args in [
        &["alloc", "signal", alloc, "USR1"][..],
        &["alloc", "restart", alloc],
        &["alloc", "stop", alloc],
        &["job", "stop", "web"],
        &["gc", alloc],
        &["gc"],
        &["job", "status"],
        &["alloc", "status"],
        &["job", "stop", "--purge", "web"],
    ] {
        cli.ask(agent, args).await;
    }
}
