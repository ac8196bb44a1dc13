//! Machines under random events, with tasks that only do what they may: the rules that always hold.

use proptest::prelude::*;

use super::*;
use ostler_model::saved::SavedAllocState;

/// A world that answers what the machine asks, in any order.
struct World {
    machine: AllocMachine,
    group: TaskGroup,
    states: BTreeMap<TaskName, CowArc<TaskState>>,
    gates: BTreeMap<TaskName, TaskGate>,
    killed: BTreeSet<TaskName>,
    /// Answers that are due.
    due: Vec<AllocInput>,
    gone: bool,
    finishing: bool,
    /// Some task was started.
    started: bool,
    pre_kills: usize,
    post_hooks: usize,
    verdicts: usize,
    /// Any task was told to end.
    ending: bool,
    leaving: bool,
}

fn rank(phase: AllocPhase) -> u8 {
    match phase {
        AllocPhase::Preparing => 0,
        AllocPhase::Running => 1,
        AllocPhase::Cleaning | AllocPhase::Leaving => 2,
        AllocPhase::Done | AllocPhase::Left => 3,
        AllocPhase::Destroying => 4,
        AllocPhase::Destroyed => 5,
    }
}

impl World {
    fn new(restored: Option<(u32, u8)>) -> Self {
        let group =
            TaskGroup { health: Some(Default::default()), ..group(Some(Duration::from_secs(1))) };
        let mut states = all(&group, TaskStatus::Pending);
        let (machine, first) = match restored {
            None => AllocMachine::new(group.clone(), states.clone()),
            Some((mix, how)) => {
                for (index, state) in states.values_mut().enumerate() {
                    let digit = mix / 3_u32.pow(u32::try_from(index).unwrap()) % 3;
                    state.status = [TaskStatus::Pending, TaskStatus::Running, TaskStatus::Dead]
                        [usize::try_from(digit).unwrap()];
                }
                let known = RecordedAlloc {
                    saved: (how == 1).then(|| SavedAllocState {
                        client_status: ClientStatus::Failed,
                        forced: true,
                        ..SavedAllocState::default()
                    }),
                    started: true,
                    stop: (how == 2).then(|| "enough".to_owned()),
                    trouble: (how == 3).then(|| "unreadable".to_owned()),
                    ..RecordedAlloc::default()
                };
                AllocMachine::restore(NOW, group.clone(), states.clone(), known)
            }
        };
        let mut world = Self {
            machine,
            gates: states.keys().map(|t| (t.clone(), TaskGate::Closed)).collect(),
            group,
            started: restored.is_some(),
            states,
            killed: BTreeSet::new(),
            due: Vec::new(),
            gone: false,
            finishing: false,
            pre_kills: 0,
            post_hooks: 0,
            verdicts: 0,
            ending: false,
            leaving: false,
        };
        first.into_iter().for_each(|effect| world.act(effect));
        world
    }

    fn dead(&self, task: &str) -> bool {
        self.states[task].status == TaskStatus::Dead
    }

    fn feed(&mut self, input: AllocInput) {
        let before = self.machine.phase();
        let forced = self.machine.forced.clone();
        let health = self.machine.public().health.clone();
        for effect in self.machine.step(NOW, input) {
            self.act(effect);
        }
        let after = self.machine.phase();
        assert!(rank(after) >= rank(before), "{before:?} -> {after:?}");
        assert!(forced.is_none() || self.machine.forced == forced, "a forced status was changed");
        assert!(health.is_none() || self.machine.public().health == health, "judged twice");
        assert!(self.pre_kills <= 1 && self.post_hooks <= 1 && self.verdicts <= 1);
    }

