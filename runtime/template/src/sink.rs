//! Text that is being made, with a bound.

use crate::error::{TemplateProblem, wide};

/// Bytes, and how many there may be.
pub(crate) struct Sink {
    bytes: Vec<u8>,
    max: usize,
    what: &'static str,
}

impl Sink {
    /// The output of a whole template.
    pub(crate) fn output(max: usize) -> Self {
        Self { bytes: Vec::new(), max, what: "writes" }
    }

    /// What one function makes.
    pub(crate) fn made(max: usize) -> Self {
        Self { bytes: Vec::new(), max, what: "makes values of" }
    }

    /// Add bytes.
    pub(crate) fn push(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), TemplateProblem> {
        let bytes = bytes.as_ref();
        if bytes.len() > self.max.saturating_sub(self.bytes.len()) {
            return Err(TemplateProblem::Limit {
                what: self.what,
                max: wide(self.max),
                unit: "bytes",
            });
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Add the same bytes several times.
    pub(crate) fn repeat(&mut self, bytes: &str, times: usize) -> Result<(), TemplateProblem> {
        for _ in 0..times {
            self.push(bytes)?;
        }
        Ok(())
    }

    /// How many more there may be.
    pub(crate) fn left(&self) -> usize {
        self.max.saturating_sub(self.bytes.len())
    }

    /// How many bytes there are.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
