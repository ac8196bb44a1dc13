//! Tests of what is taken of a journal, whatever happened to it.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::pending::PendingChanges;
use super::plan::{JournalPlan, JournalStep};
use super::*;
use crate::backend::Backend as _;
use crate::mem_store::MemBackend;
use proptest::prelude::*;

fn put(key: &[u8], value: &[u8]) -> Op {
    Op::Put { key: key.into(), value: value.into() }
}

fn delete(key: &[u8]) -> Op {
    Op::Delete { key: key.into() }
}

fn delete_prefix(prefix: &[u8]) -> Op {
    Op::DeletePrefix { prefix: prefix.into() }
}

/// Batches of one block and of several.
fn batches() -> Vec<Vec<Op>> {
    vec![
        vec![put(b"a", b"1"), delete(b"b")],
        vec![put(b"c", &[7; 6_000])],
        vec![delete_prefix(b"a"), put(b"a", b""), put(b"d", &[9; 300])],
    ]
}

/// A journal that holds batches after `tip`, and the tip after each.
fn written(tip: Tip, batches: &[Vec<Op>]) -> (Vec<u8>, Vec<Tip>) {
    let (mut bytes, mut tips, mut record) = (Vec::new(), vec![tip], Vec::new());
    for batch in batches {
        let last = tips[tips.len() - 1];
        tips.push(encode(&last, last.number + 1, batch, &mut record).unwrap());
        bytes.extend_from_slice(&record);
    }
    (bytes, tips)
}

/// The tip of a file after this many batches.
fn tip(number: u64) -> Tip {
    Tip { file: 0xf11e, number, chain: 0x7ee }
}

/// The tip of another file.
fn foreign() -> Tip {
    Tip { file: 0xf0f0, ..tip(5) }
}

fn flat(batches: &[Vec<Op>]) -> Vec<Op> {
    batches.concat()
}

#[test]
fn what_was_written_is_taken_in_order_and_zeros_behind_it_are_nothing() {
    let begin = tip(41);
    let (mut bytes, tips) = written(begin, &batches());
    assert_eq!(bytes.len(), 4 * BLOCK, "whole blocks");
    bytes.resize(20 * BLOCK, 0);
    let found = scan(&bytes, Some(begin));
    assert_eq!(found.changes, flat(&batches()));
    assert_eq!((found.batches, found.tip, found.newest), (3, tips[3], 44));
    assert!(!found.foreign);
}

#[test]
fn a_journal_whose_batches_are_all_in_the_tree_holds_nothing_more() {
    let (bytes, tips) = written(tip(0), &batches());
    for moved in [tips[3], tips[3].after_commit(3, 1), tips[3].after_commit(9, 1)] {
        let found = scan(&bytes, Some(moved));
        assert_eq!((found.changes, found.tip, found.newest), (vec![], moved, moved.number));
    }
}

#[test]
fn a_journal_cut_at_any_byte_gives_the_batches_before_the_cut() {
    let begin = tip(0);
    let (bytes, tips) = written(begin, &batches());
    // The place where each record's own bytes end, without its padding.
    let own = [0, BLOCK, 3 * BLOCK].map(|at| {
        let len = u32::from_le_bytes(bytes[at + 4..at + 8].try_into().unwrap());
        at + HEADER + usize::try_from(len).unwrap() + CHECKSUM
    });
    for cut in 0..=bytes.len() {
        let found = scan(&bytes[..cut], Some(begin));
        let whole = own.iter().filter(|end| **end <= cut).count();
        let batches = usize::try_from(found.batches).unwrap();
        assert!(batches == whole, "cut at {cut}");
        assert_eq!(found.changes, flat(&self::batches()[..batches]), "cut at {cut}");
        assert_eq!(found.tip, tips[batches]);
    }
}

