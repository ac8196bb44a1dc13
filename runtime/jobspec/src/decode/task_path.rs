//! Where a task's templates and artifacts go, as far as it is known before it runs: by what its driver shows
//! it, with the directories of the node unknown.

use crate::diagnostic::{Span, shown};
use crate::keys::Context;
use ostler_model::ids::TaskName;
use ostler_model::ports::FsIsolation;
use ostler_model::task_path::{TaskPath, TaskView, destination};

/// The places of a task.
#[derive(Clone, Copy)]
pub(super) struct TaskPlaces<'a> {
    view: Option<TaskView<'a>>,
    /// It is known that its driver shows the node's own paths.
    on_node: bool,
}

impl<'a> TaskPlaces<'a> {
    pub(super) fn new(task: Option<&'a TaskName>, driver: Option<&str>) -> Self {
        let seen = |task, sees| TaskView {
            task,
            alloc: "/alloc",
            local: "/local",
            secrets: "/secrets",
            sees,
        };
        // Whatever they are called on the node: no path of a job means them by it.
        let on_node = |task| TaskView {
            alloc: "/\u{1}/alloc",
            local: "/\u{1}/local",
            secrets: "/\u{1}/secrets",
            ..seen(task, FsIsolation::None)
        };
        let view = task.map(|task| match driver {
            Some("exec") => seen(task, FsIsolation::Chroot),
            Some("wasm") => seen(task, FsIsolation::Preopen),
            _ => on_node(task),
        });
        Self { view, on_node: driver == Some("raw_exec") }
    }

    /// Where something goes, unless that is known only when the task runs; a place that it may not go to is
    /// an error of the job. Whether the task sees it there comes with it.
    pub(super) fn destination(
        self,
        text: &str,
        at: Span,
        cx: &mut Context<'_>,
    ) -> Option<(TaskPath, bool)> {
        let view = self.view?;
        let filled = text
            .replace("${NOMAD_ALLOC_DIR}", view.alloc)
            .replace("${NOMAD_TASK_DIR}", view.local)
            .replace("${NOMAD_SECRETS_DIR}", view.secrets);
        if filled.contains("${") {
            return None;
        }
        match destination(&filled, view) {
            Err(error) => {
                // As it is written, not as it is read here.
                cx.refuse(at, format!("the destination {}", error.named(text)))
            }
            Ok(path) => {
                if self.on_node && text.starts_with('/') {
                    let message =
                        "counts from the task's directory, as in Nomad: it is no path of the node";
                    cx.sink.warn(at, format!("{} {message}", shown(text)));
                }
                let seen = path.is_seen(view.sees);
                Some((path, seen))
            }
        }
    }
}
