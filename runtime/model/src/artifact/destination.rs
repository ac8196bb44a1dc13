//! Where an artifact goes: names below the directory of an allocation. Pure.

use crate::ids::TaskName;

/// Name of the directory that tasks share.
const SHARED: &str = "alloc";

/// The directories of a task as it names them.
#[derive(Clone, Copy, Debug)]
pub struct TaskView<'a> {
    /// The task, whose directory has its name.
    pub task: &'a TaskName,
    /// `NOMAD_ALLOC_DIR`
    pub alloc: &'a str,
    /// `NOMAD_TASK_DIR`
    pub local: &'a str,
    /// `NOMAD_SECRETS_DIR`
    pub secrets: &'a str,
}

/// Names, one below the other, from the directory of the allocation down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactDestination {
    /// The first is the task's directory or the shared one.
    pub names: Vec<String>,
    /// It is one of the directories that each task has: no file can be there.
    pub is_directory: bool,
}

/// A place that a task has not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// Above or beside its own.
    #[error(
        "destination {0:?} leads out of the task's own directory and the one that the tasks share (alloc)"
    )]
    Outside(String),
    /// No name of a file system.
    #[error("destination {0:?} has a name that no file can have")]
    Name(String),
}

/// Where `text` leads, seen from the task's directory. What a task sees as absolute is what it means by
/// that; any other path with a slash before it counts from the task's directory.
///
/// # Errors
/// When it leads elsewhere.
pub fn destination(
    text: &str,
    view: TaskView<'_>,
) -> Result<ArtifactDestination, DestinationError> {
    let own = view.task.as_str();
    let outside = || DestinationError::Outside(text.to_owned());
    let mut names: Vec<String> = vec![own.to_owned()];
    let mut rest = text;
    let seen = [
        (view.local, vec![own, "local"]),
        (view.secrets, vec![own, "secrets"]),
        (view.alloc, vec![SHARED]),
    ];
    for (dir, at) in seen {
        let below = text.strip_prefix(dir.trim_end_matches('/'));
        let below = below.filter(|below| below.is_empty() || below.starts_with('/'));
        if let Some(below) = below.filter(|_| dir.starts_with('/')) {
            names = at.into_iter().map(str::to_owned).collect();
            rest = below;
            break;
        }
    }
    for name in rest.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop().ok_or_else(outside)?;
            }
            name if name.len() > 255 || name.contains('\0') => {
                return Err(DestinationError::Name(text.to_owned()));
            }
            name => names.push(name.to_owned()),
        }
    }
    match names.first().map(String::as_str) {
        Some(first) if first == own || first == SHARED => {}
        _ => return Err(outside()),
    }
    let own_dirs = ["local", "secrets", "tmp"];
    let is_directory = match names.as_slice() {
        [_] => true,
        [first, dir] => first == own && own_dirs.contains(&dir.as_str()),
        _ => false,
    };
    Ok(ArtifactDestination { names, is_directory })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn at(text: &str, host: bool) -> Result<String, DestinationError> {
        let task = TaskName::new("web".to_owned()).unwrap();
        let view = match host {
            true => TaskView {
                task: &task,
                alloc: "/var/x/alloc",
                local: "/var/x/web/local",
                secrets: "/var/x/web/secrets",
            },
            false => {
                TaskView { task: &task, alloc: "/alloc", local: "/local", secrets: "/secrets" }
            }
        };
        destination(text, view).map(|place| place.names.join("/"))
    }

    #[test]
    fn a_destination_counts_from_the_directory_of_its_task() {
        for host in [false, true] {
            assert_eq!(at("local/", host).unwrap(), "web/local");
            assert_eq!(at("local/a//b/./c", host).unwrap(), "web/local/a/b/c");
            assert_eq!(at("", host).unwrap(), "web");
            assert_eq!(at("/etc/x", host).unwrap(), "web/etc/x");
            assert_eq!(at("../alloc/data/x", host).unwrap(), "alloc/data/x");
        }
        assert_eq!(at("/alloc/data", false).unwrap(), "alloc/data");
        assert_eq!(at("/local/x", false).unwrap(), "web/local/x");
        assert_eq!(at("/var/x/web/secrets/k", true).unwrap(), "web/secrets/k");
        assert_eq!(at("/local2", false).unwrap(), "web/local2");
    }

    #[test]
    fn what_leads_out_is_refused() {
        for text in
            ["..", "../..", "../other/local", "local/../../other", "/../../x", "../../../etc"]
        {
            assert!(matches!(at(text, false), Err(DestinationError::Outside(_))), "{text}");
        }
        assert!(matches!(at(&"x".repeat(256), false), Err(DestinationError::Name(_))));
        assert!(matches!(at("a\0", false), Err(DestinationError::Name(_))));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_written_stays_below_its_own(text in "[a./]{0,24}|.{0,24}") {
            if let Ok(place) = at(&text, false) {
                let first = place.split('/').next().unwrap();
                assert!(first == "web" || first == "alloc");
                assert!(place.split('/').all(|name| name != ".." && name != "."));
            }
        }
    }
}
