//! Claims over a ledger on a disk and plugins that may fail, cut off anywhere.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::ledger::{DeviceLedger, InstanceHolder};
use ostler_model::device::GroupKey;
use ostler_model::ids::{AllocId, TaskName};

fn assigned(group: &str, id: &str) -> AllocatedDevice {
    let group = GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: group.into() };
    AllocatedDevice { group, ids: vec![id.into()] }
}

fn holder(number: u128) -> InstanceHolder {
    let alloc = AllocId::new(uuid::Uuid::from_u128(number));
    InstanceHolder { alloc, task: TaskName::new("t").unwrap() }
}

fn failed() -> PluginCallError {
    PluginCallError::CallFailed { plugin: "p".into(), call: "x", reason: "trap".into() }
}

fn no() -> PluginCallError {
    PluginCallError::Fatal("no".into())
}

fn name() -> PluginName {
    PluginName::new("p").unwrap()
}

/// How a plugin takes one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Takes {
    Well,
    /// Says no: nothing happened.
    No,
    /// Fails before it did anything.
    Traps,
    /// Does it and fails then: what happened is not known.
    TrapsAfter,
}

#[derive(Debug, PartialEq, Eq)]
struct Cut;

/// A node: what is in memory goes with a crash, what is on disk and in the plugins does not.
struct World {
    claims: BTreeMap<InstanceHolder, Claim>,
    ledger: DeviceLedger,
    // What stays.
    disk: DeviceLedger,
    /// Allocations on record, with what they were assigned.
    placed: BTreeMap<InstanceHolder, Vec<AllocatedDevice>>,
    /// Of those, the ones whose stop hooks ran, by the task's local record.
    ended: BTreeSet<InstanceHolder>,
    /// By instance: for whom the plugin prepared it.
    prepared: BTreeMap<(GroupKey, String), InstanceHolder>,
    /// How often something prepared was undone, and prepared.
    undone: usize,
    done: usize,
    script: Vec<Takes>,
    /// Steps until the agent is cut off.
    fuel: usize,
    log: Vec<String>,
    given_up: Vec<ClaimItem>,
}

impl World {
    fn new(script: Vec<Takes>, fuel: usize) -> Self {
        Self {
            claims: BTreeMap::new(),
            ledger: DeviceLedger::default(),
            disk: DeviceLedger::default(),
            placed: BTreeMap::new(),
            ended: BTreeSet::new(),
            prepared: BTreeMap::new(),
            undone: 0,
            done: 0,
            script,
            fuel,
            log: vec![],
            given_up: vec![],
        }
    }

    fn burn(&mut self) -> Result<(), Cut> {
        self.fuel = self.fuel.checked_sub(1).ok_or(Cut)?;
        Ok(())
    }

    fn takes(&mut self) -> Takes {
        if self.script.is_empty() { Takes::Well } else { self.script.remove(0) }
    }

    fn place(&mut self, who: &InstanceHolder, devices: &[AllocatedDevice]) -> Result<bool, Cut> {
        self.burn()?;
        if self.ledger.claim(who, devices).is_err() {
            return Ok(false);
        }
        self.placed.insert(who.clone(), devices.to_vec());
        Ok(true)
    }

    fn reserve(&mut self, who: &InstanceHolder, device: &AllocatedDevice) -> ClaimEvent {
        assert!(self.disk.holders().any(|held| &held.holder == who), "asked before it was kept");
        let takes = self.takes();
        self.log.push(format!("reserve {} {takes:?}", device.group.name));
        if matches!(takes, Takes::Well | Takes::TrapsAfter) {
            let key = (device.group.clone(), device.ids[0].clone());
            match self.prepared.insert(key, who.clone()) {
                None => self.done += 1,
                Some(before) => assert_eq!(&before, who, "assigned again before it was released"),
            }
        }
        match takes {
            Takes::Well => ClaimEvent::Reserved(name()),
            Takes::No => ClaimEvent::Refused(no()),
            Takes::Traps | Takes::TrapsAfter => ClaimEvent::Refused(failed()),
        }
    }

