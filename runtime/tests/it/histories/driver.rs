//! A history, carried out: one real agent after the other, asked as people ask it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ostler::clock::{self, Stopwatch};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::Child;

use super::actions::{Action, Plan};
use super::model::{Change, JobModel, JobState, Shape};
use super::oracle::{Evidence, Mark, Observed, Run, Seen};
use super::place::Site;
use crate::support::agent_process::ask;
use crate::support::binary::{Ended, command};
use crate::support::system::runs;

/// Until everything is as it is to be.
const SETTLING: Duration = Duration::from_secs(90);
/// Until an agent is ready, or has given up.
const STARTING: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What went wrong, as text.
pub type Trouble = String;

/// How an attempt to start an agent ended.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    Ready,
    GaveUp,
}

/// A history on its way.
pub struct World {
    plan: Plan,
    site: Site,
    jobs: Vec<JobModel>,
    marks: Vec<Mark>,
    agent: Option<Child>,
    agents: u32,
    /// The agent has just been started.
    fresh: bool,
    /// A fault is on: what is placed now may not come to run.
    faulty: bool,
    /// What was done, for people.
    pub story: String,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let site = Site::new(plan.small_disk);
        let max = plan.max_allocs.map_or_else(String::new, |max| format!("max_allocs = {max}\n"));
        let config =
            format!("gc {{\n disk_usage_threshold = 100\n inode_usage_threshold = 100\n {max}}}\n");
        std::fs::write(site.beside().join("agent.hcl"), config).unwrap();
        let jobs = plan.jobs.iter().cloned().map(JobModel::new).collect();
        Self {
            plan,
            site,
            jobs,
            marks: Vec::new(),
            agent: None,
            agents: 0,
            fresh: true,
            faulty: false,
            story: String::new(),
        }
    }

    fn tell(&mut self, what: &str) {
        let _infallible = writeln!(self.story, "  {what}");
    }

    /// All of it, and the end.
    ///
    /// # Errors
    /// The first thing that may not be.
    pub async fn play(&mut self) -> Result<(), Trouble> {
        self.up().await?;
        for (number, action) in self.plan.actions.clone().into_iter().enumerate() {
            self.tell(&format!("{number:>2}. {action:?}"));
            self.act(action).await?;
            self.judge()?;
        }
        self.end().await
    }

    /// Keep the files; where they are.
    pub fn keep(self) -> String {
        self.site.keep()
    }

    // ---- the agent

    fn socket(&self) -> PathBuf {
        self.site.data().join(ostler::api::SOCKET_NAME)
    }

    fn log(&self) -> PathBuf {
        self.site.beside().join(format!("agent.{}.log", self.agents))
    }

    fn spawn(&mut self, files: Option<u32>) {
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
        agent.stdout(std::process::Stdio::null()).stderr(log);
        self.agent = Some(agent.spawn().unwrap());
    }

    /// Wait until the agent is ready or ends by itself.
    async fn ready(&mut self) -> Result<Start, Trouble> {
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
    async fn up(&mut self) -> Result<(), Trouble> {
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

    async fn kill(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _ended_already = agent.start_kill();
            let _status = agent.wait().await;
        }
    }

    /// Told to end, it ends.
    async fn leave(&mut self) -> Result<(), Trouble> {
        let Some(mut agent) = self.agent.take() else { return Ok(()) };
        signal(agent.id().unwrap_or_default(), Signal::TERM);
        let status = clock::timeout(Duration::from_secs(30), agent.wait()).await;
        match status {
            Some(Ok(status)) if status.code() == Some(0) => Ok(()),
            other => Err(format!("the agent does not end as asked: {other:?}")),
        }
    }

    /// What the agent answers; `None` when it does not.
    async fn get(&self, path: &str) -> Option<(u16, Value)> {
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
    async fn resolve(&mut self, started: bool) -> Result<(), Trouble> {
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

    async fn ask(&self, args: &[&str]) -> Ended {
        ask(self.site.data(), args).await
    }

    // ---- marks

    /// Carry out what a mark stands for; was it acknowledged?
    async fn marked(&mut self, mark: Mark, args: &[&str]) -> bool {
        let number = self.begin(mark);
        let ended = self.ask(args).await;
        let acknowledged = ended.code == Some(0);
        if acknowledged {
            self.site.note(&format!("done {number}"));
        } else {
            let said = ended.stderr.lines().last().unwrap_or_default().to_owned();
            self.tell(&format!("      {args:?}: {:?}, {said}", ended.code));
        }
        acknowledged
    }

    fn begin(&mut self, mark: Mark) -> usize {
        let number = self.marks.len();
        self.marks.push(mark);
        self.site.note(&format!("begin {number}"));
        number
    }

    fn done(&mut self, mark: Mark) {
        let number = self.begin(mark);
        self.site.note(&format!("done {number}"));
    }

    fn evidence(&self) -> Result<Evidence, Trouble> {
        let text = std::fs::read_to_string(self.site.evidence()).unwrap();
        // The last line may be on its way.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        Evidence::read(whole, &self.marks)
    }

    /// What tasks wrote is as it may be.
    fn judge(&self) -> Result<(), Trouble> {
        let shapes: Vec<&Shape> = self.jobs.iter().map(|job| &job.shape).collect();
        let wrong = self.evidence()?.violations(&shapes);
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(wrong.join("\n")),
        }
    }

    /// Runs of a place whose process lives.
    fn alive(&self, evidence: &Evidence) -> Vec<Run> {
        let mut runs = evidence.runs();
        runs.retain(|run| {
            let environ = std::fs::read(format!("/proc/{}/environ", run.pid)).unwrap_or_default();
            String::from_utf8_lossy(&environ).contains(&run.alloc) && self::runs(run.pid)
        });
        runs
    }

    /// The process of a place, and its allocation.
    fn process(&self, job: usize, index: u32) -> Option<Run> {
        let evidence = self.evidence().ok()?;
        let id = &self.jobs[job].shape.id;
        self.alive(&evidence).into_iter().find(|run| run.job == *id && run.index == index)
    }

    /// The allocation that is to run in a place.
    async fn alloc(&self, job: usize, index: u32) -> Option<String> {
        let id = &self.jobs[job].shape.id;
        let (_, list) = self.get(&format!("/v1/job/{id}/allocations")).await?;
        let seen = list.as_array()?.iter().filter_map(seen);
        seen.filter(|seen| seen.index == index && seen.desired_run).next_back().map(|seen| seen.id)
    }

    // ---- actions

    async fn act(&mut self, action: Action) -> Result<(), Trouble> {
        match action {
            Action::Settle => self.settle().await,
            Action::Leave => {
                self.leave().await?;
                self.up().await
            }
            Action::KillAgent { during, after } => self.kill_agent(during, after).await,
            Action::KillStart { after } => self.kill_start(after).await,
            Action::KillTask { job, index } => {
                if let Some(run) = self.process(job, index) {
                    self.done(Mark::Kill { alloc: run.alloc });
                    signal(run.pid, Signal::KILL);
                }
                Ok(())
            }
            Action::KillSupervisor { job, index, agent_down } => {
                self.kill_supervisor(job, index, agent_down).await
            }
            Action::FewFiles { limit, meanwhile } => self.few_files(limit, meanwhile).await,
            Action::FullDisk { meanwhile, kill } => self.full_disk(*meanwhile, kill).await,
            request => {
                self.up().await?;
                self.request(request).await;
                Ok(())
            }
        }
    }

    /// What a client asks, acknowledged or not.
    async fn request(&mut self, action: Action) {
        match action {
            Action::Register { job, change } => drop(self.register(job, change).await),
            Action::Updates { job, times } => {
                for _ in 0..times {
                    if !self.register(job, Change::Tasks).await {
                        return;
                    }
                }
            }
            Action::Stop { job, purge } => drop(self.stop(job, purge).await),
            Action::StopAndRun { job, times } => {
                for _ in 0..times {
                    if !self.stop(job, false).await || !self.register(job, Change::Same).await {
                        return;
                    }
                }
            }
            Action::StopAlloc { job, index } => {
                let Some(alloc) = self.alloc(job, index).await else { return };
                let mark = Mark::StopAlloc { job: self.jobs[job].shape.id.clone(), index };
                self.marked(mark, &["alloc", "stop", "--detach", &alloc]).await;
            }
            Action::RestartAlloc { job, index } => {
                let Some(alloc) = self.alloc(job, index).await else { return };
                let mark = Mark::RestartAlloc { alloc: alloc.clone() };
                self.marked(mark, &["alloc", "restart", "--detach", &alloc]).await;
            }
            Action::SignalAlloc { job, index } => {
                // Only of those that do not die of it.
                if !matches!(self.jobs[job].shape.life, super::model::Life::Runs { .. }) {
                    return;
                }
                if let Some(run) = self.process(job, index) {
                    self.ask(&["alloc", "signal", "-s", "USR1", &run.alloc]).await;
                }
            }
            Action::Collect => {
                self.marked(Mark::Collect, &["gc"]).await;
            }
            other => unreachable!("no request: {other:?}"),
        }
    }

    async fn register(&mut self, job: usize, change: Change) -> bool {
        let count = self.plan.counts[job];
        let model = &mut self.jobs[job];
        let spec = model.next(change, count);
        let anew = model.state() != JobState::Wanted(spec);
        if self.faulty {
            model.excused.extend(0..spec.count);
        } else if anew && change != Change::Rules {
            model.excused.clear();
        }
        let (id, text) = (model.shape.id.clone(), model.shape.text(spec, self.site.beside()));
        let file = self.site.beside().join(format!("{id}.{}.hcl", spec.number));
        std::fs::write(&file, text).unwrap();
        let mark = Mark::Register { job: id, spec, anew };
        let acknowledged =
            self.marked(mark, &["job", "run", "--detach", file.to_str().unwrap()]).await;
        self.jobs[job].asked(|_| JobState::Wanted(spec), acknowledged);
        acknowledged
    }

    async fn stop(&mut self, job: usize, purge: bool) -> bool {
        let model = &self.jobs[job];
        if model.surely_absent() {
            return true;
        }
        let id = model.shape.id.clone();
        let mut args = vec!["job", "stop", "--detach", id.as_str()];
        args.extend(purge.then_some("--purge"));
        let acknowledged = self.marked(Mark::Stop { job: id.clone(), purge }, &args).await;
        let to = |state: JobState| match state.spec() {
            Some(spec) if !purge => JobState::Stopped(spec),
            _ => JobState::Absent,
        };
        self.jobs[job].asked(to, acknowledged);
        acknowledged
    }

    async fn kill_agent(
        &mut self,
        during: Option<Box<Action>>,
        after: Duration,
    ) -> Result<(), Trouble> {
        self.up().await?;
        let pid = self.agent.as_ref().and_then(Child::id).unwrap_or_default();
        let killer = tokio::spawn(async move {
            clock::sleep(after).await;
            signal(pid, Signal::KILL);
        });
        if let Some(during) = during {
            self.request(*during).await;
        }
        let _done = killer.await;
        self.kill().await;
        self.up().await
    }

    async fn kill_start(&mut self, after: Vec<Duration>) -> Result<(), Trouble> {
        self.kill().await;
        for after in after {
            self.spawn(None);
            clock::sleep(after).await;
            self.kill().await;
        }
        self.up().await
    }

    async fn kill_supervisor(
        &mut self,
        job: usize,
        index: u32,
        agent_down: bool,
    ) -> Result<(), Trouble> {
        if agent_down {
            self.kill().await;
        }
        if let Some(run) = self.process(job, index)
            && let Some(supervisor) = parent(run.pid)
            && Some(supervisor) != self.agent.as_ref().and_then(Child::id)
            && supervisor > 1
        {
            self.done(Mark::Kill { alloc: run.alloc });
            signal(supervisor, Signal::KILL);
        }
        self.up().await
    }

    async fn few_files(
        &mut self,
        limit: u32,
        meanwhile: Option<Box<Action>>,
    ) -> Result<(), Trouble> {
        self.up().await?;
        self.settle().await?;
        let before = self.alive(&self.evidence()?);
        self.kill().await;
        self.fault_begins();
        self.spawn(Some(limit));
        if self.ready().await? == Start::Ready
            && let Some(meanwhile) = meanwhile
        {
            self.request(*meanwhile).await;
            self.wait_a_little().await;
        }
        self.kill().await;
        self.faulty = false;
        self.done(Mark::Fault);
        self.up().await?;
        self.unharmed(&before)
    }

    async fn full_disk(&mut self, meanwhile: Action, kill: bool) -> Result<(), Trouble> {
        self.up().await?;
        self.settle().await?;
        let before = self.alive(&self.evidence()?);
        self.fault_begins();
        self.site.fill();
        self.request(meanwhile).await;
        if kill {
            self.kill().await;
            self.spawn(None);
            if self.ready().await? == Start::Ready {
                self.wait_a_little().await;
            }
        }
        self.site.free();
        self.faulty = false;
        self.done(Mark::Fault);
        // An agent whose disk was full may have given up.
        if let Some(agent) = &mut self.agent
            && agent.try_wait().unwrap().is_some()
        {
            self.agent = None;
        }
        self.up().await?;
        self.unharmed(&before)
    }

    /// A WASM task ends with its agent; started again during a fault it may use up its attempts.
    fn fault_begins(&mut self) {
        self.done(Mark::Fault);
        self.faulty = true;
        for job in self.jobs.iter_mut().filter(|job| job.shape.wasm) {
            let count = job.wanted().map_or(0, |spec| spec.count);
            job.excused.extend(0..count);
        }
    }

    /// What ran before a fault and was not touched by a request runs.
    fn unharmed(&self, before: &[Run]) -> Result<(), Trouble> {
        let alive = self.alive(&self.evidence()?);
        let harmed = before.iter().filter(|run| !alive.contains(run)).filter(|run| {
            // A request since may be why.
            let known = self.jobs.iter().find(|job| job.shape.id == run.job);
            known.is_some_and(|job| {
                let since = self.marks.iter().rev().skip_while(|mark| **mark == Mark::Fault);
                let since: Vec<&Mark> = since.take_while(|mark| **mark != Mark::Fault).collect();
                let touched = since.iter().any(|mark| match mark {
                    Mark::Register { job, .. }
                    | Mark::Stop { job, .. }
                    | Mark::StopAlloc { job, .. } => *job == run.job,
                    Mark::RestartAlloc { alloc } | Mark::Kill { alloc } => *alloc == run.alloc,
                    _ => false,
                });
                !touched && matches!(job.shape.life, super::model::Life::Runs { .. })
            })
        });
        let harmed: Vec<&Run> = harmed.collect();
        match harmed.is_empty() {
            true => Ok(()),
            false => Err(format!("a fault of the machine ended healthy tasks: {harmed:#?}")),
        }
    }

    /// Time for the agent to meet the fault. How much is no condition of anything.
    async fn wait_a_little(&self) {
        clock::sleep(Duration::from_millis(700)).await;
    }

    // ---- looking

    async fn observed(&self) -> Option<Observed> {
        let (_, jobs) = self.get("/v1/jobs").await?;
        let mut versions = BTreeMap::new();
        for job in jobs.as_array()? {
            let id = job["ID"].as_str()?.to_owned();
            let (_, job) = self.get(&format!("/v1/job/{id}")).await?;
            versions.insert(id, job["Version"].as_u64()?);
        }
        let (_, list) = self.get("/v1/allocations").await?;
        let allocs = list.as_array()?.iter().filter_map(seen).collect();
        let evidence = self.evidence().ok()?;
        let alive = self.alive(&evidence);
        Some(Observed { versions, allocs, alive, evidence })
    }

    /// Wait until all is as it is to be.
    async fn settle(&mut self) -> Result<(), Trouble> {
        self.up().await?;
        let begun = Stopwatch::start();
        loop {
            self.judge()?;
            let observed = self.observed().await;
            let jobs: Vec<&JobModel> = self.jobs.iter().collect();
            let open = observed.as_ref().map(|observed| observed.unsettled(&jobs));
            match open {
                Some(open) if open.is_empty() => break,
                open if begun.elapsed() > SETTLING => {
                    let open =
                        open.map_or("the agent does not answer".to_owned(), |o| o.join("\n"));
                    return Err(format!("not settled after {SETTLING:?}:\n{open}"));
                }
                _ => clock::sleep(LOOK).await,
            }
        }
        self.exits().await
    }

    /// Exit codes are those that the tasks wrote.
    async fn exits(&self) -> Result<(), Trouble> {
        let Some((_, list)) = self.get("/v1/allocations").await else {
            return Err("the agent does not tell its allocations".to_owned());
        };
        let evidence = self.evidence()?;
        let last = evidence.last_of_allocs();
        for alloc in list.as_array().into_iter().flatten() {
            let (id, task) = (alloc["ID"].as_str().unwrap_or_default(), &alloc["TaskStates"]["t"]);
            let job = alloc["JobID"].as_str().unwrap_or_default();
            let native = self.jobs.iter().any(|model| model.shape.id == job && !model.shape.wasm);
            let exit = &task["LastExit"];
            if !native || task["State"] != "dead" || exit.is_null() || evidence.kills(id) > 0 {
                continue;
            }
            let shown = (exit["ExitCode"].as_i64(), exit["Signal"].as_u64());
            let clean = exit["Error"].as_str().unwrap_or_default().is_empty();
            match last.get(id) {
                Some((_, Some(code))) if shown != (Some(i64::from(*code)), Some(0)) => {
                    return Err(format!("{id} of {job} wrote code {code}, shown is {exit}"));
                }
                Some((_, None)) | None if shown == (Some(0), Some(0)) && clean => {
                    return Err(format!("{id} of {job} did not end well, shown is {exit}"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Everything is stopped, and nothing is left.
    async fn end(&mut self) -> Result<(), Trouble> {
        self.settle().await?;
        self.judge()?;
        for job in 0..self.jobs.len() {
            if self.jobs[job].state() == JobState::Absent {
                continue;
            }
            let purge = self.plan.seed.is_multiple_of(2);
            if !self.stop(job, purge).await {
                return Err(format!("job {job} cannot be stopped"));
            }
        }
        self.tell("end: all stopped");
        self.settle().await?;
        let begun = Stopwatch::start();
        loop {
            self.marked(Mark::Collect, &["gc"]).await;
            let left = self.get("/v1/allocations").await;
            let dirs = names(&self.site.data().join("allocs"));
            if left.as_ref().is_some_and(|(_, list)| *list == Value::Array(Vec::new()))
                && dirs.is_empty()
            {
                break;
            }
            if begun.elapsed() > SETTLING {
                return Err(format!("all is over, but not collected: {dirs:?}, {left:?}"));
            }
            clock::sleep(LOOK).await;
        }
        self.leave().await?;
        self.tell("end: the agent left");
        loop {
            let (left, exits) = (self.site.processes(), names(&self.site.data().join("exits")));
            if left.is_empty() && exits.is_empty() {
                return self.judge();
            }
            if begun.elapsed() > SETTLING {
                let lines = left.iter().map(|pid| {
                    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default()
                });
                let lines: Vec<String> = lines.map(|line| line.replace('\0', " ")).collect();
                return Err(format!("left behind: processes {lines:?}, exit records {exits:?}"));
            }
            clock::sleep(LOOK).await;
        }
    }
}

fn names(dir: &std::path::Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn seen(alloc: &Value) -> Option<Seen> {
    let name = alloc["Name"].as_str()?;
    let index = name.rsplit('[').next()?.trim_end_matches(']').parse().ok()?;
    Some(Seen {
        id: alloc["ID"].as_str()?.to_owned(),
        job: alloc["JobID"].as_str()?.to_owned(),
        index,
        version: alloc["JobVersion"].as_u64()?,
        desired_run: alloc["DesiredStatus"] == "run",
        client: alloc["ClientStatus"].as_str()?.to_owned(),
    })
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let _ended_already = pid.map(|pid| kill_process(pid, signal));
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(1)?.parse().ok()
}
