//! The first steps of docs/cluster.md, followed to the letter where `NOMAD_BIN` names a stock Nomad: in a network
//! namespace of its own, since they use its usual ports.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use ostler_model::clock::{self, Stopwatch};
use tokio::process::{Child, Command};

use crate::support::needs::{Need, not_asked, skipped};
use crate::support::system::{kill, processes_of};
use crate::support::{OSTLER, PATIENCE};

const DOC: &str = include_str!("../../../docs/cluster.md");

/// The blocks of one kind in the first section.
fn blocks(kind: &str) -> Vec<String> {
    let section = DOC.split("\n## ").nth(1).expect("a section");
    assert!(section.starts_with("From one node"), "{section}");
    let fence = format!("```{kind}\n");
    let lines = section.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
    // What is indented inside a block is no part of a file of its own.
    lines.split(&fence).skip(1).map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// A network of its own, with two programs on the path of every command.
struct Place {
    dir: tempfile::TempDir,
    holder: Child,
    going_on: Vec<Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        // The end of the agents is not that of their tasks.
        processes_of(self.dir.path()).into_iter().for_each(kill);
    }
}

impl Place {
    async fn new(nomad: &Path) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        for (name, program) in [("nomad", nomad), ("ostler", Path::new(OSTLER))] {
            std::os::unix::fs::symlink(program, dir.path().join(name)).unwrap();
        }
        let mut holder = Command::new("unshare");
        let script = "ip link set lo up && echo up && exec sleep 3600";
        let mut holder = holder
            .args(["--net", "sh", "-c", script])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .ok()?;
        let mut up = [0; 3];
        let mut stdout = holder.stdout.take().unwrap();
        tokio::io::AsyncReadExt::read_exact(&mut stdout, &mut up).await.ok()?;
        Some(Self { dir, holder, going_on: Vec::new() })
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        let network = format!("--net=/proc/{}/ns/net", self.holder.id().unwrap());
        let path = format!("{}:{}", self.dir.path().display(), std::env::var("PATH").unwrap());
        command.args([&network, "--", "sh", "-c", line]).env("PATH", path);
        command.current_dir(self.dir.path()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }

    /// What it prints when it succeeds; a person would try again, as often as it takes.
    async fn says(&self, line: &str, wanted: &str) -> String {
        let waited = Stopwatch::start();
        loop {
            let output = clock::timeout(PATIENCE, self.command(line).output()).await;
            let output = output.expect("it ends").unwrap();
            let text =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            if output.status.success() && text.contains(wanted) {
                return text;
            }
            assert!(waited.elapsed() < PATIENCE, "{line}: {text}");
            clock::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// What a command shows when it has done what the page says of it.
fn wanted(line: &str) -> &'static str {
    match line {
        _ if line.contains("join-check") => "a node can join",
        _ if line.starts_with("nomad node status") => "ready",
        _ if line.contains("alloc logs") => "hello from hello.g[0]",
        _ if line.contains("job run") => "complete",
        _ if line.contains("drain") => "rain complete",
        _ => "",
    }
}

#[tokio::test]
async fn the_first_steps_of_the_page_on_clusters_work_as_they_stand() {
    let Some(nomad) = std::env::var_os("NOMAD_BIN") else {
        return not_asked("NOMAD_BIN names no stock Nomad");
    };
    let Some(mut place) = Place::new(Path::new(&nomad)).await else {
        return skipped(Need::Root, "there is no network namespace to be had");
    };
    for file in blocks("hcl") {
        let name = file.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a name");
        std::fs::write(place.dir.path().join(name), &file).unwrap();
    }
    let lines: Vec<String> =
        blocks("sh").iter().flat_map(|block| block.lines()).map(str::to_owned).collect();
    assert!(lines.len() > 9, "{lines:#?}");
    let mut nodes = 0;
    for line in &lines {
        if line.starts_with("nomad agent") || line.starts_with("ostler agent") {
            let mut agent = place.command(line);
            place.going_on.push(agent.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
            nodes += usize::from(line.starts_with("ostler"));
            continue;
        }
        let said = place.says(line, wanted(line)).await;
        if line == "nomad node status" {
            // Who looks too early looks again.
            let all = format!("test $(nomad node status | grep -c ready) = {nodes}");
            place.says(&all, "").await;
        } else if line.contains("job run") {
            place.says("nomad job status hello | grep -q 'running  '", "").await;
        }
        eprintln!("$ {line}\n{said}");
    }
    let left = place.says("nomad job status", "No running jobs").await;
    assert!(!left.contains("hello"), "{left}");
}