    fn act(&mut self, effect: AllocEffect) {
        match effect {
            AllocEffect::PreHooks | AllocEffect::PreHooksAfter(_) => {
                self.due.push(AllocInput::HooksDone);
            }
            AllocEffect::AbandonPreHooks => self.due.retain(|i| *i != AllocInput::HooksDone),
            AllocEffect::RestartHooks => self.due.push(AllocInput::RestartReady { ok: true }),
            AllocEffect::PreKillHooks => {
                self.pre_kills += 1;
                self.due.push(AllocInput::PreKilled);
            }
            AllocEffect::Gates(changes) => {
                for (task, gate) in changes {
                    let poststop = task.as_str() == "last";
                    let opens = gate == TaskGate::Open;
                    assert!(!opens || !self.ending || poststop, "{task} may start during a stop");
                    let others = ["pre", "lead", "main", "side"].iter().all(|t| self.dead(t));
                    assert!(!opens || !poststop || others, "poststop before the others are dead");
                    assert!(!opens || !self.finishing, "{task} may start after the end");
                    self.gates.insert(task, gate);
                }
            }
            AllocEffect::Kill { tasks, .. } => {
                self.ending = true;
                assert!(!self.started || self.pre_kills == 1, "killed before the pre-kill hooks");
                for task in &tasks {
                    assert!(!self.dead(task.as_str()), "{task} is dead and was killed");
                    let after: &[&str] = match task.as_str() {
                        _ if !self.started => &[],
                        "lead" => &[],
                        "side" => &["lead", "main", "pre"],
                        "last" => &["lead", "main", "pre", "side"],
                        _ => &["lead"],
                    };
                    assert!(after.iter().all(|t| self.dead(t)), "{task} killed before {after:?}");
                }
                self.killed.extend(tasks);
            }
            AllocEffect::ForceRestart { .. } => {
                assert!(!self.ending && !self.finishing, "restarted at the end");
                for state in self.states.values_mut() {
                    *state = CowArc::default();
                }
                self.due.push(AllocInput::RestartAsked);
            }
            AllocEffect::FinishTasks => {
                assert!(self.states.values().all(|s| s.status == TaskStatus::Dead));
                self.finishing = true;
            }
            AllocEffect::SaveHealth(_) => {
                self.verdicts += 1;
                self.due.push(AllocInput::HealthSaved);
            }
            AllocEffect::Timer(_) => self.due.push(AllocInput::TimerFired),
            AllocEffect::LeaveTasks => self.leaving = true,
            AllocEffect::PostHooks => {
                assert!(self.gone, "post-run hooks while tasks live");
                self.post_hooks += 1;
                self.due.push(AllocInput::Waiting { what: Some("another one".to_owned()) });
                self.due.push(AllocInput::Cleaned);
            }
            AllocEffect::AbandonPostHooks => self.due.retain(|i| *i != AllocInput::Cleaned),
            AllocEffect::DestroyHooks => self.due.push(AllocInput::Destroyed),
            AllocEffect::UpdateHooks | AllocEffect::Notes(_) => {}
        }
    }

    /// One task does what it may, or one answer that is due comes.
    fn turn(&mut self, pick: usize, how: usize) {
        let names: Vec<TaskName> = self.states.keys().cloned().collect();
        let choices = names.len() + self.due.len();
        let chosen = pick % choices;
        if let Some(name) = names.get(chosen) {
            self.task_moves(name, how);
            self.feed(AllocInput::Tasks(self.states.clone()));
            let over = self.finishing
                || self.leaving
                || self.states.keys().all(|t| self.dead(t.as_str()) && self.killed.contains(t));
            if over && !self.gone {
                self.gone = true;
                self.feed(AllocInput::TasksGone);
            }
        } else {
            let answer = self.due.remove(chosen - names.len());
            if answer == AllocInput::RestartAsked {
                // The owner reads the tasks first.
                self.feed(AllocInput::Tasks(self.states.clone()));
            }
            self.feed(answer);
        }
    }

    fn task_moves(&mut self, name: &TaskName, how: usize) {
        let (killed, gate) = (self.killed.contains(name), self.gates[name]);
        let state = self.states.get_mut(name).unwrap();
        let status = match (state.status, how % 4) {
            (TaskStatus::Dead, _) => TaskStatus::Dead,
            _ if killed => TaskStatus::Dead,
            (TaskStatus::Pending, _) if gate == TaskGate::Open => TaskStatus::Running,
            (TaskStatus::Running, 0) => TaskStatus::Dead,
            (TaskStatus::Running, 1) => {
                state.failed = true;
                TaskStatus::Dead
            }
            // Its restart policy.
            (TaskStatus::Running, 2) => TaskStatus::Pending,
            (same, _) => same,
        };
        self.started |= status == TaskStatus::Running;
        state.status = status;
    }

    fn request(&mut self, kind: usize) {
        let skip_shutdown_delay = kind.is_multiple_of(2);
        let input = match kind {
            0 | 1 => AllocInput::Stop { reason: "enough".to_owned(), skip_shutdown_delay },
            2 => AllocInput::Force {
                status: ClientStatus::Complete,
                description: "long enough".to_owned(),
                event: None,
            },
            3 if self.due.contains(&AllocInput::HooksDone) => {
                self.due.retain(|i| *i != AllocInput::HooksDone);
                let blame = Blame::of_the_node(skip_shutdown_delay);
                AllocInput::HooksFailed { error: "broken".to_owned(), blame }
            }
            4 => AllocInput::Update { group: Box::new(self.group.clone()), hooks: true },
            5 => AllocInput::Verdict { healthy: true, reasons: Vec::new() },
            6 => AllocInput::Shutdown,
            7 => AllocInput::Destroy,
            _ => AllocInput::RestartAll { reason: "anew".to_owned() },
        };
        self.feed(input);
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_rules_hold_and_a_stop_ends_it(
        restored in proptest::option::of((0..243_u32, 0..4_u8)),
        events in proptest::collection::vec((0..12_usize, 0..100_usize, 0..4_usize), 0..80),
    ) {
        let mut world = World::new(restored);
        for (kind, pick, how) in events {
            // Mostly the world moves on; a request now and then.
            if pick < 12 {
                world.request(kind);
            } else {
                world.turn(pick, how);
            }
        }
        world.feed(stop());
        for round in 0..400 {
            world.turn(round, 0);
        }
        let phase = world.machine.phase();
        prop_assert!(phase.has_ended(), "stuck in {phase:?}: {:?}", world.machine);
    }
}
