//! The places of the tasks' `config` in a job file, so that a problem that a driver finds can be shown at its
//! place.
//!
//! A driver is asked long after the file was read, and perhaps by another process. So a problem names the group,
//! the task and the path.

use std::collections::BTreeMap;

use super::diagnostic::{Diagnostics, Sink, Span};

/// The places of one `config`, by dotted path. The empty path is the place of the whole.
type Paths = BTreeMap<String, Span>;

/// The places of every task's `config` and of the name of its driver, in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigPlaces(BTreeMap<(String, String), TaskSpans>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct TaskSpans {
    driver: Span,
    config: Paths,
}

/// A problem of a task's `config`, or of its driver.
#[derive(Clone, Copy, Debug)]
pub struct ConfigFault<'a> {
    /// The name of the task group.
    pub group: &'a str,
    /// The name of the task in its group.
    pub task: &'a str,
    /// The dotted path inside `config`; empty for the whole.
    pub path: &'a str,
    /// The message that says what is wrong.
    pub message: &'a str,
    /// What may have been meant instead of the last name of the path.
    pub suggestion: Option<&'a str>,
    /// Whether the problem is one of the driver itself.
    pub of_driver: bool,
}

impl ConfigPlaces {
    /// Remember the places of one task.
    pub(super) fn insert(&mut self, group: &str, task: &str, driver: Span, config: Paths) {
        self.0.insert((group.to_owned(), task.to_owned()), TaskSpans { driver, config });
    }

    /// The faults with lines and columns in `text`, which is the text of the file.
    #[must_use]
    pub fn diagnostics<'a>(
        &self,
        faults: impl IntoIterator<Item = ConfigFault<'a>>,
        text: &str,
        file: &str,
    ) -> Diagnostics {
        let mut sink = Sink::default();
        for fault in faults {
            let ConfigFault { group, task, path, message, suggestion, of_driver } = fault;
            let of_task = self.0.get(&(group.to_owned(), task.to_owned()));
            let at = of_task.map(|of| if of_driver { of.driver } else { find(&of.config, path) });
            sink.suggest(at.unwrap_or_default(), message, suggestion);
        }
        sink.finish(text.strip_prefix('\u{feff}').unwrap_or(text), file)
    }
}

/// The place of a path, or of the nearest part around it that has one.
fn find(paths: &Paths, path: &str) -> Span {
    let mut path = path;
    loop {
        if let Some(at) = paths.get(path) {
            return *at;
        }
        match path.rfind('.') {
            Some(dot) => path = path.get(..dot).unwrap_or_default(),
            None if path.is_empty() => return Span::default(),
            None => path = "",
        }
    }
}
