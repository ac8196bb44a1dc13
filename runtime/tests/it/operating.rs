//! What runs an agent for months: a service manager, a log, a changed configuration, measurements, `top`.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command as StdCommand, Stdio};
use std::time::Duration;

use regex::Regex;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::PATIENCE;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::ostler;
use crate::support::http::Client;
use crate::support::needs::{Need, skipped};
use crate::support::system::eventually;
use crate::support::{KEEPS, OSTLER};

fn docs(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A service manager's socket, and what it was told.
struct Manager(UnixDatagram, tempfile::TempDir);

impl Manager {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket, dir)
    }

    fn path(&self) -> std::path::PathBuf {
        self.1.path().join("notify")
    }

    /// Wait until it is told this; everything it was told meanwhile.
    async fn hears(&self, line: &str) -> Vec<String> {
        let told = std::cell::RefCell::new(Vec::new());
        eventually(&format!("the manager is told {line}"), || {
            let mut text = [0; 1_024];
            while let Ok(length) = self.0.recv(&mut text) {
                let text = String::from_utf8_lossy(&text[..length]).into_owned();
                told.borrow_mut().extend(text.lines().map(str::to_owned));
            }
            told.borrow().iter().any(|told| told == line)
        })
        .await;
        told.into_inner()
    }
}

/// An agent with this configuration, which may be changed.
async fn configured(text: &str, with: impl FnOnce(&mut tokio::process::Command)) -> AgentProcess {
    let data = Home::new();
    let file = data.path().join("agent.hcl");
    std::fs::write(&file, format!("{KEEPS}\n{text}\n")).unwrap();
    let args = ["--config", file.to_str().unwrap()];
    let mut agent = AgentProcess::spawn(data, &args, with);
    agent.hears("ready: the agent").await;
    agent
}

fn reconfigure(agent: &AgentProcess, text: &str) {
    std::fs::write(agent.data.path().join("agent.hcl"), format!("{KEEPS}\n{text}\n")).unwrap();
    agent.signal(Signal::HUP);
}

