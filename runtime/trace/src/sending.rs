//! Traces on their way.

/// Traces on their way, until the program ends. Never made by a program that was built without them.
#[derive(Debug)]
pub struct Sending(());

impl Sending {
    #[cfg(feature = "otel")]
    pub(crate) const fn begun() -> Self {
        Self(())
    }

    /// The program ends: what is to be sent is, within a time. Blocking.
    pub fn end(self) {
        #[cfg(feature = "otel")]
        super::otel::end();
    }
}