    fn release(&mut self, who: &InstanceHolder, device: &AllocatedDevice) -> ClaimEvent {
        let takes = self.takes();
        self.log.push(format!("release {} {takes:?}", device.group.name));
        if matches!(takes, Takes::Well | Takes::TrapsAfter) {
            let key = (device.group.clone(), device.ids[0].clone());
            if let Some(before) = self.prepared.remove(&key) {
                assert_eq!(&before, who, "released under somebody else");
                self.undone += 1;
            }
        }
        ClaimEvent::Released(match takes {
            Takes::Well => Ok(()),
            Takes::No => Err(no()),
            Takes::Traps | Takes::TrapsAfter => Err(failed()),
        })
    }

    /// Drive a claim until it needs nothing at once. Whether it was granted, where it was asked.
    fn drive(&mut self, who: &InstanceHolder, event: ClaimEvent) -> Result<Option<bool>, Cut> {
        let mut event = event;
        loop {
            self.burn()?;
            let claim = self.claims.entry(who.clone()).or_default();
            let Some(effect) = claim.step(event) else { return Ok(None) };
            // Cut after the decision, before anything was done about it.
            self.burn()?;
            event = match effect {
                ClaimEffect::Keep => {
                    self.disk = self.ledger.clone();
                    ClaimEvent::Kept(Ok(()))
                }
                ClaimEffect::Reserve(device) => self.reserve(who, &device),
                ClaimEffect::Release(device, _) => self.release(who, &device),
                ClaimEffect::Granted => return Ok(Some(true)),
                ClaimEffect::Denied(_) => return Ok(Some(false)),
                ClaimEffect::Wait(_) => return Ok(None),
                ClaimEffect::Done(left) => {
                    for item in &left {
                        let key = (item.device.group.clone(), item.device.ids[0].clone());
                        self.undone += usize::from(self.prepared.remove(&key).is_some());
                    }
                    self.given_up.extend(left);
                    self.ledger.release(who);
                    // Cut between: free in memory and still on disk.
                    self.burn()?;
                    self.disk.release(who);
                    return Ok(None);
                }
            };
        }
    }

    fn end(&mut self, who: &InstanceHolder) -> Result<(), Cut> {
        self.drive(who, ClaimEvent::End)?;
        self.burn()?;
        self.ended.insert(who.clone());
        Ok(())
    }

    /// A new agent: allocations and the ledger from disk, plugins as they are.
    fn restart(&mut self) {
        self.claims.clear();
        self.ledger = DeviceLedger::default();
        self.fuel = usize::MAX;
        for (who, devices) in &self.placed {
            let entry = self.disk.holders().any(|held| &held.holder == who);
            if entry {
                self.claims.insert(who.clone(), Claim::from_ledger(devices));
            }
            if entry || !self.ended.contains(who) {
                // Two of them never share an instance: what is free on disk was free in memory.
                self.ledger.claim(who, devices).unwrap();
            }
        }
    }

    /// Every task goes on, if it can, and ends; every wait is over at once.
    fn finish(&mut self) {
        let all: Vec<InstanceHolder> = self.placed.keys().cloned().collect();
        for who in all {
            if !self.ended.contains(&who) {
                let devices = self.placed[&who].clone();
                self.drive(&who, ClaimEvent::Reserve(devices)).unwrap();
            }
            self.end(&who).unwrap();
            for _ in 0..DEVICE_RELEASE_TRIES_MAX {
                self.drive(&who, ClaimEvent::Again).unwrap();
            }
        }
    }
}

