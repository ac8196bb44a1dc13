//! Makes networks and removes them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use super::answer;
use super::conflist::{ADMIN_CHAIN, CniNetwork, CniPortMapping};
use super::detect::NetworkAbilities;
use super::keep::{NetworkRecord, NetworkRecords};
use super::run::{self, CniVerb, PluginEnvironment};
use ostler_model::alloc::Allocation;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{CNI_PLUGIN_WALL_MAX, HOOK_WALL_MAX};
use ostler_model::network::{
    AllocNetwork, NetworkConfig, NetworkError, NetworkMode, NetworkWaitObserver, Networks, mode_of,
};
use ostler_model::ports::BoxFuture;
use ostler_model::saved::NetworkStatus;
use ostler_process::netns;
use ostler_process::program::{self, ProgramStart};

/// A wait up to this long is not reported to people.
const SOON: Duration = Duration::from_secs(1);

/// The networks of an agent's allocations.
#[derive(Debug)]
pub struct AllocNetworks {
    can: NetworkAbilities,
    kept: NetworkRecords,
    /// Allows one allocation at a time, because the plugins make the bridge with the first
    /// allocation, and two must not both make it. The turns go in the order of arrival.
    turn: Mutex<()>,
}

/// What exists of the network of an allocation.
struct NetworkRemains {
    /// The complete network, if it was made.
    made: Option<NetworkStatus>,
    /// Whether there is a record, or a file that holds a namespace.
    some: bool,
}

fn passing_error(text: impl Into<String>) -> NetworkError {
    NetworkError { text: text.into(), passing: true }
}

fn lasting_error(text: impl Into<String>) -> NetworkError {
    NetworkError { text: text.into(), passing: false }
}

impl AllocNetworks {
    /// Networks whose files are kept in `netns` below the data directory.
    #[must_use]
    pub fn new(config: &NetworkConfig, data_dir: &std::path::Path) -> Self {
        let kept = NetworkRecords::new(data_dir.join("netns"));
        Self { can: NetworkAbilities::new(config), kept, turn: Mutex::new(()) }
    }

    /// The allocations for which earlier agents made networks.
    pub async fn remaining_allocs(&self) -> BTreeSet<AllocId> {
        let kept = self.kept.clone();
        let all = run_blocking(move || kept.list_allocs()).await;
        all.unwrap_or_else(|error| {
            tracing::error!(%error, "networks of earlier allocations cannot be looked for");
            Vec::new()
        })
        .into_iter()
        .collect()
    }

    /// Remove the networks of these allocations, which are over.
    pub async fn sweep(&self, over: &BTreeSet<AllocId>) {
        for alloc in over {
            match self.take_away(*alloc, None).await {
                Ok(()) => {
                    tracing::info!(%alloc, "took away the network of an allocation that is over");
                }
                Err(error) => {
                    tracing::error!(%alloc, %error, "the network of an allocation that is over stays");
                }
            }
        }
    }

