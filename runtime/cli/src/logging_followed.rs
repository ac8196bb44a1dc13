//! The log for who follows it through the API: detailed lines are made only while somebody does.

use std::fmt;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, reload};

use super::logging_traces;
use ostler_api::agent_log::{AgentLog, LogLine};
use ostler_model::clock::Clock;

/// Where the parts of the agent log, as opposed to libraries.
const OWN: &str = "ostler";

/// The layer that makes lines for the log of this process.
pub(super) fn layer<S>() -> impl Layer<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let (filter, handle) = reload::Layer::new(wanted(LevelFilter::OFF));
    let log = AgentLog::of_process();
    log.tuned_by(Box::new(move |level| {
        // An error means that there is no subscriber any more.
        let _gone = handle.reload(wanted(level));
    }));
    Followed { log, clock: Clock::system() }.with_filter(filter)
}

/// Libraries say what is wrong and no more: what carries the lines away would be told of them.
fn wanted(level: LevelFilter) -> Targets {
    let spans = (ostler_trace::TARGET, LevelFilter::OFF);
    let ours = Targets::new().with_target(OWN, level).with_target(spans.0, spans.1);
    ours.with_default(level.min(LevelFilter::WARN))
}

struct Followed {
    log: std::sync::Arc<AgentLog>,
    clock: Clock,
}

impl<S: Subscriber> Layer<S> for Followed {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Said::default();
        event.record(&mut said);
        let ids = logging_traces::ids().into_iter().flatten();
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

/// What an event says.
#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<(String, Value)>,
}

impl Said {
    fn put(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("message", Value::String(text)) => self.message = text,
            ("message", other) => self.message = other.to_string(),
            (name, value) => self.fields.push((name.to_owned(), value)),
        }
    }
}

impl Visit for Said {
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
    use ostler_api::agent_log::Heard;
    use tracing_subscriber::Registry;
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    #[test]
    fn detailed_lines_are_made_only_for_who_follows_and_libraries_stay_quiet() {
        let log = AgentLog::of_process();
        tracing::subscriber::with_default(Registry::default().with(layer()), || {
            tracing::debug!(target: "ostler_agent", "nobody follows");
            assert!(!tracing::enabled!(target: "ostler_agent", tracing::Level::DEBUG));
            let mut follower = log.follow(LevelFilter::DEBUG);
            tracing::info!(target: "hyper", "a library");
            tracing::trace!(target: "ostler_agent", "too much");
            tracing::debug!(target: "ostler_agent", task = "web", count = 3, "it runs");
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let Some(Heard::Line(line)) = runtime.block_on(follower.next()) else { panic!() };
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
