//! A stock Nomad server, where `NOMAD_BIN` names the program.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;

use super::PATIENCE;
use super::needs::not_asked;

/// A server on loopback, with its state in a directory of its own; killed when this goes.
pub struct NomadServer {
    program: PathBuf,
    http: u16,
    pub rpc: u16,
    _dir: tempfile::TempDir,
    _child: tokio::process::Child,
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

impl NomadServer {
    /// A server that has a leader; none, said aloud, without `NOMAD_BIN`.
    pub async fn start() -> Option<Self> {
        Self::start_with("").await
    }

    /// As [`Self::start`], with more in its configuration: a client of its own, for example.
    pub async fn start_with(more: &str) -> Option<Self> {
        let Some(program) = std::env::var_os("NOMAD_BIN").map(PathBuf::from) else {
            not_asked("NOMAD_BIN names no stock Nomad");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let (http, rpc, serf) = (free_port(), free_port(), free_port());
        let config = dir.path().join("server.hcl");
        let text = format!(
            "name = \"s1\"\ndata_dir = \"{}\"\nbind_addr = \"127.0.0.1\"\nadvertise {{\n \
             http = \"127.0.0.1:{http}\"\n rpc = \"127.0.0.1:{rpc}\"\n serf = \"127.0.0.1:{serf}\"\n}}\n\
             ports {{\n http = {http}\n rpc = {rpc}\n serf = {serf}\n}}\n\
             server {{\n enabled = true\n bootstrap_expect = 1\n}}\n{more}",
            dir.path().join("state").display()
        );
        std::fs::write(&config, text).unwrap();
        let child = tokio::process::Command::new(&program)
            .arg("agent")
            .arg("-config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let server = Self { program, http, rpc, _dir: dir, _child: child };
        server.until("a leader", "/v1/status/leader", |leader| leader.as_str() != Some("")).await;
        Some(server)
    }

    /// The stock command line: whether it succeeds, and what it prints.
    pub async fn nomad(&self, args: &[&str]) -> (bool, String) {
        let asked = tokio::process::Command::new(&self.program)
            .args(args)
            .env("NOMAD_ADDR", format!("http://127.0.0.1:{}", self.http))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let asked = ostler_model::clock::timeout(PATIENCE, asked).await;
        let output = asked.expect("the command ends").unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&text).into_owned())
    }

    /// As [`Self::nomad`], of a command that succeeds.
    pub async fn does(&self, args: &[&str]) -> String {
        let (ok, text) = self.nomad(args).await;
        assert!(ok, "nomad {args:?}: {text}");
        text
    }

    /// Run a command that does not end by itself until it prints this.
    pub async fn prints(&self, args: &[&str], wanted: &str) {
        use tokio::io::AsyncBufReadExt as _;
        let mut child = tokio::process::Command::new(&self.program)
            .args(args)
            .env("NOMAD_ADDR", format!("http://127.0.0.1:{}", self.http))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
        let printed = async {
            while let Some(line) = lines.next_line().await.unwrap() {
                if line.contains(wanted) {
                    return;
                }
            }
            panic!("it ended without {wanted:?}");
        };
        let printed = ostler_model::clock::timeout(PATIENCE, printed).await;
        printed.unwrap_or_else(|| panic!("nomad {args:?} never printed {wanted:?}"));
    }

    /// What the server's API answers.
    pub async fn get(&self, path: &str) -> Option<Value> {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", self.http)).await.ok()?;
        let request = format!("GET {path} HTTP/1.0\r\nHost: nomad\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await.ok()?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Wait until an answer is as it should be.
    pub async fn until(&self, what: &str, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let waited = ostler_model::clock::Stopwatch::start();
        let mut last = None;
        while waited.elapsed() < PATIENCE {
            last = self.get(path).await;
            if let Some(answer) = last.as_ref().filter(|answer| is(answer)) {
                return answer.clone();
            }
            ostler_model::clock::sleep(std::time::Duration::from_millis(100)).await;
        }
        panic!("{what}: {last:#?}");
    }
}
