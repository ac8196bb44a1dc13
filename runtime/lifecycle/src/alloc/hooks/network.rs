//! Makes the network that an allocation has of its own, and takes it away when nothing of it runs any more.

use super::{AllocHook, AllocScope, HookFailure, HookResult, News};
use ostler_model::network::NetworkError;
use ostler_state::Key;

pub(super) struct NetworkHook;

impl AllocHook for NetworkHook {
    fn name(&self) -> &'static str {
        "network"
    }

    /// After a restart of the agent it is found as it was made.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let made = scope.networks.set_up(&scope.allocation).await.map_err(failure)?;
            let Some(made) = made else { return Ok(()) };
            let status = made.status.clone();
            // For people who look into the state: what counts is what keeps the network.
            let key = Key::NetworkStatus(scope.allocation.id);
            if let Err(error) = scope.store.put_later(&key, &status).await {
                tracing::warn!(alloc = %scope.allocation.id, %error, "the network is not on record");
            }
            scope.network.set(made);
            scope.tell(News::Network(status)).await;
            Ok(())
        })
    }

    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.network.clear();
            scope.networks.tear_down(&scope.allocation).await.map_err(failure)
        })
    }

    /// What could not be taken away before.
    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.postrun(scope)
    }
}

fn failure(error: NetworkError) -> HookFailure {
    HookFailure { text: error.text, node: error.passing }
}
