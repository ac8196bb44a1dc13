#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use proptest::prelude::*;

use super::*;

const PROOF: Proof = Proof { strikes: 3, time: Duration::from_secs(60) };

fn at(secs: u64) -> Timestamp {
    Timestamp::from_nanos(secs * 1_000_000_000)
}

fn release(version: &str, digest: &str) -> Release {
    Release { version: Some(version.to_owned()), digest: digest.to_owned() }
}

fn plugin() -> UpgradeMachine {
    UpgradeMachine::new(release("1.0.0", "one"))
}

fn offer(digest: &str, by: RequestedBy) -> UpgradeEvent {
    UpgradeEvent::Offered { digest: digest.to_owned(), by }
}

const ASKED: RequestedBy = RequestedBy::Person { consents: false };
const AGREED: RequestedBy = RequestedBy::Person { consents: true };

fn loaded(version: &str) -> UpgradeEvent {
    UpgradeEvent::Loaded(Ok(version.to_owned()))
}

fn struck(strikes: u64) -> UpgradeEvent {
    UpgradeEvent::Struck { strikes, last: "start: trap".to_owned() }
}

/// The outcome with which an upgrade ended.
fn over(effects: &[UpgradeEffect]) -> &UpgradeOutcome {
    let Some(UpgradeEffect::End(outcome)) =
        effects.iter().find(|e| matches!(e, UpgradeEffect::End(_)))
    else {
        panic!("it goes on: {effects:?}");
    };
    outcome
}

/// Put a version in its place.
fn switch(plugin: &mut UpgradeMachine, now: u64, version: &str, digest: &str, by: RequestedBy) {
    let mut step = |event| plugin.step(PROOF, at(now), event);
    assert_eq!(step(offer(digest, by)), [UpgradeEffect::Look]);
    assert_eq!(step(UpgradeEvent::Examined(Ok(Vec::new()))), [UpgradeEffect::Load]);
    assert_eq!(step(loaded(version)), [UpgradeEffect::Try]);
    assert_eq!(step(UpgradeEvent::Tried(Ok(()))), [UpgradeEffect::Switch]);
    let done = step(UpgradeEvent::Switched(Ok(())));
    assert_eq!(
        done,
        [UpgradeEffect::End(UpgradeOutcome::Switched), UpgradeEffect::Prove(PROOF.time)]
    );
}

#[test]
fn a_new_version_is_looked_at_loaded_tried_put_in_place_and_accepted_when_it_proved_itself() {
    let mut plugin = plugin();
    switch(&mut plugin, 0, "1.1.0", "two", RequestedBy::Itself);
    assert_eq!(plugin.running_release(), &release("1.1.0", "two"));
    assert_eq!(plugin.accepted_release(), Some(&release("1.0.0", "one")));
    assert_eq!(plugin.step(PROOF, at(59), UpgradeEvent::Passed), []);
    assert_eq!(plugin.step(PROOF, at(59), struck(2)), []);
    let settled = plugin.step(PROOF, at(60), UpgradeEvent::Passed);
    assert_eq!(
        settled,
        [UpgradeEffect::DropPrevious, UpgradeEffect::End(UpgradeOutcome::Accepted)]
    );
    assert_eq!((plugin.accepted_release(), plugin.is_busy()), (None, false));
    assert_eq!(plugin.step(PROOF, at(61), struck(9)), [], "from here on it is the plugin's own");
}

#[test]
fn strikes_after_the_switch_bring_the_old_one_back_and_the_file_is_not_taken_by_itself_again() {
    let mut plugin = plugin();
    switch(&mut plugin, 0, "1.1.0", "two", RequestedBy::Itself);
    let back = plugin.step(PROOF, at(1), struck(3));
    assert_eq!(back[0], UpgradeEffect::RollBack);
    let UpgradeOutcome::RolledBack { reason } = over(&back) else { panic!("{back:?}") };
    assert!(reason.contains("3 strikes") && reason.contains("start: trap"), "{reason}");
    assert_eq!(plugin.running_release(), &release("1.0.0", "one"));
    let again = plugin.step(PROOF, at(2), offer("two", RequestedBy::Itself));
    assert!(
        matches!(over(&again), UpgradeOutcome::Refused { reason } if reason.contains("rolled back"))
    );
    switch(&mut plugin, 3, "1.1.0", "two", ASKED);
}