/// Two tasks, the first with devices of two plugins and a second start; the second takes over one
/// of the instances.
fn scenario(world: &mut World) -> Result<(), Cut> {
    let (first, second) = (holder(1), holder(2));
    let both = vec![assigned("a", "0"), assigned("b", "0")];
    if world.place(&first, &both)? {
        world.drive(&first, ClaimEvent::Reserve(both.clone()))?;
        world.drive(&first, ClaimEvent::Reserve(both))?;
        world.end(&first)?;
        world.drive(&first, ClaimEvent::Again)?;
    }
    let one = vec![assigned("b", "0")];
    if world.place(&second, &one)? {
        world.drive(&second, ClaimEvent::Reserve(one))?;
        world.end(&second)?;
    }
    Ok(())
}

#[test]
fn a_refusal_releases_what_was_reserved_before_it_last_first() {
    let mut world = World::new(vec![Takes::Well, Takes::Well, Takes::No], usize::MAX);
    let devices = vec![assigned("a", "0"), assigned("b", "0"), assigned("c", "0")];
    world.place(&holder(1), &devices).unwrap();
    assert_eq!(world.drive(&holder(1), ClaimEvent::Reserve(devices)), Ok(Some(false)));
    let expected =
        ["reserve a Well", "reserve b Well", "reserve c No", "release b Well", "release a Well"];
    assert_eq!(world.log, expected);
    world.end(&holder(1)).unwrap();
    assert_eq!(world.log.len(), expected.len(), "nothing is released twice");
    assert_eq!(world.ledger, DeviceLedger::default());
}

#[test]
fn a_question_that_trapped_may_have_had_an_effect_and_is_released_too() {
    let mut world = World::new(vec![Takes::Well, Takes::TrapsAfter], usize::MAX);
    let devices = vec![assigned("a", "0"), assigned("b", "0")];
    world.place(&holder(1), &devices).unwrap();
    assert_eq!(world.drive(&holder(1), ClaimEvent::Reserve(devices)), Ok(Some(false)));
    assert_eq!(world.log[2..], ["release b Well", "release a Well"]);
    assert!(world.prepared.is_empty());
}

#[test]
fn a_refusal_before_a_later_start_takes_nothing_from_the_task() {
    let mut world = World::new(vec![Takes::Well, Takes::Well, Takes::Well, Takes::No], usize::MAX);
    let devices = vec![assigned("a", "0"), assigned("b", "0")];
    world.place(&holder(1), &devices).unwrap();
    assert_eq!(world.drive(&holder(1), ClaimEvent::Reserve(devices.clone())), Ok(Some(true)));
    assert_eq!(world.drive(&holder(1), ClaimEvent::Reserve(devices)), Ok(Some(false)));
    assert_eq!(world.prepared.len(), 2);
    world.end(&holder(1)).unwrap();
    assert_eq!(world.log[4..], ["release b Well", "release a Well"]);
}

#[test]
fn a_restored_claim_that_is_refused_keeps_its_devices_until_the_task_ends() {
    let devices = vec![assigned("a", "0")];
    let mut claim = Claim::from_ledger(&devices);
    assert!(matches!(claim.step(ClaimEvent::Reserve(devices)), Some(ClaimEffect::Reserve(_))));
    assert!(matches!(claim.step(ClaimEvent::Refused(no())), Some(ClaimEffect::Denied(_))));
    assert!(matches!(claim.step(ClaimEvent::End), Some(ClaimEffect::Release(..))));
}

#[test]
fn a_release_without_an_answer_is_tried_again_and_given_up_after_a_bound() {
    let mut world = World::new(vec![Takes::Well], usize::MAX);
    let devices = vec![assigned("a", "0")];
    world.place(&holder(1), &devices).unwrap();
    world.drive(&holder(1), ClaimEvent::Reserve(devices.clone())).unwrap();
    world.script = vec![Takes::Traps; 100];
    world.drive(&holder(1), ClaimEvent::End).unwrap();
    for tries in 1..DEVICE_RELEASE_TRIES_MAX {
        assert_eq!(world.claims[&holder(1)].phase(), &ClaimPhase::Waiting { tries });
        assert!(!world.place(&holder(2), &devices).unwrap(), "not assigned while it is tried");
        assert!(world.drive(&holder(1), ClaimEvent::End).is_ok(), "told twice, tried once");
        world.drive(&holder(1), ClaimEvent::Again).unwrap();
    }
    assert_eq!(world.log.len(), 1 + DEVICE_RELEASE_TRIES_MAX as usize);
    assert_eq!(world.given_up.len(), 1);
    assert_eq!(world.ledger, DeviceLedger::default());
}

