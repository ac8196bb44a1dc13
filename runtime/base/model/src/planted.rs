//! Defects that tests plant to see that they are found. `runtime/tools/sim/tests/planted.rs` lists them
//! all.
//!
//! Without the feature `planted` there are no defects, and the checks cost nothing.

#[cfg(feature = "planted")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Give the code that this thread runs from now on this defect, or none.
#[cfg(feature = "planted")]
pub fn plant(defect: Option<&'static str>) {
    PLANTED.set(defect);
}

/// Whether this defect is planted.
#[cfg(feature = "planted")]
#[must_use]
pub fn planted(defect: &str) -> bool {
    PLANTED.get() == Some(defect)
}

/// Whether this defect is planted. The shipped program has none.
#[cfg(not(feature = "planted"))]
#[inline]
#[must_use]
pub const fn planted(_defect: &str) -> bool {
    false
}
