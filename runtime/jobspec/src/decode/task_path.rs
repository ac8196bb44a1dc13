//! Where a task's templates and artifacts go, as far as it is known before it runs: by what its driver shows
//! it, with the directories of the node unknown.

use serde_json::Value;

use crate::diagnostic::{Span, shown};
use crate::keys::Context;
use ostler_model::ids::TaskName;
use ostler_model::json::JsonObject;
use ostler_model::ports::FsIsolation;
use ostler_model::task_path::{TaskPath, TaskView, destination};

/// Said of what a task would not find where it is put.
pub(super) const UNSEEN: &str = "the task would not see the destination; begin with local/, secrets/ or \
                                 ${NOMAD_ALLOC_DIR}/data/";

/// The places of a task.
#[derive(Clone, Copy)]
pub(super) struct TaskPlaces<'a> {
    view: Option<TaskView<'a>>,
    /// The file of it that the node reads for it, as its `config` has it.
    program: Option<&'a str>,
    /// It is known that its driver shows the node's own paths.
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
        let program = config.map().get("module").and_then(Value::as_str);
        let program = program.filter(|_| driver == Some("wasm"));
        Self { view, program, on_node: driver == Some("raw_exec") }
    }

    /// May the task's own program, which the node reads, be there or below? One that is known only when the
    /// task runs may be anywhere.
    pub(super) fn holds_program(self, place: &TaskPath) -> bool {
        let (Some(program), Some(view)) = (self.program, self.view) else { return false };
        // Others are paths of the node, or come from elsewhere.
        if program.starts_with('/') || program.contains("://") {
            return false;
        }
        let at = destination(program, view);
        program.contains("${") || at.is_ok_and(|at| at.names.starts_with(&place.names))
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
