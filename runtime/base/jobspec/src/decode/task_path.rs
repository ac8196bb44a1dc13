//! The destinations of a task's templates and artifacts, as far as they are known before the task runs. They
//! depend on the directories that the driver shows to the task; the directories of the node are unknown.

use serde_json::Value;

use crate::diagnostic::{Span, quote_text};
use crate::keys::Context;
use ostler_model::ids::TaskName;
use ostler_model::json::JsonObject;
use ostler_model::ports::FsIsolation;
use ostler_model::task_path::{TaskPath, TaskView, destination};

/// The message about a file that the task would not see at its destination.
pub(super) const UNSEEN: &str = "the task would not see the destination; begin with local/, secrets/ or \
                                 ${NOMAD_ALLOC_DIR}/data/";

/// The directories of a task, as far as they are known before it runs.
#[derive(Clone, Copy)]
pub(super) struct TaskPlaces<'a> {
    view: Option<TaskView<'a>>,
    /// The program that the node reads for the task, as the `config` of the task names it.
    program: Option<&'a str>,
    /// Whether the driver is known to show the node's own paths to the task.
    on_node: bool,
}

impl<'a> TaskPlaces<'a> {
    pub(super) fn new(
        task: Option<&'a TaskName>,
        driver: Option<&str>,
        config: &'a JsonObject,
    ) -> Self {
        let seen = |task, sees| TaskView {
            task,
            alloc: "/alloc",
            local: "/local",
            secrets: "/secrets",
            sees,
        };
        // The directories of the node have names that no path of a job can have.
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
        let program = config.map().get("module").and_then(Value::as_str);
        let program = program.filter(|_| driver == Some("wasm"));
        Self { view, program, on_node: driver == Some("raw_exec") }
    }

    /// Whether the task's own program, which the node reads, may be at this place or below it. A program that is
    /// known only when the task runs may be anywhere.
    pub(super) fn holds_program(self, place: &TaskPath) -> bool {
        let (Some(program), Some(view)) = (self.program, self.view) else { return false };
        // Such a program is a path of the node, or comes from elsewhere.
        if program.starts_with('/') || program.contains("://") {
            return false;
        }
        let at = destination(program, view);
        program.contains("${") || at.is_ok_and(|at| at.names.starts_with(&place.names))
    }

    /// The place that a destination means, and whether the task sees it. There is none when it is known only when
    /// the task runs. A destination that is not allowed is reported as an error of the job.
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
                // The message has the destination as it is written.
                cx.refuse(at, format!("the destination {}", error.named(text)))
            }
            Ok(path) => {
                if self.on_node && text.starts_with('/') {
                    let message = "counts from the task's directory, as in Nomad: it is not a path of the node";
                    cx.sink.warn(at, format!("{} {message}", quote_text(text)));
                }
                let seen = path.is_seen(view.sees);
                Some((path, seen))
            }
        }
    }
}