#[test]
fn a_journal_with_any_bit_flipped_gives_only_what_was_written_and_tells_what_is_behind_a_hole() {
    let begin = tip(0);
    let small = [vec![put(b"a", b"1")], vec![put(b"a", b"2")], vec![put(b"b", b"3")]];
    let (bytes, tips) = written(begin, &small);
    let used = |byte: usize| byte % BLOCK < 100;
    for byte in (0..bytes.len()).filter(|byte| used(*byte)) {
        for bit in 0..8 {
            let mut bytes = bytes.clone();
            bytes[byte] ^= 1 << bit;
            let found = scan(&bytes, Some(begin));
            let taken = usize::try_from(found.batches).unwrap();
            assert_eq!(found.changes, flat(&small[..taken]), "bit {bit} of byte {byte}");
            assert_eq!(found.tip, tips[taken]);
            assert!(taken == 3 || taken == byte / BLOCK, "all before it are taken");
            let last = taken == 2 || taken == 3;
            assert_eq!(found.newest > found.tip.number, !last, "a hole is told");
        }
    }
}

#[test]
fn nothing_is_taken_of_a_journal_of_another_file_or_for_a_tree_that_has_none() {
    let (bytes, _) = written(foreign(), &batches());
    for own in [Some(tip(5)), None] {
        let found = scan(&bytes, own);
        assert!(found.foreign && found.changes.is_empty());
        assert_eq!(found.newest, own.map_or(0, |own| own.number));
    }
}

#[test]
fn nothing_is_taken_for_an_older_state_of_the_file_and_that_something_is_missing_is_told() {
    let older = tip(5);
    let (_, tips) = written(older, &batches());
    let later = tips[3].after_commit(8, 1);
    let (bytes, _) = written(later, &batches());
    let found = scan(&bytes, Some(older));
    assert_eq!((found.changes, found.tip, found.newest), (vec![], older, 11));
    assert!(!found.foreign);
}

#[test]
fn a_record_whose_fate_was_not_known_does_not_follow_what_was_committed_after_it() {
    let begin = tip(0);
    let (bytes, tips) = written(begin, &batches()[..2]);
    // The sync of the second record failed: the first was moved into the tree, and the number is
    // used up.
    let found = scan(&bytes, Some(tips[1].after_commit(2, 1)));
    assert_eq!((found.batches, found.newest), (0, 2));
}

#[test]
fn what_is_left_of_an_earlier_use_is_neither_taken_nor_missed() {
    let begin = tip(0);
    let (mut bytes, tips) = written(begin, &batches());
    let begin = tips[3].after_commit(3, 1);
    let (record, tips) = written(begin, &[vec![put(b"new", b"1")]]);
    bytes[..BLOCK].copy_from_slice(&record);
    let found = scan(&bytes, Some(begin));
    assert_eq!(found.changes, [put(b"new", b"1")]);
    assert_eq!((found.tip, found.newest), (tips[1], 4));
}

#[test]
fn a_change_that_depends_on_the_tree_is_no_record() {
    let quarantine = Op::Quarantine { key: b"a".as_slice().into() };
    assert_eq!(encode(&tip(0), 1, &[put(b"a", b"1"), quarantine], &mut Vec::new()), None);
}

