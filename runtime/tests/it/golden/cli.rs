//! Every listing of the command line, as text and as JSON.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use ostler_guests::fixtures::{DEVICE_PCI, DRIVER_EXEC, DRIVER_RAW_EXEC, HOSTILE_DEVICE};
use regex::Regex;
use rustix::process::Signal;
use serde_json::Value;

use super::{JOB, compare, merged, placeholders, schemas, shape};
use crate::devices::sysfs;
use crate::support::KEEPS;
use crate::support::agent_process::{AgentProcess, Home, ask};
use crate::support::binary::{Ended, ostler};
use crate::support::http::Client;
use crate::support::signer::Signer;
use crate::trust::{Registry, fresh, key};
use crate::upgrade::patched;

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
    /// Schemas of what commands printed as JSON.
    schemas: BTreeMap<String, Value>,
}

impl Recorder {
    /// Keep what a command printed. Of one that ended well its messages are left out: they tell what
    /// happened meanwhile.
    fn keep(&mut self, args: &[&str], ended: &Ended) {
        static BLANKS: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(\S) {2,}").unwrap());
        let word = |arg: &&&str| {
            arg.starts_with(char::is_alphabetic)
                && arg.chars().all(|c| c.is_ascii_lowercase() || c == '-')
        };
        let command = args.iter().take(2).take_while(word).copied().collect::<Vec<_>>().join(" ");
        let machines = OF_THE_MACHINE.contains(&&*command) || args.contains(&"--stats");
        if let Ok(value) = serde_json::from_str::<Value>(&ended.stdout)
            && !machines
            && args.contains(&"--json")
            && command != "run"
        {
            let schema = schemas::schema(&value);
            let known = self.schemas.get(&command).map(|known| schemas::merged(known, &schema));
            self.schemas.insert(command.clone(), known.unwrap_or(schema));
        }
        let out = match serde_json::from_str::<Value>(&ended.stdout) {
            _ if command == "run" && args.contains(&"--json") => {
                stream(&ended.stdout, ended.code == Some(0))
            }
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

/// The objects of a run, by their types: tasks print while things happen to them. Of the node and its
/// plugins the shape, where the run ended well.
fn stream(text: &str, well: bool) -> String {
    let objects = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let mut by_type: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for object in objects {
        let object: Value = object;
        by_type.entry(object["type"].to_string()).or_default().push(object);
    }
    let shown = |(kind, objects): (&String, &Vec<Value>)| match kind.trim_matches('"') {
        "node" | "plugin" if !well => String::new(),
        "node" | "plugin" => {
            let shape = objects.iter().map(shape).reduce(merged).unwrap();
            format!("{kind}: {shape:#}\n")
        }
        _ => objects.iter().map(|object| format!("{object:#}\n")).collect(),
    };
    by_type.iter().map(shown).collect()
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
    let mut cli = Recorder { known, ..Recorder::default() };
    jobs(&mut cli, &agent).await;
    let alloc = agent.alloc("web").await;
    let client = Client(agent.data.path().join("ostler.sock"));
    cli.known.extend(super::names(&client, &alloc).await);
    looks(&mut cli, &agent, &alloc).await;
    upgrades(&mut cli, &agent).await;
    acts(&mut cli, &agent, &alloc).await;
    agent.signal(Signal::TERM);
    let (_, home) = agent.ended().await;
    for command in ["check", "dump", "stats", "runs", "compact"] {
        for args in [&["state", command][..], &["state", command, "--json"]] {
            cli.keep(args, &ask(home.path(), args).await);
        }
    }
    runs(&mut cli, &home).await;
    held(&mut cli).await;
    plugin_files(&mut cli).await;
    compare("cli", &cli.seen);
    schemas::check(&cli.schemas);
}

/// Another version of a plugin, while a task of it runs.
async fn upgrades(cli: &mut Recorder, agent: &AgentProcess) {
    let version = |version: &str| {
        let file = agent.data.path().join(format!("raw_exec-{version}.wasm"));
        let bytes = patched(DRIVER_RAW_EXEC, "0.1.0{", &format!("{version}{{"));
        std::fs::write(&file, bytes).unwrap();
        file.to_str().unwrap().to_owned()
    };
    let (same, older, newer) = (version("0.1.0"), version("0.0.9"), version("0.2.0"));
    cli.both(agent, &["plugin", "upgrade", "raw_exec", "--file", &same]).await;
    cli.both(agent, &["plugin", "upgrade", "raw_exec", "--file", &older]).await;
    cli.ask(agent, &["plugin", "upgrade", "raw_exec", "--file", &newer]).await;
    cli.ask(agent, &["plugin", "upgrade", "raw_exec", "--file", &newer]).await;
    let newest = version("0.3.0");
    cli.ask(agent, &["plugin", "upgrade", "raw_exec", "--file", &newest, "--json"]).await;
}

/// A job in an agent of its own; `home` has the configuration and compiled plugins.
async fn runs(cli: &mut Recorder, home: &Home) {
    let file = |name: &str| home.path().join(name).to_str().unwrap().to_owned();
    let ends = JOB.replace("job \"web\" {", "job \"web\" {\n  type = \"batch\"");
    let ends = ends.replace("trap : USR1; echo hello; while :; do sleep 1; done", "echo hello");
    let (config, right, wrong) = (file("ostler.hcl"), file("ends.hcl"), file("wrong.hcl"));
    std::fs::write(&right, &ends).unwrap();
    std::fs::write(&wrong, ends.replace("command =", "comand =")).unwrap();
    for file in [&right, &wrong] {
        let args = ["run", "--config", &config, "--json", file];
        cli.keep(&args, &ask(home.path(), &args).await);
    }
    let args = ["run", "--config", &config, &right];
    cli.keep(&args, &ask(home.path(), &args).await);
}

/// Runs that nobody owns: the state that had them on record is gone.
async fn held(cli: &mut Recorder) {
    let job = JOB.replace("device \"nvidia/display\" {\n          count = 1\n        }", "");
    let data = Home::new();
    let config = data.path().join("ostler.hcl");
    let off = ["hwmon", "nvidia", "pci", "usb"];
    let off = off.map(|name| format!("plugin \"{name}\" {{\n enabled = false\n}}\n")).concat();
    std::fs::write(&config, format!("{KEEPS}{off}")).unwrap();
    let config = ["--config", config.to_str().unwrap()];
    cli.known.push((data.path().to_str().unwrap().to_owned(), "<data>"));
    let data = lost(AgentProcess::start_in(data, &config).await, &job).await;
    for args in [&["state", "runs"][..], &["state", "runs", "--json"]] {
        cli.keep(args, &ask(data.path(), args).await);
    }
    let agent = AgentProcess::start_in(data, &config).await;
    cli.both(&agent, &["state", "runs"]).await;
    cli.ask(&agent, &["node", "status"]).await;
    let supervisor = supervisor(agent.data.path()).await;
    cli.ask(&agent, &["state", "end-run", &supervisor]).await;
    cli.both(&agent, &["state", "end-run", "1"]).await;
    let data = lost(agent, &job).await;
    let supervisor = self::supervisor(data.path()).await;
    let args = ["state", "end-run", &supervisor, "--json"];
    cli.keep(&args, &ask(data.path(), &args).await);
}

/// Run a job, kill the agent and remove its state. The task runs on.
async fn lost(agent: AgentProcess, job: &str) -> Home {
    agent.run(job).await.said(0, &["job web runs"]);
    agent.signal(Signal::KILL);
    let data = agent.ended().await.1;
    for file in ["state.redb", "state.redb.journal"] {
        std::fs::remove_file(data.path().join(file)).unwrap();
    }
    data
}

/// The supervisor of the only run that nobody owns.
async fn supervisor(data: &Path) -> String {
    let runs = ask(data, &["state", "runs", "--json"]).await;
    let runs: Value = serde_json::from_str(&runs.stdout).unwrap();
    runs["runs"][0]["supervisor"].to_string()
}

/// A plugin of a registry, and who vouches for it.
async fn plugin_files(cli: &mut Recorder) {
    let (registry, signer) = (Registry::new().await, Signer::new(1));
    let plugin = std::fs::read(HOSTILE_DEVICE).unwrap();
    registry.push(&plugin, &signer.sign(&plugin, "release 7"));
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().to_str().unwrap().to_owned();
    let (trust, pulled) = (format!("{to}/trust.hcl"), format!("{to}/plugin.wasm"));
    std::fs::write(&trust, key(&signer, "")).unwrap();
    let reference = registry.reference();
    cli.known.extend([(to.clone(), "<to>"), (reference.clone(), "<reference>")]);
    let pull = ["plugin", "pull", "--to", &to, &reference];
    let verify = ["plugin", "verify", "--trust", &trust];
    for args in
        [&pull[..], &[&verify[..], &[&pulled]].concat(), &[&verify[..], &[HOSTILE_DEVICE]].concat()]
    {
        for args in [args, &[args, &["--json"]].concat()] {
            cli.keep(args, &ostler(args).await);
        }
    }
    let moved = fresh("moved");
    registry.push(&moved, &Signer::new(2).sign(&moved, ""));
    for args in [&pull[..], &[&pull[..], &["--update"]].concat()] {
        cli.keep(args, &ostler(args).await);
    }
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
        &["service", "list"],
        &["service", "info", "web-0"],
        &["node", "status"],
        &["node", "status", "--stats"],
        &["device", "list"],
        &["device", "status", CARD],
        &["plugin", "list"],
        &["plugin", "status"],
        &["plugin", "status", "pci"],
        &["plugin", "lift", "pci"],
        &["explain", "--kind", "plugin", "pci"],
        &["explain", CARD],
        &["state", "runs"],
        &["state", "stats"],
    ] {
        cli.both(agent, args).await;
    }
    for args in [
        &["job", "status", "none"][..],
        &["service", "info", "none"],
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
    let all = agent.json(&["deployment", "list", "--json"]).await;
    let deployment = all[0]["ID"].as_str().unwrap();
    for args in [
        &["deployment", "list"][..],
        &["deployment", "status", deployment],
        &["job", "history", "web"],
        &["job", "promote", "web"],
        &["job", "revert", "web", "7"],
        &["job", "scale", "web", "none", "7"],
        &["deployment", "status", "ffffffff"],
        &["deployment", "promote", deployment],
        &["deployment", "fail", deployment],
        &["deployment", "pause", deployment],
        &["deployment", "resume", deployment],
        &["node", "eligibility", "--disable"],
        &["node", "eligibility", "--enable"],
        &["node", "drain", "--disable"],
        &["node", "drain"],
    ] {
        cli.both(agent, args).await;
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
