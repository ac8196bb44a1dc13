//! Functions that read the world outside of the template, and those for what it stores itself.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use super::{Row, argument, string, text, whole};
use crate::error::TemplateProblem;
use crate::eval::Renderer;
use crate::format_time;
use crate::outside::Dependency;
use crate::value::{Value, lossy};

pub(super) const ALL: &[Row] = &[
    ("env", 1, Some(1), |run, a| {
        Ok(Value::text(run.outside().variable(string(a, 0)?).unwrap_or_default()))
    }),
    ("envOrDefault", 2, Some(2), |run, a| {
        let value = run.outside().variable(string(a, 0)?).filter(|value| !value.is_empty());
        value.map_or_else(|| Ok(Value::text(text(a, 1)?)), |value| Ok(Value::text(value)))
    }),
    ("mustEnv", 1, Some(1), |run, a| {
        let name = string(a, 0)?;
        let value = run.outside().variable(name);
        let lacks = || TemplateProblem::Value(format!("the task has no variable {name}"));
        value.map(Value::text).ok_or_else(lacks)
    }),
    ("timestamp", 0, Some(1), timestamp),
    ("file", 1, Some(1), file),
    ("nomadService", 1, Some(3), service),
    ("nomadServices", 0, Some(0), |run, _| ask_or_else(run, Dependency::Services, empty_list)),
    ("nomadVar", 1, Some(1), |run, a| {
        let path = path(a)?;
        if path.is_empty() {
            return Value::map(BTreeMap::new());
        }
        ask_or_else(run, Dependency::Variable { path, required: true }, || {
            Value::map(BTreeMap::new())
        })
    }),
    ("nomadVarExists", 1, Some(1), |run, a| {
        let path = path(a)?;
        if path.is_empty() {
            return Ok(Value::Bool(false));
        }
        let found = run.ask(Dependency::Variable { path, required: false })?;
        Ok(Value::Bool(found.is_some_and(|value| !value.is_nothing())))
    }),
    ("nomadVarList", 0, Some(1), |run, a| variables(run, a, false)),
    ("nomadVarListSafe", 0, Some(1), |run, a| variables(run, a, true)),
    ("scratch", 0, Some(0), |_, _| Ok(Value::Scratch)),
    ("executeTemplate", 1, Some(2), |run, a| {
        let made = run.execute(string(a, 0)?, argument(a, 1).clone())?;
        Ok(Value::text(made))
    }),
];

fn empty_list() -> Result<Value, TemplateProblem> {
    Value::list(Vec::new())
}

/// Ask for something; while it does not exist, `otherwise` gives the value that stands for it.
fn ask_or_else(
    run: &mut Renderer<'_>,
    what: Dependency,
    otherwise: fn() -> Result<Value, TemplateProblem>,
) -> Result<Value, TemplateProblem> {
    match run.ask(what)? {
        Some(value) => Ok(value),
        None => otherwise(),
    }
}

fn timestamp(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let now = run.outside().now();
    let layout = match arguments {
        [] => "2006-01-02T15:04:05Z07:00",
        _ => string(arguments, 0)?,
    };
    if layout == "unix" {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(Value::text(since.as_secs().to_string()));
    }
    Ok(Value::text(format_time(now, layout)))
}

fn file(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let path = string(arguments, 0)?.trim().to_owned();
    if path.is_empty() {
        return Ok(Value::text(""));
    }
    ask_or_else(run, Dependency::File(path), || Ok(Value::text("")))
}

/// `nomadService "name"`, or with a number of instances, chosen by a key: `nomadService 2 "key" "name"`.
fn service(run: &mut Renderer<'_>, arguments: &[Value]) -> Result<Value, TemplateProblem> {
    let what = match arguments {
        [_] => Dependency::Service { name: string(arguments, 0)?.to_owned(), choose: None },
        [_, _, _] => {
            let count = u64::try_from(whole(arguments, 0)?);
            let count =
                count.map_err(|_| TemplateProblem::value("the number of instances is negative"))?;
            let key = lossy(text(arguments, 1)?).into_owned();
            let name = string(arguments, 2)?.to_owned();
            Dependency::Service { name, choose: Some((count, key)) }
        }
        _ => return Err(TemplateProblem::value("takes the name, or a number, a key and the name")),
    };
    ask_or_else(run, what, empty_list)
}

/// The path of a variable, without slashes around it.
fn path(arguments: &[Value]) -> Result<String, TemplateProblem> {
    Ok(string(arguments, 0)?.trim().trim_matches('/').to_owned())
}

fn variables(
    run: &mut Renderer<'_>,
    arguments: &[Value],
    required: bool,
) -> Result<Value, TemplateProblem> {
    let prefix = if arguments.is_empty() { "" } else { string(arguments, 0)? };
    let prefix = prefix.trim().trim_start_matches('/').to_owned();
    ask_or_else(run, Dependency::Variables { prefix, required }, empty_list)
}
