//! Asks the checks of an allocation's services, for as long as they are there.
//!
//! ```text
//!   set(checks that are there now) ─► one question per check at a time:
//!                                       pause ─► a place of the node ─► asked, within the timeout ─┐
//!            next: the check, its answer ◄─────────────────────────────────────────────────────────┘
//!   take(answer) ─► [`state`] (pure) ─► results, and whether it restarts what it asks
//! ```
//! The first question comes after a part of the first interval that is drawn, so that checks that begin
//! together do not ask together; the next ones an interval after the one before, or as soon as that is
//! answered where the answer takes longer. All end when this is dropped.

mod script;
pub mod state;

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};

use super::health::CheckResult;
use super::services::resolve::{AskedCheck, Question};
use crate::by_task::ByTask;
use crate::task::TaskHandle;
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::job::{CheckStatus, OnUpdate};
use ostler_model::limits::CHECK_SPREAD_MAX;
use ostler_model::rng::Rng;
use ostler_model::time::Timestamp;
use ostler_probe::{CheckAnswer, ask};
use state::CheckMachine;

/// What asking takes.
#[derive(Clone)]
pub struct Means {
    /// A place for each check that is being asked, on the whole node.
    pub places: Arc<Semaphore>,
    /// The tasks of the allocation, where scripts run.
    pub tasks: Weak<ByTask<TaskHandle>>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub rng: Rng,
}

/// The running checks of one allocation; they end when it is dropped.
pub struct Checks {
    means: Means,
    running: Vec<Running>,
    answers: JoinSet<(u64, CheckAnswer, Duration)>,
    next: u64,
}

/// One check.
struct Running {
    /// Tells answers of this from those of one before it.
    number: u64,
    asked: Arc<AskedCheck>,
    machine: CheckMachine,
    result: CheckResult,
    asking: AbortHandle,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

/// An answer that is to be taken.
#[derive(Debug)]
pub struct Answered {
    number: u64,
    answer: CheckAnswer,
    pause: Duration,
}

impl Checks {
    /// None yet.
    #[must_use]
    pub fn new(means: Means) -> Self {
        Self { means, running: Vec::new(), answers: JoinSet::new(), next: 0 }
    }

    /// Ask these and no others. One that is asked already, in the same way of the same start, is asked
    /// on. Needs a tokio runtime.
    pub fn set(&mut self, wanted: Vec<AskedCheck>) {
        let mut before = std::mem::take(&mut self.running);
        for wanted in wanted {
            let known = before.iter().position(|running| *running.asked == wanted);
            let running = match known {
                Some(at) => before.remove(at),
                None => self.begin(wanted),
            };
            self.running.push(running);
        }
    }

    fn begin(&mut self, wanted: AskedCheck) -> Running {
        let number = self.next;
        self.next = number.wrapping_add(1);
        let asked = Arc::new(wanted);
        let machine = CheckMachine::new(&asked.check, asked.started);
        let result = CheckResult {
            id: asked.id.clone(),
            service: asked.service.clone(),
            name: asked.name.clone(),
            status: machine.status(),
            passing: is_good(asked.check.on_update, machine.status()),
            code: None,
            output: String::new(),
            since: self.means.clock.now(),
            answered: None,
        };
        let spread = asked.check.interval.min(CHECK_SPREAD_MAX).as_nanos();
        let spread = u64::try_from(spread).unwrap_or(u64::MAX).max(1);
        let pause = Duration::from_nanos(self.means.rng.below(spread));
        let asking = self.ask(number, &asked, pause);
        Running { number, asked, machine, result, asking }
    }

    fn ask(&mut self, number: u64, asked: &Arc<AskedCheck>, pause: Duration) -> AbortHandle {
        let (asked, means) = (Arc::clone(asked), self.means.clone());
        self.answers.spawn(async move {
            let (answer, pause) = once(asked, means, pause).await;
            (number, answer, pause)
        })
    }

    /// The next answer; never ends while nothing is asked. May be dropped and called again.
    pub async fn next(&mut self) -> Answered {
        loop {
            match self.answers.join_next().await {
                Some(Ok((number, answer, pause))) => return Answered { number, answer, pause },
                // One that is asked no more, or a defect that the runtime has reported: its check then
                // stays as it was.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Take an answer, and ask again; the check, where it restarts what it asks.
    pub fn take(&mut self, answered: Answered) -> Option<Arc<AskedCheck>> {
        let Answered { number, answer, pause } = answered;
        let at = self.running.iter().position(|running| running.number == number)?;
        let asked = Arc::clone(&self.running.get(at)?.asked);
        let asking = self.ask(number, &asked, pause);
        let now = self.means.clock.now();
        let running = self.running.get_mut(at)?;
        running.asking = asking;
        let restarts = running.machine.step(now, answer.status);
        keep(&mut running.result, running.machine.status(), answer, asked.check.on_update, now);
        restarts.then_some(asked)
    }

    /// What they say, in the order they were given.
    #[must_use]
    pub fn results(&self) -> Arc<[CheckResult]> {
        self.running.iter().map(|running| running.result.clone()).collect()
    }
}

/// Is a check as a deployment wants it?
fn is_good(on_update: OnUpdate, status: CheckStatus) -> bool {
    match on_update {
        OnUpdate::RequireHealthy => status == CheckStatus::Passing,
        OnUpdate::IgnoreWarnings => matches!(status, CheckStatus::Passing | CheckStatus::Warning),
        OnUpdate::Ignore => true,
    }
}

/// Keep an answer.
fn keep(
    result: &mut CheckResult,
    status: CheckStatus,
    answer: CheckAnswer,
    on_update: OnUpdate,
    now: Timestamp,
) {
    let passing = is_good(on_update, status);
    if result.passing != passing {
        result.since = now;
    }
    (result.status, result.passing) = (status, passing);
    (result.code, result.output, result.answered) = (answer.code, answer.output, Some(now));
}

/// Ask once after a pause; the answer comes with the pause until the next time.
async fn once(asked: Arc<AskedCheck>, means: Means, pause: Duration) -> (CheckAnswer, Duration) {
    clock::sleep(pause).await;
    // Closed never; without a place it would be asked all the same.
    let _place = means.places.acquire().await;
    let watch = Stopwatch::start();
    let timeout = asked.check.timeout;
    // Boxed, so that a check that waits holds no room for the question.
    let answer = match &asked.question {
        Ok(Question::Network { kind, target }) => Box::pin(ask(kind, target, timeout)).await,
        Ok(Question::Script { task, argv }) => {
            let tasks = Weak::clone(&means.tasks);
            Box::pin(script::run(tasks, task, argv, timeout)).await
        }
        Err(why) => CheckAnswer::critical(why),
    };
    (answer, asked.check.interval.saturating_sub(watch.elapsed()))
}

#[cfg(test)]
mod tests;
