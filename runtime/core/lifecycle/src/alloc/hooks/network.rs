//! Makes the allocation's own network, and takes it away when nothing of the allocation
//! runs any more.

use std::time::Duration;

use super::{AllocHook, AllocScope, Blame, HookFailure, HookNews, HookResult};
use crate::task::env::TaskEnv;
use ostler_model::causes;
use ostler_model::network::{AllocNetwork, NetworkError, NetworkWaitObserver, is_hostname};
use ostler_model::ports::BoxFuture;
use ostler_state::records::NetworkStatusKey;

pub(super) struct NetworkHook;

/// Reports to people that an allocation waits for its network.
struct NetworkWaitReporter<'a>(&'a AllocScope);

impl NetworkWaitObserver for NetworkWaitReporter<'_> {
    fn set_waiting(&self, waits: bool) -> BoxFuture<'_, ()> {
        let what = waits.then(|| IN_LINE.to_owned());
        Box::pin(self.0.tell(HookNews::Waiting(what)))
    }
}

const IN_LINE: &str = "waiting for its turn: the node makes and takes away networks one at a time";

impl AllocHook for NetworkHook {
    fn name(&self) -> &'static str {
        "network"
    }

    /// No bound, because the wait depends on the allocations whose turn comes first. The work of a
    /// turn has bounds of its own, for each plugin and each access to the disk. A stop breaks the
    /// hook off, and then takes away what was half made.
    fn wall(&self) -> Option<Duration> {
        None
    }

    /// After a restart of the agent the hook finds the network as it was made.
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            let made =
                scope.node.networks.set_up(&scope.allocation, &NetworkWaitReporter(scope)).await;
            let made = made.map_err(failure)?;
            let Some(mut made) = made else { return Ok(()) };
            made.hostname = hostname(scope, &made)?;
            let status = made.status.clone();
            // This record is for people who look into the state. What keeps the network
            // has its own.
            let key = NetworkStatusKey::of(scope.allocation.id);
            if let Err(error) = scope.node.state.put_later(&key, &status).await {
                tracing::warn!(alloc = %scope.allocation.id, %error, "the network is not on record");
            }
            scope.context.network.set(made);
            scope.tell(HookNews::Network(status)).await;
            Ok(())
        })
    }

    fn postrun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        Box::pin(async move {
            scope.context.network.clear();
            let gone =
                scope.node.networks.tear_down(&scope.allocation, &NetworkWaitReporter(scope)).await;
            gone.map_err(failure)
        })
    }

    /// Takes away what post-run could not.
    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        self.postrun(scope)
    }
}

/// The host name with its variables replaced; `None` where the group names none.
fn hostname(scope: &AllocScope, network: &AllocNetwork) -> Result<Option<String>, HookFailure> {
    let alloc = &scope.allocation;
    let asked = alloc.task_group().and_then(|group| group.network.as_ref()?.hostname.as_ref());
    let Some(asked) = asked else { return Ok(None) };
    let wrong = |why: String| HookFailure {
        text: format!("hostname {asked:?}: {why}"),
        blame: Blame::Alloc,
    };
    let env = TaskEnv::of_group(alloc, &scope.context.facts, Some(network));
    let env = env.map_err(|error| wrong(causes::chain(&error)))?;
    let name = env.interpolate(asked).map_err(|error| wrong(causes::chain(&error)))?;
    if is_hostname(&name) {
        Ok(Some(name))
    } else {
        Err(wrong(format!("{name:?} is not a valid host name")))
    }
}

fn failure(error: NetworkError) -> HookFailure {
    HookFailure { text: error.text, blame: Blame::of_the_node(error.passing) }
}
