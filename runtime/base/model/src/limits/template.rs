//! What the templates of a task may use beside the bounds of the language.

use super::{KIB, MIB};
use std::time::Duration;

/// Most `template` blocks of one task. Jobs have up to ten.
pub const TEMPLATES_MAX: usize = 64;
/// Largest file that a template reads, bytes: it is held while the template is rendered.
pub const TEMPLATE_FILE_BYTES_MAX: u64 = 2 * MIB;
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
