//! The lines of an answer without an end.

use ostler_api::client::{BodyPieces, ClientError};

/// Longest line that is returned whole, bytes; a longer line comes in parts.
const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Puts pieces of an answer together and takes lines out.
pub(super) struct LineReader {
    pieces: BodyPieces,
    kept: Vec<u8>,
    /// The bytes before this one have no newline.
    looked: usize,
    over: bool,
}

impl LineReader {
    pub(super) const fn new(pieces: BodyPieces) -> Self {
        Self { pieces, kept: Vec::new(), looked: 0, over: false }
    }

    /// The next line without its newline; `None` when the answer is over.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, ClientError> {
        loop {
            let rest = self.kept.get(self.looked..).unwrap_or_default();
            if let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                let end = self.looked.saturating_add(at);
                let mut line: Vec<u8> = self.kept.drain(..=end).collect();
                line.pop();
                self.looked = 0;
                return Ok(Some(line));
            }
            self.looked = self.kept.len();
            if self.over || self.looked >= LINE_BYTES_MAX {
                self.looked = 0;
                let line = std::mem::take(&mut self.kept);
                return Ok((!line.is_empty()).then_some(line));
            }
            match self.pieces.take_next().await? {
                Some(piece) => self.kept.extend_from_slice(&piece),
                None => self.over = true,
            }
        }
    }
}
