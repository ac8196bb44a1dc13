//! What may not be, judged from what tasks wrote and what was asked. Pure.
//!
//! The evidence is one file, in the order in which things happened: a task's lines when it starts
//! and ends, and around each thing that is asked for two *marks*. So "this start came after that end,
//! and nobody asked for it between" can be said:
//!
//! ```text
//!  start a ── end a 0 ── mark: register, begin ── mark: done ── start b      asked for
//!  start a ── mark: register, begin ── mark: done ── end a 0 ── start b      not: `a` was there
//!                                                                            when it was done
//! ```

use std::collections::BTreeMap;

use super::model::{JobModel, Life, Shape, Spec};

/// One run of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub alloc: String,
    pub job: String,
    pub index: u32,
    pub generation: u32,
    pub pid: u32,
}

/// A line of the evidence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// With the allocation whose data it found.
    Start(Run, String),
    End(Run, u8),
    /// Another one held the place's lock.
    Double(Run),
    /// The mark of this number begins.
    Begin(usize),
    /// It was acknowledged.
    Done(usize),
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// `anew`: not the very same thing again.
    Register {
        job: String,
        spec: Spec,
        anew: bool,
    },
    Stop {
        job: String,
        purge: bool,
    },
    StopAlloc {
        job: String,
        index: u32,
    },
    RestartAlloc {
        alloc: String,
    },
    /// The task or its supervisor.
    Kill {
        alloc: String,
    },
    /// A run of this allocation that was held back.
    EndRun {
        alloc: String,
    },
    /// What is over may go.
    Collect,
    /// Trouble of the machine.
    Fault,
}

/// The evidence, read.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    pub lines: Vec<Line>,
    pub marks: Vec<Mark>,
}

fn run(words: &[&str]) -> Option<Run> {
    let [alloc, job, index, generation, pid, ..] = words else { return None };
    Some(Run {
        alloc: (*alloc).to_owned(),
        job: (*job).to_owned(),
        index: index.parse().ok()?,
        generation: generation.parse().ok()?,
        pid: pid.parse().ok()?,
    })
}

fn line(text: &str) -> Option<Line> {
    let words: Vec<&str> = text.split(' ').collect();
    let (what, rest) = words.split_first()?;
    Some(match *what {
        "start" => Line::Start(run(rest)?, (*rest.get(5)?).to_owned()),
        "end" => Line::End(run(rest)?, rest.get(5)?.parse().ok()?),
        "double" => Line::Double(run(rest)?),
        "begin" => Line::Begin(rest.first()?.parse().ok()?),
        "done" => Line::Done(rest.first()?.parse().ok()?),
        _ => return None,
    })
}

/// A place of a job.
type Place = (String, u32);

/// A mark and where its lines are; one that was not acknowledged may be done at any later time.
#[derive(Clone, Copy, Debug)]
struct Asked {
    number: usize,
    begin: usize,
    done: usize,
}

impl Evidence {
    /// # Errors
    /// The first line that is none.
    pub fn read(text: &str, marks: &[Mark]) -> Result<Self, String> {
        let lines = text.lines().map(|text| line(text).ok_or_else(|| format!("no line: {text:?}")));
        Ok(Self { lines: lines.collect::<Result<_, _>>()?, marks: marks.to_vec() })
    }

    /// The last run of each place, and its exit code where it said one.
    pub fn last(&self) -> BTreeMap<Place, (Run, Option<u8>)> {
        let mut last: BTreeMap<Place, (Run, Option<u8>)> = BTreeMap::new();
        for line in &self.lines {
            match line {
                Line::Start(run, _) => {
                    last.insert((run.job.clone(), run.index), (run.clone(), None));
                }
                Line::End(run, code) => {
                    if let Some((of, end)) = last.get_mut(&(run.job.clone(), run.index))
                        && of == run
                    {
                        *end = Some(*code);
                    }
                }
                _ => {}
            }
        }
        last
    }

    /// The last run of each allocation, and its exit code where it said one.
    pub fn last_of_allocs(&self) -> BTreeMap<String, (Run, Option<u8>)> {
        let mut last: BTreeMap<String, (Run, Option<u8>)> = BTreeMap::new();
        for line in &self.lines {
            match line {
                Line::Start(run, _) => drop(last.insert(run.alloc.clone(), (run.clone(), None))),
                Line::End(run, code) => {
                    if let Some((of, end)) = last.get_mut(&run.alloc)
                        && of == run
                    {
                        *end = Some(*code);
                    }
                }
                _ => {}
            }
        }
        last
    }

