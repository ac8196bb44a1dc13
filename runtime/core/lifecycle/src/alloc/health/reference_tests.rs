//! The machine against a model that is told everything, second by second, and knows no timers.
//!
//! A history is drawn per task and per check. The machine sees it as it would in the agent: the
//! newest states when they changed, and its own timers. The model looks at each second and counts
//! in how many of them all has been well. States change at whole seconds and the machine's times
//! end at half ones, so that nothing depends on what is seen first in one instant. Ledger item 38 names what went wrong elsewhere: pending
//! tasks, poststop and one-shot tasks, missing checks.

use proptest::prelude::*;

use super::*;

const DEADLINE: u64 = 30;
const HALF: Duration = Duration::from_millis(500);

/// One second in the life of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Now {
    Pending,
    /// Running; the run began in that second.
    Running(u64),
    Succeeded,
    Failed,
}

/// From one second to the next.
#[derive(Clone, Copy, Debug)]
enum Move {
    Stay,
    /// Start, or start again in this very second.
    Start,
    /// Wait for a restart.
    Wait,
    Succeed,
    Fail,
}

/// What a task is in each second from 0 to the deadline.
fn timeline(moves: &[Move]) -> Vec<Now> {
    let mut now = Now::Pending;
    let mut line = Vec::with_capacity(moves.len());
    for (second, next) in (0_u64..).zip(moves) {
        now = match (now, next) {
            (Now::Succeeded | Now::Failed, _) | (_, Move::Stay) => now,
            (_, Move::Start) => Now::Running(second),
            (_, Move::Wait) => Now::Pending,
            (Now::Running(_), Move::Succeed) => Now::Succeeded,
            (_, Move::Succeed) => now,
            (_, Move::Fail) => Now::Failed,
        };
        line.push(now);
    }
    line
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        60 => Just(Move::Stay),
        6 => Just(Move::Start),
        1 => Just(Move::Wait),
        1 => Just(Move::Succeed),
        1 => Just(Move::Fail),
    ];
    prop::collection::vec(one, usize::try_from(DEADLINE).unwrap() + 1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lifecycle {
    Main,
    Once(&'static str),
    Sidecar(&'static str),
}

impl Lifecycle {
    fn block(self) -> String {
        let (hook, sidecar) = match self {
            Self::Main => return String::new(),
            Self::Once(hook) => (hook, false),
            Self::Sidecar(hook) => (hook, true),
        };
        format!("lifecycle {{\nhook = \"{hook}\"\nsidecar = {sidecar}\n}}")
    }
}

fn lifecycle() -> impl Strategy<Value = Lifecycle> {
    prop::sample::select(vec![
        Lifecycle::Main,
        Lifecycle::Once("prestart"),
        Lifecycle::Once("poststart"),
        Lifecycle::Once("poststop"),
        Lifecycle::Sidecar("prestart"),
        Lifecycle::Sidecar("poststart"),
        Lifecycle::Sidecar("poststop"),
    ])
}

/// One task, always there and mostly running, so that histories with a healthy end are common.
#[derive(Clone, Debug)]
struct History {
    tasks: Vec<(Lifecycle, Vec<Now>)>,
    /// Per check and second: not asked yet, or whether it passes.
    checks: Vec<Vec<Option<bool>>>,
    /// Half a second less, for the machine.
    min_healthy: u64,
    policy: HealthCheck,
}

fn history() -> impl Strategy<Value = History> {
    let seconds = usize::try_from(DEADLINE).unwrap() + 1;
    let tasks = prop::collection::vec((lifecycle(), moves()), 0..3);
    let check =
        prop::collection::vec(prop::sample::select(vec![0, 0, 0, 0, 0, 0, 0, 1, 2]), seconds)
            .prop_map(|moves| {
                let mut now = None;
                let next = |to| {
                    now = match to {
                        1 => Some(true),
                        2 => Some(false),
                        _ => now,
                    };
                    now
                };
                moves.into_iter().map(next).collect()
            });
    let policy = prop::sample::select(vec![HealthCheck::Checks, HealthCheck::TaskStates]);
    (moves(), tasks, prop::collection::vec(check, 0..3), 1..12_u64, policy).prop_map(
        |(main, tasks, checks, min_healthy, policy)| {
            let mut all = vec![(Lifecycle::Main, timeline(&main))];
            all.extend(tasks.into_iter().map(|(kind, moves)| (kind, timeline(&moves))));
            History { tasks: all, checks, min_healthy, policy }
        },
    )
}

impl History {
    fn group(&self) -> TaskGroup {
        let task = |(i, (kind, _)): (usize, &(Lifecycle, Vec<Now>))| {
            format!("task \"t{i}\" {{\ndriver = \"mock\"\n{}\n}}\n", kind.block())
        };
        let tasks: String = self.tasks.iter().enumerate().map(task).collect();
        let check = |i| {
            format!(
                "check {{\nname = \"c{i}\"\ntype = \"tcp\"\ninterval = \"1s\"\ntimeout = \"1s\"\n}}\n"
            )
        };
        let checks: String = (0..self.checks.len()).map(check).collect();
        group(&format!(
            "network {{\nport \"p\" {{}}\n}}\nservice {{\nname = \"s\"\nport = \"p\"\n{checks}}}\n{tasks}"
        ))
    }

    fn states(&self, second: usize) -> BTreeMap<TaskName, CowArc<TaskState>> {
        let state = |line: &[Now]| match line[second] {
            Now::Pending => TaskState::default(),
            Now::Succeeded => dead(),
            Now::Failed => failed("over"),
            // The first start, as the agent keeps it, and the newest as an event.
            Now::Running(newest) => {
                let first = line.iter().find_map(|now| match now {
                    Now::Running(first) => Some(*first),
                    _ => None,
                });
                TaskState { started_at: first.map(at), ..running(newest) }
            }
        };
        let named = self.tasks.iter().enumerate();
        named.map(|(i, (_, line))| (task(&format!("t{i}")), state(line).into())).collect()
    }

    fn results(&self, ids: &[CheckId], second: usize) -> Vec<CheckResult> {
        let mut results = Vec::new();
        for (id, line) in ids.iter().zip(&self.checks) {
            let Some(passing) = line[second] else { continue };
            let mut since = second;
            while since > 0 && line[since - 1] == Some(passing) {
                since -= 1;
            }
            results.push(result(id, passing, "", u64::try_from(since).unwrap()));
        }
        results
    }

    /// Is all well in this second? `None` when it never will be again.
    fn well(&self, second: usize) -> Option<bool> {
        let mut well = true;
        for (kind, line) in &self.tasks {
            match (kind, line[second]) {
                (Lifecycle::Once("poststop") | Lifecycle::Sidecar("poststop"), _) => {}
                (_, Now::Failed) => return None,
                (Lifecycle::Once(_), Now::Succeeded) => {}
                (Lifecycle::Once(_), _) => well = false,
                (_, Now::Succeeded) => return None,
                (_, Now::Running(_)) => {}
                (_, Now::Pending) => well = false,
            }
        }
        let checks_pass = self.checks.iter().all(|line| line[second] == Some(true));
        Some(well && (checks_pass || self.policy == HealthCheck::TaskStates))
    }

    /// Did something that has to run start in this second, so that the time begins anew?
    fn anew(&self, second: usize) -> bool {
        self.tasks.iter().any(|(kind, line)| {
            let counts = matches!(
                kind,
                Lifecycle::Main | Lifecycle::Sidecar("prestart") | Lifecycle::Sidecar("poststart")
            );
            counts && line[second] == Now::Running(u64::try_from(second).unwrap())
        })
    }

    /// The verdict and its second. One-shots have to be done, but for how long does not count.
    fn model(&self) -> (bool, u64) {
        let mut good_for = 0_u64;
        for second in 0..=usize::try_from(DEADLINE).unwrap() {
            let now = u64::try_from(second).unwrap();
            let Some(well) = self.well(second) else { return (false, now) };
            let tasks_well = self.runs_and_passes(second);
            good_for = if tasks_well && !self.anew(second) && good_for > 0 {
                good_for + 1
            } else {
                u64::from(tasks_well)
            };
            if well && good_for >= self.min_healthy {
                return (true, now);
            }
        }
        (false, DEADLINE)
    }

    /// All is well, one-shots aside.
    fn runs_and_passes(&self, second: usize) -> bool {
        let runs = self.tasks.iter().all(|(kind, line)| match kind {
            Lifecycle::Once(_) | Lifecycle::Sidecar("poststop") => true,
            _ => matches!(line[second], Now::Running(_)),
        });
        let passes = self.checks.iter().all(|line| line[second] == Some(true));
        runs && (passes || self.policy == HealthCheck::TaskStates)
    }

    /// The machine's verdict and its second, shown what changed in each second and its timers.
    fn machine(&self) -> (HealthVerdict, u64) {
        let group = self.group();
        let ids = expected_checks(&group);
        let policy = HealthPolicy {
            check: self.policy,
            min_healthy_time: Duration::from_secs(self.min_healthy) - HALF,
            healthy_deadline: Duration::from_secs(DEADLINE) + HALF,
        };
        let mut health = HealthMachine::new(policy, &group, at(0));
        let mut due: Option<Timestamp> = None;
        let (mut last_states, mut last_results) = (None, None);
        for second in 0..=usize::try_from(DEADLINE).unwrap() {
            let now = u64::try_from(second).unwrap();
            let (states, results) = (self.states(second), self.results(&ids, second));
            let mut effects = Vec::new();
            if last_results.as_ref() != Some(&results) {
                effects.extend(health.step(at(now), HealthInput::Checks(&results)));
                last_results = Some(results);
            }
            if last_states.as_ref() != Some(&states) {
                effects.extend(health.step(at(now), HealthInput::Tasks(&states)));
                last_states = Some(states);
            }
            let mut moment = at(now);
            loop {
                for effect in effects.drain(..) {
                    match effect {
                        HealthEffect::Timer(after) => due = Some(moment.plus(after)),
                        HealthEffect::Verdict(verdict) => return (verdict, now),
                    }
                }
                assert!(due.is_some_and(|due| due > moment), "it waits for something to come");
                let Some(fires) = due.take_if(|due| *due < at(now + 1)) else { break };
                moment = fires;
                effects = health.step(moment, HealthInput::TimerFired);
            }
        }
        panic!("no verdict at the deadline")
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_judges_as_the_model_and_as_early(history in history()) {
        let (verdict, second) = history.machine();
        prop_assert_eq!((verdict.healthy, second), history.model(), "{}", verdict.text);
        prop_assert!(!verdict.text.is_empty());
        prop_assert_eq!(verdict.tasks.is_empty(), verdict.healthy);
    }

    #[test]
    fn who_is_blamed_did_something_wrong(history in history()) {
        let (verdict, second) = history.machine();
        let second = usize::try_from(second).unwrap();
        for (name, text) in &verdict.tasks {
            let index: usize = name.as_str()[1..].parse().unwrap();
            let (kind, line) = &history.tasks[index];
            let too_short = |since: u64| since + history.min_healthy > DEADLINE + 1;
            let guilty = match (kind, line[second]) {
                (Lifecycle::Once("poststop") | Lifecycle::Sidecar("poststop"), _) => false,
                (Lifecycle::Once(_), now) => now != Now::Succeeded,
                (_, Now::Running(since)) => too_short(since),
                _ => true,
            };
            // A check is not the task's fault, and the text says so.
            prop_assert!(guilty || text.starts_with("check "), "{name}: {text}");
            prop_assert!(guilty || *kind == Lifecycle::Main, "{name}: {text}");
        }
    }
}

#[test]
fn histories_have_all_kinds_of_ends() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut healthy, mut early, mut late) = (0, 0, 0);
    for _ in 0..500 {
        match history().new_tree(&mut runner).unwrap().current().model() {
            (true, _) => healthy += 1,
            (false, DEADLINE) => late += 1,
            (false, _) => early += 1,
        }
    }
    assert!(healthy > 50 && early > 50 && late > 50, "{healthy} {early} {late}");
}
