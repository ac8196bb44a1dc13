//! Renders the task's templates into its directories. Of a run that goes on nothing is touched: its files
//! are looked at while it runs ([`crate::task::templates::follow`]).

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
            let rendering = rendering(scope, preparation).await?;
            if preparation.goes_on {
                preparation.templates = Some(Arc::new(Templates::of_earlier_agent(rendering)));
                return Ok(());
            }
            if scope.task.templates.iter().any(|template| template.may_call("nomadService")) {
                rendering.sources.restored().await;
            }
            let (templates, env) = rendered(scope, preparation, rendering).await?;
            // Most have nothing that could change: nothing of them is kept.
            preparation.templates = Some(templates).filter(Templates::may_change).map(Arc::new);
            preparation.template_env = env;
            Ok(())
        })
    }
}

/// Render them; what is not there yet is waited for, and that is said.
async fn rendered(
    scope: &TaskScope,
    preparation: &Preparation,
    rendering: Rendering,
) -> Result<(Templates, BTreeMap<String, String>), HookError> {
    let (began, mut said) = (Stopwatch::start(), None);
    loop {
        // Before they are rendered: what comes meanwhile ends the wait below.
        let since = rendering.sources.indexes();
        let (again, now) = (rendering.clone(), scope.clock.now());
        // When the task is to end, nobody waits for it.
        let rendered =
            clock::blocking_while_wanted(move |wanted| Templates::render(again, now, wanted));
        let rendered = clock::timeout(HOOK_WALL_MAX, rendered).await;
        let rendered = rendered.ok_or(HookError::TimedOut { hook: "template" })?;
        let missing = match rendered.map_err(HookError::passing)? {
            Err(error @ RenderError::Missing { .. }) => error,
            result => return result.map_err(failed),
        };
        let text = missing.to_string();
        if said.as_ref() != Some(&text) {
            preparation.say(events::template_trouble(scope.clock.now(), &text));
            said = Some(text);
        }
        let left = TEMPLATE_MISSING_WALL_MAX.saturating_sub(began.elapsed());
        let changed = clock::timeout(left, rendering.sources.any_changed(since)).await;
        changed.ok_or_else(|| failed(missing))?;
        clock::sleep(TEMPLATE_TOLD_PAUSE).await;
    }
}

async fn rendering(scope: &TaskScope, preparation: &Preparation) -> Result<Rendering, HookError> {
    let Some(driver) = &preparation.driver else {
        return Err(HookError::setup("the driver comes before template"));
    };
    let capabilities = driver.capabilities();
    // Before it runs: what its change mode asks for could not be done.
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
        alloc_root: scope.alloc_root.clone(),
        alloc: scope.allocation.id,
        env: config::environment(scope, preparation).await?,
        dirs: config::dirs(preparation)?,
        sources: Sources::of(scope),
        sees: capabilities.fs_isolation,
        owner: preparation.owner,
    })
}

fn failed(error: RenderError) -> HookError {
    match error {
        RenderError::Disk { node: true, .. } => HookError::Node { error: error.to_string() },
        RenderError::Disk { .. } | RenderError::Missing { .. } => HookError::passing(error),
        RenderError::Template(_) => HookError::setup(error),
    }
}
