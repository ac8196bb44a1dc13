//! What a file declares: `variable`, `variables` and `locals`.

use std::collections::BTreeMap;

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, TraversalOperator};
use hcl_edit::structure::{Block, Body, Structure};
use hcl_edit::visit::{Visit, visit_expr};

use super::super::diagnostic::{Sink, Span, shown};
use super::place;
use super::types::Type;

/// Keys of a `variable` block. `description` and `sensitive` change nothing here.
const VARIABLE_KEYS: [&str; 4] = ["default", "type", "description", "sensitive"];
/// Keys of its `validation` blocks.
const VALIDATION_KEYS: [&str; 2] = ["condition", "error_message"];

/// The blocks that declare.
pub(super) const DECLARATIONS: [&str; 3] = ["variable", "variables", "locals"];

/// A variable.
pub(super) struct Declared<'a> {
    /// Where its name stands.
    pub at: Span,
    /// What it is where nobody gives it a value.
    pub default: Option<&'a Expression>,
    /// What values it takes.
    pub wanted: Option<Type>,
    /// What has to hold of its value.
    pub rules: Vec<Rule<'a>>,
    /// Something of it is wrong, which was reported: it has no value.
    pub broken: bool,
}

/// A `validation` block.
pub(super) struct Rule<'a> {
    pub condition: &'a Expression,
    pub message: &'a Expression,
    pub at: Span,
}

/// Declared names.
#[derive(Default)]
pub(super) struct Scope<'a> {
    /// `var.x`.
    pub variables: BTreeMap<&'a str, Declared<'a>>,
    /// `local.x`.
    pub locals: BTreeMap<&'a str, &'a Expression>,
}

impl<'a> Scope<'a> {
    /// Collect the declarations of a file.
    pub(super) fn new(body: &'a Body, sink: &mut Sink) -> Self {
        let mut scope = Self::default();
        for structure in body.iter() {
            let Structure::Block(block) = structure else { continue };
            match block.ident.as_str() {
                "variable" => scope.variable(block, sink),
                "variables" => scope.add_variables(block, sink),
                "locals" => scope.add_locals(block, sink),
                _ => {}
            }
        }
        scope
    }

    fn declare(&mut self, name: &'a str, declared: Declared<'a>, sink: &mut Sink) {
        let at = declared.at;
        if self.variables.contains_key(name) {
            sink.error(at, format!("a variable {} is here already", shown(name)));
        } else {
            self.variables.insert(name, declared);
        }
    }

    fn variable(&mut self, block: &'a Block, sink: &mut Sink) {
        let header = place(block.ident.span());
        let [label] = block.labels.as_slice() else {
            sink.error(header, "a variable needs one name; write variable \"name\" { … }");
            return;
        };
        let (name, at) = (label.as_str(), place(label.span()));
        let mut declared =
            Declared { at, default: None, wanted: None, rules: Vec::new(), broken: false };
        if !is_name(name) {
            let message = "a variable's name has letters, digits, _ and - alone, and begins with a letter or _";
            sink.error(at, message);
            declared.broken = true;
        }
        for structure in block.body.iter() {
            match structure {
                Structure::Attribute(attribute) => {
                    let key_at = place(attribute.key.span());
                    match attribute.key.as_str() {
                        "default" => declared.default = Some(&attribute.value),
                        "type" => match Type::read(&attribute.value) {
                            Ok(wanted) => declared.wanted = Some(wanted),
                            Err(message) => {
                                sink.error(place(attribute.value.span()), message);
                                declared.broken = true;
                            }
                        },
                        "description" | "sensitive" => {}
                        key => unknown_key(key, "a variable", &VARIABLE_KEYS, key_at, sink),
                    }
                }
                Structure::Block(inner) if inner.ident.as_str() == "validation" => {
                    declared.rules.extend(rule(name, inner, sink));
                }
                Structure::Block(inner) => {
                    let at = place(inner.ident.span());
                    unknown_key(inner.ident.as_str(), "a variable", &VARIABLE_KEYS, at, sink);
                }
            }
        }
        self.declare(name, declared, sink);
    }