    /// Wait for the turn to make or remove a network, however long others take before it.
    async fn wait_turn(&self, line: Option<&dyn NetworkWaitObserver>) -> MutexGuard<'_, ()> {
        let Some(line) = line else { return self.turn.lock().await };
        let mut turn = Box::pin(self.turn.lock());
        if let Some(turn) = clock::timeout(SOON, &mut turn).await {
            return turn;
        }
        line.set_waiting(true).await;
        let turn = turn.await;
        line.set_waiting(false).await;
        turn
    }

    async fn find(&self, alloc: AllocId) -> Result<NetworkRemains, String> {
        let (kept, namespace) = (self.kept.clone(), self.kept.namespace(alloc));
        run_blocking(move || {
            let (known, held) = (kept.read(alloc)?, netns::is_namespace_file(&namespace));
            let some = known.is_some() || held || namespace.exists();
            Ok(NetworkRemains { made: known.and_then(|known| known.status).filter(|_| held), some })
        })
        .await
    }

    async fn make(
        &self,
        alloc: &Allocation,
        line: &dyn NetworkWaitObserver,
    ) -> Result<Option<AllocNetwork>, NetworkError> {
        let mode = mode_of(alloc);
        if !mode.is_own() {
            return Ok(None);
        }
        let namespace = self.kept.namespace(alloc.id);
        let own = |status| AllocNetwork { namespace: namespace.clone(), status, hostname: None };
        // An existing network changes nothing that others make, so this needs no turn.
        if let Some(status) = self.find(alloc.id).await.map_err(passing_error)?.made {
            return Ok(Some(own(status)));
        }
        let _turn = self.wait_turn(Some(line)).await;
        let found = self.find(alloc.id).await.map_err(passing_error)?;
        if let Some(status) = found.made {
            return Ok(Some(own(status)));
        }
        if found.some {
            // It is half made, or from before a start of the machine, so nothing of it can be
            // relied on.
            self.take_away_now(alloc.id).await.map_err(passing_error)?;
        }
        let network = match &mode {
            NetworkMode::Bridge => match self.can.bridge_obstacle() {
                Some(why) => return Err(lasting_error(format!("network mode bridge: {why}"))),
                None => Some(self.can.bridge()),
            },
            NetworkMode::Cni(name) => Some(self.can.find_network(name).map_err(lasting_error)?),
            NetworkMode::Host | NetworkMode::None => None,
        };
        let ports = if network.is_some() { port_mappings(alloc) } else { Vec::new() };
        let mut record =
            NetworkRecord { alloc: alloc.id, network, ports, result: None, status: None };
        self.write(&record).await?;
        let made = self.fill(&mut record, &namespace, &mode).await;
        match made {
            Ok(status) => {
                record.status = Some(status.clone());
                self.write(&record).await?;
                Ok(Some(own(status)))
            }
            Err(error) => {
                if let Err(left) = self.take_away_now(alloc.id).await {
                    tracing::warn!(alloc = %alloc.id, error = %left, "a network that was not made is not all taken away");
                }
                Err(passing_error(error))
            }
        }
    }

    async fn write(&self, record: &NetworkRecord) -> Result<(), NetworkError> {
        let (kept, record) = (self.kept.clone(), record.clone());
        let written = run_blocking(move || kept.write(&record)).await;
        written.map_err(|error| passing_error(format!("recording the network: {error}")))
    }

    /// Create the namespace, and run the plugins that fill it.
    async fn fill(
        &self,
        record: &mut NetworkRecord,
        namespace: &std::path::Path,
        mode: &NetworkMode,
    ) -> Result<NetworkStatus, String> {
        let at = namespace.to_owned();
        let created = run_blocking(move || netns::create(&at)).await;
        created.map_err(|error| format!("making a network namespace: {error}"))?;
        let Some(network) = record.network.clone() else { return Ok(NetworkStatus::default()) };
        if *mode == NetworkMode::Bridge {
            self.allow_forwarding().await?;
        }
        let around = self.plugin_environment(record.alloc, Some(namespace.to_owned()));
        let mut last = None;
        for plugin in &network.plugins {
            let input = network.input(plugin, last.as_ref(), &record.ports);
            last = Some(around.run(CniVerb::Add, plugin, &input).await?);
            // Each plugin removes what the results say that exists.
            record.result.clone_from(&last);
            self.write(record).await.map_err(|error| error.text)?;
        }
        let last = last.unwrap_or(Value::Null);
        let status = answer::status(&last)
            .map_err(|error| format!("the last CNI plugin of network {}: {error}", network.name))?;
        Ok(status)
    }

    fn plugin_environment(&self, alloc: AllocId, namespace: Option<PathBuf>) -> PluginEnvironment {
        PluginEnvironment { alloc, namespace, paths: self.can.paths.clone() }
    }

    /// Allow forwarding to the bridge's addresses, whatever else the node forwards: the operator's
    /// chain is asked first, and has this rule at its beginning.
    async fn allow_forwarding(&self) -> Result<(), String> {
        let (bridge, subnet) = self.can.bridge_and_subnet();
        // The chain may exist already.
        let _there = iptables(&["-N", ADMIN_CHAIN]).await;
        let rule = [ADMIN_CHAIN, "-o", bridge, "-d", subnet, "-j", "ACCEPT"];
        if iptables(&[&["-C"], rule.as_slice()].concat()).await.is_ok() {
            return Ok(());
        }
        let inserted = iptables(&[&["-I"], rule.as_slice()].concat()).await;
        inserted.map_err(|error| format!("letting packets through to the bridge: {error}"))
    }

    async fn take_away(
        &self,
        alloc: AllocId,
        line: Option<&dyn NetworkWaitObserver>,
    ) -> Result<(), String> {
        let _turn = self.wait_turn(line).await;
        self.take_away_now(alloc).await
    }

    /// Remove a network. The caller has the turn.
    async fn take_away_now(&self, alloc: AllocId) -> Result<(), String> {
        let namespace = self.kept.namespace(alloc);
        let (kept, held) = (self.kept.clone(), namespace.clone());
        let known = run_blocking(move || {
            Ok((kept.read(alloc)?, netns::is_namespace_file(&held), held.exists()))
        })
        .await;
        let (known, held, there) = known?;
        if known.is_none() && !there {
            return Ok(());
        }
        let mut failed = None;
        if known.as_ref().is_some_and(|known| known.status.is_none()) {
            // A killed agent may have left a plugin that still makes the network.
            run::end_plugins(alloc).await;
        }
        if let Some(NetworkRecord { network: Some(network), ports, result, .. }) = &known {
            let around = self.plugin_environment(alloc, held.then(|| namespace.clone()));
            failed = delete(&around, network, ports, result.as_ref()).await.err();
        }
        let at = namespace.clone();
        run_blocking(move || netns::remove(&at))
            .await
            .map_err(|error| format!("letting go of {}: {error}", namespace.display()))?;
        if let Some(failed) = failed {
            // The record stays, so that a later start tries again.
            return Err(failed);
        }
        let kept = self.kept.clone();
        run_blocking(move || kept.remove(alloc)).await
    }
}

