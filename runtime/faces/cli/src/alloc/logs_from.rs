//! Where shown output begins: at the last lines, and after what was shown before. Pure.

use ostler_api::client::LogFrame;

/// Assumed length of a line for the first read, bytes.
const LINE_BYTES: u64 = 128;
/// Fewest bytes read for the last lines.
const READ_BYTES_MIN: u64 = 16 * 1024;

/// The search for the last lines of something that can only be read from a number of bytes before
/// its end: more and more is read until there are enough lines or no more bytes.
#[derive(Debug)]
pub(super) struct TailSearch {
    lines: usize,
    bytes: u64,
}

impl TailSearch {
    /// A search for the last `lines` lines.
    pub(super) fn new(lines: u32) -> Self {
        let bytes = u64::from(lines).saturating_mul(LINE_BYTES).max(READ_BYTES_MIN);
        Self { lines: usize::try_from(lines).unwrap_or(usize::MAX), bytes }
    }

    /// How many bytes before the end are to be read now.
    pub(super) const fn bytes_wanted(&self) -> u64 {
        self.bytes
    }

    /// Whether `read` is all there is, or has all the lines. If not, the next read is larger.
    pub(super) fn has_enough(&mut self, read: &[u8]) -> bool {
        let all = u64::try_from(read.len()).is_ok_and(|length| length < self.bytes);
        // The first line in it may be incomplete.
        let enough = all || self.tail_start(read) > 0;
        if !enough {
            self.bytes = self.bytes.saturating_mul(4);
        }
        enough
    }

    /// The last lines of what was read.
    pub(super) fn take_lines<'a>(&self, read: &'a [u8]) -> &'a [u8] {
        read.get(self.tail_start(read)..).unwrap_or_default()
    }

    /// Where the last lines begin in `read`; 0 when it has no more lines than those.
    fn tail_start(&self, read: &[u8]) -> usize {
        if self.lines == 0 {
            return read.len();
        }
        // The newline at the very end ends the last line.
        let body = read.strip_suffix(b"\n").unwrap_or(read);
        let ends = body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n');
        ends.map(|(at, _)| at + 1).nth(self.lines - 1).unwrap_or(0)
    }
}

/// Drops the beginning of a stream that was shown already, up to a place in one of its files. Files
/// are numbered: `alloc/logs/web.stdout.3`.
#[derive(Debug)]
pub(super) struct Overlap {
    number: u64,
    offset: u64,
    /// Nothing from here on was shown before.
    passed: bool,
}

impl Overlap {
    /// Everything up to `offset` in `file` was already shown.
    pub(super) fn new(file: &str, offset: u64) -> Self {
        Self { number: file_number(file), offset, passed: false }
    }

    /// The part of a frame that was not shown yet.
    pub(super) fn strip_shown(&mut self, mut frame: LogFrame) -> LogFrame {
        if self.passed || frame.file.is_empty() {
            return frame;
        }
        let length = u64::try_from(frame.data.len()).unwrap_or(u64::MAX);
        let begin = frame.offset.saturating_sub(length);
        let shown = match file_number(&frame.file).cmp(&self.number) {
            std::cmp::Ordering::Less => length,
            std::cmp::Ordering::Equal => self.offset.saturating_sub(begin).min(length),
            std::cmp::Ordering::Greater => 0,
        };
        self.passed = shown < length;
        let shown = usize::try_from(shown).unwrap_or(usize::MAX).min(frame.data.len());
        frame.data.drain(..shown);
        frame
    }
}

