//! Collects the declarations of a file: `variable`, `variables` and `locals`.

use std::collections::BTreeMap;

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, TraversalOperator};
use hcl_edit::structure::{Block, Body, Structure};
use hcl_edit::visit::{Visit, visit_expr};

use super::place;
use super::types::Type;
use crate::diagnostic::{Sink, Span, quote_text};

/// The keys of a `variable` block. `description` and `sensitive` have no effect here.
const VARIABLE_KEYS: [&str; 4] = ["default", "type", "description", "sensitive"];
/// The keys of a `validation` block.
const VALIDATION_KEYS: [&str; 2] = ["condition", "error_message"];

/// The names of the blocks that declare variables or locals.
pub(super) const DECLARATIONS: [&str; 3] = ["variable", "variables", "locals"];

/// The declaration of a variable.
pub(super) struct VariableDeclaration<'a> {
    /// The place of its name.
    pub at: Span,
    /// The value that it has when none is given.
    pub default: Option<&'a Expression>,
    /// The type of its values, if the declaration has one.
    pub wanted: Option<Type>,
    /// The rules that its value has to satisfy.
    pub rules: Vec<ValidationRule<'a>>,
    /// Whether the declaration has a problem, which was reported. The variable has no value then.
    pub broken: bool,
}

/// The rule of a `validation` block: a condition, and the message for when it does not hold.
pub(super) struct ValidationRule<'a> {
    pub condition: &'a Expression,
    pub message: &'a Expression,
    pub at: Span,
}

/// The declared variables and locals of a file.
#[derive(Default)]
pub(super) struct NameScope<'a> {
    /// The variables, which expressions refer to as `var.x`.
    pub variables: BTreeMap<&'a str, VariableDeclaration<'a>>,
    /// The locals, which expressions refer to as `local.x`.
    pub locals: BTreeMap<&'a str, &'a Expression>,
}

impl<'a> NameScope<'a> {
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

    fn declare(&mut self, name: &'a str, declared: VariableDeclaration<'a>, sink: &mut Sink) {
        let at = declared.at;
        if self.variables.contains_key(name) {
            sink.error(at, format!("a variable {} is already defined", quote_text(name)));
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
        let mut declared = VariableDeclaration {
            at,
            default: None,
            wanted: None,
            rules: Vec::new(),
            broken: false,
        };
        if !is_name(name) {
            let message = "a variable's name may only have letters, digits, _ and -, and begins with a letter or _";
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

    /// Add the variables of a block `variables { name = default }`.
    fn add_variables(&mut self, block: &'a Block, sink: &mut Sink) {
        for (name, at, default) in attributes(block, "variables", sink) {
            let default = Some(default);
            let declared =
                VariableDeclaration { at, default, wanted: None, rules: Vec::new(), broken: false };
            self.declare(name, declared, sink);
        }
    }

    fn add_locals(&mut self, block: &'a Block, sink: &mut Sink) {
        for (name, at, value) in attributes(block, "locals", sink) {
            if self.locals.insert(name, value).is_some() {
                sink.error(at, format!("a local {} is already defined", quote_text(name)));
            }
        }
    }
}

/// The attributes of a block that may hold nothing else. Other content is reported.
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

/// The rule of a `validation` block. A problem of the block is reported.
fn rule<'a>(variable: &str, block: &'a Block, sink: &mut Sink) -> Option<ValidationRule<'a>> {
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
    Some(ValidationRule { condition, message, at })
}

/// Finds out which variables and locals an expression refers to.
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

/// Whether a text is a name in HCL.
fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-'))
}

fn unknown_key(key: &str, what: &str, known: &[&str], at: Span, sink: &mut Sink) {
    let instead = sink.nearest(key, known.iter().copied());
    sink.suggest(at, format!("{} is unknown in {what}", quote_text(key)), instead);
}
