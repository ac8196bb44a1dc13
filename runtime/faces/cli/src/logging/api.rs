//! The log for those who follow it through the API: detailed lines are made only while somebody
//! does.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, reload};

use super::traces;
use ostler_api::agent_log::{AgentLog, LogLine};
use ostler_model::clock::Clock;

/// Prefix of the log targets of the agent itself, as opposed to libraries.
const OWN: &str = "ostler";

/// The layer that makes lines for the log of this process.
pub(super) fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let (filter, handle) = reload::Layer::new(target_filter(LevelFilter::OFF));
    let log = AgentLog::for_process();
    log.set_tuner(Box::new(move |level| {
        // An error means that there is no subscriber any more.
        let _gone = handle.reload(target_filter(level));
    }));
    FollowerLayer { log, clock: Clock::system() }.with_filter(filter)
}

/// A filter for a level. Libraries log only what is wrong, since those that carry the lines to the
/// API would log about each line.
fn target_filter(level: LevelFilter) -> Targets {
    let spans = (ostler_trace::TARGET, LevelFilter::OFF);
    let ours = Targets::new().with_target(OWN, level).with_target(spans.0, spans.1);
    ours.with_default(level.min(LevelFilter::WARN))
}

struct FollowerLayer {
    log: std::sync::Arc<AgentLog>,
    clock: Clock,
}

impl<S: Subscriber> Layer<S> for FollowerLayer {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = EventFields::default();
        event.record(&mut said);
        let ids = traces::ids().into_iter().flatten();
        said.fields.extend(ids.map(|(name, id)| (name.to_owned(), id.into())));
        let metadata = event.metadata();
        self.log.tell(LogLine {
            at: self.clock.now(),
            level: *metadata.level(),
            module: metadata.target().to_owned(),
            message: said.message,
            fields: said.fields,
        });
    }
}

/// The message and the fields of an event.
#[derive(Default)]
struct EventFields {
    message: String,
    fields: Vec<(String, Value)>,
}

impl EventFields {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => self.fields.push((name.to_owned(), value)),
        }
    }
}

impl Visit for EventFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}").into());
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value.into());
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use ostler_api::agent_log::LogItem;
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::logging::tests::with_own_subscriber;

    #[test]
    fn detailed_lines_are_made_only_for_who_follows_and_libraries_stay_quiet() {
        let log = AgentLog::for_process();
        with_own_subscriber(Registry::default().with(layer()), || {
            tracing::debug!(target: "ostler_agent", "nobody follows");
            assert!(!tracing::enabled!(target: "ostler_agent", tracing::Level::DEBUG));
            let mut follower = log.follow(LevelFilter::DEBUG);
            tracing::info!(target: "hyper", "a library");
            tracing::trace!(target: "ostler_agent", "too much");
            tracing::debug!(target: "ostler_agent", task = "web", count = 3, "it runs");
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let Some(LogItem::Line(line)) = runtime.block_on(follower.next()) else { panic!() };
            assert_eq!((line.message.as_str(), line.module.as_str()), ("it runs", "ostler_agent"));
            assert_eq!(
                line.fields,
                [("task".to_owned(), "web".into()), ("count".to_owned(), 3.into())]
            );
            drop(follower);
            assert!(!tracing::enabled!(target: "ostler_agent", tracing::Level::DEBUG));
            // The last lines of what an agent does are kept.
            assert!(tracing::enabled!(target: "ostler_agent", tracing::Level::INFO));
        });
    }
}