#[test]
fn asks_that_grew_need_a_person_who_agrees() {
    let grew = || UpgradeEvent::Examined(Ok(vec!["ostler:plugin/process".to_owned()]));
    for by in [RequestedBy::Itself, ASKED] {
        let mut plugin = plugin();
        plugin.step(PROOF, at(0), offer("two", by));
        let asked = plugin.step(PROOF, at(0), grew());
        let asks = vec!["ostler:plugin/process".to_owned()];
        assert_eq!(over(&asked), &UpgradeOutcome::ConsentNeeded { asks, downgrade: None });
        assert!(!plugin.is_busy(), "nothing of it ran");
    }
    let mut plugin = plugin();
    plugin.step(PROOF, at(0), offer("two", AGREED));
    assert_eq!(plugin.step(PROOF, at(0), grew()), [UpgradeEffect::Load]);
}

#[test]
fn an_older_version_needs_a_person_who_agrees() {
    for (old, new, consent) in [
        ("1.0.0", "0.9.0", true),
        ("1.0.0", "1.0.0-rc.1", true),
        ("1.0.0", "newest", true),
        ("1.0.0", "1.0.0", false),
        ("1.9.0", "1.10.0", false),
        ("built today", "built today", false),
    ] {
        let mut plugin = UpgradeMachine::new(release(old, "one"));
        plugin.step(PROOF, at(0), offer("two", ASKED));
        plugin.step(PROOF, at(0), UpgradeEvent::Examined(Ok(Vec::new())));
        let effects = plugin.step(PROOF, at(0), loaded(new));
        if consent {
            let downgrade = Some((old.to_owned(), new.to_owned()));
            assert_eq!(
                over(&effects),
                &UpgradeOutcome::ConsentNeeded { asks: Vec::new(), downgrade }
            );
        } else {
            assert_eq!(effects, [UpgradeEffect::Try], "{old} to {new}");
        }
    }
}

#[test]
fn one_that_fails_before_it_is_in_place_changes_nothing() {
    let no = || "no".to_owned();
    let ways: [(usize, UpgradeEvent); 4] = [
        (1, UpgradeEvent::Examined(Err(no()))),
        (2, UpgradeEvent::Loaded(Err(no()))),
        (3, UpgradeEvent::Tried(Err(no()))),
        (4, UpgradeEvent::Switched(Err(no()))),
    ];
    for (steps, failure) in ways {
        let mut plugin = plugin();
        let well = [
            offer("two", ASKED),
            UpgradeEvent::Examined(Ok(Vec::new())),
            loaded("1.1.0"),
            UpgradeEvent::Tried(Ok(())),
        ];
        for event in well.into_iter().take(steps) {
            plugin.step(PROOF, at(0), event);
        }
        let effects = plugin.step(PROOF, at(0), failure);
        assert_eq!(over(&effects), &UpgradeOutcome::Refused { reason: "no".to_owned() });
        assert_eq!(plugin.running_release(), &release("1.0.0", "one"));
        assert!(!plugin.is_busy());
    }
}

#[test]
fn while_one_proves_itself_a_person_may_offer_another_and_goes_back_to_what_was_accepted() {
    let mut plugin = plugin();
    switch(&mut plugin, 0, "1.1.0", "two", ASKED);
    let waits = plugin.step(PROOF, at(1), offer("three", RequestedBy::Itself));
    assert!(
        matches!(over(&waits), UpgradeOutcome::Refused { reason } if reason.contains("proving itself"))
    );
    // A refused offer leaves the proof of the other release as it was.
    plugin.step(PROOF, at(2), offer("bad", ASKED));
    assert_eq!(plugin.step(PROOF, at(2), struck(9)), [], "not while another is looked at");
    plugin.step(PROOF, at(2), UpgradeEvent::Examined(Err("damaged".to_owned())));
    assert_eq!(plugin.proving_until(), Some(at(60)));
    switch(&mut plugin, 10, "1.2.0", "three", ASKED);
    assert_eq!(plugin.accepted_release(), Some(&release("1.0.0", "one")));
    let disowned =
        plugin.step(PROOF, at(11), UpgradeEvent::Disowned("task t is not known".to_owned()));
    assert_eq!(disowned[0], UpgradeEffect::RollBack);
    assert_eq!(plugin.running_release(), &release("1.0.0", "one"));
}

#[test]
fn what_runs_already_is_no_upgrade_and_one_at_a_time_is_made() {
    let mut plugin = plugin();
    assert_eq!(over(&plugin.step(PROOF, at(0), offer("one", AGREED))), &UpgradeOutcome::Same);
    plugin.step(PROOF, at(0), offer("two", ASKED));
    let busy = plugin.step(PROOF, at(0), offer("three", ASKED));
    assert!(
        matches!(over(&busy), UpgradeOutcome::Refused { reason } if reason.contains("under way"))
    );
    assert_eq!(
        plugin.step(PROOF, at(0), UpgradeEvent::Examined(Ok(Vec::new()))),
        [UpgradeEffect::Load]
    );
}