proptest! {
    #[test]
    fn any_bytes_are_read_without_harm(bytes in prop::collection::vec(any::<u8>(), 0..3 * BLOCK)) {
        let begin = tip(3);
        let found = scan(&bytes, Some(begin));
        prop_assert_eq!((found.batches, found.tip), (0, begin));
    }

    #[test]
    fn a_journal_with_bytes_changed_gives_a_beginning_of_what_was_written(
        changed in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let begin = tip(0);
        let (mut bytes, _) = written(begin, &batches());
        for (at, byte) in changed {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let found = scan(&bytes, Some(begin));
        let taken = usize::try_from(found.batches).unwrap();
        prop_assert_eq!(found.changes, flat(&batches()[..taken]));
    }
}

#[test]
fn a_batch_goes_behind_the_one_before_and_into_the_tree_where_there_is_no_room() {
    let begin = tip(7);
    let mut plan = JournalPlan::new(begin, true, 0);
    assert_eq!(plan.step(Some(BLOCK), false), JournalStep::Direct, "there is no journal");
    plan.set_journal_size(3 * BLOCK);
    assert_eq!(plan.step(Some(BLOCK), false), JournalStep::Append { at: 0 });
    plan.note_append(Tip { number: 8, ..begin }, 2 * BLOCK);
    assert_eq!(
        (plan.number(), plan.step(Some(BLOCK), true)),
        (9, JournalStep::Append { at: 2 * BLOCK })
    );
    assert_eq!(plan.step(Some(2 * BLOCK), true), JournalStep::Settle);
    assert_eq!(plan.step(None, true), JournalStep::Settle, "no record");
    let moved = plan.tip_in_tree(8, 1);
    assert!(moved.chain != plan.tip().chain && moved.file == begin.file);
    plan.note_tree_commit(moved);
    assert_eq!(plan.step(Some(2 * BLOCK), false), JournalStep::Append { at: 0 });
    assert_eq!(plan.step(Some(4 * BLOCK), false), JournalStep::Direct, "larger than the journal");
}

#[test]
fn after_a_failure_nothing_is_appended_before_the_tree_has_everything() {
    let begin = tip(1);
    let mut plan = JournalPlan::new(begin, true, 0);
    plan.set_journal_size(8 * BLOCK);
    plan.note_append_failure(2);
    assert_eq!((plan.number(), plan.step(Some(BLOCK), true)), (3, JournalStep::Settle));
    let moved = plan.tip_in_tree(2, 2);
    plan.note_tree_commit(moved);
    assert_eq!(plan.step(Some(BLOCK), false), JournalStep::Direct);
    plan.set_journal_size(8 * BLOCK);
    plan.note_tree_failure(3);
    assert_eq!((plan.number(), plan.step(Some(BLOCK), true)), (4, JournalStep::Settle));
    assert_eq!(plan.step(Some(BLOCK), false), JournalStep::Direct, "nothing waits");
}

#[test]
fn numbers_go_on_above_what_the_directory_knows() {
    assert_eq!(JournalPlan::new(tip(3), true, 9).number(), 10);
    assert_eq!(JournalPlan::new(tip(9), true, 3).number(), 10);
}

fn any_op() -> impl Strategy<Value = Op> {
    let key = || prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..4);
    prop_oneof![
        5 => (key(), any::<u8>()).prop_map(|(key, value)| put(&key, &[value])),
        3 => key().prop_map(|key| delete(&key)),
        1 => key().prop_map(|prefix| delete_prefix(&prefix)),
    ]
}

fn all(prefix: &[u8], scan: impl FnOnce(crate::backend::Visit<'_>)) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    scan(&mut |key, value| {
        assert!(key.starts_with(prefix));
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    });
    found
}

proptest! {
    #[test]
    fn the_tree_with_what_waits_before_it_reads_as_the_tree_afterwards(
        before in prop::collection::vec(any_op(), 0..20),
        waiting in prop::collection::vec(any_op(), 0..20),
        prefix in prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..3),
        most in 1usize..6,
    ) {
        let (tree, moved) = (MemBackend::default(), MemBackend::default());
        tree.commit(&before).unwrap();
        moved.commit(&before).unwrap();
        moved.commit(&waiting).unwrap();
        let mut pending = PendingChanges::default();
        waiting.iter().for_each(|op| pending.apply(op));

        let expected = all(&prefix, |visit| moved.scan(&prefix, visit).unwrap());
        let seen = all(&prefix, |visit| {
            pending.scan(&prefix, visit, |visit| tree.scan(&prefix, visit)).unwrap();
        });
        prop_assert_eq!(&seen, &expected);
        for (key, value) in &expected {
            let known = pending.get(key).map(|known| known.map(<[u8]>::to_vec));
            let known = known.unwrap_or_else(|| tree.get(key).unwrap());
            prop_assert_eq!(known.as_ref(), Some(value));
        }
        // A scan that is ended early ends there.
        let mut some = BTreeMap::new();
        let few = &mut |key: &[u8], value: &[u8]| {
            some.insert(key.to_vec(), value.to_vec());
            if some.len() == most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        pending.scan(&prefix, few, |visit| tree.scan(&prefix, visit)).unwrap();
        prop_assert_eq!(some.len(), expected.len().min(most));

        tree.commit(&pending.changes()).unwrap();
        let after = all(b"", |visit| tree.scan(b"", visit).unwrap());
        prop_assert_eq!(after, all(b"", |visit| moved.scan(b"", visit).unwrap()));
    }
}
