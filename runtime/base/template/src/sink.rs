//! A buffer for text that is being produced, with a bound.

use crate::error::{TemplateProblem, wide};

/// Bytes that are being produced, and the largest number of them.
pub(crate) struct BoundedBuffer {
    bytes: Vec<u8>,
    max: usize,
    what: &'static str,
}

impl BoundedBuffer {
    /// A buffer for the output of a whole template.
    pub(crate) fn for_output(max: usize) -> Self {
        Self { bytes: Vec::new(), max, what: "writes" }
    }

    /// A buffer for the result of one function.
    pub(crate) fn for_value(max: usize) -> Self {
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

    /// The number of bytes that can still be added.
    pub(crate) fn bytes_left(&self) -> usize {
        self.max.saturating_sub(self.bytes.len())
    }

    /// The number of bytes in the buffer.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// The bytes that were added, in order.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
