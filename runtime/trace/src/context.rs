//! Places in traces, and how requests name them (W3C Trace Context).

use std::num::{NonZeroU64, NonZeroU128};

use ostler_model::rng::Rng;

/// A span of a trace that is recorded: what is below it is recorded, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace: NonZeroU128,
    span: NonZeroU64,
}

impl TraceContext {
    /// The root of a new trace.
    #[must_use]
    pub(crate) fn new() -> Self {
        Self { trace: trace_id(), span: span_id() }
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(self) -> u128 {
        self.trace.get()
    }

    /// The span.
    #[must_use]
    pub const fn span_id(self) -> u64 {
        self.span.get()
    }

    /// A new span below this one.
    #[must_use]
    pub fn child(self) -> SpanIds {
        let own = Self { trace: self.trace, span: span_id() };
        SpanIds { own, parent: Some(self.span) }
    }
}

/// What a new span is called, and which one it is below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIds {
    own: TraceContext,
    parent: Option<NonZeroU64>,
}

impl SpanIds {
    /// The first one of a trace.
    pub(crate) const fn root(own: TraceContext) -> Self {
        Self { own, parent: None }
    }

    /// The span itself, for those below it.
    #[must_use]
    pub const fn context(self) -> TraceContext {
        self.own
    }

    /// The trace.
    #[must_use]
    pub const fn trace_id(self) -> u128 {
        self.own.trace_id()
    }

    /// The span.
    #[must_use]
    pub const fn span_id(self) -> u64 {
        self.own.span_id()
    }

    /// The one it is below; 0: none.
    #[must_use]
    pub fn parent_id(self) -> u64 {
        self.parent.map_or(0, NonZeroU64::get)
    }
}

/// Where a request says it comes from: its header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    context: TraceContext,
    sampled: bool,
}

impl TraceParent {
    /// Read a header: `00-TRACE-SPAN-FLAGS`, in small hexadecimal digits. Of a later version, what it has in common
    /// with this one. None where it is none: such a header is to be taken for absent.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace) = (hex(parts.next()?, 2)?, hex(parts.next()?, 32)?);
        let (span, flags) = (hex(parts.next()?, 16)?, hex(parts.next()?, 2)?);
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace = NonZeroU128::new(trace)?;
        let span = NonZeroU64::new(u64::try_from(span).ok()?)?;
        Some(Self { context: TraceContext { trace, span }, sampled: flags & 1 == 1 })
    }

    /// The place, where the caller records this trace.
    #[must_use]
    pub fn recorded(self) -> Option<TraceContext> {
        self.sampled.then_some(self.context)
    }
}

/// So many small hexadecimal digits.
fn hex(text: &str, digits: usize) -> Option<u128> {
    let small = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let right = text.len() == digits && text.bytes().all(small);
    right.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn trace_id() -> NonZeroU128 {
    let rng = Rng::system();
    let id = (u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64());
    NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN)
}

/// The id of a new span. Whatever it is, it is no secret and decides nothing.
pub(crate) fn span_id() -> NonZeroU64 {
    NonZeroU64::new(Rng::system().next_u64()).unwrap_or(NonZeroU64::MIN)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn a_header_names_a_span_and_says_whether_it_is_recorded() {
        let parent = TraceParent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-01")).unwrap();
        let at = parent.recorded().unwrap();
        assert_eq!(format!("{:032x}", at.trace_id()), TRACE);
        assert_eq!(at.span_id(), 0x00f0_67aa_0ba9_02b7);
        let below = at.child();
        assert_eq!((below.trace_id(), below.parent_id()), (at.trace_id(), at.span_id()));
        assert_ne!(below.span_id(), at.span_id());
        let unrecorded = TraceParent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-00")).unwrap();
        assert_eq!(unrecorded.recorded(), None);
        let later = TraceParent::parse(&format!("01-{TRACE}-00f067aa0ba902b7-03-more"));
        assert!(later.unwrap().recorded().is_some(), "a later version");
    }

    #[test]
    fn what_is_no_header_is_none() {
        for wrong in [
            "",
            "00",
            &format!("00-{TRACE}-00f067aa0ba902b7"),
            &format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            &format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            &format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            &format!("00-{TRACE}-0000000000000000-01"),
            &format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            &format!("00-{TRACE}-+0f067aa0ba902b7-01"),
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "\\PC{0,80}") {
            let _read = TraceParent::parse(&text);
        }
    }
}
