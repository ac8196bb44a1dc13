//! Lines of the log as Nomad reads them from its plugins: one JSON object each, with level and
//! module.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::traces;

/// Formats events as such lines.
pub(super) struct HcLog;

impl<S, N> FormatEvent<S, N> for HcLog
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields(Map::new());
        let level = event.metadata().level().as_str().to_lowercase();
        fields.0.insert("@level".to_owned(), level.into());
        fields.0.insert("@module".to_owned(), "ostler".into());
        let mut now = String::new();
        SystemTime.format_time(&mut Writer::new(&mut now))?;
        fields.0.insert("@timestamp".to_owned(), now.into());
        event.record(&mut fields);
        for (name, id) in traces::ids().into_iter().flatten() {
            fields.0.insert(name.to_owned(), id.into());
        }
        writeln!(writer, "{}", Value::Object(fields.0))
    }
}

/// The members of the JSON object of an event.
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: Value) {
        let name = match field.name() {
            "message" => "@message",
            name => name,
        };
        self.0.insert(name.to_owned(), value);
    }
}

impl Visit for Fields {
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

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value.into());
    }
}
