//! Turns spans of `tracing` into spans of OpenTelemetry.

use std::borrow::Cow;
use std::fmt;

use opentelemetry::trace::{
    SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::{current, queue};
use crate::context::span_id;
use crate::{TARGET, is_recording};
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::limits::TRACE_TEXT_BYTES_MAX;

/// The layer that handles the spans of traces and nothing else.
#[must_use]
pub fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = |metadata: &Metadata<'_>| metadata.is_span() && metadata.target() == TARGET;
    let scope = InstrumentationScope::builder("ostler").with_version(env!("CARGO_PKG_VERSION"));
    let filter = filter_fn(ours).with_max_level_hint(LevelFilter::INFO);
    SpanLayer { clock: Clock::system(), scope: scope.build() }.with_filter(filter)
}

struct SpanLayer {
    clock: Clock,
    scope: InstrumentationScope,
}

/// A span that has not ended.
struct OpenSpan {
    trace: u128,
    span: u64,
    parent: u64,
    name: &'static str,
    began: Timestamp,
    said: SpanFields,
}

impl<S> Layer<S> for SpanLayer
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|_| is_recording()) else { return };
        let mut said = SpanFields::default();
        attributes.record(&mut said);
        let ids = match (said.trace, said.span) {
            (0, _) | (_, 0) => span.parent().and_then(|above| {
                let extensions = above.extensions();
                let above = extensions.get::<OpenSpan>()?;
                Some((above.trace, span_id().get(), above.span))
            }),
            (trace, span) => Some((trace, span, said.parent)),
        };
        // A span outside of any traced span belongs to no trace.
        let Some((trace, own, parent)) = ids else { return };
        let began = said.began.map_or_else(|| self.clock.now(), Timestamp::from_nanos);
        let name = attributes.metadata().name();
        span.extensions_mut().insert(OpenSpan { trace, span: own, parent, name, began, said });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut open.said);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        if let Some((trace, span)) = span_ids(&context, id) {
            current::enter(trace, span);
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        if let Some((trace, span)) = span_ids(&context, id) {
            current::exit(trace, span);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        if let Some(open) = span.extensions_mut().remove::<OpenSpan>() {
            queue::process_queue()
                .push_span(open.into_span_data(self.clock.now(), self.scope.clone()));
        }
    }
}

fn span_ids<S>(context: &Context<'_, S>, id: &Id) -> Option<(u128, u64)>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let span = context.span(id)?;
    let extensions = span.extensions();
    extensions.get::<OpenSpan>().map(|open| (open.trace, open.span))
}

impl OpenSpan {
    fn into_span_data(self, now: Timestamp, scope: InstrumentationScope) -> SpanData {
        let Self { trace, span, parent, name, began, said } = self;
        let (trace, span) = (TraceId::from(trace), SpanId::from(span));
        let status = said.error.map_or(Status::Unset, Status::error);
        SpanData {
            span_context: SpanContext::new(
                trace,
                span,
                TraceFlags::SAMPLED,
                false,
                TraceState::default(),
            ),
            parent_span_id: SpanId::from(parent),
            parent_span_is_remote: said.remote,
            span_kind: if said.server { SpanKind::Server } else { SpanKind::Internal },
            name: said.name.map_or(Cow::Borrowed(name), Cow::Owned),
            start_time: began.to_system_time(),
            // A clock that was set back must not make a span end before it begins.
            end_time: now.max(began).to_system_time(),
            attributes: said.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: scope,
        }
    }
}

/// The values of a span's fields. Fields that begin with `otel.` describe the span itself.
#[derive(Default)]
struct SpanFields {
    trace: u128,
    span: u64,
    parent: u64,
    /// When the span began, in nanoseconds since 1970.
    began: Option<u64>,
    remote: bool,
    server: bool,
    name: Option<String>,
    error: Option<String>,
    attributes: Vec<KeyValue>,
}

impl SpanFields {
    fn put_text(&mut self, field: &Field, text: String) {
        match field.name() {
            "otel.name" => self.name = Some(text),
            "otel.kind" => self.server = text == "server",
            "error" => self.error = Some(text),
            name => self.put_attribute(name, text.into()),
        }
    }

    fn put_attribute(&mut self, name: &'static str, value: Value) {
        let name = format!("ostler.{name}");
        match self.attributes.iter_mut().find(|known| known.key.as_str() == name) {
            Some(known) => known.value = value,
            None => self.attributes.push(KeyValue::new(name, value)),
        }
    }
}

fn cut_text(text: &str) -> String {
    let end = text.floor_char_boundary(TRACE_TEXT_BYTES_MAX);
    text.get(..end).unwrap_or_default().to_owned()
}

impl Visit for SpanFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put_text(field, cut_text(&format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put_text(field, cut_text(value));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        if field.name() == "otel.trace" {
            self.trace = value;
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "otel.span" => self.span = value,
            "otel.parent" => self.parent = value,
            "otel.start" => self.began = Some(value),
            name => self.put_attribute(name, i64::try_from(value).unwrap_or(i64::MAX).into()),
        }
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put_attribute(field.name(), value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "otel.remote" => self.remote = value,
            name => self.put_attribute(name, value.into()),
        }
    }
}
