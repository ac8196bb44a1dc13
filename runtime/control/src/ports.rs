//! Ports assigned to allocations.
//!
//! ```text
//! fixed ports of a request ─► assigned already? in use by somebody else? ─► taken
//! dynamic ports ─► random start in the range, first that is neither assigned, reserved nor in use
//!                                                        all of a request or none
//! ```
//! Whether a port is in use by a program that is not ours is asked of a probe. That is a courtesy:
//! another program may take the port right after. That one port is assigned once is certain.

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

/// Who has a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PortHolder {
    /// The allocation.
    pub alloc: AllocId,
    /// Its name for the port.
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
    /// Assigned already.
    #[error("port {port} ({label:?}) is held by {holder}; ask for another or a dynamic one")]
    Taken {
        /// Name of the port in the job.
        label: String,
        /// The port.
        port: u16,
        /// Who has it.
        holder: PortHolder,
    },
    /// A program that is not ours listens on it.
    #[error(
        "port {port} ({label:?}) is in use by another program on this node; stop it or ask for a dynamic port"
    )]
    InUse {
        /// Name of the port in the job.
        label: String,
        /// The port.
        port: u16,
    },
    /// Nothing left in the dynamic range.
    #[error("no free port for {label:?}: all of {first}-{last} are assigned, reserved or in use")]
    Exhausted {
        /// Name of the port in the job.
        label: String,
        /// First of the range.
        first: u16,
        /// Last of the range.
        last: u16,
    },
    /// The node has no addresses of this name.
    #[error(
        "port {label:?} is to be at host network {name:?}, which this node has no address of; the operator \
         gives it one by client {{ host_network \"{name}\" {{ cidr = … }} }}"
    )]
    NoHostNetwork {
        /// Name of the port in the job.
        label: String,
        /// Of the host network.
        name: String,
    },
    /// The configuration keeps it from allocations.
    #[error(
        "port {port} ({label:?}) is reserved on host network {name:?} by the node's configuration"
    )]
    Reserved {
        /// Name of the port in the job.
        label: String,
        /// The port.
        port: u16,
        /// Of the host network.
        name: String,
    },
    /// Zero means "any" to the kernel and nothing here.
    #[error("port {label:?} cannot be 0; leave `static` out for a dynamic port")]
    Zero {
        /// Name of the port in the job.
        label: String,
    },
}

/// What decides about ports beside the request.
pub struct PortRules<'a> {
    /// Address written into the ports.
    pub host_ip: IpAddr,
    /// Addresses that ports may ask for by name.
    pub host_networks: &'a BTreeMap<String, HostNetworkView>,
    /// Where the search for dynamic ports starts.
    pub rng: &'a Rng,
    /// Never assigned as dynamic: fixed ports that later allocations of the same job ask for.
    pub reserved: &'a BTreeSet<u16>,
    /// Does somebody listen on this port?
    pub in_use: &'a dyn Fn(u16) -> bool,
}

/// Who has which port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortLedger {
    assigned: BTreeMap<u16, PortHolder>,
    /// The same by allocation; who has none is not listed.
    of: BTreeMap<AllocId, BTreeSet<u16>>,
    dynamic: RangeInclusive<u16>,
}

impl Default for PortLedger {
    fn default() -> Self {
        Self::new(DYNAMIC_PORTS)
    }
}

impl PortLedger {
    /// Nothing assigned; dynamic ports come from `dynamic`.
    #[must_use]
    pub fn new(dynamic: RangeInclusive<u16>) -> Self {
        Self { assigned: BTreeMap::new(), of: BTreeMap::new(), dynamic }
    }

