//! Reads HCL into the tree.
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
//! and shell-like `${NAME}` are known only later, and stay in the text as they are. While expressions are
//! evaluated, literals and references are told apart ([`value`]). The tree has the text of HCL2, in which `$${` has
//! become `${`, as it would stand in a job in JSON.
//!
//! The evaluator is Ostler's own: that of `hcl-rs` has neither places nor bounds, treats names that are known only
//! later as errors, and has no functions.

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

use crate::diagnostic::{Sink, Span, quote_text};
use crate::inputs::Inputs;
use crate::tree::{AttributeItem, Block, Body, Item, SpannedKey, SpannedValue, ValueKind};
use eval::Evaluator;
use scope::{DECLARATIONS, NameScope};

/// The largest number of repeated attributes in a file that are worked around, so that other problems are seen too.
const REPEATS_MAX: usize = 16;
/// The largest file for which this is done, in bytes: each repeated attribute costs another parse.
const REPEATS_FILE_BYTES_MAX: usize = 64 * 1024;

/// Read a text as HCL. `None` means that it has no structure to go on with, and the reason is in `sink`. The body
/// holds everything at the top of the file, except declarations of variables and locals.
pub(super) fn read(text: &str, inputs: &Inputs, sink: &mut Sink) -> Option<Body> {
    if !scan::scan(text, sink) {
        return None;
    }
    let (body, renamed) = parse(text, sink)?;
    let scope = NameScope::new(&body, sink);
    let mut eval = Evaluator::new(&scope, inputs);
    eval.take_inputs(sink);
    eval.evaluate_all(sink);
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

/// Parse a text. An attribute that is given twice is reported and renamed in a copy, and the copy is parsed again.
/// The second value has the original names by position.
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
                sink.error(span, format!("{} is given twice", quote_text(&original)));
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
        if let Some((span, message)) = scan::find_shell_text(text) {
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

/// A name of this length that nobody writes.
fn placeholder(length: usize, number: usize) -> Option<String> {
    let suffix = format!("{number:02}");
    let fill = length.checked_sub(suffix.len() + 1)?;
    Some(format!("Z{}{suffix}", "_".repeat(fill)))
}

/// Turns the structures of the parser into the tree.
struct TreeReader<'a> {
    eval: Evaluator<'a>,
    renamed: &'a BTreeMap<usize, String>,
    sink: &'a mut Sink,
    /// The number of dynamic blocks around the present place. Each one repeats what is read.
    repeats: usize,
}

impl TreeReader<'_> {
    fn item(&mut self, structure: &Structure, into: &mut Vec<Item>) {
        match structure {
            Structure::Attribute(attribute) => {
                let span = place(attribute.key.span());
                // The repeated attribute was reported already.
                if self.renamed.contains_key(&span.start) {
                    return;
                }
                if self.pay_attribute(attribute.key.as_str(), span).is_none() {
                    return;
                }
                let at = place(attribute.value.span());
                let refused = SpannedValue { kind: ValueKind::Refused, span: at };
                let value = self.eval.value(&attribute.value, self.sink);
                let value = value.map_or(refused, value::Val::into_tree);
                let key = SpannedKey::new(attribute.key.as_str(), span);
                into.push(Item::Attribute(AttributeItem { key, value }));
            }
            Structure::Block(block) if block.ident.as_str() == "dynamic" => {
                self.dynamic(block, into);
            }
            Structure::Block(block) => {
                let key = SpannedKey::new(block.ident.as_str(), place(block.ident.span()));
                let labels: Vec<_> = block.labels.iter().map(|label| label.as_str()).collect();
                if self.pay_block(&key, &labels).is_none() {
                    return;
                }
                let labels = block.labels.iter();
                let labels = labels.map(|l| SpannedKey::new(l.as_str(), place(l.span()))).collect();
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

/// A span of the parser, which has one for everything that it read from text.
fn place(span: Option<std::ops::Range<usize>>) -> Span {
    span.map(Span::from).unwrap_or_default()
}
