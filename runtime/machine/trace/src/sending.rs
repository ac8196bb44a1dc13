//! The sending of traces.

/// A guard of the sending of traces, until the program ends. A program that was built without
/// traces never makes one.
#[derive(Debug)]
pub struct Sending(());

impl Sending {
    #[cfg(feature = "otel")]
    pub(crate) const fn new() -> Self {
        Self(())
    }

    /// Send the rest of the spans at the end of the program, within a time limit. Blocking.
    pub fn end(self) {
        #[cfg(feature = "otel")]
        super::otel::end();
    }
}
