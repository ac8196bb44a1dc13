//! Templates whose task was not told yet that they read otherwise, over a restart of the agent.
//!
//! ```text
//! reads otherwise ─► kept here ─► its file written ─► splay ─► change mode carried out ─► taken away
//!                                                                restart: taken away when the next run
//!                                                                         has rendered them all
//! ```
//! The next agent compares each file with what its template reads: it sees no difference once the file is
//! written. So it is kept before. Whenever an agent is killed, the next one finds the old file, or this: it may
//! tell a task twice, but never not at all. It lies beside the directory of the task, where no task writes, and
//! under a name that no task can have; it goes with the allocation. A machine that stops needs none of it,
//! since no run outlives that.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use super::disk;
use super::place::Sandbox;
use ostler_model::ids::TaskName;
use ostler_model::limits::TEMPLATE_BYTES_MAX;
use ostler_model::time::Timestamp;

/// The name of the file. A line is the number of a template.
pub(super) fn file_of(task: &TaskName) -> PathBuf {
    PathBuf::from(format!("templates of {task} not told"))
}

impl Sandbox {
    /// Keep that the task is not told of these, in place of those that were kept.
    pub(super) fn keep_untold(&self, untold: &BTreeSet<usize>, now: Timestamp) -> io::Result<()> {
        let (dir, task) = self.of_agent();
        let lines: String = untold.iter().map(|number| format!("{number}\n")).collect();
        let attributes = disk::Attributes::of_agent(now);
        disk::write(dir, &file_of(task), lines.as_bytes(), &attributes)
    }

    /// Those that the task was not told of by an earlier agent.
    pub(super) fn untold(&self) -> BTreeSet<usize> {
        let (dir, task) = self.of_agent();
        match disk::read(dir, &file_of(task), TEMPLATE_BYTES_MAX as u64) {
            Ok(lines) => read(&lines),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(%task, %error, "whether the task is to be told of its templates is not known");
                }
                BTreeSet::new()
            }
        }
    }

    /// The task was told of all, or begins with what they read now.
    pub(super) fn clear_untold(&self) {
        let (dir, task) = self.of_agent();
        match dir.remove_file(file_of(task)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%task, %error, "a later agent tells the task once more of its templates");
            }
            _ => {}
        }
    }
}

fn read(lines: &[u8]) -> BTreeSet<usize> {
    String::from_utf8_lossy(lines).lines().filter_map(|line| line.parse().ok()).collect()
}
