//! What there is, until it is as it is to be; and the end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ostler_model::clock::{self, Stopwatch};
use serde_json::Value;

use super::super::model::{JobModel, JobState};
use super::super::oracle::{Mark, Observed};
use super::{LOOK, Trouble, World, seen};

/// Until everything is as it is to be.
const SETTLING: Duration = Duration::from_secs(120);

impl World {
    pub(super) async fn observed(&self) -> Option<Observed> {
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
    pub(super) async fn settle(&mut self) -> Result<(), Trouble> {
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
    pub(super) async fn exits(&self) -> Result<(), Trouble> {
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
                // One that was stopped between its line and its end is killed by a signal.
                Some((_, Some(code)))
                    if shown.1 == Some(0) && shown.0 != Some(i64::from(*code)) =>
                {
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
    pub(super) async fn end(&mut self) -> Result<(), Trouble> {
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
            // A supervisor that never let its task go may say so when nobody looks any more.
            let told = |name: &String| {
                let path = self.site.data().join("exits").join(name);
                std::fs::read_to_string(path).is_ok_and(|text| text.contains("\"released\":false"))
            };
            if left.is_empty() && exits.iter().all(told) {
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
