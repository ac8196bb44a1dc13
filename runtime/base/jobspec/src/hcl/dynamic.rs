//! Expands `dynamic "name" { for_each = … content { … } }` into a block for each element.

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, Traversal};
use hcl_edit::structure::{Block as HclBlock, Body as HclBody, Structure};

use super::loops::LoopElement;
use super::value::{Val, ValKind};
use super::{TreeReader, place};
use crate::diagnostic::{Span, quote_text};
use crate::tree::{Block, Item, SpannedKey};

/// The cost of a block beside its values and names. It includes what the block becomes in the job.
const BLOCK_COST: usize = 1_024;
/// The cost of an attribute beside its value and name.
const ATTRIBUTE_COST: usize = 64;

/// The keys of a dynamic block.
const KEYS: [&str; 4] = ["for_each", "iterator", "labels", "content"];

/// The parts of a dynamic block.
struct Dynamic<'a> {
    key: SpannedKey,
    for_each: &'a Expression,
    /// The name of an element inside of the content.
    iterator: String,
    labels: Option<&'a Expression>,
    content: &'a HclBody,
}

impl TreeReader<'_> {
    /// Add the blocks that a dynamic block stands for.
    pub(super) fn dynamic(&mut self, block: &HclBlock, into: &mut Vec<Item>) {
        let Some(dynamic) = self.parse_dynamic(block) else { return };
        let Some(entries) = self.eval.entries(dynamic.for_each, self.sink) else { return };
        for entry in entries {
            let frames = self.eval.frames.len();
            self.eval.frames.push((dynamic.iterator.clone(), iteration(entry)));
            self.repeats += 1;
            let made = self.generate_block(&dynamic);
            self.repeats -= 1;
            self.eval.frames.truncate(frames);
            match made {
                Some(block) => into.push(Item::Block(block)),
                // The problems of one element are enough: the expansion ends here.
                None => return,
            }
        }
    }

    fn generate_block(&mut self, dynamic: &Dynamic<'_>) -> Option<Block> {
        self.pay_block(&dynamic.key, &[])?;
        let mut labels = Vec::new();
        if let Some(expr) = dynamic.labels {
            let value = self.eval.value(expr, self.sink)?;
            let ValKind::List(_, items) = value.kind else {
                return self.sink.refuse(value.span, "labels must be a list of texts");
            };
            for item in items {
                match item.kind.to_characters() {
                    Some(text) => {
                        self.pay_copy(text.len(), item.span)?;
                        labels.push(SpannedKey::new(text, item.span));
                    }
                    None => {
                        let kind = item.kind.describe();
                        return self
                            .sink
                            .refuse(item.span, format!("a label is a text, not {kind}"));
                    }
                }
            }
        }
        let errors = self.sink.count();
        let body = self.body(dynamic.content);
        let fine = self.sink.count() == errors;
        fine.then(|| Block { key: dynamic.key.clone(), labels, body })
    }

    /// Count a block that stands in the content of a dynamic block, because it is made for each element.
    pub(super) fn pay_block(&mut self, key: &SpannedKey, labels: &[&str]) -> Option<()> {
        let labels = labels.iter().map(|label| label.len()).fold(0, usize::saturating_add);
        self.pay_copy(BLOCK_COST.saturating_add(key.name.len()).saturating_add(labels), key.span)
    }

    /// Count an attribute in the same way, without its value.
    pub(super) fn pay_attribute(&mut self, name: &str, at: Span) -> Option<()> {
        self.pay_copy(ATTRIBUTE_COST.saturating_add(name.len()), at)
    }

    /// Count bytes if they are in the content of a dynamic block. Everything else stands in the file once, and the
    /// size of the file is bounded.
    fn pay_copy(&mut self, bytes: usize, at: Span) -> Option<()> {
        let amount = u64::try_from(bytes).unwrap_or(u64::MAX);
        (self.repeats == 0 || self.eval.pay(amount, at, self.sink)).then_some(())
    }

    fn parse_dynamic<'a>(&mut self, block: &'a HclBlock) -> Option<Dynamic<'a>> {
        let header = place(block.ident.span());
        let [label] = block.labels.as_slice() else {
            let message =
                "dynamic takes the name of the blocks it stands for; write dynamic \"name\" { … }";
            return self.sink.refuse(header, message);
        };
        let key = SpannedKey::new(label.as_str(), place(label.span()));
        let (mut for_each, mut labels, mut content) = (None, None, None);
        let mut iterator = key.name.clone();
        for structure in block.body.iter() {
            match structure {
                Structure::Attribute(attribute) => match attribute.key.as_str() {
                    "for_each" => for_each = Some(&attribute.value),
                    "labels" => labels = Some(&attribute.value),
                    "iterator" => match name_of(&attribute.value) {
                        Some(name) => iterator = name,
                        None => {
                            let at = place(attribute.value.span());
                            return self.sink.refuse(at, "iterator must be a name without quotes");
                        }
                    },
                    name => self.report_unknown(name, place(attribute.key.span())),
                },
                Structure::Block(inner) if inner.ident.as_str() == "content" => {
                    if content.replace(&inner.body).is_some() {
                        let at = place(inner.ident.span());
                        return self.sink.refuse(at, "a dynamic block has one content");
                    }
                }
                Structure::Block(inner) => {
                    self.report_unknown(inner.ident.as_str(), place(inner.ident.span()));
                }
            }
        }
        let (Some(for_each), Some(content)) = (for_each, content) else {
            let message = "a dynamic block needs for_each = … and content { … }";
            return self.sink.refuse(header, message);
        };
        Some(Dynamic { key, for_each, iterator, labels, content })
    }

    fn report_unknown(&mut self, name: &str, at: Span) {
        let instead = self.sink.nearest(name, KEYS);
        let message = format!("{} is unknown in a dynamic block", quote_text(name));
        self.sink.suggest(at, message, instead);
    }
}

/// The object with `key` and `value` of an element.
fn iteration((key, value): LoopElement) -> Val {
    let at = value.span;
    let members = [("key", key), ("value", value)];
    let members = members.map(|(name, value)| (name.to_owned(), (at, value)));
    Val::new(ValKind::Object(members.into_iter().collect()), at)
}

fn name_of(expr: &Expression) -> Option<String> {
    match expr {
        Expression::Variable(name) => Some(name.as_str().to_owned()),
        Expression::Traversal(path) => {
            let Traversal { expr, operators, .. } = &**path;
            name_of(expr).filter(|_| operators.is_empty())
        }
        _ => None,
    }
}