    /// `variables { name = default }`
    fn add_variables(&mut self, block: &'a Block, sink: &mut Sink) {
        for (name, at, default) in attributes(block, "variables", sink) {
            let default = Some(default);
            let declared = Declared { at, default, wanted: None, rules: Vec::new(), broken: false };
            self.declare(name, declared, sink);
        }
    }

    fn add_locals(&mut self, block: &'a Block, sink: &mut Sink) {
        for (name, at, value) in attributes(block, "locals", sink) {
            if self.locals.insert(name, value).is_some() {
                sink.error(at, format!("a local {} is here already", shown(name)));
            }
        }
    }
}

/// The attributes of a block that holds nothing else.
fn attributes<'a>(
    block: &'a Block,
    what: &str,
    sink: &mut Sink,
) -> Vec<(&'a str, Span, &'a Expression)> {
    if let Some(label) = block.labels.first() {
        sink.error(place(label.span()), format!("{what} takes no label"));
    }
    let mut found = Vec::new();
    for structure in block.body.iter() {
        match structure {
            Structure::Attribute(attribute) => {
                let at = place(attribute.key.span());
                found.push((attribute.key.as_str(), at, &attribute.value));
            }
            Structure::Block(inner) => {
                let at = place(inner.ident.span());
                sink.error(at, format!("{what} holds no blocks; write name = …"));
            }
        }
    }
    found
}

/// A `validation` block, or what is wrong with it.
fn rule<'a>(variable: &str, block: &'a Block, sink: &mut Sink) -> Option<Rule<'a>> {
    let at = place(block.ident.span());
    let (mut condition, mut message) = (None, None);
    for structure in block.body.iter() {
        match structure {
            Structure::Attribute(attribute) => match attribute.key.as_str() {
                "condition" => condition = Some(&attribute.value),
                "error_message" => message = Some(&attribute.value),
                key => {
                    let at = place(attribute.key.span());
                    unknown_key(key, "a validation", &VALIDATION_KEYS, at, sink);
                }
            },
            Structure::Block(inner) => {
                let (key, at) = (inner.ident.as_str(), place(inner.ident.span()));
                unknown_key(key, "a validation", &VALIDATION_KEYS, at, sink);
            }
        }
    }
    let (Some(condition), Some(message)) = (condition, message) else {
        return sink.refuse(at, "a validation needs a condition and an error_message");
    };
    let mut looked = Names { of: variable, itself: false, other: None };
    looked.visit_expr(condition);
    if let Some(other) = looked.other {
        let message = format!("the condition can refer to var.{variable} alone");
        return sink.refuse(other, message);
    }
    if !looked.itself {
        let at = place(condition.span());
        return sink.refuse(at, format!("the condition has to look at var.{variable}"));
    }
    Some(Rule { condition, message, at })
}

/// Which variables and locals an expression refers to.
struct Names<'a> {
    of: &'a str,
    itself: bool,
    other: Option<Span>,
}

impl Visit for Names<'_> {
    fn visit_expr(&mut self, expr: &Expression) {
        if let Expression::Traversal(path) = expr
            && let Expression::Variable(root) = &path.expr
            && matches!(root.as_str(), "var" | "local")
        {
            let first = path.operators.first().map(|operator| operator.value());
            let named =
                matches!(first, Some(TraversalOperator::GetAttr(name)) if name.as_str() == self.of);
            if named && root.as_str() == "var" {
                self.itself = true;
            } else {
                self.other = Some(place(expr.span()));
            }
        }
        visit_expr(self, expr);
    }
}

/// What HCL takes for a name.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

fn unknown_key(key: &str, what: &str, known: &[&str], at: Span, sink: &mut Sink) {
    let instead = sink.nearest(key, known.iter().copied());
    sink.suggest(at, format!("{} is unknown in {what}", shown(key)), instead);
}