#[test]
fn the_unit_file_lets_tasks_live_and_says_what_docs_promise() {
    let unit = docs("systemd/ostler.service");
    for line in [
        "Type=notify",
        "KillMode=process",
        "WatchdogSec=30s",
        "Delegate=yes",
        "DelegateSubgroup=agent",
        // Tasks do not inherit it.
        "OOMScoreAdjust=-500",
        "ExecReload=/bin/kill -HUP $MAINPID",
    ] {
        assert!(unit.lines().any(|own| own == line), "{line} in {unit}");
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ostler.service");
    std::fs::write(&file, unit.replace("/usr/bin/ostler", OSTLER)).unwrap();
    let verify =
        StdCommand::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
    let Ok(output) = verify else {
        return skipped(Need::Systemd, "systemd-analyze is not installed");
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // Versions before 254 do not know it, and say so.
    let wrong: Vec<_> = said.lines().filter(|line| !line.contains("DelegateSubgroup")).collect();
    assert!(output.status.success() && wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_service_manager_is_told_again_and_again_that_the_agent_works() {
    let manager = Manager::new();
    let agent = configured("", |command| {
        command.env("NOTIFY_SOCKET", manager.path()).env("WATCHDOG_USEC", "200000");
    })
    .await;
    for _ in 0..3 {
        manager.hears("WATCHDOG=1").await;
    }
    agent.signal(Signal::TERM);
    manager.hears("STOPPING=1").await;
    let (ended, _data) = agent.ended().await;
    assert_eq!(ended.code, Some(0), "{ended:#?}");
}

#[tokio::test]
async fn a_watchdog_of_another_process_is_told_nothing() {
    let manager = Manager::new();
    let agent = configured("", |command| {
        command.env("NOTIFY_SOCKET", manager.path()).env("WATCHDOG_USEC", "20000");
        command.env("WATCHDOG_PID", "1");
    })
    .await;
    agent.signal(Signal::TERM);
    let told = manager.hears("STOPPING=1").await;
    assert!(!told.contains(&"WATCHDOG=1".to_owned()), "{told:?}");
}

#[tokio::test]
async fn a_changed_configuration_is_taken_at_sighup_and_said_key_by_key() {
    let manager = Manager::new();
    let mut agent = configured("datacenter = \"dc1\"", |command| {
        command.env("NOTIFY_SOCKET", manager.path());
    })
    .await;
    manager.hears("READY=1").await;
    let client = Client(agent.data.path().join("ostler.sock"));
    assert_eq!(client.get("/v1/ostler/reload").await.json(), Value::Null, "none yet");
    let changed = "datacenter = \"dc2\"\nmeta {\n rack = \"r7\"\n}\nclient {\n \
                   disable_remote_exec = true\n host_volume \"v\" {\n path = \"/tmp\"\n }\n}";
    reconfigure(&agent, changed);
    let told = manager.hears("READY=1").await;
    assert!(told.contains(&"RELOADING=1".to_owned()), "{told:?}");
    let micros = told.iter().find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
    assert!(micros.unwrap().parse::<u64>().unwrap() > 0, "{told:?}");
    for said in
        ["datacenter: needs a restart", "client.disable_remote_exec: applied", "meta: applied"]
    {
        // In the order of the reference; each is said once.
        agent.hears(said).await;
    }
    let report = client.get("/v1/ostler/reload").await.json();
    assert_eq!(report["refused"], Value::Null);
    let of = |key: &str| {
        let keys = report["keys"].as_array().unwrap();
        keys.iter().find(|one| one["key"] == key).unwrap()["verdict"].clone()
    };
    assert_eq!(
        (of("client.host_volume"), of("datacenter")),
        ("applied".into(), "needs_restart".into())
    );
    let node = client.get("/v1/ostler/node").await.json();
    assert_eq!((&node["meta"]["rack"], &node["datacenter"]), (&"r7".into(), &"dc1".into()));
    assert_eq!(node["host_volumes"]["v"]["path"], "/tmp");

    reconfigure(&agent, "meta {\n rack = \"r8\"\n}\nno_such_key = 1");
    let line = agent.hears("the configuration stays as it was").await;
    assert!(line.contains("no_such_key"), "{line}");
    assert_eq!(client.get("/v1/ostler/node").await.json()["meta"]["rack"], "r7");
    // What was left to a restart is told again; what holds is not.
    reconfigure(&agent, changed);
    agent.hears("datacenter: needs a restart").await;
    let report = client.get("/v1/ostler/reload").await.json();
    assert_eq!(report["keys"].as_array().unwrap().len(), 1, "{report:#}");
}

#[tokio::test]
async fn the_log_is_json_in_a_file_where_the_configuration_says_so_and_changes_with_it() {
    let mut agent = configured("log_level = \"warn\"", |_| {}).await;
    let file = agent.data.path().join("logs/agent.log");
    let text = format!(
        "log_level = \"DEBUG\"\nlog_json = true\nlog_file = {file:?}\nlog_rotate_bytes = 2000\n\
         log_rotate_max_files = 2"
    );
    reconfigure(&agent, &text);
    agent.hears("\"@message\":\"configuration: log_level: applied\"").await;
    eventually("it is in the file", || {
        std::fs::read_to_string(&file)
            .is_ok_and(|text| text.contains("configuration: log_file: applied"))
    })
    .await;
    for line in std::fs::read_to_string(&file).unwrap().lines() {
        let line: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(line["@level"].is_string() && line["@timestamp"].is_string(), "{line}");
    }
    for _ in 0..40 {
        reconfigure(&agent, &text);
        agent.hears("nothing in it differs").await;
    }
    let names = std::fs::read_dir(file.parent().unwrap()).unwrap();
    let names: Vec<_> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(names.len(), 3, "the present one and two earlier ones: {names:?}");
    let earlier = Regex::new(r"^agent-\d+\.log$").unwrap();
    assert_eq!(names.iter().filter(|name| earlier.is_match(name)).count(), 2, "{names:?}");
    let wrong = text.replace("/logs/agent.log", "/agent.hcl/no.log");
    reconfigure(&agent, &wrong);
    let line = agent.hears("log_file: refused").await;
    assert!(line.contains("agent.hcl/no.log"), "{line}");
}

#[tokio::test]
async fn an_agent_for_development_keeps_nothing_runs_programs_and_says_how_to_reach_it() {
    let wrong = ostler(["agent", "--dev", "--data-dir", "/nowhere"]).await;
    assert_eq!(wrong.code, Some(2), "{wrong:#?}");
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("agent.hcl");
    std::fs::write(&config, "data_dir = \"kept\"\n").unwrap();
    let kept = ostler(["agent", "--dev", "--config", config.to_str().unwrap()]).await;
    kept.said(3, &["--dev", "data directory"]);
}

#[tokio::test]
async fn a_drain_that_is_not_under_way_is_not_said_to_be_complete() {
    let agent = AgentProcess::start().await;
    let monitor = ["node", "drain", "--monitor"];
    let told = agent.ask(&monitor).await;
    told.said(0, &["is not being drained, and is eligible", "`ostler node drain --enable`"]);
    assert!(!told.stderr.contains("complete"), "{told:#?}");
    agent.ask(&["node", "drain", "--enable"]).await.said(0, &["the drain is complete"]);
    let told = agent.ask(&monitor).await;
    told.said(0, &["is not being drained, and is ineligible", "eligibility --enable"]);
    // Which of the two is not guessed.
    agent.ask(&["node", "eligibility"]).await.said(2, &["<--enable|--disable>"]);
}

#[tokio::test]
async fn a_drain_is_complete_however_fast_it_is_and_whatever_is_to_run_on() {
    let agent = AgentProcess::start().await;
    let job = |id: &str, more: &str| {
        let task =
            "driver = \"raw_exec\"\n config {\n command = \"/bin/sleep\"\n args = [\"600\"]\n }";
        format!(
            "job \"{id}\" {{\n {more}\n task \"t\" {{\n {task}\n resources {{\n cpu = 1\n memory = 10\n }}\n \
             }}\n }}\n}}\n"
        )
    };
    let update = "update {\n max_parallel = 0\n }";
    agent.run(&job("web", &format!("group \"g\" {{\n count = 8\n {update}"))).await.said(0, &[]);
    agent.run(&job("node", "type = \"system\"\n group \"g\" {")).await.said(0, &[]);
    let drain = ["node", "drain", "--enable", "--force"];
    let told = agent.ask(&[&drain[..], &["--ignore-system"]].concat()).await;
    told.said(0, &["the drain is complete: 1 allocation of system jobs runs on"]);
    agent.ask(&drain).await.said(0, &["the drain is complete: nothing runs"]);
}

#[tokio::test]
async fn every_metric_of_the_dashboard_is_there() {
    let agent = AgentProcess::start().await;
    let task = "driver = \"raw_exec\"\n config {\n command = \"/bin/sleep\"\n args = [\"600\"]\n }";
    let job = format!(
        "job \"j\" {{\n group \"g\" {{\n task \"t\" {{\n {task}\n }}\n update {{\n min_healthy_time = \"0s\"\n }}\n }}\n}}\n"
    );
    assert_eq!(agent.run(&job).await.code, Some(0));
    let client = Client(agent.data.path().join("ostler.sock"));
    let dashboard: Value = serde_json::from_str(&docs("grafana/ostler.json")).unwrap();
    let name = Regex::new(r"\b(?:nomad|ostler)_[a-z0-9_]+").unwrap();
    let mut wanted = std::collections::BTreeSet::new();
    let mut ids = std::collections::BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "twice: {panel:#}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let text = target["expr"].as_str().unwrap();
            let found: Vec<_> =
                name.find_iter(text).map(|found| found.as_str().to_owned()).collect();
            assert!(!found.is_empty(), "no metric in {text}");
            wanted.extend(found);
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"]["query"].as_str().unwrap_or_default();
        wanted.extend(name.find_iter(query).map(|found| found.as_str().to_owned()));
    }
    assert!(wanted.len() > 20, "{wanted:?}");
    // The use of tasks is measured against an earlier look.
    let missing = || async {
        let text = client.get("/v1/metrics?format=prometheus").await.text();
        let has = |name: &&String| {
            text.lines().any(|line| {
                line.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
        };
        wanted.iter().filter(|name| !has(name)).cloned().collect::<Vec<_>>()
    };
    let all = async {
        while !missing().await.is_empty() {
            ostler_model::clock::sleep(Duration::from_millis(200)).await;
        }
    };
    if ostler_model::clock::timeout(PATIENCE, all).await.is_none() {
        panic!("the agent does not tell of {:?}", missing().await);
    }
}

#[tokio::test]
async fn top_prints_tables_once_and_refuses_to_follow_without_a_terminal() {
    let agent = AgentProcess::start().await;
    let once = agent.ask(&["top", "--once"]).await;
    assert_eq!(once.code, Some(0), "{once:#?}");
    for head in ["allocations", "STRIKES", "exec", "memory "] {
        assert!(once.stdout.contains(head), "{head} in {}", once.stdout);
    }
    let json = agent.json(&["top", "--json", "--filter", "exec"]).await;
    let plugins = json["plugins"].as_array().unwrap();
    assert!(!plugins.is_empty() && plugins.len() < 5, "{json:#}");
    agent.ask(&["top"]).await.said(2, &["needs a terminal", "--once"]);
}

/// A terminal of its own for a test.
struct Tmux(String);

impl Tmux {
    fn run(&self, args: &[&str]) -> Option<String> {
        let output = StdCommand::new("tmux")
            .args(["-L", &self.0, "-f", "/dev/null"])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .ok()?;
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn shows(&self) -> String {
        self.run(&["capture-pane", "-p"]).unwrap_or_default()
    }

    /// What it shows once that has the text.
    async fn until(&self, text: &str) -> String {
        self.until_all(&[text]).await
    }

    /// What it shows once that has all of the texts: a screen is not drawn at once.
    async fn until_all(&self, texts: &[&str]) -> String {
        let mut shown = String::new();
        eventually(&format!("the terminal shows {texts:?}"), || {
            shown = self.shows();
            texts.iter().all(|text| shown.contains(text))
        })
        .await;
        shown
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        self.run(&["kill-server"]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn top_follows_in_a_terminal_and_leaves_it_as_it_was() {
    if StdCommand::new("tmux").arg("-V").output().is_err() {
        return skipped(Need::Tmux, "tmux is not installed");
    }
    let agent = AgentProcess::start().await;
    let tmux = Tmux(format!("ostler-{}", agent.pid()));
    let dir = agent.data.path().to_str().unwrap();
    let shell = format!("env PS1='prompt> ' TERM=tmux-256color {} ", "sh");
    tmux.run(&["new-session", "-d", "-x", "90", "-y", "20", &shell]).unwrap();
    tmux.until("prompt>").await;
    let type_in = |text: &str| tmux.run(&["send-keys", text]);
    let top = format!(
        "stty -a >{dir}/before; {OSTLER} top --interval 500ms --data-dir {dir}; echo code $?; stty -a >{dir}/after"
    );
    tmux.run(&["send-keys", "-l", &top]);
    type_in("Enter");
    tmux.until_all(&["q quit", "cpu    [", "no allocations"]).await;
    type_in("3");
    tmux.until_all(&["STRIKES", "exec"]).await;
    type_in("/");
    tmux.run(&["send-keys", "-l", "nothing"]);
    tmux.until("no plugins with this text").await;
    type_in("Escape");
    // The next key is not read together with this one: that would be another key.
    tmux.until_all(&["STRIKES", "exec"]).await;
    tmux.run(&["resize-window", "-x", "60", "-y", "12"]);
    tmux.until("STRIKES").await;
    type_in("q");
    let after = tmux.until("code 0").await;
    assert!(!after.contains("STRIKES"), "the screen before is back: {after}");
    let stty = |name: &str| {
        let text = std::fs::read_to_string(agent.data.path().join(name)).unwrap_or_default();
        let flags = text
            .split_whitespace()
            .filter(|word| word.trim_start_matches('-').chars().all(|c| c.is_ascii_lowercase()));
        flags.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("the terminal is as it was", || {
        !stty("after").is_empty() && stty("before") == stty("after")
    })
    .await;

    // A small terminal: what there is room for, or how much is needed.
    tmux.run(&["resize-window", "-x", "40", "-y", "10"]);
    tmux.run(&["send-keys", "-l", &format!("clear; {OSTLER} top --data-dir {dir}; echo code $?")]);
    type_in("Enter");
    let keys = "q quit  tab list  s sort  / filter";
    tmux.until_all(&[keys, "1 allocations (0) 2 devices 3 plugins"]).await;
    tmux.run(&["resize-window", "-x", "30", "-y", "6"]);
    tmux.until("needs 40 columns").await;
    type_in("q");
    tmux.until("code 0").await;
    tmux.run(&["resize-window", "-x", "90", "-y", "20"]);
    // A terminal that takes lines alone.
    tmux.run(&[
        "send-keys",
        "-l",
        &format!("clear; TERM=dumb {OSTLER} top --data-dir {dir}; echo code $?"),
    ]);
    type_in("Enter");
    tmux.until_all(&["code 2", "TERM=dumb", "once and --json"]).await;

    // A signal leaves it as it was too.
    tmux.run(&["send-keys", "-l", &format!("clear; {OSTLER} top --data-dir {dir}; echo ended $?")]);
    type_in("Enter");
    tmux.until("q quit").await;
    let pattern = format!("top --data-dir {dir}");
    let pids = crate::support::system::processes_of(agent.data.path());
    let of_top = pids.into_iter().find(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(&pattern)
    });
    let pid =
        rustix::process::Pid::from_raw(i32::try_from(of_top.expect("it runs")).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    tmux.until("ended 143").await;
}