    /// Is there a change of this job that was not acknowledged, and may be done all the same?
    pub fn doubtful(&self, job: &str) -> bool {
        let unheard = self.asked().into_iter().filter(|asked| asked.done == usize::MAX);
        unheard.filter_map(|asked| self.marks.get(asked.number)).any(|mark| match mark {
            Mark::Register { job: of, .. }
            | Mark::Stop { job: of, .. }
            | Mark::StopAlloc { job: of, .. } => of == job,
            _ => false,
        })
    }

    /// Was it asked to restart since it was begun? Then it may be on its way out.
    pub fn restarted(&self, run: &Run) -> bool {
        let started = |line: &Line| matches!(line, Line::Start(of, _) if of == run);
        let begun = self.lines.iter().rposition(started).unwrap_or(0);
        self.asked().iter().any(|asked| {
            asked.done >= begun
                && matches!(self.marks.get(asked.number), Some(Mark::RestartAlloc { alloc }) if *alloc == run.alloc)
        })
    }

    /// Every run that was begun.
    pub fn runs(&self) -> Vec<Run> {
        let runs = self.lines.iter().filter_map(|line| match line {
            Line::Start(run, _) => Some(run.clone()),
            _ => None,
        });
        runs.collect()
    }

    /// How often a task of this allocation, or its supervisor, was killed.
    pub fn kills(&self, alloc: &str) -> u32 {
        let of = |mark: &&Mark| matches!(mark, Mark::Kill { alloc: of } if of == alloc);
        u32::try_from(self.marks.iter().filter(of).count()).unwrap_or(u32::MAX)
    }

    fn asked(&self) -> Vec<Asked> {
        let mut asked = Vec::new();
        for (at, line) in self.lines.iter().enumerate() {
            match line {
                Line::Begin(number) => {
                    asked.push(Asked { number: *number, begin: at, done: usize::MAX });
                }
                Line::Done(number) => {
                    if let Some(of) = asked.iter_mut().find(|of| of.number == *number) {
                        of.done = at;
                    }
                }
                _ => {}
            }
        }
        asked
    }

    /// Everything that may not be, as sentences.
    pub fn violations(&self, shapes: &[&Shape]) -> Vec<String> {
        let mut found = Vec::new();
        let asked = self.asked();
        let mut places: BTreeMap<Place, History<'_>> = BTreeMap::new();
        for (at, line) in self.lines.iter().enumerate() {
            let (Line::Start(run, _) | Line::End(run, _) | Line::Double(run)) = line else {
                continue;
            };
            let Some(shape) = shapes.iter().find(|shape| shape.id == run.job) else {
                found.push(format!("line {at}: a job nobody registered: {line:?}"));
                continue;
            };
            let place = places.entry((run.job.clone(), run.index)).or_insert_with(|| History {
                shape,
                evidence: self,
                asked: &asked,
                used: Vec::new(),
                because: 0,
                starts: BTreeMap::new(),
                last: None,
            });
            let wrong = match line {
                Line::Double(_) => Some("starts while another one lives".to_owned()),
                Line::End(..) => place.ends(at, line),
                _ => place.starts(at, line),
            };
            found.extend(wrong.map(|what| format!("line {at}: {line:?}: {what}")));
        }
        found
    }
}

/// The last run of a place.
struct Last {
    run: Run,
    start: usize,
    end: Option<(usize, u8)>,
}

/// A place as it is followed through the evidence.
struct History<'a> {
    shape: &'a Shape,
    evidence: &'a Evidence,
    asked: &'a [Asked],
    /// Numbers of marks that explain a start already.
    used: Vec<usize>,
    /// Where the mark begins that explains the last allocation.
    because: usize,
    starts: BTreeMap<String, u32>,
    last: Option<Last>,
}