#[test]
fn the_waits_double_up_to_their_bound() {
    let waits: Vec<u64> = (1..9).map(|tries| back_off(tries).as_secs()).collect();
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    let all: Duration = (1..DEVICE_RELEASE_TRIES_MAX).map(back_off).sum();
    assert!(all < Duration::from_secs(10 * 60), "{all:?}");
}

#[test]
fn a_plugin_that_knows_nothing_of_it_has_nothing_to_release() {
    for answer in [PluginCallError::NotFound("x".into()), PluginCallError::Unsupported("x".into())]
    {
        let mut claim = Claim::from_ledger(&[assigned("a", "0")]);
        assert!(matches!(claim.step(ClaimEvent::End), Some(ClaimEffect::Release(..))));
        let released = claim.step(ClaimEvent::Released(Err(answer)));
        assert_eq!(released, Some(ClaimEffect::Done(vec![])));
    }
}

#[test]
fn a_release_that_nobody_waits_for_any_more_is_still_owed() {
    let mut claim = Claim::from_ledger(&[assigned("a", "0")]);
    claim.step(ClaimEvent::End);
    assert_eq!(claim.step(ClaimEvent::Dropped), None);
    assert!(matches!(claim.step(ClaimEvent::Again), Some(ClaimEffect::Release(..))));
}

#[test]
fn a_late_answer_or_a_late_timer_changes_nothing() {
    let devices = vec![assigned("a", "0")];
    let mut claim = Claim::from_ledger(&devices);
    claim.step(ClaimEvent::Reserve(devices.clone()));
    claim.step(ClaimEvent::Dropped);
    let before = claim.clone();
    assert_eq!(claim.step(ClaimEvent::Reserved(name())), None);
    assert_eq!(claim.step(ClaimEvent::Released(Ok(()))), None);
    assert_eq!(claim.step(ClaimEvent::Again), None);
    assert_eq!(claim, before);
}

#[test]
fn a_task_that_is_started_again_after_its_release_is_kept_anew_before_it_is_reserved() {
    let mut world = World::new(vec![], usize::MAX);
    let devices = vec![assigned("a", "0")];
    world.place(&holder(1), &devices).unwrap();
    world.drive(&holder(1), ClaimEvent::Reserve(devices.clone())).unwrap();
    world.drive(&holder(1), ClaimEvent::End).unwrap();
    assert_eq!(world.disk, DeviceLedger::default());
    world.ledger.claim(&holder(1), &devices).unwrap();
    assert_eq!(world.drive(&holder(1), ClaimEvent::Reserve(devices)), Ok(Some(true)));
    world.end(&holder(1)).unwrap();
    assert_eq!((world.done, world.undone), (2, 2));
}

/// After the end of everything: no plugin has anything prepared, the ledger is empty on disk and in
/// memory, and each preparation was undone once.
fn nothing_is_left(world: &World) {
    assert_eq!(world.prepared, BTreeMap::new(), "{:#?}", world.log);
    assert_eq!(world.ledger, DeviceLedger::default());
    assert_eq!(world.disk, DeviceLedger::default());
    assert_eq!(world.done, world.undone);
}

#[test]
fn wherever_the_agent_is_cut_off_everything_is_released_and_once() {
    let mut cuts = 0;
    for fuel in 0.. {
        let mut world = World::new(vec![], fuel);
        let whole = scenario(&mut world).is_ok();
        world.restart();
        world.finish();
        nothing_is_left(&world);
        // Once for each preparation, and at most one more for the one that was cut off.
        let releases = world.log.iter().filter(|line| line.starts_with("release")).count();
        assert!(releases <= world.done.max(2) + 3, "{releases}: {:#?}", world.log);
        if whole {
            assert_eq!(releases, 3, "without a cut each is released exactly once");
            break;
        }
        cuts += 1;
    }
    assert!(cuts > 30, "the scenario has steps: {cuts}");
}

