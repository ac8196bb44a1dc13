//! One of the two agents, and the commands of the table against it.

use std::process::Stdio;
use std::time::Duration;

use ostler_model::clock::{self, Stopwatch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;

use super::rows::{Mode, Row, Wanted, files};
use crate::support::PATIENCE;
use crate::support::binary::{Ended, with_input};
use crate::support::nomad::{asked, program, words};

/// How long something is waited for that a command is to say.
const SAID_WITHIN: Duration = Duration::from_secs(30);
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// An agent under its port of loopback, and a directory with the table's files in which its commands run.
pub struct Side {
    http: u16,
    dir: tempfile::TempDir,
}

/// What a command did.
pub struct Said {
    pub code: Option<i32>,
    pub text: String,
    /// What was wanted and is not so.
    pub lacks: Vec<String>,
}

impl Side {
    pub fn new(http: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(files()).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        Self { http, dir }
    }

    /// Run a command of the table as it says.
    pub async fn play(&self, row: &Row, wanted: &Wanted) -> Said {
        let mut says = Vec::new();
        for text in &wanted.says {
            says.push(self.filled(text).await);
        }
        let waited = Stopwatch::start();
        loop {
            let command = self.filled(&row.command).await;
            let (code, text) = match (command.strip_prefix("GET "), row.mode) {
                (Some(path), _) => self.got(path, row, &says).await,
                (None, Mode::Followed) => self.followed(&command, row, &says).await,
                (None, _) => {
                    let Ended { code, stdout, stderr } =
                        with_input(self.command(&command), row.input.as_bytes()).await;
                    (code, stdout + &stderr)
                }
            };
            let mut lacks: Vec<_> =
                says.iter().filter(|says| !text.contains(*says)).cloned().collect();
            if code != Some(wanted.code) {
                lacks.push(format!("exit code {}", wanted.code));
            }
            if lacks.is_empty() || row.mode != Mode::Again || waited.elapsed() > SAID_WITHIN {
                return Said { code, text, lacks };
            }
            clock::sleep(PAUSE).await;
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(program().expect("it runs"));
        command.args(words(line)).current_dir(self.dir.path()).kill_on_drop(true);
        command.env("NOMAD_ADDR", format!("http://127.0.0.1:{}", self.http));
        // No browser is opened.
        command.env("PATH", "/usr/bin:/bin").env_remove("NOMAD_TOKEN").env_remove("DISPLAY");
        command
    }

    /// Run a command until it has said this, and interrupt it.
    async fn followed(&self, line: &str, row: &Row, says: &[String]) -> (Option<i32>, String) {
        let mut command = self.command(line);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let text = self.heard(&mut stdout, row, says).await;
        if let Some(pid) = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).unwrap())) {
            kill_process(pid, Signal::INT).unwrap();
        }
        let ended = clock::timeout(PATIENCE, child.wait()).await;
        (ended.and_then(|ended| ended.unwrap().code()), text)
    }

    /// Ask for a path, and read until the answer has said this.
    async fn got(&self, path: &str, row: &Row, says: &[String]) -> (Option<i32>, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.http)).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let text = self.heard(&mut stream, row, says).await;
        (text.starts_with("HTTP/1.1 200 ").then_some(0), text)
    }

    /// What comes until all is said, while another command gives a reason to say it.
    async fn heard(
        &self,
        from: &mut (impl AsyncRead + Unpin),
        row: &Row,
        says: &[String],
    ) -> String {
        let Some(other) = &row.meanwhile else { return read_until(from, says).await };
        // Again: the first time nobody may be listening yet.
        let meanwhile = async {
            loop {
                let other = self.filled(other).await;
                with_input(self.command(&other), b"").await;
                clock::sleep(PAUSE).await;
            }
        };
        tokio::select! {
            text = read_until(from, says) => text,
            () = meanwhile => unreachable!(),
        }
    }

    /// With what the names in braces stand for.
    async fn filled(&self, text: &str) -> String {
        let (mut filled, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            let named = after.split_once('}');
            let value = match named {
                Some((name, _)) => self.value(name).await,
                None => None,
            };
            match (named, value) {
                (Some((_, after)), Some(value)) => {
                    filled.push_str(&value);
                    rest = after;
                }
                _ => {
                    filled.push('{');
                    rest = after;
                }
            }
        }
        filled + rest
    }

    async fn value(&self, name: &str) -> Option<String> {
        let id = |value: &Value| Some(value["ID"].as_str()?.to_owned());
        let Some((what, job)) = name.split_once(':') else {
            return match name {
                "node" => Some(self.found("/v1/nodes", |nodes| id(&nodes[0])).await),
                _ => None,
            };
        };
        let of_job = |part: &str| format!("/v1/job/{job}{part}");
        let runs = |allocs: &Value| {
            let all = allocs.as_array()?;
            let runs = |alloc: &&Value| {
                alloc["DesiredStatus"] == "run" && alloc["ClientStatus"] == "running"
            };
            id(all.iter().find(runs)?)
        };
        let value = match what {
            "alloc" => self.found(&of_job("/allocations"), runs).await,
            "short" => self.found(&of_job("/allocations"), runs).await[..8].to_owned(),
            "eval" => self.found(&of_job("/evaluations"), |evals| id(&evals[0])).await,
            "deployment" => self.found(&of_job("/deployment"), id).await,
            "index" => {
                let index = |job: &Value| Some(job["JobModifyIndex"].as_u64()?.to_string());
                self.found(&of_job(""), index).await
            }
            "policy" => {
                let policy = |policies: &Value| {
                    let of = |policy: &&Value| policy["Target"]["Job"] == job;
                    id(policies.as_array()?.iter().find(of)?)
                };
                self.found("/v1/scaling/policies", policy).await
            }
            _ => return None,
        };
        Some(value)
    }

    /// Something in an answer, when it is there.
    async fn found(&self, path: &str, find: impl Fn(&Value) -> Option<String>) -> String {
        let waited = Stopwatch::start();
        loop {
            let answer = asked(self.http, "", "GET", path, "").await;
            let body = answer.as_ref().and_then(|(_, body)| serde_json::from_str(body).ok());
            match body.as_ref().and_then(&find) {
                Some(found) => return found,
                None if waited.elapsed() > SAID_WITHIN => panic!("not found at {path}: {answer:?}"),
                None => clock::sleep(PAUSE).await,
            }
        }
    }
}

/// What comes until all of this was said, it ends, or too long nothing of it came.
async fn read_until(from: &mut (impl AsyncRead + Unpin), says: &[String]) -> String {
    let mut bytes = Vec::new();
    let all_said = async {
        let mut piece = [0; 4096];
        loop {
            let text = String::from_utf8_lossy(&bytes).into_owned();
            if says.iter().all(|says| text.contains(says)) {
                return;
            }
            match from.read(&mut piece).await {
                Ok(0) | Err(_) => return,
                Ok(count) => bytes.extend_from_slice(&piece[..count]),
            }
        }
    };
    // What was read until then tells what is missing.
    let _too_late = clock::timeout(SAID_WITHIN, all_said).await;
    String::from_utf8_lossy(&bytes).into_owned()
}
