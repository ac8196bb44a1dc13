//! Assigns ports to allocations.
//!
//! ```text
//! fixed ports of a request ─► assigned already? in use by somebody else? ─► taken
//! dynamic ports ─► random start in the range, first that is neither assigned, reserved nor in use
//!                                                        all of a request or none
//! ```
//! A probe tells whether a program that is not ours uses a port. That is only a courtesy, because
//! another program may take the port right after. It is certain that no port is assigned twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;

use serde::Serialize;

use ostler_model::ids::{AllocId, TaskName};
use ostler_model::job::PortSpec;
use ostler_model::limits::DYNAMIC_PORTS;
use ostler_model::resources::AllocatedPort;
use ostler_model::rng::Rng;
use ostler_node::HostNetworkView;

/// The allocation that has a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortHolder {
    /// Id of the allocation.
    pub alloc: AllocId,
    /// The label that the allocation gives the port.
    pub label: String,
}

impl fmt::Display for PortHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "allocation {} (port label {:?})", self.alloc.short(), self.label)
    }
}

/// Why a port could not be assigned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub enum PortError {
    /// Another allocation has the port.
    #[error("port {port} ({label:?}) is held by {holder}; ask for another or a dynamic one")]
    Taken {
        /// Name of the port in the job.
        label: String,
        /// Number of the port.
        port: u16,
        /// The allocation that has it.
        holder: PortHolder,
    },
    /// A program that is not ours listens on it.
    #[error(
        "port {port} ({label:?}) is in use by another program on this node; stop it or ask for a dynamic port"
    )]
    InUse {
        /// Name of the port in the job.
        label: String,
        /// Number of the port.
        port: u16,
    },
    /// No port of the dynamic range is left.
    #[error("no free port for {label:?}: all of {first}-{last} are assigned, reserved or in use")]
    Exhausted {
        /// Name of the port in the job.
        label: String,
        /// First port of the dynamic range.
        first: u16,
        /// Last port of the dynamic range.
        last: u16,
    },
    /// The node has no address in this host network.
    #[error(
        "port {label:?} asks for host network {name:?}, in which this node has no address; an operator can \
         give it one by client {{ host_network \"{name}\" {{ cidr = … }} }}"
    )]
    NoHostNetwork {
        /// Name of the port in the job.
        label: String,
        /// Name of the host network.
        name: String,
    },
    /// The configuration keeps the port from allocations.
    #[error(
        "port {port} ({label:?}) is reserved on host network {name:?} by the node's configuration"
    )]
    Reserved {
        /// Name of the port in the job.
        label: String,
        /// Number of the port.
        port: u16,
        /// Name of the host network.
        name: String,
    },
    /// The port is zero, which means "any" to the kernel and has no meaning here.
    #[error("port {label:?} cannot be 0; leave `static` out for a dynamic port")]
    Zero {
        /// Name of the port in the job.
        label: String,
    },
}

/// The rules that decide about ports, beside the request.
pub struct PortRules<'a> {
    /// The address that is written into the ports.
    pub host_ip: IpAddr,
    /// Addresses that ports may ask for by name.
    pub host_networks: &'a BTreeMap<String, HostNetworkView>,
    /// Chooses where the search for dynamic ports starts.
    pub rng: &'a Rng,
    /// Ports that are never assigned as dynamic ones: later allocations of the same job ask for
    /// them as fixed ports.
    pub reserved: &'a BTreeSet<u16>,
    /// Does a program that is not ours listen on this port?
    pub in_use: &'a dyn Fn(u16) -> bool,
}

/// The assigned ports and their holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLedger {
    assigned: BTreeMap<u16, PortHolder>,
    /// The ports by allocation. An allocation without ports is not listed.
    of: BTreeMap<AllocId, BTreeSet<u16>>,
    dynamic: RangeInclusive<u16>,
}

impl Default for PortLedger {
    fn default() -> Self {
        Self::new(DYNAMIC_PORTS)
    }
}

impl PortLedger {
    /// A ledger without assigned ports. Dynamic ports come from `dynamic`.
    #[must_use]
    pub fn new(dynamic: RangeInclusive<u16>) -> Self {
        Self { assigned: BTreeMap::new(), of: BTreeMap::new(), dynamic }
    }

    /// Assign all of `ports`, of a group or of a task of it, in their order, or none of them.
    ///
    /// # Errors
    /// A [`PortError`] for each port that cannot be assigned. Of dynamic ports only the first one
    /// is reported.
    pub fn assign(
        &mut self,
        alloc: AllocId,
        ports: &[PortSpec],
        task: Option<&TaskName>,
        rules: &PortRules<'_>,
    ) -> Result<Vec<AllocatedPort>, Vec<PortError>> {
        let mut errors: Vec<PortError> =
            ports.iter().filter_map(|port| check_named_network(port, rules).err()).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        // The ports are assigned in place: a copy of all ports for each of a thousand allocations
        // takes seconds.
        let mut entered = Vec::with_capacity(ports.len());
        // Fixed ports come first, so that no dynamic port of the same request takes their place.
        for (label, port) in ports.iter().filter_map(|p| p.fixed.map(|port| (&p.label, port))) {
            match self.check_fixed(label, port, rules) {
                Ok(()) => {
                    self.enter(alloc, label, port);
                    entered.push(port);
                }
                Err(error) => errors.push(error),
            }
        }
        let mut given = Vec::with_capacity(ports.len());
        for spec in ports {
            let port = match spec.fixed {
                Some(port) => port,
                None => match self.free_dynamic(spec, rules) {
                    Ok(port) => {
                        self.enter(alloc, &spec.label, port);
                        entered.push(port);
                        port
                    }
                    Err(error) => {
                        // The other dynamic ports would search the whole range in vain.
                        errors.push(error);
                        break;
                    }
                },
            };
            given.push(AllocatedPort {
                label: spec.label.clone(),
                value: port,
                to: spec.to.unwrap_or(port),
                host_ip: named_network(spec, rules)
                    .map_or(rules.host_ip, |at| at.address)
                    .to_string(),
                task: task.cloned(),
            });
        }
        if !errors.is_empty() {
            entered.into_iter().for_each(|port| self.leave(alloc, port));
            return Err(errors);
        }
        Ok(given)
    }

