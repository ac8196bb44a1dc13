//! Makes the network that an allocation has of its own, and takes it away when nothing of it runs any more.

use std::time::Duration;

use super::{AllocHook, AllocScope, Blame, HookFailure, HookResult, News};
use crate::task::env::TaskEnv;
use ostler_model::causes;
use ostler_model::network::{AllocNetwork, InLine, NetworkError, is_hostname};
use ostler_model::ports::BoxFuture;
use ostler_state::Key;

pub(super) struct NetworkHook;

/// Tells people of the wait of an allocation.
struct Waiting<'a>(&'a AllocScope);

impl InLine for Waiting<'_> {
    fn waits(&self, waits: bool) -> BoxFuture<'_, ()> {
        let what = waits.then(|| IN_LINE.to_owned());
        Box::pin(self.0.tell(News::Waiting(what)))
    }
}

const IN_LINE: &str = "waiting for its turn: the node makes and takes away networks one at a time";

impl AllocHook for NetworkHook {
    fn name(&self) -> &'static str {
        "network"
    }

    /// How long others before this one take says nothing of it. What it does in its turn has bounds of its own: of
    /// each plugin and of each access to the disk. A stop breaks it off, and then takes away what was half made.
    fn wall(&self) -> Option<Duration> {
        None
    }

    /// After a restart of the agent it is found as it was made.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let made = scope.networks.set_up(&scope.allocation, &Waiting(scope)).await;
            let made = made.map_err(failure)?;
            let Some(mut made) = made else { return Ok(()) };
            made.hostname = hostname(scope, &made)?;
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
            let gone = scope.networks.tear_down(&scope.allocation, &Waiting(scope)).await;
            gone.map_err(failure)
        })
    }

    /// What could not be taken away before.
    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.postrun(scope)
    }
}

/// The name with its variables replaced.
fn hostname(scope: &AllocScope, network: &AllocNetwork) -> Result<Option<String>, HookFailure> {
    let alloc = &scope.allocation;
    let asked = alloc.task_group().and_then(|group| group.network.as_ref()?.hostname.as_ref());
    let Some(asked) = asked else { return Ok(None) };
    let wrong = |why: String| HookFailure {
        text: format!("hostname {asked:?}: {why}"),
        blame: Blame::Alloc,
    };
    let env = TaskEnv::of_group(alloc, &scope.node, Some(network));
    let env = env.map_err(|error| wrong(causes::chain(&error)))?;
    let name = env.interpolate(asked).map_err(|error| wrong(causes::chain(&error)))?;
    match is_hostname(&name) {
        true => Ok(Some(name)),
        false => Err(wrong(format!("{name:?} is no name of a host"))),
    }
}

fn failure(error: NetworkError) -> HookFailure {
    HookFailure { text: error.text, blame: Blame::of_the_node(error.passing) }
}