impl History<'_> {
    fn mark(&self, asked: &Asked) -> Option<&Mark> {
        self.evidence.marks.get(asked.number)
    }

    fn ends(&mut self, at: usize, line: &Line) -> Option<String> {
        let Line::End(run, code) = line else { return None };
        match &mut self.last {
            Some(last) if last.run == *run => last.end = Some((at, *code)),
            _ => return Some("ends, but another one was started last in its place".to_owned()),
        }
        None
    }

    fn starts(&mut self, at: usize, line: &Line) -> Option<String> {
        let Line::Start(run, seen) = line else { return None };
        let count = self.starts.entry(run.alloc.clone()).or_default();
        *count += 1;
        let count = *count;
        let wrong = self
            .too_often(at, run, count)
            .or_else(|| self.not_asked_for(at, run))
            .or_else(|| self.without_data(at, run, seen, count));
        self.last = Some(Last { run: run.clone(), start: at, end: None });
        wrong
    }

    /// More starts than the restart policy gives, over all agents. A run that was held back took none of them.
    fn too_often(&self, at: usize, run: &Run, count: u32) -> Option<String> {
        let restarts = self.asked.iter().filter(|asked| {
            asked.begin < at
                && matches!(self.mark(asked),
                    Some(Mark::RestartAlloc { alloc } | Mark::EndRun { alloc }) if *alloc == run.alloc)
        });
        let allowed = 1 + self.shape.attempts + u32::try_from(restarts.count()).unwrap_or(0);
        (count > allowed).then(|| format!("start {count} of its allocation; {allowed} are allowed"))
    }

    fn not_asked_for(&mut self, at: usize, run: &Run) -> Option<String> {
        let Some(last) = &self.last else { return self.explain(at, run, None) };
        if run.generation < last.run.generation {
            return Some(format!("generation {} ran here before", last.run.generation));
        }
        if run.generation > last.run.generation {
            return self.explain(at, run, None);
        }
        let ended_well = last.end.filter(|(_, code)| *code == 0);
        if run.alloc != last.run.alloc {
            let by_itself = matches!(self.shape.life, Life::Ends { .. });
            let ended = ended_well.filter(|_| by_itself).map_or(0, |(end, _)| end);
            return self.explain(at, run, Some(ended));
        }
        ended_well?;
        let interfered = self.asked.iter().any(|asked| {
            let unheard = asked.done == usize::MAX;
            // Answered at once, done when the run before has ended.
            let meanwhile = asked.begin < at && asked.done > last.start;
            meanwhile
                && match self.mark(asked) {
                    Some(
                        Mark::RestartAlloc { alloc }
                        | Mark::Kill { alloc }
                        | Mark::EndRun { alloc },
                    ) => *alloc == run.alloc,
                    // Done, but not on record when the agent was killed.
                    Some(Mark::Stop { job, .. }) => unheard && *job == run.job,
                    Some(Mark::StopAlloc { job, index }) => {
                        unheard && *job == run.job && *index == run.index
                    }
                    _ => false,
                }
        });
        (!interfered).then(|| "starts again after it ended well".to_owned())
    }

    /// Use up the earliest mark that asked for this allocation: after what asked for the one before
    /// it, where that is of the same generation. `ended`: where that one ended well by itself; such a
    /// place was still to run when this was done, or it is not run again.
    fn explain(&mut self, at: usize, run: &Run, ended: Option<usize>) -> Option<String> {
        let explains = |asked: &&Asked| {
            let later = ended.is_none() || asked.begin > self.because;
            later
                && asked.begin < at
                && !self.used.contains(&asked.number)
                && match self.mark(asked) {
                    Some(Mark::Register { job, spec, anew }) => {
                        *anew
                            && *job == run.job
                            && spec.generation == run.generation
                            && run.index < spec.count
                            && ended
                                .is_none_or(|end| asked.done > end || self.stopped_before(asked))
                    }
                    Some(Mark::StopAlloc { job, index }) => {
                        ended.is_some() && *job == run.job && *index == run.index
                    }
                    _ => false,
                }
        };
        match self.asked.iter().find(explains).copied() {
            Some(asked) => {
                self.used.push(asked.number);
                self.because = asked.begin;
                None
            }
            None => Some(format!(
                "nothing that was asked for explains a new allocation; before it: {:?}",
                self.last.as_ref().map(|last| (&last.run.alloc, last.end))
            )),
        }
    }

    /// What was there was told to stop before this was asked for: however it ended, it counts as
    /// stopped.
    fn stopped_before(&self, register: &Asked) -> bool {
        self.asked.iter().any(|asked| {
            asked.begin > self.because
                && asked.begin < register.begin
                && matches!(self.mark(asked), Some(Mark::Stop { job, .. }) if *job == self.shape.id)
        })
    }

    /// A replacement of what has sticky data gets it, if nothing else came between.
    fn without_data(&self, at: usize, run: &Run, seen: &str, count: u32) -> Option<String> {
        let last = self.last.as_ref().filter(|_| self.shape.sticky && count == 1)?;
        if last.run.alloc == run.alloc {
            return None;
        }
        let disturbed = self.asked.iter().any(|asked| {
            asked.begin < at
                && asked.done > last.start
                && match self.mark(asked) {
                    Some(Mark::Stop { job, .. }) => *job == run.job,
                    Some(Mark::Collect | Mark::Fault) => true,
                    _ => false,
                }
        });
        // One whose place was gone in between is another matter.
        let shrunk = self.asked.iter().any(|asked| {
            asked.begin < at
                && asked.done > last.start
                && matches!(self.mark(asked), Some(Mark::Register { job, spec, .. })
                    if *job == run.job && spec.count <= run.index)
        });
        (!disturbed && !shrunk && seen != last.run.alloc)
            .then(|| format!("has the data of {seen:?}, not of {:?}", last.run.alloc))
    }
}