/// Run the plugins in reverse to remove the network. All of them run, even if one fails. Returns
/// the first error.
async fn delete(
    around: &PluginEnvironment,
    network: &CniNetwork,
    ports: &[CniPortMapping],
    result: Option<&Value>,
) -> Result<(), String> {
    let mut failed = Ok(());
    for plugin in network.plugins.iter().rev() {
        let input = network.input(plugin, result, ports);
        if let Err(error) = around.run(CniVerb::Del, plugin, &input).await {
            failed = failed.and(Err(error));
        }
    }
    failed
}

/// Run `iptables`, which waits for others that change rules.
async fn iptables(args: &[&str]) -> Result<(), String> {
    let program = run::iptables().ok_or("iptables is not installed")?;
    let args = ["-w", "10"].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let start = ProgramStart { program, args, env: Vec::new(), input: Vec::new() };
    let output = program::run_with(start, CNI_PLUGIN_WALL_MAX).await.map_err(|e| e.to_string())?;
    match output.exit_code {
        Some(0) => Ok(()),
        _ => Err(answer::failure(b"", &output.stderr)),
    }
}

/// The ports of the node that lead to the allocation. As in Nomad, they are open at every address
/// of the node, except those of a `host_network`, and those whose address is on the loopback: there
/// a port belongs to nobody else either.
fn port_mappings(alloc: &Allocation) -> Vec<CniPortMapping> {
    let network = alloc.task_group().and_then(|group| group.network.as_ref());
    let ports = alloc.ports.iter().filter(|port| port.task.is_none());
    let mapping = |port: &ostler_model::resources::AllocatedPort| {
        let spec = network.and_then(|spec| spec.ports.iter().find(|one| one.label == port.label));
        let named = spec.is_some_and(|spec| spec.host_network.is_some());
        let address = port.host_ip.parse::<IpAddr>().ok().filter(|ip| !ip.is_unspecified());
        let host_ip = address.filter(|ip| named || ip.is_loopback()).map(|ip| ip.to_string());
        CniPortMapping { host: port.value, inside: port.to, host_ip }
    };
    ports.map(mapping).collect()
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = clock::timeout(HOOK_WALL_MAX, clock::run_blocking(work)).await;
    let late = || format!("it did not end within {HOOK_WALL_MAX:?}: the disk is slow, or hangs");
    let done = done.ok_or_else(late)?.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

impl Networks for AllocNetworks {
    fn set_up<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>> {
        Box::pin(self.make(alloc, line))
    }

    fn tear_down<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn NetworkWaitObserver,
    ) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            // An allocation with the node's network does not wait in line just to have nothing
            // removed.
            if !mode_of(alloc).is_own() && !self.find(alloc.id).await.map_err(passing_error)?.some {
                return Ok(());
            }
            self.take_away(alloc.id, Some(line)).await.map_err(passing_error)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "make_tests.rs"]
mod tests;
