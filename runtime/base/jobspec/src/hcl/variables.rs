//! The values of variables: the default, or a value of the command line, of files or of the environment. Each source
//! overrides those before it: default, environment, files in their order, command line.

use std::str::FromStr as _;

use hcl_edit::Span as _;
use hcl_edit::expr::Expression;
use hcl_edit::structure::Structure;

use super::eval::Evaluator;
use super::operators;
use super::scan::{find_shell_text, scan};
use super::types::Type;
use super::value::{Seq, Val, ValKind};
use crate::diagnostic::{Sink, Span, quote_text};
use crate::inputs::{Inputs, VarFile};
use crate::json;
use crate::tree;

impl<'a> Evaluator<'a> {
    /// Read the values from outside of the file.
    pub(super) fn take_inputs(&mut self, sink: &mut Sink) {
        let inputs: &'a Inputs = self.inputs;
        for (name, text) in &inputs.env {
            // A variable of the environment may be meant for another file.
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
                    quote_text(name)
                );
                sink.suggest(Span::default(), message, instead);
                continue;
            }
            self.take_text("-var", name, text, sink);
        }
    }

    /// Read a value that is given as a text. For a variable that is no text or number, it is an expression.
    fn take_text(&mut self, from: &'static str, name: &str, text: &str, sink: &mut Sink) {
        let Some(declared) = self.scope.variables.get(name) else { return };
        let at = declared.at;
        let wanted = self.wanted_type(name);
        let plain = wanted.as_ref().is_none_or(Type::is_plain);
        let value = if plain {
            Some(Val::new(ValKind::literal(text), at))
        } else {
            let mut inner = Sink::default();
            let expr = parse_expression(text, &mut inner);
            let value = expr.and_then(|expr| self.evaluate_outside(&expr, at, &mut inner));
            report_outside(
                &format!("the value of {} from {from}", quote_text(name)),
                at,
                inner,
                sink,
            );
            value
        };
        self.give(from, name, value, sink);
    }

    /// The type that values of a variable are converted to: its own, or that of its default.
    fn wanted_type(&mut self, name: &str) -> Option<Type> {
        let declared = self.scope.variables.get(name)?;
        if declared.wanted.is_some() {
            return declared.wanted.clone();
        }
        let default = self.attempt(declared.default?, &mut Sink::default())?;
        Some(type_of(&default))
    }

    fn take_file(&mut self, file: &VarFile, sink: &mut Sink) {
        let mut inner = Sink::default();
        let members = if file.text.trim_start().starts_with('{') {
            self.json_file(file, &mut inner)
        } else {
            self.hcl_file(file, &mut inner)
        };
        // The places of its problems are not in the job file, so the messages have them.
        for message in inner.located_messages(&file.text, &file.name) {
            sink.error(Span::default(), message);
        }
        for (name, value) in members {
            if self.scope.variables.contains_key(name.as_str()) {
                self.give("a file of variables", &name, value, sink);
            } else {
                let message = format!(
                    "{} gives {} a value, and the job file has no variable of that name",
                    file.name,
                    quote_text(&name)
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
                let (span, message) = find_shell_text(&file.text).unwrap_or_else(explained);
                sink.error(span, message);
                return members;
            }
        };
        for structure in body.iter() {
            match structure {
                Structure::Attribute(attribute) => {
                    let name = attribute.key.as_str();
                    let at = super::place(attribute.value.span());
                    let value = self.evaluate_outside(&attribute.value, at, sink);
                    members.push((name.to_owned(), value));
                }
                Structure::Block(block) => {
                    let at = super::place(block.ident.span());
                    sink.error(
                        at,
                        "a file of variables may only hold name = value; declare variables in the \
                                    job file",
                    );
                }
            }
        }
        members
    }

    fn json_file(&mut self, file: &VarFile, sink: &mut Sink) -> Vec<(String, Option<Val>)> {
        let Some(value) = json::value(&file.text, sink) else { return Vec::new() };
        let tree::ValueKind::Object(members) = value.kind else {
            sink.error(value.span, "a file of variables must be an object of names and values");
            return Vec::new();
        };
        let member = |(key, value): (tree::SpannedKey, tree::SpannedValue)| {
            let at = value.span;
            (key.name, self.convert_json(value, at, sink))
        };
        members.into_iter().map(member).collect()
    }

    /// A value of JSON, whose texts are texts and not expressions.
    fn convert_json(
        &mut self,
        value: tree::SpannedValue,
        at: Span,
        sink: &mut Sink,
    ) -> Option<Val> {
        let span = value.span;
        let kind = match value.kind {
            tree::ValueKind::Null | tree::ValueKind::Refused => ValKind::Null,
            tree::ValueKind::Bool(truth) => ValKind::Bool(truth),
            tree::ValueKind::Number(number) => ValKind::Number(number),
            tree::ValueKind::Text(text) => ValKind::literal(text),
            tree::ValueKind::List(items) => {
                let items = items.into_iter().map(|item| self.convert_json(item, at, sink));
                ValKind::List(Seq::Tuple, items.collect::<Option<_>>()?)
            }
            tree::ValueKind::Object(members) => {
                let member = |(key, value): (tree::SpannedKey, tree::SpannedValue)| {
                    Some((key.name, (key.span, self.convert_json(value, at, sink)?)))
                };
                ValKind::Object(members.into_iter().map(member).collect::<Option<_>>()?)
            }
        };
        let value = Val::new(kind, span);
        self.pay(value.own_size(), at, sink).then_some(value)
    }

    /// Evaluate an expression that does not stand in the job file.
    fn evaluate_outside(&mut self, expr: &Expression, at: Span, sink: &mut Sink) -> Option<Val> {
        let before = self.elsewhere.replace(at);
        let value = self.value(expr, sink);
        self.elsewhere = before;
        value
    }

    /// Convert a value from outside to the type of its variable, and keep it.
    fn give(&mut self, from: &'static str, name: &str, value: Option<Val>, sink: &mut Sink) {
        let Some(declared) = self.scope.variables.get(name) else { return };
        let (at, wanted) = (declared.at, self.wanted_type(name));
        let fit = |value: Val| {
            let value = value.with_span(at);
            let Some(wanted) = wanted else { return Some(value) };
            let fitting = wanted.convert(value).map_err(|(_, message)| {
                sink.error(at, format!("the value of {} from {from}: {message}", quote_text(name)));
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
                        quote_text(name)
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
            // The condition refers to the value as var.x.
            self.known.insert(
                ("var", name.to_owned()),
                super::eval::NameState::Done(Some(value.clone())),
            );
            let holds =
                self.value(rule.condition, sink).map(|holds| operators::truth(&holds, sink));
            match holds.flatten() {
                Some(true) => {}
                Some(false) => {
                    let said = self.value(rule.message, sink)?;
                    let said = said.kind.to_characters().unwrap_or_default();
                    let said = said.trim_end_matches('.');
                    let at = if value.span == Span::default() { rule.at } else { value.span };
                    return sink.refuse(
                        at,
                        format!("the value of {} is not valid: {said}", quote_text(name)),
                    );
                }
                None => return None,
            }
        }
        Some(value)
    }
}

/// The expression that a text is. A text that is none is reported.
fn parse_expression(text: &str, sink: &mut Sink) -> Option<Expression> {
    if !scan(text, sink) {
        return None;
    }
    match Expression::from_str(text) {
        Ok(expr) => Some(expr),
        Err(error) => {
            let shell = find_shell_text(text).map(|(_, message)| message);
            let message = shell.unwrap_or_else(|| {
                format!("cannot be read: {}; texts inside it need quotes", error.message())
            });
            sink.refuse(Span::default(), message)
        }
    }
}

/// Report the problems of a text from outside, at the declaration of its variable.
fn report_outside(what: &str, at: Span, inner: Sink, sink: &mut Sink) {
    for (_, message) in inner.messages() {
        sink.error(at, format!("{what}: {message}"));
    }
}

/// The type of a default, for values that are given in its place.
fn type_of(value: &Val) -> Type {
    match &value.kind {
        ValKind::Bool(_) => Type::Bool,
        ValKind::Number(_) => Type::Number,
        ValKind::Text(_) => Type::Text,
        // A default says nothing about the length or the members of other values.
        ValKind::List(..) => Type::List(Seq::Tuple, Box::new(Type::Any)),
        ValKind::Object(_) => Type::Map(Box::new(Type::Any)),
        ValKind::Null => Type::Any,
    }
}
