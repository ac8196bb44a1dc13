//! Allocations of an earlier agent.

use super::*;
use ostler_model::saved::SavedAllocState;

fn restored(of: &[(&str, TaskStatus)], known: RecordedAlloc) -> (AllocMachine, Vec<AllocEffect>) {
    AllocMachine::restore(NOW, group(None), states(of), known)
}

fn saved(client_status: ClientStatus) -> Option<SavedAllocState> {
    let client_description = "as written".to_owned();
    Some(SavedAllocState { client_status, client_description, ..SavedAllocState::default() })
}

use TaskStatus::{Dead, Pending, Running};

const ALIVE: [(&str, TaskStatus); 5] =
    [("pre", Dead), ("lead", Running), ("main", Running), ("side", Running), ("last", Pending)];
const DEAD: [(&str, TaskStatus); 5] =
    [("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Dead), ("last", Dead)];

#[test]
fn one_that_had_finished_runs_nothing_and_says_what_it_said() {
    let finished = saved(ClientStatus::Failed).map(|s| SavedAllocState { finished: true, ..s });
    let (mut machine, first) =
        restored(&DEAD, RecordedAlloc { saved: finished, ..RecordedAlloc::default() });
    assert_eq!((machine.phase(), first), (AllocPhase::Done, Vec::new()));
    assert_eq!(machine.public().client_status, ClientStatus::Failed);
    assert_eq!(machine.public().client_description, "as written");
    assert_eq!(machine.step(NOW, AllocInput::Destroy), [AllocEffect::DestroyHooks]);
}

#[test]
fn one_that_ended_and_had_not_finished_is_only_cleaned_up() {
    let (mut machine, first) = restored(
        &DEAD,
        RecordedAlloc { saved: saved(ClientStatus::Complete), ..RecordedAlloc::default() },
    );
    assert_eq!(first, [AllocEffect::PreKillHooks], "no pre-run hooks, no gates");
    assert_eq!(machine.step(NOW, AllocInput::PreKilled), [AllocEffect::FinishTasks]);
    assert_eq!(machine.step(NOW, AllocInput::TasksGone), [AllocEffect::PostHooks]);
    machine.step(NOW, AllocInput::Cleaned);
    assert_eq!(machine.phase(), AllocPhase::Done);
}

#[test]
fn one_that_runs_prepares_again_and_goes_on_where_it_was() {
    let (mut machine, first) =
        restored(&ALIVE, RecordedAlloc { started: true, ..RecordedAlloc::default() });
    assert_eq!(first, [AllocEffect::PreHooks]);
    let effects = machine.step(NOW, AllocInput::HooksDone);
    let [AllocEffect::Gates(gates)] = &effects[..] else { panic!("{effects:?}") };
    assert!(
        !gates.contains(&(name("pre"), TaskGate::Open)),
        "a prestart task that succeeded is not run again"
    );
    assert!(gates.contains(&(name("main"), TaskGate::Open)));
}

fn hooks_failed(node: bool) -> AllocInput {
    AllocInput::HooksFailed { error: "no directory".to_owned(), blame: Blame::of_the_node(node) }
}

#[test]
fn a_pre_run_hook_that_fails_ends_nothing_that_runs_and_is_tried_again_ever_more_slowly() {
    let (mut machine, _) =
        restored(&ALIVE, RecordedAlloc { started: true, ..RecordedAlloc::default() });
    let first = machine.step(NOW, hooks_failed(false));
    let [AllocEffect::Notes(notes), AllocEffect::PreHooksAfter(pause)] = &first[..] else {
        panic!("{first:?}")
    };
    let told: Vec<_> = notes.iter().map(|(task, _)| task.to_string()).collect();
    assert_eq!(
        (told, pause.as_secs()),
        (["last", "lead", "main", "side"].map(Into::into).into(), 1)
    );
    for seconds in [2, 4, 8, 16, 32, 60, 60] {
        let again = AllocEffect::PreHooksAfter(Duration::from_secs(seconds));
        assert_eq!(machine.step(NOW, hooks_failed(false)), [again], "said once");
    }
    assert_eq!(machine.public().client_status, ClientStatus::Running);
    let done = machine.step(NOW, AllocInput::HooksDone);
    assert!(matches!(&done[..], [AllocEffect::Gates(_)]), "{done:?}");
}

#[test]
fn a_stop_ends_what_runs_while_its_hooks_are_tried_again() {
    let (mut machine, _) =
        restored(&ALIVE, RecordedAlloc { started: true, ..RecordedAlloc::default() });
    machine.step(NOW, hooks_failed(true));
    machine.step(NOW, stop());
    assert_eq!(killed(&machine.step(NOW, AllocInput::PreKilled)), [["lead"]]);
    let others = [("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Dead), ("last", Pending)];
    machine.step(NOW, AllocInput::Tasks(states(&others)));
    let again = machine.step(NOW, hooks_failed(true));
    assert!(matches!(again[..], [AllocEffect::PreHooksAfter(_)]), "{again:?}");
    let gone = machine.step(NOW, AllocInput::TasksGone);
    assert!(gone.contains(&AllocEffect::AbandonPreHooks), "{gone:?}");
}

#[test]
fn what_the_node_is_short_of_is_waited_for_also_where_nothing_runs() {
    let waits = [("pre", Pending), ("lead", Pending), ("main", Pending), ("side", Pending)];
    let (mut machine, _) = restored(&waits, RecordedAlloc::default());
    machine.step(NOW, hooks_failed(true));
    assert_eq!(machine.public().client_status, ClientStatus::Pending);
    assert_eq!(machine.public().client_description, "no directory");
    machine.step(NOW, AllocInput::HooksDone);
    assert_ne!(machine.public().client_description, "no directory");
    // A new allocation waits likewise, and fails of what is its own: nothing of it is there to be lost.
    let (mut machine, _) = AllocMachine::new(group(None), states(&waits));
    machine.step(NOW, hooks_failed(true));
    assert!(!machine.is_ending());
    machine.step(NOW, hooks_failed(false));
    assert!(machine.is_ending());
}

#[test]
fn a_pre_run_hook_that_fails_where_nothing_runs_fails_it_in_order() {
    let mut now = states(&ALIVE);
    for task in ["lead", "main", "side"] {
        now.get_mut(&name(task)).unwrap().status = Pending;
    }
    let known = RecordedAlloc { started: true, ..RecordedAlloc::default() };
    let (mut machine, _) = AllocMachine::restore(NOW, group(None), now.clone(), known);
    machine.step(NOW, hooks_failed(false));
    let mut order = Vec::new();
    let mut effects = machine.step(NOW, AllocInput::PreKilled);
    while let [kill] = &killed(&effects)[..] {
        order.push(kill.join(" "));
        for task in kill {
            now.get_mut(&name(task)).unwrap().status = Dead;
        }
        effects = machine.step(NOW, AllocInput::Tasks(now.clone()));
    }
    assert_eq!(order, ["lead", "main", "side", "last"]);
}

#[test]
fn one_that_is_to_stop_is_killed_in_order_without_pre_run_hooks_and_its_poststop_runs() {
    let stop = Some("enough".to_owned());
    let (mut machine, first) =
        restored(&ALIVE, RecordedAlloc { started: true, stop, ..RecordedAlloc::default() });
    assert_eq!(first, [AllocEffect::PreKillHooks]);
    assert_eq!(killed(&machine.step(NOW, AllocInput::PreKilled)), [["lead"]]);
    let others = [("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Dead), ("last", Pending)];
    let effects = machine.step(NOW, AllocInput::Tasks(states(&others)));
    assert!(
        effects.contains(&AllocEffect::Gates(vec![(name("last"), TaskGate::Open)])),
        "{effects:?}"
    );
}

#[test]
fn one_that_is_to_stop_and_never_started_ends_at_once() {
    let pending: Vec<_> = ALIVE.iter().map(|(task, _)| (*task, Pending)).collect();
    let stop = Some("enough".to_owned());
    let (_, first) = restored(&pending, RecordedAlloc { stop, ..RecordedAlloc::default() });
    assert_eq!(killed(&first)[0].len(), 5);
    assert!(!first.contains(&AllocEffect::PreHooks));
}

#[test]
fn one_whose_records_cannot_be_read_fails_and_nothing_of_it_lives_on() {
    let trouble = Some("record of task main: bad checksum".to_owned());
    let (mut machine, first) =
        restored(&ALIVE, RecordedAlloc { started: true, trouble, ..RecordedAlloc::default() });
    assert_eq!(first, [AllocEffect::PreKillHooks]);
    let effects = machine.step(NOW, AllocInput::PreKilled);
    let [AllocEffect::Kill { tasks, event: Some(event), .. }] = &effects[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(*tasks, [name("lead")]);
    assert!(event.fails_task);
    assert_eq!(machine.public().client_status, ClientStatus::Failed);
    assert!(machine.public().client_description.contains("bad checksum"));
}

#[test]
fn a_forced_status_is_still_forced() {
    let forced = saved(ClientStatus::Complete).map(|s| SavedAllocState { forced: true, ..s });
    let known = RecordedAlloc { saved: forced, started: true, ..RecordedAlloc::default() };
    let (mut machine, _) = restored(&ALIVE, known);
    assert_eq!(machine.public().client_status, ClientStatus::Complete);
    assert_eq!(killed(&machine.step(NOW, AllocInput::PreKilled)), [["lead"]]);
    assert!(machine.is_forced());
}

#[test]
fn a_stop_while_it_prepares_again_begins_at_once_and_waits_for_the_hooks_before_poststop() {
    let (mut machine, _) =
        restored(&ALIVE, RecordedAlloc { started: true, ..RecordedAlloc::default() });
    assert_eq!(machine.step(NOW, stop())[0], AllocEffect::PreKillHooks);
    assert_eq!(killed(&machine.step(NOW, AllocInput::PreKilled)), [["lead"]]);
    let others = [("pre", Dead), ("lead", Dead), ("main", Dead), ("side", Dead), ("last", Pending)];
    let effects = machine.step(NOW, AllocInput::Tasks(states(&others)));
    assert!(effects.is_empty(), "{effects:?}");
    let effects = machine.step(NOW, AllocInput::HooksDone);
    assert!(
        effects.contains(&AllocEffect::Gates(vec![(name("last"), TaskGate::Open)])),
        "{effects:?}"
    );
}

#[test]
fn a_verdict_is_kept_and_never_given_again() {
    let health = Some(DeploymentStatus { healthy: Some(true), ..DeploymentStatus::default() });
    let (mut machine, _) = restored(
        &ALIVE,
        RecordedAlloc { started: true, health: health.clone(), ..RecordedAlloc::default() },
    );
    assert_eq!(machine.public().health, health);
    let verdict = AllocInput::Verdict { healthy: false, reasons: Vec::new() };
    assert!(machine.step(NOW, verdict).is_empty());
    assert_eq!(machine.public().health, health);
}
