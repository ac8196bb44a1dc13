//! The span in which code runs, for lines of the log.

use std::cell::RefCell;

thread_local! {
    /// The spans in which this thread is, the innermost last.
    static ENTERED: RefCell<Vec<(u128, u64)>> = const { RefCell::new(Vec::new()) };
}

/// The trace and the span in which this code runs.
#[must_use]
pub fn current() -> Option<(u128, u64)> {
    // An error means that the thread is ending.
    ENTERED.try_with(|entered| entered.try_borrow().ok()?.last().copied()).ok().flatten()
}

/// Note that this thread has entered a span.
pub(super) fn enter(trace: u128, span: u64) {
    let _ends = ENTERED.try_with(|entered| {
        if let Ok(mut entered) = entered.try_borrow_mut() {
            entered.push((trace, span));
        }
    });
}

/// Note that this thread has left a span. Spans may be left in any order.
pub(super) fn exit(trace: u128, span: u64) {
    let _ends = ENTERED.try_with(|entered| {
        let Ok(mut entered) = entered.try_borrow_mut() else { return };
        if let Some(at) = entered.iter().rposition(|one| *one == (trace, span)) {
            entered.remove(at);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_in_the_span_that_it_entered_last_and_has_not_left() {
        assert_eq!(current(), None);
        enter(1, 1);
        enter(1, 2);
        assert_eq!(current(), Some((1, 2)));
        exit(1, 1);
        assert_eq!(current(), Some((1, 2)), "left in another order");
        exit(1, 2);
        assert_eq!(current(), None);
        exit(1, 2);
    }
}
