//! Reads a stream of JSON frames as they come.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use ostler_net::HttpAnswer;

use super::error::{ClientError, ClientTrouble, RequestName};
use ostler_model::clock;
use ostler_model::limits::{CLIENT_FRAME_BYTES_MAX, CLIENT_SILENCE_MAX};
use ostler_wire as wire;

/// A piece of a file. An empty piece is a sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFrame {
    /// The bytes of the piece.
    pub data: Vec<u8>,
    /// The path of the file; empty in a sign of life.
    pub file: String,
    /// The position in the file at which the piece ends.
    pub offset: u64,
    /// The number of bytes before the piece that were lost.
    pub skipped: u64,
    /// A change of the file, `file truncated` or `file deleted`; otherwise empty.
    pub event: String,
}

/// A stream of frames.
pub struct LogFrameStream {
    answer: HttpAnswer,
    /// Bytes that are not a whole frame yet.
    rest: Vec<u8>,
    asked: RequestName,
}

impl LogFrameStream {
    pub(super) const fn new(answer: HttpAnswer, asked: RequestName) -> Self {
        Self { answer, rest: Vec::new(), asked }
    }

    /// Wait for the next frame; none at the end.
    ///
    /// # Errors
    /// See [`ClientError`]; for example when the agent is silent for too long.
    pub async fn next(&mut self) -> Result<Option<LogFrame>, ClientError> {
        loop {
            match take_frame(&mut self.rest) {
                Ok(Some(frame)) => return Ok(Some(frame)),
                Ok(None) => {}
                Err(trouble) => return Err(self.asked.clone().into_error(trouble)),
            }
            let trouble = match clock::timeout(CLIENT_SILENCE_MAX, self.answer.next_piece()).await {
                Some(Ok(Some(piece))) => {
                    self.rest.extend_from_slice(&piece);
                    continue;
                }
                Some(Ok(None)) if self.rest.is_empty() => return Ok(None),
                Some(Ok(None)) => ClientTrouble::Answer(cut_off_error()),
                Some(Err(broken)) => ClientTrouble::Broken(broken),
                None => ClientTrouble::TooSlow(CLIENT_SILENCE_MAX),
            };
            return Err(self.asked.clone().into_error(trouble));
        }
    }
}

/// The body of an answer, read piece by piece.
pub struct BodyPieces {
    answer: HttpAnswer,
    asked: RequestName,
}

impl BodyPieces {
    pub(super) const fn new(answer: HttpAnswer, asked: RequestName) -> Self {
        Self { answer, asked }
    }

    /// Wait for the next piece; none at the end. The time is not bounded, so the caller must be
    /// able to drop the future.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn take_next(&mut self) -> Result<Option<Bytes>, ClientError> {
        let piece = self.answer.next_piece().await;
        piece.map_err(|broken| self.asked.clone().into_error(ClientTrouble::Broken(broken)))
    }
}

fn cut_off_error() -> serde_json::Error {
    <serde_json::Error as serde::de::Error>::custom("the stream ended inside a frame")
}

/// Take the first frame off `bytes`; none while it is incomplete.
fn take_frame(bytes: &mut Vec<u8>) -> Result<Option<LogFrame>, ClientTrouble> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<wire::Frame<'_>>();
    let raw = match values.next() {
        None => {
            bytes.clear();
            return Ok(None);
        }
        Some(Err(error)) if error.is_eof() => {
            return match bytes.len() {
                length if length > CLIENT_FRAME_BYTES_MAX => {
                    Err(ClientTrouble::TooLarge(CLIENT_FRAME_BYTES_MAX))
                }
                _ => Ok(None),
            };
        }
        Some(Err(error)) => return Err(ClientTrouble::Answer(error)),
        Some(Ok(raw)) => raw,
    };
    let taken = values.byte_offset();
    bytes.drain(..taken);
    let data = STANDARD.decode(&*raw.data);
    let data = data.map_err(|error| {
        ClientTrouble::Answer(<serde_json::Error as serde::de::Error>::custom(error))
    })?;
    Ok(Some(LogFrame {
        data,
        file: raw.file.into_owned(),
        offset: raw.offset,
        skipped: raw.skipped,
        event: raw.file_event.into_owned(),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn frames_are_taken_whole_wherever_the_stream_is_cut() {
        let text = br#"{"Data":"aGVsbG8=","File":"a.0","Offset":5}{}{"Data":"IQ==","File":"a.1","Offset":1,"Skipped":7}"#;
        for cut in 0..=text.len() {
            let mut rest = Vec::new();
            let mut got = Vec::new();
            for part in [&text[..cut], &text[cut..]] {
                rest.extend_from_slice(part);
                while let Some(frame) = take_frame(&mut rest).unwrap() {
                    got.push(frame);
                }
            }
            let shown: Vec<_> = got
                .iter()
                .map(|f| (f.data.as_slice(), f.file.as_str(), f.offset, f.skipped))
                .collect();
            let expected: [(&[u8], &str, u64, u64); 3] =
                [(b"hello", "a.0", 5, 0), (b"", "", 0, 0), (b"!", "a.1", 1, 7)];
            assert_eq!(shown, expected, "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_frame_or_never_ends_is_an_error() {
        assert!(take_frame(&mut b"[1]x".to_vec()).is_err());
        assert!(take_frame(&mut br#"{"Data":"%"}"#.to_vec()).is_err());
        let mut endless = br#"{"Data":""#.to_vec();
        endless.resize(CLIENT_FRAME_BYTES_MAX + 1, b'A');
        assert!(matches!(take_frame(&mut endless), Err(ClientTrouble::TooLarge(_))));
    }
}
