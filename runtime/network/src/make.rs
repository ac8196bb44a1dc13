//! Making networks, and taking them away.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};

use super::answer;
use super::conflist::{ADMIN_CHAIN, CniNetwork, PortMapping};
use super::found::CanMake;
use super::keep::{Kept, NetworkRecord};
use super::run::{self, Surroundings, Verb};
use ostler_model::alloc::Allocation;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{CNI_PLUGIN_WALL_MAX, HOOK_WALL_MAX};
use ostler_model::network::{
    AllocNetwork, InLine, NetworkConfig, NetworkError, NetworkMode, Networks, mode_of,
};
use ostler_model::ports::BoxFuture;
use ostler_model::saved::NetworkStatus;
use ostler_process::netns;
use ostler_process::program::{self, ProgramStart};

/// A turn that comes this soon is no wait that people need to hear of.
const SOON: Duration = Duration::from_secs(1);

/// Networks of the allocations of an agent.
#[derive(Debug)]
pub struct AllocNetworks {
    can: CanMake,
    kept: Kept,
    /// Plugins make the bridge with the first allocation: one at a time, so that two do not both. Who comes
    /// first has the first turn.
    turn: Mutex<()>,
}

/// What there is of the network of an allocation.
struct Found {
    /// All of it, as it was made.
    made: Option<NetworkStatus>,
    /// A record, or a file that holds a namespace.
    some: bool,
}

fn passing(text: impl Into<String>) -> NetworkError {
    NetworkError { text: text.into(), passing: true }
}

fn for_good(text: impl Into<String>) -> NetworkError {
    NetworkError { text: text.into(), passing: false }
}

impl AllocNetworks {
    /// Kept in `netns` below the data directory.
    #[must_use]
    pub fn new(config: &NetworkConfig, data_dir: &std::path::Path) -> Self {
        let kept = Kept::new(data_dir.join("netns"));
        Self { can: CanMake::new(config), kept, turn: Mutex::new(()) }
    }

    /// Allocations that earlier agents made networks for.
    pub async fn left(&self) -> BTreeSet<AllocId> {
        let kept = self.kept.clone();
        let all = blocking(move || kept.all()).await;
        all.unwrap_or_else(|error| {
            tracing::error!(%error, "networks of earlier allocations cannot be looked for");
            Vec::new()
        })
        .into_iter()
        .collect()
    }

    /// Take away the networks of these, which are over.
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

