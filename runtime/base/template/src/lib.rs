//! The language of `template` blocks: Go's text templates, with those functions of consul-template that a node
//! can answer by itself.
//!
//! ```text
//!   text ─► lex ─► tokens ─► parse ─► Template      once; every mistake has line and column
//!   Template + Outside ─► eval ─► Rendered           bounded in steps, depth and bytes
//!                  ▲                  └ what it used of the outside, and what was not there
//!                  └ time, environment, files, services, variables: one small trait
//! ```
//! It knows nothing of jobs and of nodes: a template reads the world through [`Outside`] alone. So a rendering has no effect, and the same
//! answers give the same bytes. Start with [`Template`]; the functions are listed in [`functions`].

mod compare;
mod error;
mod eval;
pub mod functions;
mod lex;
pub mod limits;
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
pub use self::value::{MapKind, TextWithFields, Value, ValueList, ValueMap};
pub use self::values::time::format_time;

use std::collections::BTreeSet;

use limits::{
    TEMPLATE_NESTING_MAX, TEMPLATE_OUTPUT_BYTES_MAX, TEMPLATE_STEPS_MAX, TEMPLATE_WORK_BYTES_MAX,
};

/// How a template is rendered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether a key that a map lacks is an error. Otherwise it is nothing, which is printed as `<no value>`.
    pub error_on_missing_key: bool,
    /// The largest output, in bytes.
    pub output_bytes_max: usize,
    /// The most bytes that all functions together may produce during the rendering.
    pub work_bytes_max: usize,
    /// The largest number of steps: actions, turns of loops and calls.
    pub steps_max: u64,
    /// The deepest nesting of blocks and templates during the rendering.
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
pub struct RenderedTemplate {
    /// The text, as bytes: the result of `base64Decode` need not be UTF-8.
    pub output: Vec<u8>,
    /// What the output depends on: when one of these changes, the output may change.
    pub used: BTreeSet<Dependency>,
    /// Those of the dependencies that do not exist yet. While there is any, the output must not be used.
    pub missing: BTreeSet<Dependency>,
}
