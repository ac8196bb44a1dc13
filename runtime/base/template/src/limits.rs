//! The bounds of the language.

const MIB: usize = 1024 * 1024;

/// Largest text of a template, bytes: what a job file may be, and a source is no larger.
pub const TEMPLATE_BYTES_MAX: usize = 2 * MIB;
/// Largest output of a template, bytes. Configurations are far below; data comes as an artifact.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 8 * MIB;
/// Most that the functions of a template make on the way, bytes, over one render.
pub const TEMPLATE_WORK_BYTES_MAX: usize = 64 * MIB;
/// Most actions, turns of loops and calls of one render: a second of work.
pub const TEMPLATE_STEPS_MAX: u64 = 1_000_000;
/// Deepest nesting of blocks, parentheses and templates, levels: each takes a part of the stack.
pub const TEMPLATE_NESTING_MAX: usize = 100;
/// Deepest nesting of lists and maps of a value, levels. What programs read stays below ten.
pub const TEMPLATE_VALUE_NESTING_MAX: usize = 64;
