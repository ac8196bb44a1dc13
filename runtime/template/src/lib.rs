//! The language of `template` blocks: Go's text templates with the functions of consul-template, as far as
//! a node answers them by itself.
//!
//! ```text
//!   text ─► lex ─► tokens ─► parse ─► Template      once; every mistake has line and column
//!   Template + Outside ─► eval ─► Rendered           bounded in steps, depth and bytes
//!                  ▲                  └ what it used of the outside, and what was not there
//!                  └ time, environment, files, services, variables: one small trait
//! ```
//! Pure: what a template may see of the world comes in through [`Outside`], so a render has no effect and
//! the same answers give the same bytes. Start with [`Template`]; the functions are listed in
//! [`functions`].

mod compare;
mod error;
mod eval;
pub mod functions;
mod lex;
pub mod node;
mod number;
mod outside;
mod parse;
mod print;
mod printf;
mod sink;
mod tree;
mod value;
mod values;

pub use self::error::{TemplateError, TemplateProblem};
pub use self::outside::{Dependency, Outside, OutsideAnswer};
pub use self::parse::{Delimiters, Template};
pub use self::value::{List, Map, MapKind, Told, Value};

use std::collections::BTreeSet;

use ostler_model::limits::{
    TEMPLATE_NESTING_MAX, TEMPLATE_OUTPUT_BYTES_MAX, TEMPLATE_STEPS_MAX, TEMPLATE_WORK_BYTES_MAX,
};

/// How a template is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// A key that a map lacks is an error. Otherwise it is nothing, which reads `<no value>`.
    pub error_on_missing_key: bool,
    /// Largest output, bytes.
    pub output_bytes_max: usize,
    /// Most that functions may produce together on the way, bytes.
    pub work_bytes_max: usize,
    /// Most actions, turns of loops and calls.
    pub steps_max: u64,
    /// Deepest nesting of blocks and templates while it is rendered.
    pub nesting_max: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            error_on_missing_key: false,
            output_bytes_max: TEMPLATE_OUTPUT_BYTES_MAX,
            work_bytes_max: TEMPLATE_WORK_BYTES_MAX,
            steps_max: TEMPLATE_STEPS_MAX,
            nesting_max: TEMPLATE_NESTING_MAX,
        }
    }
}

/// A rendered template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text. Bytes: what `base64Decode` gives need not be UTF-8.
    pub output: Vec<u8>,
    /// What it depends on: when one of these changes, it may read otherwise.
    pub used: BTreeSet<Dependency>,
    /// What of it is not there yet. The output is not to be used while there is any.
    pub missing: BTreeSet<Dependency>,
}
