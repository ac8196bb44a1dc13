//! The values of variables: the default, or what the command line, files and the environment give.
//! The later one goes before: default, environment, files in their order, command line.

use std::str::FromStr as _;

use hcl_edit::Span as _;
use hcl_edit::expr::Expression;
use hcl_edit::structure::Structure;

use super::super::diagnostic::{Sink, Span, shown};
use super::super::tree;
use super::eval::Evaluator;
use super::operators;
use super::scan::{scan, shell_text};
use super::types::Type;
use super::value::{Kind, Seq, Val};
use crate::inputs::{Inputs, VarFile};
use crate::json;

impl<'a> Evaluator<'a> {
    /// Take the values from outside.
    pub(super) fn take_inputs(&mut self, sink: &mut Sink) {
        let inputs: &'a Inputs = self.inputs;
        for (name, text) in &inputs.env {
            // The environment may be meant for another file.
            if self.scope.variables.contains_key(name.as_str()) {
                self.take_text("the environment", name, text, sink);
            }
        }
        for file in &inputs.files {
            self.take_file(file, sink);
        }
        for (name, text) in &inputs.vars {
            if !self.scope.variables.contains_key(name.as_str()) {
                let instead = sink.nearest(name, self.scope.variables.keys().copied());
                let message = format!(
                    "-var gives {} a value, and the file has no variable of that name",
                    shown(name)
                );
                sink.suggest(Span::default(), message, instead);
                continue;
            }
            self.take_text("-var", name, text, sink);
        }
    }

    /// A value written as a text: of a variable that is no text or number, an expression.
    fn take_text(&mut self, from: &'static str, name: &str, text: &str, sink: &mut Sink) {
        let Some(declared) = self.scope.variables.get(name) else { return };
        let at = declared.at;
        let wanted = self.wanted(name);
        let plain = wanted.as_ref().is_none_or(Type::is_plain);
        let value = if plain {
            Some(Val::new(Kind::literal(text), at))
        } else {
            let mut inner = Sink::default();
            let expr = parsed(text, &mut inner);
            let value = expr.and_then(|expr| self.outside(&expr, at, &mut inner));
            tell(&format!("the value of {} from {from}", shown(name)), at, inner, sink);
            value
        };
        self.give(from, name, value, sink);
    }

    /// The type that values of a variable are made to fit: its own, or that of its default.
    fn wanted(&mut self, name: &str) -> Option<Type> {
        let declared = self.scope.variables.get(name)?;
        if declared.wanted.is_some() {
            return declared.wanted.clone();
        }
        let default = self.attempt(declared.default?, &mut Sink::default())?;
        Some(type_of(&default))
    }

    fn take_file(&mut self, file: &VarFile, sink: &mut Sink) {
        let mut inner = Sink::default();
        let members = match file.text.trim_start().starts_with('{') {
            true => self.json_file(file, &mut inner),
            false => self.hcl_file(file, &mut inner),
        };
        // Its places are in another text.
        for message in inner.located(&file.text, &file.name) {
            sink.error(Span::default(), message);
        }
        for (name, value) in members {
            if self.scope.variables.contains_key(name.as_str()) {
                self.give("a file of variables", &name, value, sink);
            } else {
                let message = format!(
                    "{} gives {} a value, and the job file has no variable of that name",
                    file.name,
                    shown(&name)
                );
                sink.warn(Span::default(), message);
            }
        }
    }

    fn hcl_file(&mut self, file: &VarFile, sink: &mut Sink) -> Vec<(String, Option<Val>)> {
        let mut members = Vec::new();
        if !scan(&file.text, sink) {
            return members;
        }
        let body = match hcl_edit::parser::parse_body(&file.text) {
            Ok(body) => body,
            Err(error) => {
                let at = error.location().offset().min(file.text.len());
                let explained = || super::syntax::explain(&file.text, at, error.message());
                let (span, message) = shell_text(&file.text).unwrap_or_else(explained);
                sink.error(span, message);
                return members;
            }
        };
        for structure in body.iter() {
            match structure {
                Structure::Attribute(attribute) => {
                    let name = attribute.key.as_str();
                    let at = super::place(attribute.value.span());
                    let value = self.outside(&attribute.value, at, sink);
                    members.push((name.to_owned(), value));
                }
                Structure::Block(block) => {
                    let at = super::place(block.ident.span());
                    sink.error(at, "a file of variables holds name = value alone; declare variables in the job file");
                }
            }
        }
        members
    }

    fn json_file(&mut self, file: &VarFile, sink: &mut Sink) -> Vec<(String, Option<Val>)> {
        let Some(value) = json::value(&file.text, sink) else { return Vec::new() };
        let tree::ValueKind::Object(members) = value.kind else {
            sink.error(value.span, "a file of variables is an object of names and values");
            return Vec::new();
        };
        let member = |(key, value): (tree::Key, tree::Value)| {
            let at = value.span;
            (key.name, self.of_json(value, at, sink))
        };
        members.into_iter().map(member).collect()
    }

