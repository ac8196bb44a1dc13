//! Fetches the modules that a task's `config` names by where they are, and puts the path of what came in
//! their place. A driver says at which keys such names may stand.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::artifacts::{failed, fetcher, progress};
use super::{HookError, Preparation, TaskHook};
use crate::task::{TaskScope, events, notes};
use ostler_model::artifact::{
    ArtifactAsk, ArtifactError, ArtifactMode, ArtifactSource, FetchProgress, shown_source,
};
use ostler_model::limits::ARTIFACTS_WALL_MAX;
use ostler_model::ports::BoxFuture;

pub(super) struct ModulesHook;

impl TaskHook for ModulesHook {
    fn name(&self) -> &'static str {
        "modules"
    }

    fn wall(&self) -> Duration {
        ARTIFACTS_WALL_MAX
    }

    fn prestart<'a>(
        &'a self,
        scope: &'a TaskScope,
        preparation: &'a mut Preparation,
    ) -> BoxFuture<'a, Result<(), HookError>> {
        Box::pin(async move {
            // A run that goes on has read its own.
            if preparation.goes_on { Ok(()) } else { modules(scope, preparation).await }
        })
    }
}

async fn modules(scope: &TaskScope, preparation: &mut Preparation) -> Result<(), HookError> {
    let Some(driver) = preparation.driver.clone() else { return Ok(()) };
    for key in driver.fetched_keys() {
        let Some(text) = preparation.config.map().get(&key).and_then(|value| value.as_str()) else {
            continue;
        };
        if !text.contains("://") {
            continue;
        }
        let shown = shown_source(text);
        let refused = |error: ArtifactError| failed(&shown, &error);
        let source = ArtifactSource::parse(text, &BTreeMap::new());
        let source = source.map_err(|error| refused(ArtifactError::lasting(error)))?;
        let artifacts = fetcher(scope).map_err(refused)?;
        let (headers, mode) = (Vec::new(), ArtifactMode::File);
        // It stays outside of the allocation's directory.
        let ask = ArtifactAsk { source, headers, mode, room_bytes: None };
        let told = begun(scope, preparation, progress(scope, preparation, shown.clone()));
        let kept = artifacts.module(ask, told).await.map_err(refused)?;
        let Some(path) = kept.path().to_str().map(str::to_owned) else {
            let reason = "the data directory has no name that is text";
            return Err(refused(ArtifactError::lasting(reason)));
        };
        let mut config = std::mem::take(&mut preparation.config).into_map();
        config.insert(key, path.into());
        preparation.config = config.into();
        preparation.modules.push(kept);
    }
    Ok(())
}

/// Says that something is fetched when that begins: what is kept is there without a word.
fn begun(scope: &TaskScope, preparation: &Preparation, progress: FetchProgress) -> FetchProgress {
    let (channel, clock, said) =
        (preparation.notes.clone(), scope.clock.clone(), AtomicBool::new(false));
    Arc::new(move |bytes, of| {
        if !said.swap(true, Ordering::Relaxed) {
            notes::tell(channel.as_ref(), events::downloading_artifacts(clock.now()));
        }
        progress(bytes, of);
    })
}
