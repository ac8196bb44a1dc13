//! What the agent was told, and so what is to be. Pure.
//!
//! Every registration has a number of its own, which travels in the job as its `kill_timeout`: a
//! rule, so that it changes nothing that runs. What must be made anew has a *generation*, in the
//! environment of the tasks. A change whose answer was not heard leaves two possible states of its
//! job; the agent is asked which one it is, and it must be one of the two.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use crate::support::jobs::{STAYS_FAILED, shell, wasm, with_guests};

/// Where the numbers of registrations begin as milliseconds of `kill_timeout`.
const NUMBER_BASE: u64 = 10_000;

/// What the tasks of a job do by themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// They run until they are stopped, and then for this long.
    Runs { stop: Duration },
    /// They fail with this code.
    Fails { code: u8 },
    /// They end well after this long.
    Ends { after: Duration },
}

/// What stays the same of a job in all its versions.
#[derive(Clone, Debug)]
pub struct Shape {
    pub id: String,
    pub batch: bool,
    pub wasm: bool,
    pub sticky: bool,
    pub attempts: u32,
    pub life: Life,
}

/// What changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    pub count: u32,
    pub generation: u32,
    pub number: u64,
}

/// A job as the agent has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobState {
    Absent,
    Stopped(Spec),
    Wanted(Spec),
}

impl JobState {
    pub const fn spec(self) -> Option<Spec> {
        match self {
            Self::Absent => None,
            Self::Stopped(spec) | Self::Wanted(spec) => Some(spec),
        }
    }
}

/// What a registration changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// What its tasks are.
    Tasks,
    /// How many there are.
    Count(u32),
    /// How they are stopped.
    Rules,
    /// Nothing.
    Same,
}

/// One job.
#[derive(Clone, Debug)]
pub struct JobModel {
    pub shape: Shape,
    /// What the agent says, or will.
    shown: JobState,
    /// What may be on disk: a change that was not acknowledged may be found there by the next agent,
    /// until a later one is acknowledged.
    possible: Vec<JobState>,
    /// Places that the machine may have kept from running: a fault was on when they were made.
    pub excused: BTreeSet<u32>,
    next_generation: u32,
    next_number: u64,
}

impl JobModel {
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            shown: JobState::Absent,
            possible: vec![JobState::Absent],
            excused: BTreeSet::new(),
            next_generation: 1,
            next_number: 1,
        }
    }

    /// As the agent has it.
    pub const fn state(&self) -> JobState {
        self.shown
    }

    /// Places that are to be filled.
    pub const fn wanted(&self) -> Option<Spec> {
        match self.shown {
            JobState::Wanted(spec) => Some(spec),
            _ => None,
        }
    }

    /// Nothing it may be has places.
    pub fn surely_absent(&self) -> bool {
        self.possible.iter().all(|state| *state == JobState::Absent)
    }

    /// What is registered next.
    pub fn next(&mut self, change: Change, default_count: u32) -> Spec {
        let mut next =
            self.state().spec().unwrap_or(Spec { count: default_count, generation: 0, number: 0 });
        if let Change::Count(count) = change {
            next.count = count;
        }
        if change == Change::Tasks || next.generation == 0 {
            next.generation = self.next_generation;
            self.next_generation += 1;
        }
        if change != Change::Same || next.number == 0 {
            next.number = self.next_number;
            self.next_number += 1;
        }
        next
    }

    /// A change to every state it may be in was asked for. Acknowledged: it is so; else it may be.
    pub fn asked(&mut self, to: impl Fn(JobState) -> JobState, acknowledged: bool) {
        if acknowledged {
            self.shown = to(self.shown);
            self.possible = vec![self.shown];
            return;
        }
        for state in self.possible.clone() {
            let next = to(state);
            if !self.possible.contains(&next) {
                self.possible.push(next);
            }
        }
    }

    /// What the agent says it has; `started`: it has just read it from disk.
    ///
    /// # Errors
    /// When that cannot be.
    pub fn found(&mut self, number: Option<(u64, bool)>, started: bool) -> Result<(), String> {
        let fits = |state: &&JobState| match (state, number) {
            (JobState::Absent, None) => true,
            (JobState::Stopped(spec), Some((number, true)))
            | (JobState::Wanted(spec), Some((number, false))) => spec.number == number,
            _ => false,
        };
        let Some(state) = self.possible.iter().find(fits).copied() else {
            return Err(format!(
                "job {} is {number:?} (number, stopped); it may be {:?}",
                self.shape.id, self.possible
            ));
        };
        self.shown = state;
        if started {
            self.possible = vec![state];
        }
        Ok(())
    }
}

