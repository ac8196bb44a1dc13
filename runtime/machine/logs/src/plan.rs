//! Decides where a stream of bytes is cut into files: the pure part of rotation.
//!
//! ```text
//! size < limit ──────────────► write
//! size ≥ limit, line ended ──► rotate
//! size ≥ limit, inside a line ─► write up to its end ─► rotate
//!                              └ no end within `seek` bytes: cut there ─► rotate
//! ```
//! A rotation happens only when there is a byte for the new file, so no file is left empty.

/// The next step with the bytes in hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RotationStep {
    /// Append this many of the bytes to the current file, at least one.
    Write(usize),
    /// Go on in a new file.
    Rotate,
}

/// The fill of the current file, and the place of the next cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RotationPlan {
    limit: u64,
    seek: u64,
    size: u64,
    line_ended: bool,
}

impl RotationPlan {
    /// A plan for files of `limit` bytes (at least 1), exceeded by at most `seek` bytes to end
    /// a line.
    pub(super) fn new(limit: u64, seek: u64) -> Self {
        Self { limit: limit.max(1), seek, size: 0, line_ended: true }
    }

    /// Go on with a file that has `size` bytes already. `line_ended` says that its last byte is
    /// a newline.
    pub(super) fn resume(&mut self, size: u64, line_ended: bool) {
        self.size = size;
        self.line_ended = line_ended || size == 0;
    }

    /// The next step with `bytes`; `None` if there are none. This changes nothing: report what was
    /// done with [`RotationPlan::note_written`] and [`RotationPlan::note_rotation`].
    pub(super) fn next_step(&self, bytes: &[u8]) -> Option<RotationStep> {
        if bytes.is_empty() {
            return None;
        }
        let room = self.limit.saturating_sub(self.size);
        if room > 0 {
            return Some(RotationStep::Write(bounded_len(room, bytes.len())));
        }
        let overrun = self.limit.saturating_add(self.seek).saturating_sub(self.size);
        if self.line_ended || overrun == 0 {
            return Some(RotationStep::Rotate);
        }
        let reachable = bounded_len(overrun, bytes.len());
        let line = bytes.iter().take(reachable).position(|byte| *byte == b'\n');
        Some(RotationStep::Write(line.map_or(reachable, |newline| newline + 1)))
    }

    /// Note that these bytes were appended.
    pub(super) fn note_written(&mut self, bytes: &[u8]) {
        if let Some(last) = bytes.last() {
            self.size = self.size.saturating_add(bytes.len() as u64);
            self.line_ended = *last == b'\n';
        }
    }

    /// The number of bytes in the current file.
    pub(super) const fn size(&self) -> u64 {
        self.size
    }

    /// Note that the current file is a new, empty one.
    pub(super) fn note_rotation(&mut self) {
        self.resume(0, true);
    }
}

fn bounded_len(bound: u64, len: usize) -> usize {
    usize::try_from(bound).unwrap_or(usize::MAX).min(len)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cut(plan: &mut RotationPlan, files: &mut Vec<Vec<u8>>, mut bytes: &[u8]) {
        while let Some(step) = plan.next_step(bytes) {
            match step {
                RotationStep::Write(count) => {
                    assert!(count > 0);
                    let (now, later) = bytes.split_at(count);
                    files.last_mut().unwrap().extend_from_slice(now);
                    plan.note_written(now);
                    bytes = later;
                }
                RotationStep::Rotate => {
                    assert!(!files.last().unwrap().is_empty(), "an empty file is left behind");
                    files.push(Vec::new());
                    plan.note_rotation();
                }
            }
        }
    }

    fn cut_all(limit: u64, seek: u64, writes: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let (mut plan, mut files) = (RotationPlan::new(limit, seek), vec![Vec::new()]);
        for write in writes {
            cut(&mut plan, &mut files, write);
        }
        files
    }

    /// Texts with newlines often, rarely and never.
    fn writes() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let byte = prop_oneof![3 => Just(b'x'), 1 => Just(b'\n')];
        let dense = proptest::collection::vec(byte, 0..60);
        let long = (0_usize..80).prop_map(|len| vec![b'y'; len]);
        proptest::collection::vec(prop_oneof![dense, long], 0..30)
    }

    proptest! {
        #[test]
        fn the_files_together_are_what_was_written(
            limit in 1_u64..50, seek in 0_u64..30, writes in writes(),
        ) {
            prop_assert_eq!(cut_all(limit, seek, &writes).concat(), writes.concat());
        }

        #[test]
        fn no_file_but_the_last_is_short_of_the_limit_and_none_exceeds_limit_and_seek(
            limit in 1_u64..50, seek in 0_u64..30, writes in writes(),
        ) {
            let files = cut_all(limit, seek, &writes);
            for (index, file) in files.iter().enumerate() {
                prop_assert!(file.len() as u64 <= limit + seek);
                prop_assert!(index + 1 == files.len() || file.len() as u64 >= limit);
            }
        }

        #[test]
        fn every_file_but_the_last_ends_with_a_line_unless_the_line_was_too_long(
            limit in 1_u64..50, seek in 0_u64..30, writes in writes(),
        ) {
            let files = cut_all(limit, seek, &writes);
            for file in &files[..files.len() - 1] {
                let overrun = &file[usize::try_from(limit).unwrap()..];
                let too_long = file.len() as u64 == limit + seek && !overrun.contains(&b'\n');
                prop_assert!(file.last() == Some(&b'\n') || too_long);
            }
        }

        #[test]
        fn how_the_bytes_arrive_does_not_change_where_they_are_cut(
            limit in 1_u64..50, seek in 0_u64..30, writes in writes(),
        ) {
            let once = cut_all(limit, seek, &[writes.concat()]);
            prop_assert_eq!(cut_all(limit, seek, &writes), once.clone());
            let bytes: Vec<_> = writes.concat().into_iter().map(|byte| vec![byte]).collect();
            prop_assert_eq!(cut_all(limit, seek, &bytes), once);
        }
    }

    #[test]
    fn a_line_cut_by_the_limit_counts_once_so_the_next_file_is_not_rotated_early() {
        // nomad L18: the counter added the write's total again when a write was split.
        let files = cut_all(10, 32, &[b"123456789\n".to_vec(), b"abcdefghi\nABCDEFGHI\n".to_vec()]);
        assert_eq!(files, [&b"123456789\n"[..], b"abcdefghi\n", b"ABCDEFGHI\n"]);
    }

    #[test]
    fn a_resumed_file_that_is_full_is_left_at_its_line_end_or_finished_first() {
        let mut plan = RotationPlan::new(10, 5);
        plan.resume(10, true);
        assert_eq!(plan.next_step(b"x"), Some(RotationStep::Rotate));
        plan.resume(12, false);
        assert_eq!(plan.next_step(b"x\ny"), Some(RotationStep::Write(2)));
        plan.resume(400, false);
        assert_eq!(plan.next_step(b"x"), Some(RotationStep::Rotate));
    }
}
