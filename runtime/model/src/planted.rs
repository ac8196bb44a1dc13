//! Defects that tests plant, to see that they are found: `runtime/sim/tests/planted.rs` has them all.
//!
//! Without the feature `planted` none is there, and what asks costs nothing.

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// What this thread runs has this defect from now on, or none.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<&'static str>) {
    PLANTED.set(defect);
}

/// Is this defect planted?
#[cfg(feature = "planted")]
#[must_use]
pub fn planted(defect: &str) -> bool {
    PLANTED.get() == Some(defect)
}

/// Is this defect planted? Not in what is shipped.
#[cfg(not(feature = "planted"))]
#[inline]
#[must_use]
pub const fn planted(_defect: &str) -> bool {
    false
}
