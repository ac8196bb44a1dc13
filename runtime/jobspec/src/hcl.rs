//! HCL → tree.
//!
//! ```text
//! text ─ scan: nesting and size bounds ─► hcl-edit ─► variables and their inputs, locals
//!                                                      │ every expression evaluated (eval),
//!                                                      │ dynamic blocks written out (dynamic)
//!                                                      ▼
//!                                                     tree::Body
//! ```
//!
//! `${NOMAD_…}`, `${attr.…}`, `${meta.…}`, `${node.…}`, `${env["…"]}`, `${device.…}`, `${job.dir}`
//! and shell-like `${NAME}` are known only later and stay in the text as they are. What is a literal and
//! what a reference is known while expressions are evaluated ([`value`]); the tree has the text of HCL2, in
//! which `$${` has become `${`, as it would stand in a job in JSON.
//!
//! The evaluator is ours: that of `hcl-rs` has neither places nor bounds, takes names that are known
//! only later for errors, and brings no functions.

mod budget;
mod dynamic;
mod eval;
mod functions;
mod loops;
mod names;
mod operators;
mod reference;
mod scan;
mod scope;
mod shell_text;
mod syntax;
mod template;
mod types;
mod value;
mod variables;

use std::collections::BTreeMap;

use hcl_edit::Span as _;
use hcl_edit::structure::{Body as HclBody, Structure};

use super::diagnostic::{Sink, Span, shown};
use super::tree::{Attribute, Block, Body, Item, Key, Value, ValueKind};
use crate::inputs::Inputs;
use eval::Evaluator;
use scope::{DECLARATIONS, Scope};

/// Attributes given twice that are worked around per file, to see the other problems too.
const REPEATS_MAX: usize = 16;
/// Largest file for which that is done, bytes: each one is another parse.
const REPEATS_FILE_BYTES_MAX: usize = 64 * 1024;

/// Read `text` as HCL. `None` when it has no structure to go on with; the reason is in `sink`.
/// The body holds what stands at the top of the file but declarations of variables and locals.
pub(super) fn read(text: &str, inputs: &Inputs, sink: &mut Sink) -> Option<Body> {
    if !scan::scan(text, sink) {
        return None;
    }
    let (body, renamed) = parse(text, sink)?;
    let scope = Scope::new(&body, sink);
    let mut eval = Evaluator::new(&scope, inputs);
    eval.take_inputs(sink);
    eval.all(sink);
    let mut reader = TreeReader { eval, renamed: &renamed, sink, repeats: 0 };
    let mut top = Body::default();
    for structure in body.iter() {
        match structure {
            Structure::Block(block) if DECLARATIONS.contains(&block.ident.as_str()) => {}
            other => reader.item(other, &mut top.items),
        }
    }
    Some(top)
}

/// Parse; an attribute given twice is reported, renamed in a copy, and the copy parsed again. The
/// second value is the original name by position.
fn parse(text: &str, sink: &mut Sink) -> Option<(HclBody, BTreeMap<usize, String>)> {
    let mut copy = text.to_owned();
    let mut renamed = BTreeMap::new();
    loop {
        let error = match hcl_edit::parser::parse_body(&copy) {
            Ok(body) => return Some((body, renamed)),
            Err(error) => error,
        };
        let at = error.location().offset().min(text.len());
        let name = identifier_at(&copy, at);
        if error.message().contains("redefined attribute") && !name.is_empty() {
            let span = Span::new(at, at + name.len());
            let original = renamed.get(&at).cloned().unwrap_or_else(|| name.clone());
            if !renamed.contains_key(&at) {
                sink.error(span, format!("{} is given twice", shown(&original)));
            }
            let more = renamed.len() < REPEATS_MAX && text.len() <= REPEATS_FILE_BYTES_MAX;
            if more && let Some(other) = placeholder(name.len(), renamed.len()) {
                copy.replace_range(at..at + name.len(), &other);
                if renamed.insert(at, original).is_none() {
                    continue;
                }
            }
            return None;
        }
        if let Some((span, message)) = scan::shell_text(text) {
            return sink.refuse(span, message);
        }
        let (span, message) = syntax::explain(&copy, at, error.message());
        return sink.refuse(span, message);
    }
}

fn identifier_at(text: &str, at: usize) -> String {
    let rest = text.get(at..).unwrap_or_default();
    rest.chars().take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-')).collect()
}

/// A name of the same length that nobody writes.
fn placeholder(length: usize, number: usize) -> Option<String> {
    let suffix = format!("{number:02}");
    let fill = length.checked_sub(suffix.len() + 1)?;
    Some(format!("Z{}{suffix}", "_".repeat(fill)))
}

/// Turns the parser's structures into the tree.
struct TreeReader<'a> {
    eval: Evaluator<'a>,
    renamed: &'a BTreeMap<usize, String>,
    sink: &'a mut Sink,
    /// How many dynamic blocks are around what is read: each repeats it.
    repeats: usize,
}

impl TreeReader<'_> {
    fn item(&mut self, structure: &Structure, into: &mut Vec<Item>) {
        match structure {
            Structure::Attribute(attribute) => {
                let span = place(attribute.key.span());
                // The second of two was reported already.
                if self.renamed.contains_key(&span.start) {
                    return;
                }
                if self.pay_attribute(attribute.key.as_str(), span).is_none() {
                    return;
                }
                let at = place(attribute.value.span());
                let refused = Value { kind: ValueKind::Refused, span: at };
                let value = self.eval.value(&attribute.value, self.sink);
                let value = value.map_or(refused, value::Val::into_tree);
                let key = Key::new(attribute.key.as_str(), span);
                into.push(Item::Attribute(Attribute { key, value }));
            }
            Structure::Block(block) if block.ident.as_str() == "dynamic" => {
                self.dynamic(block, into);
            }
            Structure::Block(block) => {
                let key = Key::new(block.ident.as_str(), place(block.ident.span()));
                let labels: Vec<_> = block.labels.iter().map(|label| label.as_str()).collect();
                if self.pay_block(&key, &labels).is_none() {
                    return;
                }
                let labels = block.labels.iter();
                let labels = labels.map(|l| Key::new(l.as_str(), place(l.span()))).collect();
                let body = self.body(&block.body);
                into.push(Item::Block(Block { key, labels, body }));
            }
        }
    }

    fn body(&mut self, body: &HclBody) -> Body {
        let mut items = Vec::new();
        for inner in body.iter() {
            self.item(inner, &mut items);
        }
        Body { items }
    }
}

/// The parser's span; it has one for everything read from text.
fn place(span: Option<std::ops::Range<usize>>) -> Span {
    span.map(Span::from).unwrap_or_default()
}