/// An allocation as the agent shows it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub id: String,
    pub job: String,
    pub index: u32,
    pub version: u64,
    pub desired_run: bool,
    pub client: String,
}

impl Seen {
    fn over(&self) -> bool {
        ["complete", "failed", "lost"].contains(&self.client.as_str())
    }
}

/// What there is at a moment.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// By job.
    pub versions: BTreeMap<String, u64>,
    pub allocs: Vec<Seen>,
    /// Runs whose process lives.
    pub alive: Vec<Run>,
    pub evidence: Evidence,
}

impl Observed {
    /// What is not yet as it is to be, as sentences.
    pub fn unsettled(&self, jobs: &[&JobModel]) -> Vec<String> {
        jobs.iter().flat_map(|job| self.unsettled_job(job)).collect()
    }

    fn unsettled_job(&self, job: &JobModel) -> Vec<String> {
        let id = &job.shape.id;
        let mut open = Vec::new();
        let wanted = job.wanted();
        let count = wanted.map_or(0, |spec| spec.count);
        for run in self.alive.iter().filter(|run| run.job == *id && run.index >= count) {
            open.push(format!("lives and is not wanted: {run:?}"));
        }
        for seen in self.allocs.iter().filter(|seen| seen.job == *id) {
            if !seen.over() && (seen.index >= count || !seen.desired_run) {
                open.push(format!("is not over: {seen:?}"));
            }
            if !self.versions.contains_key(id) {
                open.push(format!("its job is gone and it is still listed: {seen:?}"));
            }
        }
        if let Some(spec) = wanted {
            for index in 0..count {
                open.extend(self.unsettled_place(job, spec, index));
            }
        }
        open
    }

    fn unsettled_place(&self, job: &JobModel, spec: Spec, index: u32) -> Option<String> {
        let id = &job.shape.id;
        let Some(version) = self.versions.get(id) else {
            return Some(format!("{id} is not there"));
        };
        let here = |seen: &&Seen| seen.job == *id && seen.index == index;
        let current: Vec<&Seen> = self
            .allocs
            .iter()
            .filter(here)
            .filter(|seen| seen.desired_run && seen.version == *version)
            .collect();
        let alive: Vec<&Run> =
            self.alive.iter().filter(|run| run.job == *id && run.index == index).collect();
        let last = self.evidence.last().remove(&(id.clone(), index));
        let last = last.filter(|(run, _)| run.generation == spec.generation);
        let is = |status: &str| current.len() == 1 && current[0].client == status;
        // Over and collected: what it wrote is all there is.
        let gone =
            |code: u8| current.is_empty() && last.as_ref().is_some_and(|(_, c)| *c == Some(code));
        // Failed for good, and perhaps collected since.
        let excused = alive.is_empty() && {
            let kills = current.first().map_or(0, |seen| self.evidence.kills(&seen.id));
            let by_fault = job.excused.contains(&index);
            (is("failed") && (by_fault || kills > job.shape.attempts))
                || (current.is_empty() && by_fault)
        };
        let settled = match job.shape.life {
            _ if excused => true,
            _ if job.shape.wasm && job.shape.batch => is("complete") || current.is_empty(),
            _ if job.shape.wasm => is("running"),
            Life::Runs { .. } => {
                is("running") && alive.len() == 1 && alive[0].generation == spec.generation
            }
            Life::Fails { code } => alive.is_empty() && (is("failed") || gone(code)),
            Life::Ends { .. } => alive.is_empty() && (is("complete") || gone(0)),
        };
        (!settled).then(|| {
            format!("{id}[{index}] at {spec:?}: shown {current:?}, alive {alive:?}, last {last:?}")
        })
    }
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