#[test]
fn asks_are_compared_by_interface_and_only_what_lets_a_plugin_do_more_counts() {
    let old = ["ostler:plugin/log@0.1.0", "ostler:plugin/process@0.1.0"];
    let new = ["ostler:plugin/process@0.1.1", "wasi:random/random@0.2.6", "wasi:sockets/tcp@0.2.6"];
    let harmless = |import: &str| import.starts_with("wasi:random");
    assert_eq!(added_interfaces(old, new, harmless), ["wasi:sockets/tcp"]);
    assert_eq!(added_interfaces(new, new, |_| false), Vec::<String>::new());
    assert_eq!(added_interfaces([], old, |_| false).len(), 2);
}

proptest! {
    #[test]
    fn no_history_puts_a_plugin_in_place_that_was_not_looked_at_loaded_and_tried_with_consent(
        events in prop::collection::vec((0u8..20, 0u8..5, 0u8..6, 0u64..40), 0..200)
    ) {
        let mut plugin = plugin();
        let mut now = 0;
        // These describe how far the present offer has come.
        let (mut passed, mut consent, mut by) = (0, false, RequestedBy::Itself);
        let mut accepted = plugin.running_release().clone();
        for (kind, name, well, time) in events {
            now += time;
            let outcome = if well > 0 { Ok(()) } else { Err("no".to_owned()) };
            // Mostly the event that would come next, so that histories get somewhere.
            let next = match plugin.phase {
                UpgradePhase::Idle => 0,
                UpgradePhase::Looking => 2,
                UpgradePhase::Loading => 3,
                UpgradePhase::Trying => 4,
                UpgradePhase::Switching => 5,
                UpgradePhase::Proving { .. } => 6 + name % 3,
            };
            let event = match if kind < 9 { kind } else { next } {
                0 | 1 => {
                    let by = match name % 3 { 0 => RequestedBy::Itself, 1 => ASKED, _ => AGREED };
                    offer(&format!("d{name}"), by)
                }
                2 => UpgradeEvent::Examined(outcome.map(|()| vec!["more".to_owned(); usize::from(name > 2)])),
                3 => UpgradeEvent::Loaded(outcome.map(|()| format!("{name}.0.0"))),
                4 => UpgradeEvent::Tried(outcome),
                5 => UpgradeEvent::Switched(outcome),
                6 => struck(u64::from(name)),
                7 => UpgradeEvent::Disowned("no".to_owned()),
                _ => UpgradeEvent::Passed,
            };
            let before = plugin.clone();
            let effects = plugin.step(PROOF, at(now), event.clone());
            if effects == [UpgradeEffect::Look] {
                let UpgradeEvent::Offered { by: who, .. } = &event else { panic!("{event:?}") };
                (passed, by) = (1, *who);
                consent = by == AGREED;
            }
            if effects == [UpgradeEffect::Load] {
                let UpgradeEvent::Examined(Ok(asks)) = &event else { panic!("{event:?}") };
                prop_assert!(asks.is_empty() || consent);
                passed += 1;
            }
            if effects == [UpgradeEffect::Try] {
                let UpgradeEvent::Loaded(Ok(version)) = &event else { panic!("{event:?}") };
                let old = before.running_release().version.clone().unwrap();
                prop_assert!(!is_older(version, &old) || consent);
                passed += 1;
            }
            if effects == [UpgradeEffect::Switch] {
                prop_assert_eq!(passed, 3);
                prop_assert_eq!(&event, &UpgradeEvent::Tried(Ok(())));
            }
            if plugin.running_release() != before.running_release() {
                if effects.contains(&UpgradeEffect::RollBack) {
                    prop_assert_eq!(plugin.running_release(), &accepted, "what was accepted last");
                    prop_assert_eq!(plugin.accepted_release(), None);
                } else {
                    prop_assert_eq!(&event, &UpgradeEvent::Switched(Ok(())));
                    prop_assert_eq!(plugin.accepted_release(), Some(&accepted));
                    if by == RequestedBy::Itself {
                        prop_assert!(!before.barred.contains(&plugin.running_release().digest));
                    }
                }
            }
            if effects.contains(&UpgradeEffect::DropPrevious) {
                accepted = plugin.running_release().clone();
            }
            prop_assert_eq!(plugin.accepted_release().is_some(), plugin.running_release() != &accepted
                || plugin.proving_until().is_some());
            prop_assert!(plugin.barred.len() <= UPGRADES_BARRED_MAX);
        }
    }
}
