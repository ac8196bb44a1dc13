//! Fetches the modules that a task's `config` names by a URL, and replaces each URL by the path of
//! the fetched file. The driver says which keys may have such a URL.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::artifacts::{download_error, fetcher, progress_reporter};
use super::{HookError, Preparation, TaskHook};
use crate::task::{TaskScope, events, notes};
use ostler_model::artifact::{
    ArtifactError, ArtifactMode, ArtifactRequest, ArtifactSource, FetchProgress, public_source,
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
            // A run that goes on has read its modules.
            if preparation.goes_on { Ok(()) } else { fetch_modules(scope, preparation).await }
        })
    }
}

async fn fetch_modules(scope: &TaskScope, preparation: &mut Preparation) -> Result<(), HookError> {
    let Some(driver) = preparation.driver.clone() else { return Ok(()) };
    for key in driver.file_address_keys() {
        let Some(text) = preparation.config.map().get(&key).and_then(|value| value.as_str()) else {
            continue;
        };
        if !text.contains("://") {
            continue;
        }
        let shown = public_source(text);
        let refused = |error: ArtifactError| download_error(&shown, &error);
        let source = ArtifactSource::parse(text, &BTreeMap::new());
        let source = source.map_err(|error| refused(ArtifactError::permanent(error)))?;
        let artifacts = fetcher(scope).map_err(refused)?;
        let (headers, mode) = (Vec::new(), ArtifactMode::File);
        // The file stays outside of the allocation's directory, so the size of that is no bound.
        let ask = ArtifactRequest { source, headers, mode, room_bytes: None };
        let told = announcing_reporter(
            scope,
            preparation,
            progress_reporter(scope, preparation, shown.clone()),
        );
        let kept = artifacts.fetch_module(ask, told).await.map_err(refused)?;
        let Some(path) = kept.path().to_str().map(str::to_owned) else {
            let reason = "the path of the data directory is not UTF-8";
            return Err(refused(ArtifactError::permanent(reason)));
        };
        let mut config = std::mem::take(&mut preparation.config).into_map();
        config.insert(key, path.into());
        preparation.config = config.into();
        preparation.modules.push(kept);
    }
    Ok(())
}

/// Reports a download when it begins. A module that is in the cache is not reported.
fn announcing_reporter(
    scope: &TaskScope,
    preparation: &Preparation,
    progress: FetchProgress,
) -> FetchProgress {
    let (channel, clock, said) =
        (preparation.notes.clone(), scope.node.clock.clone(), AtomicBool::new(false));
    Arc::new(move |bytes, of| {
        if !said.swap(true, Ordering::Relaxed) {
            notes::tell(channel.as_ref(), events::downloading_artifacts(clock.now()));
        }
        progress(bytes, of);
    })
}