impl Shape {
    /// The job file.
    pub fn text(&self, spec: Spec, beside: &Path) -> String {
        let Self { id, batch, wasm: is_wasm, sticky, attempts, life } = self;
        let kind = if *batch { "batch" } else { "service" };
        let more = format!(
            "kill_timeout = \"{}ms\"\n env {{\n GENERATION = \"{}\"\n }}",
            NUMBER_BASE + spec.number,
            spec.generation
        );
        let task = if *is_wasm {
            let time = if *batch { "100" } else { "100000000" };
            wasm("t", "guest:toolbox", &["sleep", time], &more)
        } else {
            shell("t", &script(*life, *sticky, beside), &more)
        };
        // All at once: what is to be is one state of all places.
        let at_once = if *batch { "" } else { "update {\n max_parallel = 0\n }" };
        with_guests(&format!(
            "job \"{id}\" {{\n type = \"{kind}\"\n group \"g\" {{\n count = {count}\n restart {{\n \
             attempts = {attempts}\n interval = \"1h\"\n delay = \"100ms\"\n mode = \"fail\"\n }}\n \
             {STAYS_FAILED}\n {at_once}\n ephemeral_disk {{\n sticky = {sticky}\n }}\n {task}\n }}\n}}\n",
            count = spec.count
        ))
    }

    /// The number of the registration that a job's `KillTimeout` tells.
    pub fn number(kill_timeout_nanos: u64) -> u64 {
        (kill_timeout_nanos / 1_000_000).saturating_sub(NUMBER_BASE)
    }
}

/// A task says when it starts and ends, and holds a lock for its place while it lives. It waits by
/// reading what nobody writes.
fn script(life: Life, sticky: bool, beside: &Path) -> String {
    let dir = beside.display();
    let evidence = format!("{dir}/evidence");
    let chain = if sticky {
        "f=$NOMAD_ALLOC_DIR/data/chain; [ -f $f ] && seen=$(tail -n 1 $f 8>&- 9>&-); echo $NOMAD_ALLOC_ID >>$f; "
    } else {
        ""
    };
    let begin = format!(
        "me=\"$NOMAD_ALLOC_ID $NOMAD_JOB_ID $NOMAD_ALLOC_INDEX $GENERATION $$\"; \
         exec 8<>{dir}/never 9>>{dir}/lock.$NOMAD_JOB_ID.$NOMAD_ALLOC_INDEX; \
         flock -n 9 || echo \"double $me\" >>{evidence}; seen=-; {chain}\
         echo \"start $me $seen\" >>{evidence}; "
    );
    let end = |code: u8| format!("echo \"end $me {code}\" >>{evidence}; exit {code}");
    let sleep = |time: Duration| {
        if time.is_zero() {
            String::new()
        } else {
            format!("sleep {} 8>&- 9>&-; ", time.as_secs_f32())
        }
    };
    let life = match life {
        Life::Runs { stop } => format!(
            "trap '' USR1; trap '{}{}' TERM INT; while :; do read x <&8; done",
            sleep(stop),
            end(0)
        ),
        Life::Fails { code } => end(code),
        Life::Ends { after } => format!("{}{}", sleep(after), end(0)),
    };
    begin + &life
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(number: u64) -> JobState {
        JobState::Wanted(Spec { count: 1, generation: 1, number })
    }

    #[test]
    fn what_was_acknowledged_must_be_found_and_what_was_not_may_be() {
        let life = Life::Ends { after: Duration::ZERO };
        let mut job = JobModel::new(Shape {
            id: "j".into(),
            batch: true,
            wasm: false,
            sticky: false,
            attempts: 0,
            life,
        });
        job.asked(|_| wanted(1), true);
        assert!(job.found(None, true).is_err());
        job.asked(|_| wanted(2), false);
        job.found(Some((1, false)), false).unwrap();
        assert_eq!(job.state(), wanted(1));
        let mut crashed = job.clone();
        crashed.found(Some((2, false)), true).unwrap();
        assert!(crashed.found(Some((1, false)), true).is_err(), "it was read from disk");
        job.asked(|_| wanted(3), true);
        assert!(job.found(Some((2, false)), true).is_err(), "a later one was acknowledged");
        job.found(Some((3, false)), true).unwrap();
    }
}
