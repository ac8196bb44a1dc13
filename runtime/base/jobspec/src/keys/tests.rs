//! What holds of every description.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod acted_on;
mod config_acted_on;
pub(crate) mod reference;
mod samples;

use super::{BlockSchema, Field, FieldShape, Keys as _};
use crate::Syntax;
use crate::decode::agent::AgentKeys;
use crate::decode::job::JobKeys;
use crate::decode::task::TaskKeys;
use crate::decode::trust::TrustFileKeys;

/// A block of a file.
struct Described {
    /// Its names in HCL; none for the file itself.
    names: Vec<&'static str>,
    /// The blocks it stands in.
    around: Vec<&'static BlockSchema>,
    schema: &'static BlockSchema,
}

impl Described {
    fn title(&self) -> String {
        self.names.join(", ")
    }
}

/// Every block of a file, each once, before those it holds.
fn blocks(root: &'static BlockSchema) -> Vec<Described> {
    let mut all = vec![Described { names: Vec::new(), around: Vec::new(), schema: root }];
    add_inner(root, &mut all);
    all
}

fn add_inner(outer: &'static BlockSchema, all: &mut Vec<Described>) {
    for field in outer.fields {
        let FieldShape::Block { schema, .. } = field.shape else { continue };
        let known = all.iter_mut().find(|block| block.schema.what == schema.what);
        let is_new = known.is_none();
        match known {
            Some(block) => {
                if !block.around.iter().any(|known| known.what == outer.what) {
                    block.around.push(outer);
                }
                if !field.hcl.is_empty() && !block.names.contains(&field.hcl) {
                    block.names.push(field.hcl);
                }
            }
            None => all.push(Described { names: vec![field.hcl], around: vec![outer], schema }),
        }
        if is_new {
            add_inner(schema, all);
        }
    }
}

fn files() -> [&'static BlockSchema; 3] {
    [JobKeys::SCHEMA, AgentKeys::SCHEMA, TrustFileKeys::SCHEMA]
}

#[test]
fn no_name_is_in_a_block_twice() {
    for Described { schema, .. } in files().into_iter().flat_map(blocks) {
        for format in [Syntax::Hcl, Syntax::Json] {
            let mut names: Vec<_> = schema.names(format).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all, "{}", schema.what);
        }
        for field in schema.fields {
            assert!(!(field.hcl.is_empty() && field.json.is_empty()), "{}", schema.what);
        }
    }
}

#[test]
fn suggestions_prefer_what_is_supported() {
    for Described { schema, .. } in files().into_iter().flat_map(blocks) {
        let is_known = |field: &Field| {
            !matches!(field.shape, FieldShape::Unsupported { .. } | FieldShape::Served)
        };
        assert!(schema.fields.is_sorted_by_key(|field| !is_known(field)), "{}", schema.what);
    }
    assert!(TaskKeys::SCHEMA.names(Syntax::Hcl).all(|name| !name.is_empty()));
}

#[test]
fn every_key_says_what_it_does_and_what_holds_without_it() {
    for Described { schema, .. } in files().into_iter().flat_map(blocks) {
        for (index, field) in schema.fields.iter().enumerate() {
            if matches!(field.shape, FieldShape::Unsupported { .. } | FieldShape::Served) {
                continue;
            }
            let (what, key) = (schema.what, field.hcl);
            assert!(field.doc.text.trim().ends_with('.'), "{what}: {key}");
            let optional = matches!(
                field.shape,
                FieldShape::Block { .. }
                    | FieldShape::TextMap
                    | FieldShape::TextListMap
                    | FieldShape::Free
            );
            let default = reference::default(schema, index);
            assert!(optional || default.is_some(), "{what}: {key} has no default");
        }
    }
}
