//! `variable` and `locals`: what `var.x` and `local.x` mean.

use std::collections::BTreeMap;

use hcl_edit::Span as _;
use hcl_edit::expr::Expression;
use hcl_edit::structure::{Block, Body, Structure};

use super::super::diagnostic::{Sink, Span, shown};
use super::place;

/// Keys of a `variable` block. `type`, `description` and `sensitive` change nothing here.
const VARIABLE_KEYS: [&str; 4] = ["default", "type", "description", "sensitive"];

/// Declared names and their expressions.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// `var.x`; `None` when it was declared wrongly, which was reported.
    pub variables: BTreeMap<&'a str, Option<&'a Expression>>,
    /// `local.x`.
    pub locals: BTreeMap<&'a str, &'a Expression>,
}

impl<'a> Scope<'a> {
    /// Collect the declarations of a file.
    pub(super) fn new(body: &'a Body, sink: &mut Sink) -> Self {
        let mut scope = Self::default();
        for structure in body.iter() {
            match structure {
                Structure::Block(block) if block.ident.as_str() == "variable" => {
                    scope.variable(block, sink);
                }
                Structure::Block(block) if block.ident.as_str() == "locals" => {
                    scope.add_locals(block, sink);
                }
                _ => {}
            }
        }
        scope
    }

    fn variable(&mut self, block: &'a Block, sink: &mut Sink) {
        let header = place(block.ident.span());
        let [label] = block.labels.as_slice() else {
            sink.error(header, "a variable needs one name; write variable \"name\" { … }");
            return;
        };
        let at = place(label.span());
        let mut default = None;
        for structure in block.body.iter() {
            match structure {
                Structure::Attribute(attribute) => {
                    let key = attribute.key.as_str();
                    if key == "default" {
                        default = Some(&attribute.value);
                    } else if !VARIABLE_KEYS.contains(&key) {
                        unknown_key(key, place(attribute.key.span()), sink);
                    }
                }
                Structure::Block(inner) => {
                    let at = place(inner.ident.span());
                    if inner.ident.as_str() == "validation" {
                        let message = "validation is valid in Nomad, not supported by Ostler yet";
                        sink.error(at, message);
                    } else {
                        unknown_key(inner.ident.as_str(), at, sink);
                    }
                }
            }
        }
        if default.is_none() {
            let message = "a variable needs a default; other ways to give it a value are not supported by Ostler yet";
            sink.error(at, message);
        }
        if self.variables.insert(label.as_str(), default).is_some() {
            sink.error(at, format!("a variable {} is here already", shown(label.as_str())));
        }
    }

    fn add_locals(&mut self, block: &'a Block, sink: &mut Sink) {
        if let Some(label) = block.labels.first() {
            sink.error(place(label.span()), "locals takes no label");
        }
        for structure in block.body.iter() {
            match structure {
                Structure::Attribute(attribute) => {
                    let name = attribute.key.as_str();
                    if self.locals.insert(name, &attribute.value).is_some() {
                        let at = place(attribute.key.span());
                        sink.error(at, format!("a local {} is here already", shown(name)));
                    }
                }
                Structure::Block(inner) => {
                    sink.error(place(inner.ident.span()), "locals holds no blocks; write name = …");
                }
            }
        }
    }
}

fn unknown_key(key: &str, at: Span, sink: &mut Sink) {
    let instead = sink.nearest(key, VARIABLE_KEYS);
    sink.suggest(at, format!("{} is unknown in a variable", shown(key)), instead);
}
