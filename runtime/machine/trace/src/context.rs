//! Places in traces, and the header in which requests name them (W3C Trace Context).

use std::num::{NonZeroU64, NonZeroU128};

use ostler_model::rng::Rng;

/// A span of a recorded trace. The spans below it are recorded too.
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

    /// The id of the trace.
    #[must_use]
    pub const fn trace_id(self) -> u128 {
        self.trace.get()
    }

    /// The id of the span.
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

/// The ids of a new span and of the span above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanIds {
    own: TraceContext,
    parent: Option<NonZeroU64>,
}

impl SpanIds {
    /// The ids of the first span of a trace.
    pub(crate) const fn root(own: TraceContext) -> Self {
        Self { own, parent: None }
    }

    /// The span itself, as the place for spans below it.
    #[must_use]
    pub const fn context(self) -> TraceContext {
        self.own
    }

    /// The id of the trace.
    #[must_use]
    pub const fn trace_id(self) -> u128 {
        self.own.trace_id()
    }

    /// The id of the span.
    #[must_use]
    pub const fn span_id(self) -> u64 {
        self.own.span_id()
    }

    /// The id of the span above it; 0 if there is none.
    #[must_use]
    pub fn parent_id(self) -> u64 {
        self.parent.map_or(0, NonZeroU64::get)
    }
}

/// The place that a request names in its header `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    context: TraceContext,
    sampled: bool,
}

impl TraceParent {
    /// Read a header: `00-TRACE-SPAN-FLAGS`, in lower-case hexadecimal digits. Of a later version,
    /// the part that it shares with this one is read. Returns `None` for an invalid header, which
    /// counts as absent.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.trim().split('-');
        let (version, trace) = (parse_hex(parts.next()?, 2)?, parse_hex(parts.next()?, 32)?);
        let (span, flags) = (parse_hex(parts.next()?, 16)?, parse_hex(parts.next()?, 2)?);
        if version == 0xff || (version == 0 && parts.next().is_some()) {
            return None;
        }
        let trace = NonZeroU128::new(trace)?;
        let span = NonZeroU64::new(u64::try_from(span).ok()?)?;
        Some(Self { context: TraceContext { trace, span }, sampled: flags & 1 == 1 })
    }

    /// The place, if the caller records this trace.
    #[must_use]
    pub fn recorded_context(self) -> Option<TraceContext> {
        self.sampled.then_some(self.context)
    }
}

/// Parse a number of exactly this many lower-case hexadecimal digits.
fn parse_hex(text: &str, digits: usize) -> Option<u128> {
    let small = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let right = text.len() == digits && text.bytes().all(small);
    right.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

fn trace_id() -> NonZeroU128 {
    let rng = Rng::system();
    let id = (u128::from(rng.next_u64()) << 64) | u128::from(rng.next_u64());
    NonZeroU128::new(id).unwrap_or(NonZeroU128::MIN)
}

/// The id of a new span. It is no secret and decides nothing.
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
        let at = parent.recorded_context().unwrap();
        assert_eq!(format!("{:032x}", at.trace_id()), TRACE);
        assert_eq!(at.span_id(), 0x00f0_67aa_0ba9_02b7);
        let below = at.child();
        assert_eq!((below.trace_id(), below.parent_id()), (at.trace_id(), at.span_id()));
        assert_ne!(below.span_id(), at.span_id());
        let unrecorded = TraceParent::parse(&format!("00-{TRACE}-00f067aa0ba902b7-00")).unwrap();
        assert_eq!(unrecorded.recorded_context(), None);
        let later = TraceParent::parse(&format!("01-{TRACE}-00f067aa0ba902b7-03-more"));
        assert!(later.unwrap().recorded_context().is_some(), "a later version");
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
