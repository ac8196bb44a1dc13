//! The functions of HCL that Ostler has.

use super::super::diagnostic::{Sink, Span, shown};
use super::super::tree::{Value, ValueKind};
use super::operators::refuse_late;
use ostler_model::limits::JOB_FILE_BYTES_MAX;

/// A function.
#[derive(Clone, Copy)]
pub(super) enum Function {
    /// `concat(list, …)`
    Concat,
    /// `format("%s", …)`
    Format,
    /// `join(",", list)`
    Join,
    /// `jsonencode(value)`
    JsonEncode,
    /// `lower(text)`
    Lower,
    /// `upper(text)`
    Upper,
}

const FUNCTIONS: [(&str, Function); 6] = [
    ("concat", Function::Concat),
    ("format", Function::Format),
    ("join", Function::Join),
    ("jsonencode", Function::JsonEncode),
    ("lower", Function::Lower),
    ("upper", Function::Upper),
];

/// The function of this name; another is reported.
pub(super) fn find(name: &str, at: Span, sink: &mut Sink) -> Option<Function> {
    if let Some((_, function)) = FUNCTIONS.iter().find(|(known, _)| *known == name) {
        return Some(*function);
    }
    let names = FUNCTIONS.iter().map(|(name, _)| *name);
    let list: Vec<&str> = names.clone().collect();
    let message = format!(
        "the function {} is not supported by Ostler; there are {}",
        shown(name),
        list.join(", ")
    );
    sink.suggest(at, message, sink.nearest(name, names));
    None
}

/// Call it.
pub(super) fn call(
    function: Function,
    arguments: Vec<Value>,
    span: Span,
    sink: &mut Sink,
) -> Option<ValueKind> {
    match (function, arguments.as_slice()) {
        (Function::Lower | Function::Upper, [text]) => {
            refuse_late(text, sink)?;
            let text = plain(text, sink)?;
            Some(ValueKind::Text(match function {
                Function::Lower => text.to_lowercase(),
                _ => text.to_uppercase(),
            }))
        }
        (Function::JsonEncode, [value]) => {
            Some(ValueKind::Text(value.clone().into_json().to_string()))
        }
        (Function::Join, [separator, lists @ ..]) if !lists.is_empty() => {
            let separator = plain(separator, sink)?;
            let mut texts = Vec::new();
            for value in items(lists, sink)? {
                texts.push(plain(&value, sink)?);
            }
            // The separator is repeated: look before it is done.
            let bytes = separator.len().saturating_mul(texts.len());
            if u64::try_from(bytes).is_ok_and(|bytes| bytes > JOB_FILE_BYTES_MAX) {
                return sink.refuse(span, "the result is too long");
            }
            Some(ValueKind::Text(texts.join(&separator)))
        }
        (Function::Concat, lists) => Some(ValueKind::List(items(lists, sink)?)),
        (Function::Format, [pattern, values @ ..]) => {
            let text = plain(pattern, sink)?;
            format(&text, values, span, sink).map(ValueKind::Text)
        }
        _ => sink.refuse(span, "a wrong number of arguments for this function"),
    }
}

/// All elements of all lists.
fn items(lists: &[Value], sink: &mut Sink) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    for list in lists {
        match &list.kind {
            ValueKind::List(items) => all.extend(items.iter().cloned()),
            kind => {
                return sink
                    .refuse(list.span, format!("a list is needed here, not {}", kind.describe()));
            }
        }
    }
    Some(all)
}

fn plain(value: &Value, sink: &mut Sink) -> Option<String> {
    match &value.kind {
        ValueKind::Text(text) => Some(text.clone()),
        ValueKind::Number(number) => Some(number.to_string()),
        ValueKind::Bool(truth) => Some(truth.to_string()),
        kind => sink.refuse(value.span, format!("a text is needed here, not {}", kind.describe())),
    }
}

/// `%s`, `%d`, `%v` and `%%`.
fn format(pattern: &str, values: &[Value], span: Span, sink: &mut Sink) -> Option<String> {
    let mut out = String::new();
    let mut values = values.iter();
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let verb = letters.next();
        if verb == Some('%') {
            out.push('%');
            continue;
        }
        let (Some('s' | 'd' | 'v'), Some(value)) = (verb, values.next()) else {
            return sink.refuse(span, "format knows %s, %d, %v and %%, and needs a value for each");
        };
        let whole = matches!(&value.kind, ValueKind::Number(n) if n.is_i64() || n.is_u64());
        if verb == Some('d') && !whole {
            return sink.refuse(value.span, "%d needs a whole number");
        }
        out.push_str(&plain(value, sink)?);
    }
    if values.next().is_some() {
        return sink.refuse(span, "more values than the format has places");
    }
    Some(out)
}