    /// The turn of one that makes or takes away a network, however long others take before it.
    async fn turn(&self, line: Option<&dyn InLine>) -> MutexGuard<'_, ()> {
        let Some(line) = line else { return self.turn.lock().await };
        let mut turn = Box::pin(self.turn.lock());
        if let Some(turn) = clock::timeout(SOON, &mut turn).await {
            return turn;
        }
        line.waits(true).await;
        let turn = turn.await;
        line.waits(false).await;
        turn
    }

    async fn find(&self, alloc: AllocId) -> Result<Found, String> {
        let (kept, namespace) = (self.kept.clone(), self.kept.namespace(alloc));
        blocking(move || {
            let (known, held) = (kept.read(alloc)?, netns::is_held(&namespace));
            let some = known.is_some() || held || namespace.exists();
            Ok(Found { made: known.and_then(|known| known.status).filter(|_| held), some })
        })
        .await
    }

    async fn make(
        &self,
        alloc: &Allocation,
        line: &dyn InLine,
    ) -> Result<Option<AllocNetwork>, NetworkError> {
        let mode = mode_of(alloc);
        if !mode.is_own() {
            return Ok(None);
        }
        let namespace = self.kept.namespace(alloc.id);
        let own = |status| AllocNetwork { namespace: namespace.clone(), status, hostname: None };
        // What is there changes nothing that others make, so it needs no turn.
        if let Some(status) = self.find(alloc.id).await.map_err(passing)?.made {
            return Ok(Some(own(status)));
        }
        let _turn = self.turn(Some(line)).await;
        let found = self.find(alloc.id).await.map_err(passing)?;
        if let Some(status) = found.made {
            return Ok(Some(own(status)));
        }
        if found.some {
            // Half made, or of before a start of the machine: nothing of it is relied on.
            self.take_away_now(alloc.id).await.map_err(passing)?;
        }
        let network = match &mode {
            NetworkMode::Bridge => match self.can.no_bridge() {
                Some(why) => return Err(for_good(format!("network mode bridge: {why}"))),
                None => Some(self.can.bridge()),
            },
            NetworkMode::Cni(name) => Some(self.can.cni(name).map_err(for_good)?),
            NetworkMode::Host | NetworkMode::None => None,
        };
        let ports = if network.is_some() { mappings(alloc) } else { Vec::new() };
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
                Err(passing(error))
            }
        }
    }

    async fn write(&self, record: &NetworkRecord) -> Result<(), NetworkError> {
        let (kept, record) = (self.kept.clone(), record.clone());
        let written = blocking(move || kept.write(&record)).await;
        written.map_err(|error| passing(format!("recording the network: {error}")))
    }

    /// The namespace, and what plugins put into it.
    async fn fill(
        &self,
        record: &mut NetworkRecord,
        namespace: &std::path::Path,
        mode: &NetworkMode,
    ) -> Result<NetworkStatus, String> {
        let at = namespace.to_owned();
        let created = blocking(move || netns::create(&at)).await;
        created.map_err(|error| format!("making a network namespace: {error}"))?;
        let Some(network) = record.network.clone() else { return Ok(NetworkStatus::default()) };
        if *mode == NetworkMode::Bridge {
            self.let_through().await?;
        }
        let around = self.around(record.alloc, Some(namespace.to_owned()));
        let mut last = None;
        for plugin in &network.plugins {
            let input = network.input(plugin, last.as_ref(), &record.ports);
            last = Some(around.run(Verb::Add, plugin, &input).await?);
            // Each plugin takes away what the results say that there is.
            record.result.clone_from(&last);
            self.write(record).await.map_err(|error| error.text)?;
        }
        let last = last.unwrap_or(Value::Null);
        let status = answer::status(&last)
            .map_err(|error| format!("the last CNI plugin of network {}: {error}", network.name))?;
        Ok(status)
    }

    fn around(&self, alloc: AllocId, namespace: Option<PathBuf>) -> Surroundings {
        Surroundings { alloc, namespace, paths: self.can.paths.clone() }
    }

    /// What comes to the bridge's addresses is forwarded, whatever else the node forwards: the chain of the
    /// operator is asked first, and has this rule at its beginning.
    async fn let_through(&self) -> Result<(), String> {
        let (bridge, subnet) = self.can.bridge_of();
        // It may be there.
        let _there = iptables(&["-N", ADMIN_CHAIN]).await;
        let rule = [ADMIN_CHAIN, "-o", bridge, "-d", subnet, "-j", "ACCEPT"];
        if iptables(&[&["-C"], rule.as_slice()].concat()).await.is_ok() {
            return Ok(());
        }
        let inserted = iptables(&[&["-I"], rule.as_slice()].concat()).await;
        inserted.map_err(|error| format!("letting packets through to the bridge: {error}"))
    }

    async fn take_away(&self, alloc: AllocId, line: Option<&dyn InLine>) -> Result<(), String> {
        let _turn = self.turn(line).await;
        self.take_away_now(alloc).await
    }

    /// Under the turn.
    async fn take_away_now(&self, alloc: AllocId) -> Result<(), String> {
        let namespace = self.kept.namespace(alloc);
        let (kept, held) = (self.kept.clone(), namespace.clone());
        let known =
            blocking(move || Ok((kept.read(alloc)?, netns::is_held(&held), held.exists()))).await;
        let (known, held, there) = known?;
        if known.is_none() && !there {
            return Ok(());
        }
        let mut failed = None;
        if known.as_ref().is_some_and(|known| known.status.is_none()) {
            // An agent that was killed may have left one that still makes it.
            run::end_plugins_of(alloc).await;
        }
        if let Some(NetworkRecord { network: Some(network), ports, result, .. }) = &known {
            let around = self.around(alloc, held.then(|| namespace.clone()));
            failed = delete(&around, network, ports, result.as_ref()).await.err();
        }
        let at = namespace.clone();
        blocking(move || netns::remove(&at))
            .await
            .map_err(|error| format!("letting go of {}: {error}", namespace.display()))?;
        if let Some(failed) = failed {
            // The record stays: a later start tries again.
            return Err(failed);
        }
        let kept = self.kept.clone();
        blocking(move || kept.remove(alloc)).await
    }
}

