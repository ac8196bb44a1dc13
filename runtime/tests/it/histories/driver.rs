//! A history, carried out: one real agent after the other, asked as people ask it.

mod agents;
mod faults;
mod helpers;
mod looking;

use std::fmt::Write as _;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::process::Child;

use super::actions::{Action, Plan};
use super::model::{Change, JobModel, JobState, Life, Shape};
use super::oracle::{Evidence, Mark, Run, Seen};
use super::place::Site;
use crate::support::agent_process::ask;
use crate::support::binary::Ended;
use crate::support::system::runs;

/// Between two looks.
const LOOK: Duration = Duration::from_millis(50);

/// What went wrong, as text.
pub type Trouble = String;

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
    /// What the clock is off by, and how far it was set forward in all, in seconds.
    clock: (i64, i64),
    /// What was done, for people.
    pub story: String,
}

impl World {
    pub fn new(plan: Plan) -> Self {
        let site = Site::new(plan.small_disk);
        let max = plan.max_allocs.map_or_else(String::new, |max| format!("max_allocs = {max}\n"));
        let config = crate::support::KEEPS.replace("gc {", &format!("gc {{\n {max}"));
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
            clock: (0, 0),
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

    async fn ask(&self, args: &[&str]) -> Ended {
        ask(self.site.data(), args).await
    }

    // ---- marks

    /// Carry out what a mark stands for; was it acknowledged?
    async fn marked(&mut self, mark: Mark, args: &[&str]) -> bool {
        let number = self.begin(mark);
        let ended = self.ask(args).await;
        // On a disk that takes no writes a stop is done and said not to be on record.
        let acknowledged = ended.code == Some(0) && !ended.stderr.contains("not on record");
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
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
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
        let mut seen = list.as_array()?.iter().filter_map(seen);
        seen.rfind(|seen| seen.index == index && seen.desired_run).map(|seen| seen.id)
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
            Action::StepClock { seconds } => {
                self.step_clock(seconds);
                Ok(())
            }
            Action::Hang { helper, meanwhile } => self.hang(helper, meanwhile).await,
            Action::LoseFile { file } => self.lose(file).await,
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
                if self.faulty {
                    self.jobs[job].excused.insert(index);
                }
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
                if !matches!(self.jobs[job].shape.life, Life::Runs { .. }) {
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
        if purge && !acknowledged {
            // It is stopped before it is forgotten.
            let stopped = |state: JobState| state.spec().map_or(state, JobState::Stopped);
            self.jobs[job].asked(stopped, false);
        }
        self.jobs[job].asked(to, acknowledged);
        acknowledged
    }
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
