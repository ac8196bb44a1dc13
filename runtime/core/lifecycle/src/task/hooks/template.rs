//! Renders the task's templates into its directories. The files of a run that goes on are not
//! touched here; they are checked while it runs ([`crate::task::templates::follow`]).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{HookError, Preparation, TaskHook, config};
use crate::task::templates::sources::Sources;
use crate::task::templates::{RenderError, Rendering, Templates};
use crate::task::{TaskScope, events};
use ostler_model::clock::{self, Stopwatch};
use ostler_model::limits::{HOOK_WALL_MAX, TEMPLATE_MISSING_WALL_MAX, TEMPLATE_TOLD_PAUSE};
use ostler_model::ports::BoxFuture;
use ostler_model::template::ChangeMode;

pub(super) struct TemplateHook;

impl TaskHook for TemplateHook {
    fn name(&self) -> &'static str {
        "template"
    }

    fn wall(&self) -> Duration {
        TEMPLATE_MISSING_WALL_MAX + 2 * HOOK_WALL_MAX
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            if scope.task.templates.is_empty() {
                return Ok(());
            }
            let rendering = build_rendering(scope, preparation).await?;
            if preparation.goes_on {
                preparation.templates = Some(Arc::new(Templates::of_earlier_agent(rendering)));
                return Ok(());
            }
            if scope.task.templates.iter().any(|template| template.may_call("nomadService")) {
                rendering.sources.wait_restored().await;
            }
            let (templates, env) = render_when_ready(scope, preparation, rendering).await?;
            // Most templates depend on nothing that could change, so nothing of them is kept.
            preparation.templates = Some(templates).filter(Templates::may_change).map(Arc::new);
            preparation.template_env = env;
            Ok(())
        })
    }
}

/// Render the templates. Wait for what is missing, and report the wait.
async fn render_when_ready(
    scope: &TaskScope,
    preparation: &Preparation,
    rendering: Rendering,
) -> Result<(Templates, BTreeMap<String, String>), HookError> {
    let (began, mut said) = (Stopwatch::start(), None);
    loop {
        // Read before the rendering, so that a change in between ends the wait below.
        let since = rendering.sources.indexes();
        let (again, now) = (rendering.clone(), scope.node.clock.now());
        // The rendering is given up when the task is to end.
        let rendered =
            clock::run_blocking_cancellable(move |wanted| Templates::render(again, now, wanted));
        let rendered = clock::timeout(HOOK_WALL_MAX, rendered).await;
        let rendered = rendered.ok_or(HookError::TimedOut { hook: "template" })?;
        let missing = match rendered.map_err(HookError::passing_setup)? {
            Err(error @ RenderError::Missing { .. }) => error,
            result => return result.map_err(render_failure),
        };
        let text = missing.to_string();
        if said.as_ref() != Some(&text) {
            preparation.say(events::template_trouble(scope.node.clock.now(), &text));
            said = Some(text);
        }
        let left = TEMPLATE_MISSING_WALL_MAX.saturating_sub(began.elapsed());
        let changed = clock::timeout(left, rendering.sources.wait_any_changed(since)).await;
        changed.ok_or_else(|| render_failure(missing))?;
        clock::sleep(TEMPLATE_TOLD_PAUSE).await;
    }
}

async fn build_rendering(
    scope: &TaskScope,
    preparation: &Preparation,
) -> Result<Rendering, HookError> {
    let Some(driver) = &preparation.driver else {
        return Err(HookError::setup("the driver comes before template"));
    };
    let capabilities = driver.capabilities();
    // Checked before the run: a change mode must be one that the driver can carry out.
    for template in &scope.task.templates {
        let (what, can) = match &template.change {
            ChangeMode::Signal(_) => ("sends no signals to", capabilities.send_signals),
            ChangeMode::Script(_) => ("runs no commands inside", capabilities.exec),
            ChangeMode::Noop | ChangeMode::Restart => continue,
        };
        if !can {
            let (destination, driver) = (&template.destination, &scope.task.driver);
            return Err(HookError::setup(format!(
                "template {destination}: driver {driver} {what} its tasks; use another change_mode"
            )));
        }
    }
    Ok(Rendering {
        task: scope.task.clone(),
        alloc_root: scope.node.alloc_root.clone(),
        alloc: scope.allocation.id,
        env: config::environment(scope, preparation).await?,
        dirs: config::dirs(preparation)?,
        sources: Sources::from_scope(scope),
        sees: capabilities.fs_isolation,
        owner: preparation.owner,
    })
}

fn render_failure(error: RenderError) -> HookError {
    match error {
        RenderError::Disk { node: true, .. } => HookError::Node { error: error.to_string() },
        RenderError::Disk { .. } | RenderError::Missing { .. } => HookError::passing_setup(error),
        RenderError::Template(_) => HookError::setup(error),
    }
}