    /// A value of JSON, whose texts are nothing else.
    fn of_json(&mut self, value: tree::Value, at: Span, sink: &mut Sink) -> Option<Val> {
        let span = value.span;
        let kind = match value.kind {
            tree::ValueKind::Null | tree::ValueKind::Refused => Kind::Null,
            tree::ValueKind::Bool(truth) => Kind::Bool(truth),
            tree::ValueKind::Number(number) => Kind::Number(number),
            tree::ValueKind::Text(text) => Kind::literal(text),
            tree::ValueKind::List(items) => {
                let items = items.into_iter().map(|item| self.of_json(item, at, sink));
                Kind::List(Seq::Tuple, items.collect::<Option<_>>()?)
            }
            tree::ValueKind::Object(members) => {
                let member = |(key, value): (tree::Key, tree::Value)| {
                    Some((key.name, (key.span, self.of_json(value, at, sink)?)))
                };
                Kind::Object(members.into_iter().map(member).collect::<Option<_>>()?)
            }
        };
        let value = Val::new(kind, span);
        self.pay(value.own_size(), at, sink).then_some(value)
    }

    /// Evaluate what does not stand in the file.
    fn outside(&mut self, expr: &Expression, at: Span, sink: &mut Sink) -> Option<Val> {
        let before = self.elsewhere.replace(at);
        let value = self.value(expr, sink);
        self.elsewhere = before;
        value
    }

    /// Make a value from outside fit its variable.
    fn give(&mut self, from: &'static str, name: &str, value: Option<Val>, sink: &mut Sink) {
        let Some(declared) = self.scope.variables.get(name) else { return };
        let (at, wanted) = (declared.at, self.wanted(name));
        let fit = |value: Val| {
            let value = value.moved(at);
            let Some(wanted) = wanted else { return Some(value) };
            let fitting = wanted.convert(value).map_err(|(_, message)| {
                sink.error(at, format!("the value of {} from {from}: {message}", shown(name)));
            });
            fitting.ok()
        };
        self.given.insert(name.to_owned(), (from, value.and_then(fit)));
    }

    /// The value of a declared variable, checked by its rules.
    pub(super) fn variable(&mut self, name: &str, sink: &mut Sink) -> Option<Val> {
        let scope = self.scope;
        let declared = scope.variables.get(name)?;
        if declared.broken {
            return None;
        }
        let value = match self.given.get(name).cloned() {
            Some((_, value)) => value?,
            None => {
                let Some(default) = declared.default else {
                    let message = format!(
                        "the variable {} has no value; give it a default, or a value by -var {name}=…, -var-file or NOMAD_VAR_{name}",
                        shown(name)
                    );
                    return sink.refuse(declared.at, message);
                };
                let value = self.value(default, sink)?;
                match &declared.wanted {
                    None => value,
                    Some(wanted) => wanted
                        .convert(value)
                        .map_err(|(at, message)| sink.error(at, format!("default: {message}")))
                        .ok()?,
                }
            }
        };
        for rule in &declared.rules {
            // The rule sees the value as var.x.
            self.known
                .insert(("var", name.to_owned()), super::eval::Known::Done(Some(value.clone())));
            let holds =
                self.value(rule.condition, sink).map(|holds| operators::truth(&holds, sink));
            match holds.flatten() {
                Some(true) => {}
                Some(false) => {
                    let said = self.value(rule.message, sink)?;
                    let said = said.kind.to_characters().unwrap_or_default();
                    let said = said.trim_end_matches('.');
                    let at = if value.span == Span::default() { rule.at } else { value.span };
                    return sink
                        .refuse(at, format!("the value of {} is not valid: {said}", shown(name)));
                }
                None => return None,
            }
        }
        Some(value)
    }
}

/// The expression that a text is.
fn parsed(text: &str, sink: &mut Sink) -> Option<Expression> {
    if !scan(text, sink) {
        return None;
    }
    match Expression::from_str(text) {
        Ok(expr) => Some(expr),
        Err(error) => {
            let shell = shell_text(text).map(|(_, message)| message);
            let message = shell.unwrap_or_else(|| {
                format!("cannot be read: {}; texts inside it need quotes", error.message())
            });
            sink.refuse(Span::default(), message)
        }
    }
}

/// Report what was found in a text from outside, where its variable is declared.
fn tell(what: &str, at: Span, inner: Sink, sink: &mut Sink) {
    for (_, message) in inner.messages() {
        sink.error(at, format!("{what}: {message}"));
    }
}

/// The type of a default, for what is given in its place.
fn type_of(value: &Val) -> Type {
    match &value.kind {
        Kind::Bool(_) => Type::Bool,
        Kind::Number(_) => Type::Number,
        Kind::Text(_) => Type::Text,
        // Of which length, and with which members, it does not say.
        Kind::List(..) => Type::List(Seq::Tuple, Box::new(Type::Any)),
        Kind::Object(_) => Type::Map(Box::new(Type::Any)),
        Kind::Null => Type::Any,
    }
}
