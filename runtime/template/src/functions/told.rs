//! Values to texts that other programs read.

use super::{Row, argument};
use crate::error::TemplateProblem;
use crate::eval::Run;
use crate::sink::Sink;
use crate::value::Value;
use crate::values::json::{self, Style};
use crate::values::{toml, yaml};

pub(super) const ALL: &[Row] = &[
    ("toJSON", 1, Some(1), |run, a| {
        made(run, argument(a, 0), |value, sink| json::write(value, Style::plain(), sink))
    }),
    ("toJSONPretty", 1, Some(1), |run, a| {
        made(run, map(a)?, |value, sink| json::write(value, Style::pretty(), sink))
    }),
    ("toUnescapedJSON", 1, Some(1), |run, a| {
        made(run, argument(a, 0), |value, sink| {
            json::write(value, Style::plain().unescaped(), sink)
        })
    }),
    ("toUnescapedJSONPretty", 1, Some(1), |run, a| {
        made(run, map(a)?, |value, sink| json::write(value, Style::pretty().unescaped(), sink))
    }),
    ("toYAML", 1, Some(1), |run, a| made(run, map(a)?, yaml::write)),
    ("toTOML", 1, Some(1), |run, a| made(run, map(a)?, toml::write)),
];

fn map(arguments: &[Value]) -> Result<&Value, TemplateProblem> {
    match argument(arguments, 0) {
        value @ Value::Map(_) => Ok(value),
        other => Err(TemplateProblem::Value(format!("takes a map, not {}", other.what()))),
    }
}

fn made(
    run: &mut Run<'_>,
    value: &Value,
    write: impl Fn(&Value, &mut Sink) -> Result<(), TemplateProblem>,
) -> Result<Value, TemplateProblem> {
    let mut sink = run.sink();
    write(value, &mut sink)?;
    Ok(Value::text(sink.into_bytes().trim_ascii()))
}
