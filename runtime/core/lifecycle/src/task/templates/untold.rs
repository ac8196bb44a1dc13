//! Keeps, over a restart of the agent, which templates have changes that the task was not
//! told of yet.
//!
//! ```text
//! reads otherwise ─► kept here ─► its file written ─► splay ─► change mode carried out ─► taken away
//!                                                                restart: taken away when the next run
//!                                                                         has rendered them all
//! ```
//! The next agent compares each file with what its template renders, and sees no difference once
//! the file is written. So the change is recorded before. Whenever an agent is killed, the next
//! one finds the old file or the record: it may tell a task twice, but never not at all. The
//! record lies beside the directory of the task, where no task writes, under a name that no task
//! can have, and goes with the allocation. After a stop of the machine nobody needs it, since no
//! run outlives that.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::disk;
use super::place::TemplateDirs;
use ostler_model::ids::TaskName;
use ostler_model::time::Timestamp;
use ostler_template::limits::TEMPLATE_BYTES_MAX;

/// The name of the record of a task. Each line of it is the number of a template.
pub(super) fn file_of(task: &TaskName) -> PathBuf {
    PathBuf::from(format!("templates of {task} not told"))
}

impl TemplateDirs {
    /// Record that the task was not told of these templates. This replaces the record.
    pub(super) fn keep_untold(&self, untold: &BTreeSet<usize>, now: Timestamp) -> io::Result<()> {
        let (dir, task) = self.agent_dir();
        let lines: String = untold.iter().map(|number| format!("{number}\n")).collect();
        let attributes = disk::Attributes::of_agent(now);
        disk::write(dir, &file_of(task), lines.as_bytes(), &attributes)
    }

    /// The templates that an earlier agent did not tell the task of.
    pub(super) fn read_untold(&self) -> BTreeSet<usize> {
        let (dir, task) = self.agent_dir();
        match disk::read(dir, &file_of(task), TEMPLATE_BYTES_MAX as u64) {
            Ok(lines) => parse_numbers(&lines),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%task, %error, "whether the task is to be told of its templates is not known");
                }
                BTreeSet::new()
            }
        }
    }

    /// Remove the record: the task was told of all changes, or begins with the new contents.
    pub(super) fn clear_untold(&self) {
        let (dir, task) = self.agent_dir();
        match dir.remove_file(file_of(task)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%task, %error, "a later agent tells the task once more of its templates");
            }
            _ => {}
        }
    }
}

fn parse_numbers(lines: &[u8]) -> BTreeSet<usize> {
    String::from_utf8_lossy(lines).lines().filter_map(|line| line.parse().ok()).collect()
}
