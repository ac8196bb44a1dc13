//! Counts the traffic of a connection from its bytes: the frames of its streams (yamux).
//!
//! ```text
//! bytes ─► FrameMeter: first byte, then [12 bytes of header, payload]… ─► Traffic
//! ```
//! A message (a request or an answer) is written at once, so each is one frame with a payload, or a
//! few if it is long.

/// The length of a frame's header, bytes.
const HEADER: usize = 12;
/// The types of frames, by the second byte of the header.
const DATA: u8 = 0;
const WINDOW: u8 = 1;

/// The traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of all bytes.
    pub bytes: u64,
    /// The number of frames with a payload, which are messages.
    pub messages: u64,
    /// The number of frames that only move the window of a stream, or open or close it.
    pub windows: u64,
    /// The number of signs of life, and of the end of the connection.
    pub signs: u64,
}

impl Traffic {
    /// The sum of two counts.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            messages: self.messages.saturating_add(other.messages),
            windows: self.windows.saturating_add(other.windows),
            signs: self.signs.saturating_add(other.signs),
        }
    }

    /// The traffic since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            messages: self.messages.saturating_sub(before.messages),
            windows: self.windows.saturating_sub(before.windows),
            signs: self.signs.saturating_sub(before.signs),
        }
    }
}

/// The calls of one method, and the bytes of their messages, each with one frame's header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// The number of answered calls.
    pub calls: u64,
    /// The bytes of the requests.
    pub asked: u64,
    /// The bytes of the answers.
    pub answered: u64,
}

impl Volume {
    /// Count a call by the bytes of its request and its answer.
    pub(crate) fn count(&mut self, asked: usize, answered: usize) {
        let message =
            |bytes: usize| u64::try_from(bytes.saturating_add(HEADER)).unwrap_or(u64::MAX);
        self.calls = self.calls.saturating_add(1);
        self.asked = self.asked.saturating_add(message(asked));
        self.answered = self.answered.saturating_add(message(answered));
    }

    /// The calls since `before`.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        Self {
            calls: self.calls.saturating_sub(before.calls),
            asked: self.asked.saturating_sub(before.asked),
            answered: self.answered.saturating_sub(before.answered),
        }
    }
}

/// Counts the frames in one direction of one connection. Pure.
#[derive(Clone, Debug, Default)]
pub struct FrameMeter {
    /// Whether the first byte of the connection, which only the node sends, was read.
    begun: bool,
    header: Vec<u8>,
    /// The number of payload bytes that are still to come.
    left: u64,
    /// The traffic so far.
    pub traffic: Traffic,
}

impl FrameMeter {
    /// A meter of the direction towards the server, which begins with one extra byte, or of the
    /// other direction.
    #[must_use]
    pub fn new(to_server: bool) -> Self {
        Self { begun: !to_server, ..Self::default() }
    }

    /// Count bytes that went over the connection.
    pub fn count(&mut self, mut bytes: &[u8]) {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        self.traffic.bytes = self.traffic.bytes.saturating_add(length);
        if !self.begun && !bytes.is_empty() {
            self.begun = true;
            bytes = bytes.get(1..).unwrap_or_default();
        }
        while !bytes.is_empty() {
            if self.left > 0 {
                let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX).min(self.left);
                self.left = self.left.saturating_sub(length);
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                bytes = bytes.get(length..).unwrap_or_default();
                continue;
            }
            let wanted = HEADER.saturating_sub(self.header.len()).min(bytes.len());
            self.header.extend(bytes.get(..wanted).unwrap_or_default());
            bytes = bytes.get(wanted..).unwrap_or_default();
            if self.header.len() == HEADER {
                self.frame();
            }
        }
    }

    fn frame(&mut self) {
        let kind = self.header.get(1).copied().unwrap_or_default();
        let length = self.header.get(8..).unwrap_or_default();
        let length = length.iter().fold(0_u64, |length, byte| (length << 8) | u64::from(*byte));
        self.header.clear();
        let of_kind = match (kind, length) {
            (DATA, 1..) => {
                self.left = length;
                &mut self.traffic.messages
            }
            (DATA | WINDOW, _) => &mut self.traffic.windows,
            _ => &mut self.traffic.signs,
        };
        *of_kind = of_kind.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u32, payload: usize) -> Vec<u8> {
        let mut bytes = vec![0, kind, 0, 0, 0, 0, 0, 1];
        bytes.extend(length.to_be_bytes());
        bytes.extend(vec![7; payload]);
        bytes
    }

    #[test]
    fn frames_are_told_apart_in_whatever_pieces_they_come() {
        let frames = [frame(0, 300, 300), frame(1, 256, 0), frame(2, 5, 0), frame(0, 0, 0)];
        let bytes = [vec![6], frames.concat()].concat();
        for piece in [1, 7, 13, 1_000] {
            let mut meter = FrameMeter::new(true);
            bytes.chunks(piece).for_each(|piece| meter.count(piece));
            let counted = Traffic { bytes: 349, messages: 1, windows: 2, signs: 1 };
            assert_eq!(meter.traffic, counted, "in pieces of {piece}");
        }
    }
}