    /// Assign everything in `ports`, of a group or of a task of it, in their order, or nothing.
    ///
    /// # Errors
    /// A [`PortError`] for each port that cannot be assigned; of dynamic ones for the first.
    pub fn assign(
        &mut self,
        alloc: AllocId,
        ports: &[PortSpec],
        task: Option<&TaskName>,
        rules: &PortRules<'_>,
    ) -> Result<Vec<AllocatedPort>, Vec<PortError>> {
        let mut errors: Vec<PortError> =
            ports.iter().filter_map(|port| not_at(port, rules).err()).collect();
        if !errors.is_empty() {
            return Err(errors);
        }
        // In place: a copy of all ports for each of a thousand allocations takes seconds.
        let mut entered = Vec::with_capacity(ports.len());
        // Fixed ports first, so that no dynamic one of the same request takes their place.
        for (label, port) in ports.iter().filter_map(|p| p.fixed.map(|port| (&p.label, port))) {
            match self.fixed_is_free(label, port, rules) {
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
                        // The others would search the whole range in vain.
                        errors.push(error);
                        break;
                    }
                },
            };
            given.push(AllocatedPort {
                label: spec.label.clone(),
                value: port,
                to: spec.to.unwrap_or(port),
                host_ip: at(spec, rules).map_or(rules.host_ip, |at| at.address).to_string(),
                task: task.cloned(),
            });
        }
        if !errors.is_empty() {
            entered.into_iter().for_each(|port| self.leave(alloc, port));
            return Err(errors);
        }
        Ok(given)
    }

    /// Enter what an allocation read from the state file has. All or nothing; nobody is asked
    /// whether the ports are in use, for they are: by the allocation.
    ///
    /// # Errors
    /// [`PortError::Taken`] for the first port that somebody else, or the allocation itself, has.
    pub fn adopt(&mut self, alloc: AllocId, ports: &[AllocatedPort]) -> Result<(), PortError> {
        // In place, as in `assign`.
        let entered = ports.iter().try_for_each(|port| {
            self.not_assigned(&port.label, port.value)?;
            self.enter(alloc, &port.label, port.value);
            Ok(())
        });
        if entered.is_err() {
            self.release(alloc);
        }
        entered
    }

    /// Take back what an allocation has. Returns how many; 0 the second time.
    pub fn release(&mut self, alloc: AllocId) -> usize {
        self.take(alloc).len()
    }

    /// As [`PortLedger::release`], with what it had.
    pub(crate) fn take(&mut self, alloc: AllocId) -> Vec<(u16, PortHolder)> {
        let ports = self.of.remove(&alloc).into_iter().flatten();
        ports.filter_map(|port| Some((port, self.assigned.remove(&port)?))).collect()
    }

    /// Give back what was taken, and what nobody has been given since.
    pub(crate) fn put_back(&mut self, taken: Vec<(u16, PortHolder)>) {
        for (port, PortHolder { alloc, label }) in taken {
            self.enter(alloc, &label, port);
        }
    }

    /// Who has this port.
    #[must_use]
    pub fn holder(&self, port: u16) -> Option<&PortHolder> {
        self.assigned.get(&port)
    }

    /// Everything assigned, by port.
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

    fn not_assigned(&self, label: &str, port: u16) -> Result<(), PortError> {
        match self.assigned.get(&port) {
            Some(holder) => {
                Err(PortError::Taken { label: label.to_owned(), port, holder: holder.clone() })
            }
            None => Ok(()),
        }
    }

    fn fixed_is_free(
        &self,
        label: &str,
        port: u16,
        rules: &PortRules<'_>,
    ) -> Result<(), PortError> {
        if port == 0 {
            return Err(PortError::Zero { label: label.to_owned() });
        }
        self.not_assigned(label, port)?;
        if (rules.in_use)(port) {
            return Err(PortError::InUse { label: label.to_owned(), port });
        }
        Ok(())
    }

    fn free_dynamic(&self, spec: &PortSpec, rules: &PortRules<'_>) -> Result<u16, PortError> {
        let label = &spec.label;
        let kept = |port| at(spec, rules).is_some_and(|at| at.reserves(port));
        let (first, last) = (*self.dynamic.start(), *self.dynamic.end());
        let exhausted = || PortError::Exhausted { label: label.clone(), first, last };
        let size = u64::from(last.checked_sub(first).ok_or_else(exhausted)?) + 1;
        let start = rules.rng.below(size);
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

/// The addresses that a port asks for by name.
fn at<'a>(spec: &PortSpec, rules: &PortRules<'a>) -> Option<&'a HostNetworkView> {
    rules.host_networks.get(spec.host_network.as_ref()?)
}

/// What of the node's networks stands in the way of a port.
fn not_at(spec: &PortSpec, rules: &PortRules<'_>) -> Result<(), PortError> {
    let (Some(name), label) = (&spec.host_network, &spec.label) else { return Ok(()) };
    let (name, label) = (name.clone(), label.clone());
    match (at(spec, rules), spec.fixed) {
        (None, _) => Err(PortError::NoHostNetwork { label, name }),
        (Some(at), Some(port)) if at.reserves(port) => {
            Err(PortError::Reserved { label, port, name })
        }
        _ => Ok(()),
    }
}

/// Does a program listen on this TCP port, on any address of the node? Asks by listening there
/// for a moment. A port that only root may use counts as free: the task may run as root.
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
