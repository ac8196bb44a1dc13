//! Asks the checks of an allocation's services.
//!
//! ```text
//!   Checks ── dropped: everything ends ──► owner (one task per allocation)
//!     │                                      │ one question per check at a time:
//!     └── watch<Arc<[CheckResult]>> ◄────────┤   wait for the interval ─► ask, within the timeout
//!                                            └──────────────◄──────────────┘
//! ```
//! The first question is asked at once, the next an interval after the one before, or as soon as
//! that one is answered where the answer takes longer. Results are published when a check passes
//! or not for the first time, changes between the two, or says something else. What is asked and
//! how an answer is bounded is in `probe`.

mod probe;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::task::AbortOnDropHandle;

use super::health::{CheckId, CheckResult};
use crate::watch;
use ostler_model::clock::{self, Clock, Stopwatch};
use ostler_model::ids::TaskName;
use ostler_model::job::{Check, CheckKind, Service, TaskGroup};
use ostler_model::resources::AllocatedPort;
use probe::Answer;

/// The running checks of one allocation; they end when it is dropped.
#[derive(Debug)]
pub struct Checks {
    results: watch::Subscriber<Arc<[CheckResult]>>,
    _owner: AbortOnDropHandle<()>,
}

impl Checks {
    /// Begin to ask all checks of `group` at the `ports` of its allocation. `None` when there are
    /// no checks. To be called in a tokio runtime, when something runs that could answer.
    #[must_use]
    pub fn spawn(group: &TaskGroup, ports: &[AllocatedPort], clock: Clock) -> Option<Self> {
        let questions = questions(group, ports);
        if questions.is_empty() {
            return None;
        }
        let (sender, results) = watch::channel(Arc::from([]));
        let owner = AbortOnDropHandle::new(tokio::spawn(run(questions, sender, clock)));
        Some(Self { results, _owner: owner })
    }

    /// What the checks say, those that were not answered yet left out; in file order.
    #[must_use]
    pub fn results(&self) -> watch::Subscriber<Arc<[CheckResult]>> {
        self.results.clone()
    }
}

/// One check with everything needed to ask it.
#[derive(Clone, Debug)]
struct Question {
    id: CheckId,
    kind: CheckKind,
    /// Or why there is none.
    address: Result<SocketAddr, String>,
    interval: Duration,
    timeout: Duration,
}

/// The questions of a group, in file order.
fn questions(group: &TaskGroup, ports: &[AllocatedPort]) -> Vec<Arc<Question>> {
    let mut questions = Vec::new();
    for service in &group.services {
        for check in &service.checks {
            questions.push(Arc::new(question(service, check, ports)));
        }
    }
    questions
}

fn question(service: &Service, check: &Check, ports: &[AllocatedPort]) -> Question {
    Question {
        id: CheckId {
            task: service.task.clone(),
            service: service.name.clone(),
            check: check.name.clone(),
        },
        kind: check.kind.clone(),
        address: address(
            check.port.as_deref().or(service.port.as_deref()),
            service.task.as_ref(),
            ports,
        ),
        interval: check.interval,
        timeout: check.timeout,
    }
}

/// Where a port of the allocation is reached from this node.
fn address(
    label: Option<&str>,
    task: Option<&TaskName>,
    ports: &[AllocatedPort],
) -> Result<SocketAddr, String> {
    let label = label.ok_or("the check has no port; give it or its service one")?;
    let port = ports
        .iter()
        .find(|port| port.label == label && port.task.as_ref().is_none_or(|of| Some(of) == task))
        .ok_or_else(|| format!("the allocation has no port {label:?}"))?;
    let ip: IpAddr = port
        .host_ip
        .parse()
        .map_err(|_| format!("port {label:?} has no address of this node: {:?}", port.host_ip))?;
    let ip = match ip {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    Ok(SocketAddr::new(ip, port.value))
}

/// Ask all questions again and again.
async fn run(
    questions: Vec<Arc<Question>>,
    sender: watch::Publisher<Arc<[CheckResult]>>,
    clock: Clock,
) {
    let mut answers = JoinSet::new();
    for (index, question) in questions.iter().enumerate() {
        answers.spawn(ask(index, Arc::clone(question), Duration::ZERO));
    }
    let mut latest: Vec<Option<CheckResult>> = vec![None; questions.len()];
    while let Some(ended) = answers.join_next().await {
        // A question that panicked would be a defect of the client; its check then stays as it was,
        // and the runtime has reported it.
        let Ok((index, answer, pause)) = ended else { continue };
        let (Some(question), Some(place)) = (questions.get(index), latest.get_mut(index)) else {
            continue;
        };
        if take(place, &question.id, answer, &clock) {
            sender.send_replace(latest.iter().flatten().cloned().collect());
        }
        answers.spawn(ask(index, Arc::clone(question), pause));
    }
}

/// Ask one question after a pause; the answer comes with the pause until the next one.
async fn ask(index: usize, question: Arc<Question>, pause: Duration) -> (usize, Answer, Duration) {
    if !pause.is_zero() {
        clock::sleep(pause).await;
    }
    let watch = Stopwatch::start();
    // Boxed, so that a check that waits holds no room for the question.
    let answer = match &question.address {
        Ok(address) => Box::pin(probe::ask(&question.kind, *address, question.timeout)).await,
        Err(why) => Answer { passing: false, output: why.clone() },
    };
    (index, answer, question.interval.saturating_sub(watch.elapsed()))
}

/// Keep an answer; `true` when it says something new.
fn take(place: &mut Option<CheckResult>, id: &CheckId, answer: Answer, clock: &Clock) -> bool {
    let Answer { passing, output } = answer;
    match place {
        Some(last) if last.passing == passing && last.output == output => false,
        Some(last) if last.passing == passing => {
            last.output = output;
            true
        }
        _ => {
            *place = Some(CheckResult { id: id.clone(), passing, output, since: clock.now() });
            true
        }
    }
}

#[cfg(test)]
mod tests;