fn takes() -> impl Strategy<Value = Takes> {
    prop_oneof![
        4 => Just(Takes::Well),
        1 => Just(Takes::No),
        1 => Just(Takes::Traps),
        1 => Just(Takes::TrapsAfter),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Place(u128, BTreeSet<u8>),
    Start(u128),
    End(u128),
    Again(u128),
    Dropped(u128),
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let who = || 0_u128..4;
    prop_oneof![
        (who(), prop::collection::btree_set(0_u8..4, 1..4)).prop_map(|(w, d)| Step::Place(w, d)),
        who().prop_map(Step::Start),
        who().prop_map(Step::Start),
        who().prop_map(Step::End),
        who().prop_map(Step::Again),
        who().prop_map(Step::Dropped),
        Just(Step::Crash),
    ]
}

impl World {
    fn random(
        &mut self,
        number: &mut u128,
        alive: &mut BTreeMap<u128, InstanceHolder>,
        step: Step,
    ) -> Result<(), Cut> {
        let known = |slot: u128| alive.get(&slot).cloned();
        match step {
            Step::Place(slot, devices) => {
                *number += 1;
                let who = holder(*number);
                let devices: Vec<_> = devices
                    .iter()
                    .map(|d| assigned(&(d / 2).to_string(), &d.to_string()))
                    .collect();
                if !alive.contains_key(&slot) && self.place(&who, &devices)? {
                    alive.insert(slot, who);
                }
            }
            Step::Start(slot) => {
                if let Some(who) = known(slot) {
                    let devices = self.placed[&who].clone();
                    self.drive(&who, ClaimEvent::Reserve(devices))?;
                }
            }
            Step::End(slot) => {
                if let Some(who) = known(slot) {
                    alive.remove(&slot);
                    self.end(&who)?;
                    if !self.claims.contains_key(&who) {
                        self.ledger.release(&who);
                    }
                }
            }
            Step::Again(slot) => {
                let waiting: Vec<InstanceHolder> = self.claims.keys().cloned().collect();
                if let Some(who) = waiting.get(slot as usize) {
                    self.drive(who, ClaimEvent::Again)?;
                }
            }
            Step::Dropped(slot) => {
                if let Some(who) = known(slot) {
                    self.drive(&who, ClaimEvent::Dropped)?;
                }
            }
            Step::Crash => return Err(Cut),
        }
        Ok(())
    }
}

proptest! {
    /// Plugins that fail in any way, tasks that come and go, an agent that is cut off anywhere: no
    /// instance is prepared for two at once, none is released under its holder, and in the end
    /// everything prepared was undone exactly once.
    #[test]
    fn each_reservation_is_undone_once_whatever_fails_and_whenever_the_agent_ends(
        script in prop::collection::vec(takes(), 0..60),
        steps in prop::collection::vec(step(), 0..60),
        cuts in prop::collection::vec(1_usize..40, 0..4),
    ) {
        let mut world = World::new(script, usize::MAX);
        let mut cuts = cuts.into_iter();
        let (mut number, mut alive) = (0, BTreeMap::new());
        for step in steps {
            if world.random(&mut number, &mut alive, step).is_err() {
                world.restart();
                alive.retain(|_, who| !world.ended.contains(who));
                let ended: Vec<InstanceHolder> = world.claims.keys()
                    .filter(|who| world.ended.contains(who)).cloned().collect();
                for who in ended {
                    prop_assert!(world.drive(&who, ClaimEvent::End).is_ok());
                }
                world.fuel = cuts.next().unwrap_or(usize::MAX);
            }
        }
        world.script.clear();
        world.restart();
        world.finish();
        prop_assert!(world.given_up.iter().all(|item| item.owed));
        nothing_is_left(&world);
    }
}
