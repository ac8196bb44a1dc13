//! Functions that write values as texts that other programs read.

use super::{Row, argument};
use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::sink::BoundedBuffer;
use crate::value::Value;
use crate::values::json::{self, JsonStyle};
use crate::values::{toml, yaml};

pub(super) const ALL: &[Row] = &[
    ("toJSON", 1, Some(1), |run, a| {
        encode_value(run, argument(a, 0), |value, sink| {
            json::write(value, JsonStyle::plain(), sink)
        })
    }),
    ("toJSONPretty", 1, Some(1), |run, a| {
        encode_value(run, map(a)?, |value, sink| json::write(value, JsonStyle::pretty(), sink))
    }),
    ("toUnescapedJSON", 1, Some(1), |run, a| {
        encode_value(run, argument(a, 0), |value, sink| {
            json::write(value, JsonStyle::plain().unescaped(), sink)
        })
    }),
    ("toUnescapedJSONPretty", 1, Some(1), |run, a| {
        encode_value(run, map(a)?, |value, sink| {
            json::write(value, JsonStyle::pretty().unescaped(), sink)
        })
    }),
    ("toYAML", 1, Some(1), |run, a| encode_value(run, map(a)?, yaml::write)),
    ("toTOML", 1, Some(1), |run, a| encode_value(run, map(a)?, toml::write)),
];

fn map(arguments: &[Value]) -> Result<&Value, TemplateProblem> {
    match argument(arguments, 0) {
        value @ Value::Map(_) => Ok(value),
        other => Err(TemplateProblem::Value(format!("takes a map, not {}", other.describe()))),
    }
}

fn encode_value(
    run: &mut Renderer<'_>,
    value: &Value,
    write: impl Fn(&Value, &mut BoundedBuffer) -> Result<(), TemplateProblem>,
) -> Result<Value, TemplateProblem> {
    let mut sink = run.sink();
    write(value, &mut sink)?;
    Ok(Value::text(sink.into_bytes().trim_ascii()))
}
