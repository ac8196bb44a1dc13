//! Counts how many groups, places and attempts are looked at, for tests that say how that grows with a job. Where
//! nothing is tested nothing is counted.

#[cfg(test)]
thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// So many things are looked at.
#[cfg(test)]
pub(crate) fn note(more: usize) {
    LOOKS.with(|looks| looks.set(looks.get().saturating_add(more)));
}

/// So many things are looked at.
#[cfg(not(test))]
pub(crate) const fn note(_more: usize) {}

/// How many were looked at by this thread since this was asked last.
#[cfg(test)]
pub(crate) fn take() -> usize {
    LOOKS.with(|looks| looks.replace(0))
}