    /// Enter the ports of an allocation that was read from the state file, all or none. It is not
    /// asked whether they are in use, because the allocation itself uses them.
    ///
    /// # Errors
    /// [`PortError::Taken`] for the first port that somebody else, or the allocation itself, has.
    pub fn adopt(&mut self, alloc: AllocId, ports: &[AllocatedPort]) -> Result<(), PortError> {
        // The ports are entered in place, as in `assign`.
        let entered = ports.iter().try_for_each(|port| {
            self.check_unassigned(&port.label, port.value)?;
            self.enter(alloc, &port.label, port.value);
            Ok(())
        });
        if entered.is_err() {
            self.release(alloc);
        }
        entered
    }

    /// Take back the ports of an allocation. Returns their number; 0 the second time.
    pub fn release(&mut self, alloc: AllocId) -> usize {
        self.take(alloc).len()
    }

    /// Take back the ports of an allocation, and return them.
    pub(crate) fn take(&mut self, alloc: AllocId) -> Vec<(u16, PortHolder)> {
        let ports = self.of.remove(&alloc).into_iter().flatten();
        ports.filter_map(|port| Some((port, self.assigned.remove(&port)?))).collect()
    }

    /// Give ports back that were taken and that nobody has been given since.
    pub(crate) fn put_back(&mut self, taken: Vec<(u16, PortHolder)>) {
        for (port, PortHolder { alloc, label }) in taken {
            self.enter(alloc, &label, port);
        }
    }

    /// The holder of this port.
    #[must_use]
    pub fn holder(&self, port: u16) -> Option<&PortHolder> {
        self.assigned.get(&port)
    }

    /// All assigned ports with their holders, by port.
    pub fn holders(&self) -> impl Iterator<Item = (u16, &PortHolder)> {
        self.assigned.iter().map(|(port, holder)| (*port, holder))
    }

    fn enter(&mut self, alloc: AllocId, label: &str, port: u16) {
        self.assigned.insert(port, PortHolder { alloc, label: label.to_owned() });
        self.of.entry(alloc).or_default().insert(port);
    }

    fn leave(&mut self, alloc: AllocId, port: u16) {
        self.assigned.remove(&port);
        if let Some(ports) = self.of.get_mut(&alloc) {
            ports.remove(&port);
            if ports.is_empty() {
                self.of.remove(&alloc);
            }
        }
    }

    fn check_unassigned(&self, label: &str, port: u16) -> Result<(), PortError> {
        match self.assigned.get(&port) {
            Some(holder) => {
                Err(PortError::Taken { label: label.to_owned(), port, holder: holder.clone() })
            }
            None => Ok(()),
        }
    }

    fn check_fixed(&self, label: &str, port: u16, rules: &PortRules<'_>) -> Result<(), PortError> {
        if port == 0 {
            return Err(PortError::Zero { label: label.to_owned() });
        }
        self.check_unassigned(label, port)?;
        if (rules.in_use)(port) {
            return Err(PortError::InUse { label: label.to_owned(), port });
        }
        Ok(())
    }

    fn free_dynamic(&self, spec: &PortSpec, rules: &PortRules<'_>) -> Result<u16, PortError> {
        let label = &spec.label;
        let kept = |port| named_network(spec, rules).is_some_and(|at| at.reserves(port));
        let (first, last) = (*self.dynamic.start(), *self.dynamic.end());
        let exhausted = || PortError::Exhausted { label: label.clone(), first, last };
        let size = u64::from(last.checked_sub(first).ok_or_else(exhausted)?) + 1;
        let start = rules.rng.number_below(size);
        (0..size)
            .filter_map(|step| u16::try_from((start + step) % size).ok()?.checked_add(first))
            .find(|port| {
                !self.assigned.contains_key(port)
                    && !rules.reserved.contains(port)
                    && !kept(*port)
                    && !(rules.in_use)(*port)
            })
            .ok_or_else(exhausted)
    }
}

/// The host network that a port asks for by name, where the node has it.
fn named_network<'a>(spec: &PortSpec, rules: &PortRules<'a>) -> Option<&'a HostNetworkView> {
    rules.host_networks.get(spec.host_network.as_ref()?)
}

/// Check that the node's networks allow a port.
fn check_named_network(spec: &PortSpec, rules: &PortRules<'_>) -> Result<(), PortError> {
    let (Some(name), label) = (&spec.host_network, &spec.label) else { return Ok(()) };
    let (name, label) = (name.clone(), label.clone());
    match (named_network(spec, rules), spec.fixed) {
        (None, _) => Err(PortError::NoHostNetwork { label, name }),
        (Some(at), Some(port)) if at.reserves(port) => {
            Err(PortError::Reserved { label, port, name })
        }
        _ => Ok(()),
    }
}

/// Does a program listen on this TCP port, on any address of the node? The check listens there for
/// a moment. A port that only root may use counts as free, because the task may run as root.
#[must_use]
pub fn port_in_use(port: u16) -> bool {
    matches!(
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        Err(error) if error.kind() == ErrorKind::AddrInUse
    )
}

#[cfg(test)]
#[path = "ports_tests.rs"]
mod tests;
