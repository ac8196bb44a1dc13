//! Counts the groups, places and attempts that are looked at, so that tests can check how their
//! number grows with a job. Outside of tests nothing is counted.

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Count things that are looked at.
#[cfg(test)]
pub(crate) fn note(more: usize) {
    LOOKS.with(|looks| looks.set(looks.get().saturating_add(more)));
}

/// Count nothing outside of tests.
#[cfg(not(test))]
pub(crate) const fn note(_more: usize) {}

/// The number of things that this thread looked at since the last call.
#[cfg(test)]
pub(crate) fn take() -> usize {
    LOOKS.with(|looks| looks.replace(0))
}
