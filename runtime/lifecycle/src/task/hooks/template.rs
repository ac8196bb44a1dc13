//! Renders the task's templates into its directories. Of a run that goes on nothing is touched: its files
//! are looked at while it runs ([`crate::task::templates::follow`]).

use std::sync::Arc;

use super::{HookError, Preparation, TaskHook, config};
use crate::task::TaskScope;
use crate::task::templates::{RenderError, Rendering, Templates};
use ostler_model::clock;
use ostler_model::ports::{BoxFuture, FsIsolation};
use ostler_model::template::ChangeMode;

pub(super) struct TemplateHook;

impl TaskHook for TemplateHook {
    fn name(&self) -> &'static str {
        "template"
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
            let rendering = rendering(scope, preparation)?;
            if preparation.goes_on {
                preparation.templates = Some(Arc::new(Templates::of_earlier_agent(rendering)));
                return Ok(());
            }
            let now = scope.clock.now();
            let rendered = clock::blocking(move || Templates::render(rendering, now)).await;
            let (templates, env) = rendered.map_err(HookError::passing)?.map_err(failed)?;
            // Most have nothing that could change: nothing of them is kept.
            preparation.templates = Some(templates).filter(Templates::may_change).map(Arc::new);
            preparation.template_env = env;
            Ok(())
        })
    }
}

fn rendering(scope: &TaskScope, preparation: &Preparation) -> Result<Rendering, HookError> {
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
        env: config::environment(scope, preparation)?,
        dirs: config::dirs(preparation)?,
        isolated: capabilities.fs_isolation != FsIsolation::None,
    })
}

fn failed(error: RenderError) -> HookError {
    match error {
        RenderError::Disk { node: true, .. } => HookError::Node { error: error.to_string() },
        RenderError::Disk { .. } | RenderError::Missing { .. } => HookError::passing(error),
        RenderError::Template(_) => HookError::setup(error),
    }
}
