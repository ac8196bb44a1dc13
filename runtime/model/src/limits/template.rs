//! What the templates of a task may use.

use super::{KIB, MIB};
use std::time::Duration;

/// Most `template` blocks of one task. Jobs have up to ten.
pub const TEMPLATES_MAX: usize = 64;
/// Largest text of a template, bytes: what a job file may be, and a source is no larger.
pub const TEMPLATE_BYTES_MAX: usize = 2 * MIB as usize;
/// Largest file that a template reads, bytes: it is held while the template is rendered.
pub const TEMPLATE_FILE_BYTES_MAX: u64 = 2 * MIB;
/// Largest output of a template, bytes. Configurations are far below; data comes as an artifact.
pub const TEMPLATE_OUTPUT_BYTES_MAX: usize = 8 * MIB as usize;
/// Most that the functions of a template make on the way, bytes, over one render.
pub const TEMPLATE_WORK_BYTES_MAX: usize = 64 * MIB as usize;
/// Most actions, turns of loops and calls of one render: a second of work.
pub const TEMPLATE_STEPS_MAX: u64 = 1_000_000;
/// Deepest nesting of blocks, parentheses and templates, levels: each takes a part of the stack.
pub const TEMPLATE_NESTING_MAX: usize = 100;
/// Deepest nesting of lists and maps of a value, levels. What programs read stays below ten.
pub const TEMPLATE_VALUE_NESTING_MAX: usize = 64;
/// Time between two looks at the files that templates read, as with stock clients.
pub const TEMPLATE_LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// Longest names that stand around the actions of a template, bytes.
pub const TEMPLATE_DELIMITER_BYTES_MAX: usize = 16;
/// Longest `splay` and `wait` of a template.
pub const TEMPLATE_WAIT_MAX: Duration = Duration::from_secs(24 * 3_600);
/// Largest output of a change script that is kept for its event, bytes.
pub const TEMPLATE_SCRIPT_OUTPUT_BYTES_MAX: usize = 4 * KIB as usize;
/// How long a task waits before its start for data that its templates name and that does not exist yet. Then
/// it fails, and its restart policy decides what comes next.
pub const TEMPLATE_MISSING_WALL_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// Pause between the news that services or variables changed and the next look at them: changes of many
/// allocations that come together are handled once.
pub const TEMPLATE_TOLD_PAUSE: Duration = Duration::from_millis(100);
