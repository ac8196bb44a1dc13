//! The agent of a history: started, asked, killed.

use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ostler_model::clock::{self, Stopwatch};
use rustix::process::Signal;
use serde_json::Value;

use super::super::model::Shape;
use super::{LOOK, Trouble, World, signal};
use crate::support::binary::command;

/// Until an agent is ready, or has given up: it waits a minute for plugins that are compiled anew.
const STARTING: Duration = Duration::from_secs(120);

/// How an attempt to start an agent ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Start {
    Ready,
    GaveUp,
}

impl World {
    pub(super) fn socket(&self) -> PathBuf {
        self.site.data().join(ostler_api::SOCKET_NAME)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.site.beside().join(format!("agent.{}.log", self.agents))
    }

    pub(super) fn spawn(&mut self, files: Option<u32>) {
        self.agents += 1;
        self.fresh = true;
        let log = std::fs::File::create(self.log()).unwrap();
        let data = self.site.data().to_str().unwrap().to_owned();
        let mut agent = match files {
            None => command(["-v", "agent", "--data-dir", &data]),
            Some(files) => {
                let mut shell = tokio::process::Command::new("/bin/sh");
                let script = format!("ulimit -n {files}; exec \"$@\"");
                let binary = crate::support::OSTLER;
                shell.args(["-c", &script, "sh", binary, "-v", "agent", "--data-dir", &data]);
                shell.kill_on_drop(true).stdin(std::process::Stdio::null());
                shell
            }
        };
        agent.env("OSTLER_CONFIG", self.site.beside().join("agent.hcl"));
        agent.env("OSTLER_TEST_CLOCK", self.site.beside().join("clock"));
        agent.stdout(std::process::Stdio::null()).stderr(log);
        self.agent = Some(agent.spawn().unwrap());
    }

    /// Wait until the agent is ready or ends by itself.
    pub(super) async fn ready(&mut self) -> Result<Start, Trouble> {
        let begun = Stopwatch::start();
        loop {
            let said = std::fs::read_to_string(self.log()).unwrap_or_default();
            if said.contains("panicked") {
                return Err(format!("the agent panicked: {said}"));
            }
            if said.contains("ready: the agent") {
                return Ok(Start::Ready);
            }
            let agent = self.agent.as_mut().expect("an agent was spawned");
            if agent.try_wait().unwrap().is_some() {
                self.agent = None;
                return Ok(Start::GaveUp);
            }
            if begun.elapsed() > STARTING {
                return Err(format!("the agent is not ready after {STARTING:?}: {said}"));
            }
            clock::sleep(LOOK).await;
        }
    }

    /// There is an agent, and it has what was acknowledged.
    pub(super) async fn up(&mut self) -> Result<(), Trouble> {
        if self.agent.is_none() {
            self.spawn(None);
            if self.ready().await? == Start::GaveUp {
                let said = std::fs::read_to_string(self.log()).unwrap_or_default();
                return Err(format!("the agent does not start: {said}"));
            }
        }
        let started = std::mem::take(&mut self.fresh);
        self.resolve(started).await
    }

    pub(super) async fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ended_already = agent.start_kill();
            let _status = agent.wait().await;
        }
    }

    /// Told to end, it ends.
    pub(super) async fn leave(&mut self) -> Result<(), Trouble> {
        let Some(mut agent) = self.agent.take() else { return Ok(()) };
        signal(agent.id().unwrap_or_default(), Signal::TERM);
        let status = clock::timeout(Duration::from_secs(30), agent.wait()).await;
        match status {
            Some(Ok(status)) if status.code() == Some(0) => Ok(()),
            other => Err(format!("the agent does not end as asked: {other:?}")),
        }
    }

    /// What the agent answers; `None` when it does not.
    pub(super) async fn get(&self, path: &str) -> Option<(u16, Value)> {
        let asked = async {
            let stream = tokio::net::UnixStream::connect(self.socket()).await.ok()?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
            let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
            let request = hyper::Request::get(path).header("host", "ostler");
            let answer =
                sender.send_request(request.body(Empty::<Bytes>::new()).ok()?).await.ok()?;
            let status = answer.status().as_u16();
            let body = answer.into_body().collect().await.ok()?.to_bytes();
            drop(connection);
            Some((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
        };
        clock::timeout(Duration::from_secs(30), asked).await.flatten()
    }

    /// The agent says which of the possible states its jobs are in.
    pub(super) async fn resolve(&mut self, started: bool) -> Result<(), Trouble> {
        for job in 0..self.jobs.len() {
            let id = self.jobs[job].shape.id.clone();
            let found = match self.get(&format!("/v1/job/{id}")).await {
                Some((404, _)) => None,
                Some((200, json)) => {
                    let timeout = json["TaskGroups"][0]["Tasks"][0]["KillTimeout"].as_u64();
                    Some((Shape::number(timeout.unwrap_or_default()), json["Stop"] == true))
                }
                other => return Err(format!("the agent does not tell of job {id}: {other:?}")),
            };
            self.jobs[job].found(found, started).map_err(|wrong| format!("lost: {wrong}"))?;
        }
        Ok(())
    }
}
