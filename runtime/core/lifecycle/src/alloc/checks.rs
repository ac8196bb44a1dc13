//! Asks the checks of an allocation's services, for as long as the services are listed.
//!
//! ```text
//!   set(checks that are there now) ─► one question per check at a time:
//!                                       pause ─► a place of the node ─► asked, within the timeout ─┐
//!            next: the check, its answer ◄─────────────────────────────────────────────────────────┘
//!   take(answer) ─► [`state`] (pure) ─► results, and whether it restarts what it asks
//! ```
//! The first question comes after a random part of the first interval, so that checks that begin
//! together do not ask together. Each further question comes one interval after the question before
//! it, or as soon as that one is answered where the answer takes longer. All checks end when
//! [`Checks`] is dropped.

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

/// What the checks need to ask their questions.
#[derive(Clone)]
pub struct CheckMeans {
    /// Permits of the whole node: a check that is being asked holds one.
    pub places: Arc<Semaphore>,
    /// The tasks of the allocation, where scripts run.
    pub tasks: Weak<ByTask<TaskHandle>>,
    /// The clock that dates the answers.
    pub clock: Clock,
    /// The source of random numbers, for the first pause of each check.
    pub rng: Rng,
}

/// The running checks of one allocation. They end when this is dropped.
pub struct Checks {
    means: CheckMeans,
    running: Vec<RunningCheck>,
    answers: JoinSet<(u64, CheckAnswer, Duration)>,
    next: u64,
}

/// One check that runs.
struct RunningCheck {
    /// Tells the answers of this check from those of a check that had its place before.
    number: u64,
    asked: Arc<AskedCheck>,
    machine: CheckMachine,
    result: CheckResult,
    asking: AbortHandle,
}

impl Drop for RunningCheck {
    fn drop(&mut self) {
        self.asking.abort();
    }
}

/// An answer of a check, for [`Checks::take`].
#[derive(Debug)]
pub struct CheckReply {
    number: u64,
    answer: CheckAnswer,
    pause: Duration,
}

impl Checks {
    /// No checks yet.
    #[must_use]
    pub fn new(means: CheckMeans) -> Self {
        Self { means, running: Vec::new(), answers: JoinSet::new(), next: 0 }
    }

    /// Ask these checks and no others. A check that is unchanged, and whose service did not start
    /// anew, goes on. Needs a tokio runtime.
    pub fn set(&mut self, wanted: Vec<AskedCheck>) {
        let mut before = std::mem::take(&mut self.running);
        for wanted in wanted {
            let known = before.iter().position(|running| *running.asked == wanted);
            let running = match known {
                Some(at) => before.remove(at),
                None => self.start_check(wanted),
            };
            self.running.push(running);
        }
    }

    fn start_check(&mut self, wanted: AskedCheck) -> RunningCheck {
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
        let pause = Duration::from_nanos(self.means.rng.number_below(spread));
        let asking = self.spawn_question(number, &asked, pause);
        RunningCheck { number, asked, machine, result, asking }
    }

    fn spawn_question(
        &mut self,
        number: u64,
        asked: &Arc<AskedCheck>,
        pause: Duration,
    ) -> AbortHandle {
        let (asked, means) = (Arc::clone(asked), self.means.clone());
        self.answers.spawn(async move {
            let (answer, pause) = ask_once(asked, means, pause).await;
            (number, answer, pause)
        })
    }

    /// Wait for the next answer. The wait never ends while no check runs. It may be dropped
    /// and begun again.
    pub async fn next(&mut self) -> CheckReply {
        loop {
            match self.answers.join_next().await {
                Some(Ok((number, answer, pause))) => return CheckReply { number, answer, pause },
                // The check was removed, or its question panicked, which the runtime has reported:
                // the check then stays as it was.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Take an answer and ask again. Returns the check where it demands a restart of what it asks.
    pub fn take(&mut self, answered: CheckReply) -> Option<Arc<AskedCheck>> {
        let CheckReply { number, answer, pause } = answered;
        let at = self.running.iter().position(|running| running.number == number)?;
        let asked = Arc::clone(&self.running.get(at)?.asked);
        let asking = self.spawn_question(number, &asked, pause);
        let now = self.means.clock.now();
        let running = self.running.get_mut(at)?;
        running.asking = asking;
        let restarts = running.machine.step(now, answer.status);
        store_answer(
            &mut running.result,
            running.machine.status(),
            answer,
            asked.check.on_update,
            now,
        );
        restarts.then_some(asked)
    }

    /// The results of the checks, in the order in which the checks were given.
    #[must_use]
    pub fn results(&self) -> Arc<[CheckResult]> {
        self.running.iter().map(|running| running.result.clone()).collect()
    }
}

/// Is the status of a check one that a deployment accepts?
fn is_good(on_update: OnUpdate, status: CheckStatus) -> bool {
    match on_update {
        OnUpdate::RequireHealthy => status == CheckStatus::Passing,
        OnUpdate::IgnoreWarnings => matches!(status, CheckStatus::Passing | CheckStatus::Warning),
        OnUpdate::Ignore => true,
    }
}

/// Store an answer in the result of its check.
fn store_answer(
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

/// Ask once after a pause. Returns the answer, and the pause before the next question.
async fn ask_once(
    asked: Arc<AskedCheck>,
    means: CheckMeans,
    pause: Duration,
) -> (CheckAnswer, Duration) {
    clock::sleep(pause).await;
    // The semaphore is never closed; without a permit the check would be asked all the same.
    let _place = means.places.acquire().await;
    let watch = Stopwatch::start();
    let timeout = asked.check.timeout;
    // Boxed, so that a check that waits takes no memory for its question.
    let answer = match &asked.question {
        Ok(Question::Network { kind, target }) => Box::pin(ask(kind, target, timeout)).await,
        Ok(Question::Script { task, argv }) => {
            let tasks = Weak::clone(&means.tasks);
            Box::pin(script::run(tasks, task, argv, timeout)).await
        }
        Err(why) => CheckAnswer::new_critical(why),
    };
    (answer, asked.check.interval.saturating_sub(watch.elapsed()))
}

#[cfg(test)]
mod tests;
