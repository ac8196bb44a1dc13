//! Counts the connections for disks by address, so that no address takes all places.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ostler_model::limits::DISK_SERVED_CONNECTIONS_OF_ONE_MAX;

/// The number of connections of each address.
#[derive(Clone, Default)]
pub(crate) struct Peers(Arc<Mutex<BTreeMap<IpAddr, usize>>>);

/// The place of one connection; it is free again when this is dropped.
pub(crate) struct PeerPlace {
    peers: Peers,
    of: IpAddr,
}

impl Peers {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Take a place for an address. `None` if it has as many as it may have.
    pub(crate) fn enter(&self, of: IpAddr) -> Option<PeerPlace> {
        let mut open = self.lock();
        let count = open.entry(of).or_default();
        *count =
            count.checked_add(1).filter(|count| *count <= DISK_SERVED_CONNECTIONS_OF_ONE_MAX)?;
        Some(PeerPlace { peers: self.clone(), of })
    }
}

impl Drop for PeerPlace {
    fn drop(&mut self) {
        let mut open = self.peers.lock();
        let left = open.get_mut(&self.of).map(|count| {
            *count = count.saturating_sub(1);
            *count
        });
        if left == Some(0) {
            open.remove(&self.of);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_of_places_and_gets_them_back() {
        let (peers, greedy) = (Peers::default(), "10.0.0.1".parse().unwrap());
        let mut places: Vec<_> = std::iter::from_fn(|| peers.enter(greedy)).collect();
        assert_eq!(places.len(), DISK_SERVED_CONNECTIONS_OF_ONE_MAX);
        assert!(peers.enter("10.0.0.2".parse().unwrap()).is_some(), "another one finds a place");
        places.pop();
        assert!(peers.enter(greedy).is_some());
        places.clear();
        assert!(peers.lock().is_empty(), "nothing is kept of who has gone");
    }
}