/// Plugins in reverse; all of them, whatever one says. The first error.
async fn delete(
    around: &Surroundings,
    network: &CniNetwork,
    ports: &[PortMapping],
    result: Option<&Value>,
) -> Result<(), String> {
    let mut failed = Ok(());
    for plugin in network.plugins.iter().rev() {
        let input = network.input(plugin, result, ports);
        if let Err(error) = around.run(Verb::Del, plugin, &input).await {
            failed = failed.and(Err(error));
        }
    }
    failed
}

/// `iptables`, waiting for others that change rules.
async fn iptables(args: &[&str]) -> Result<(), String> {
    let program = run::iptables().ok_or("iptables is not there")?;
    let args = ["-w", "10"].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let start = ProgramStart { program, args, env: Vec::new(), input: Vec::new() };
    let output = program::run_with(start, CNI_PLUGIN_WALL_MAX).await.map_err(|e| e.to_string())?;
    match output.exit_code {
        Some(0) => Ok(()),
        _ => Err(answer::failure(b"", &output.stderr)),
    }
}

/// Ports of the node that lead to the allocation. As in Nomad at every address of the node, but for those of
/// a `host_network`, and where the node's address is of its loopback: there a port is nobody else's either.
fn mappings(alloc: &Allocation) -> Vec<PortMapping> {
    let network = alloc.task_group().and_then(|group| group.network.as_ref());
    let ports = alloc.ports.iter().filter(|port| port.task.is_none());
    let mapping = |port: &ostler_model::resources::AllocatedPort| {
        let spec = network.and_then(|spec| spec.ports.iter().find(|one| one.label == port.label));
        let named = spec.is_some_and(|spec| spec.host_network.is_some());
        let address = port.host_ip.parse::<IpAddr>().ok().filter(|ip| !ip.is_unspecified());
        let host_ip = address.filter(|ip| named || ip.is_loopback()).map(|ip| ip.to_string());
        PortMapping { host: port.value, inside: port.to, host_ip }
    };
    ports.map(mapping).collect()
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let done = clock::timeout(HOOK_WALL_MAX, clock::blocking(work)).await;
    let late = || format!("it did not end within {HOOK_WALL_MAX:?}: the disk is slow, or hangs");
    let done = done.ok_or_else(late)?.map_err(|error| error.to_string())?;
    done.map_err(|error| error.to_string())
}

impl Networks for AllocNetworks {
    fn set_up<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn InLine,
    ) -> BoxFuture<'a, Result<Option<AllocNetwork>, NetworkError>> {
        Box::pin(self.make(alloc, line))
    }

    fn tear_down<'a>(
        &'a self,
        alloc: &'a Allocation,
        line: &'a dyn InLine,
    ) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            // One that has the node's does not stand in line to have nothing taken away.
            if !mode_of(alloc).is_own() && !self.find(alloc.id).await.map_err(passing)?.some {
                return Ok(());
            }
            self.take_away(alloc.id, Some(line)).await.map_err(passing)
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
#[path = "make_tests.rs"]
mod tests;
