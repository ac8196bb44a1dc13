//! Where the tasks' `config` stands in a job file, so that what a driver finds wrong in it can be
//! shown at its place.
//!
//! A driver is asked long after the file was read, and perhaps by another process: what it says
//! names group, task and path.

use std::collections::BTreeMap;

use super::diagnostic::{Diagnostics, Sink, Span};

/// The places of one `config`, by dotted path; the whole at the empty one.
type Paths = BTreeMap<String, Span>;

/// Where every task's `config` and the name of its driver stand in one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigPlaces(BTreeMap<(String, String), OfTask>);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OfTask {
    driver: Span,
    config: Paths,
}

/// Something wrong with a task's `config`, or with its driver.
#[derive(Clone, Copy, Debug)]
pub struct ConfigFault<'a> {
    /// Task group.
    pub group: &'a str,
    /// Task.
    pub task: &'a str,
    /// Dotted path inside `config`; empty for the whole.
    pub path: &'a str,
    /// What is wrong.
    pub message: &'a str,
    /// What may have been meant instead of the last name of the path.
    pub suggestion: Option<&'a str>,
    /// It is the driver that is wrong.
    pub of_driver: bool,
}

impl ConfigPlaces {
    /// Remember the places of one task.
    pub(super) fn insert(&mut self, group: &str, task: &str, driver: Span, config: Paths) {
        self.0.insert((group.to_owned(), task.to_owned()), OfTask { driver, config });
    }

    /// The faults with lines and columns in `text`, the file they were read from.
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

/// The place of a path, else of the nearest part around it.
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