fn file_number(file: &str) -> u64 {
    file.rsplit('.').next().and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    /// The last lines of `all` as [`TailSearch`] finds them, and how often it read.
    fn tail(all: &[u8], lines: u32) -> (Vec<u8>, u32) {
        let mut tail = TailSearch::new(lines);
        for reads in 1.. {
            let wanted = usize::try_from(tail.bytes_wanted()).unwrap();
            let read = &all[all.len().saturating_sub(wanted)..];
            if tail.has_enough(read) {
                return (tail.take_lines(read).to_vec(), reads);
            }
        }
        (Vec::new(), 0)
    }

    #[test]
    fn the_last_lines_are_found_with_and_without_a_newline_at_the_end() {
        assert_eq!(tail(b"a\nb\nc\n", 2).0, b"b\nc\n");
        assert_eq!(tail(b"a\nb\nc", 2).0, b"b\nc");
        assert_eq!(tail(b"a\nb\n", 5).0, b"a\nb\n");
        assert_eq!(tail(b"a\n\n\n", 2).0, b"\n\n");
        assert_eq!(tail(b"a\n", 0).0, b"");
        assert_eq!(tail(b"", 3).0, b"");
    }

    #[test]
    fn more_is_read_when_lines_are_long() {
        let long = [vec![b'x'; 100_000], b"\n".to_vec()].concat();
        let all = [b"first\n".to_vec(), long.clone(), b"last\n".to_vec()].concat();
        let (found, reads) = tail(&all, 2);
        assert_eq!(found, [long, b"last\n".to_vec()].concat());
        assert!(reads > 1, "{reads}");
    }

    fn frame(file: u64, end: u64, data: &[u8]) -> LogFrame {
        let file = format!("alloc/logs/t.stdout.{file}");
        LogFrame { data: data.to_vec(), file, offset: end, ..LogFrame::default() }
    }

    #[test]
    fn what_was_shown_is_dropped_and_signs_of_life_change_nothing() {
        let mut overlap = Overlap::new("alloc/logs/t.stdout.3", 4);
        let mut rest = |frame| overlap.strip_shown(frame).data;
        assert_eq!(rest(frame(2, 9, b"old")), b"");
        assert_eq!(rest(frame(3, 2, b"ab")), b"");
        assert_eq!(rest(LogFrame::default()), b"");
        assert_eq!(rest(frame(3, 6, b"cdef")), b"ef");
        assert_eq!(rest(frame(3, 8, b"gh")), b"gh");
        assert_eq!(rest(frame(4, 2, b"ij")), b"ij");
    }

    proptest! {
        #[test]
        fn the_tail_is_what_counting_lines_gives(
            lines in prop::collection::vec("[ab]{0,40}", 0..60),
            ends in any::<bool>(),
            wanted in 0_u32..70,
        ) {
            let mut all = lines.join("\n").into_bytes();
            if ends && !all.is_empty() {
                all.push(b'\n');
            }
            let model: Vec<&[u8]> = all.split_inclusive(|byte| *byte == b'\n').collect();
            let from = model.len().saturating_sub(usize::try_from(wanted).unwrap());
            prop_assert_eq!(tail(&all, wanted).0, model[from..].concat());
        }

        #[test]
        fn every_byte_is_shown_once_wherever_the_first_part_ended(
            sizes in prop::collection::vec(1_u64..20, 1..8),
            shown in 0_usize..160,
            cuts in prop::collection::vec(1_usize..10, 1..40),
        ) {
            // Every byte with its file and where it ends in it.
            let bytes: Vec<(u64, u64)> = sizes
                .iter()
                .zip(0_u64..)
                .flat_map(|(size, file)| (1..=*size).map(move |end| (file, end)))
                .collect();
            let shown = shown.min(bytes.len() - 1);
            let (file, end) = bytes[shown];
            let mut overlap = Overlap::new(&format!("t.{file}"), end);
            let mut got = Vec::new();
            let mut cuts = cuts.iter().cycle();
            let mut at = 0;
            while at < bytes.len() {
                // A frame is of one file.
                let of_file = bytes[at..].iter().take_while(|byte| byte.0 == bytes[at].0).count();
                let length = (*cuts.next().unwrap()).min(of_file);
                let data: Vec<u8> = (at..at + length).map(|n| u8::try_from(n).unwrap()).collect();
                let (file, end) = bytes[at + length - 1];
                got.extend(overlap.strip_shown(frame(file, end, &data)).data);
                at += length;
            }
            let expected: Vec<u8> =
                (shown + 1..bytes.len()).map(|n| u8::try_from(n).unwrap()).collect();
            prop_assert_eq!(got, expected);
        }
    }
}
