//! The places of connections: who may connect, and who must go.
//!
//! ```text
//! enter ─ one is free ────────────────────────────────► ConnectionPlace ─ dropped ─► free
//!   └─ none: the connection that has been idle for the longest is closed ─► its place
//!        └─ all are busy ─► none
//! ```
//! So idle connections, however many, keep nobody out, and neither do connections that never finish
//! the head of a request.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The places of connections: a bounded number in all, and perhaps of each address.
#[derive(Clone)]
pub(super) struct ConnectionPlaces(Arc<ConnectionPlacesInner>);

struct ConnectionPlacesInner {
    most: usize,
    of_one: Option<usize>,
    held: Mutex<OpenConnections>,
    /// A counter of events: a later number is a later time.
    turns: AtomicU64,
}

#[derive(Default)]
struct OpenConnections {
    next: u64,
    all: BTreeMap<u64, Arc<Connection>>,
}

struct Connection {
    client: Option<IpAddr>,
    /// The number of requests that are being answered.
    busy: AtomicUsize,
    /// When the last request ended, or when the connection came.
    since: AtomicU64,
    closed: CancellationToken,
}

/// The place of one connection; free again when this is dropped.
pub(super) struct ConnectionPlace {
    connection: Arc<Connection>,
    at: Option<(ConnectionPlaces, u64)>,
}

/// Marks a connection as busy while a request is answered.
pub(super) struct BusyConnection(Arc<Connection>, Option<ConnectionPlaces>);

impl ConnectionPlaces {
    pub(super) fn new(most: usize, of_one: Option<usize>) -> Self {
        let turns = AtomicU64::new(0);
        Self(Arc::new(ConnectionPlacesInner { most, of_one, held: Mutex::default(), turns }))
    }

    /// Take a place for a connection of this client. An idle connection may be closed for it.
    pub(super) fn enter(&self, client: Option<IpAddr>) -> Option<ConnectionPlace> {
        let mut held = self.lock_open();
        // The programs of this machine all have one address.
        let far = client.filter(|address| !address.is_loopback());
        if let Some((address, most)) = far.zip(self.0.of_one) {
            let own = |one: &Connection| one.client == Some(address);
            if held.all.values().filter(|one| own(one)).count() >= most {
                held.close_idle(own)?;
            }
        }
        if held.all.len() >= self.0.most {
            held.close_idle(|_| true)?;
        }
        let number = held.next;
        held.next += 1;
        let connection = Arc::new(Connection::new(client, self.turn()));
        held.all.insert(number, Arc::clone(&connection));
        drop(held);
        Some(ConnectionPlace { connection, at: Some((self.clone(), number)) })
    }

    fn turn(&self) -> u64 {
        self.0.turns.fetch_add(1, Ordering::Relaxed)
    }

    fn lock_open(&self) -> MutexGuard<'_, OpenConnections> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OpenConnections {
    /// Close the connection among these that has been idle for the longest.
    fn close_idle(&mut self, of: impl Fn(&Connection) -> bool) -> Option<()> {
        let idle = self.all.iter().filter(|(_, one)| one.is_idle() && of(one));
        let (number, _) = idle.min_by_key(|(_, one)| one.since.load(Ordering::Relaxed))?;
        let number = *number;
        self.all.remove(&number)?.closed.cancel();
        Some(())
    }
}

impl Connection {
    fn new(client: Option<IpAddr>, since: u64) -> Self {
        let (busy, since) = (AtomicUsize::new(0), AtomicU64::new(since));
        Self { client, busy, since, closed: CancellationToken::new() }
    }

    fn is_idle(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }
}

impl ConnectionPlace {
    /// A place for a connection that takes none of the bounded ones.
    pub(super) fn none() -> Self {
        Self { connection: Arc::new(Connection::new(None, 0)), at: None }
    }

    /// The token that is cancelled when another client needs the place.
    pub(super) fn close_token(&self) -> &CancellationToken {
        &self.connection.closed
    }

    /// Mark the connection as busy until the result is dropped.
    pub(super) fn mark_busy(&self) -> BusyConnection {
        self.connection.busy.fetch_add(1, Ordering::AcqRel);
        BusyConnection(
            Arc::clone(&self.connection),
            self.at.as_ref().map(|(places, _)| places.clone()),
        )
    }
}

impl Drop for BusyConnection {
    fn drop(&mut self) {
        if let Some(places) = &self.1 {
            self.0.since.store(places.turn(), Ordering::Relaxed);
        }
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        if let Some((places, number)) = &self.at {
            places.lock_open().all.remove(number);
        }
    }
}

/// At most `most`, and no more than a share of the files that this process may open, so that others
/// get files too, the socket before TCP.
pub(super) fn limit_by_files(most: usize, share: u64) -> usize {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = files.map_or(most, |files| usize::try_from(files / share).unwrap_or(most));
    most.min(share).max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn who_asks_nothing_for_the_longest_makes_room_for_who_comes() {
        let places = ConnectionPlaces::new(2, None);
        let first = places.enter(None).unwrap();
        let second = places.enter(None).unwrap();
        drop(first.mark_busy());
        let third = places.enter(None).unwrap();
        assert!(second.close_token().is_cancelled(), "the first one was answered later");
        assert!(!first.close_token().is_cancelled() && !third.close_token().is_cancelled());
    }

    #[test]
    fn who_is_being_answered_keeps_the_place() {
        let places = ConnectionPlaces::new(1, None);
        let first = places.enter(None).unwrap();
        let busy = first.mark_busy();
        assert!(places.enter(None).is_none());
        drop(busy);
        assert!(places.enter(None).is_some() && first.close_token().is_cancelled());
    }

    #[test]
    fn a_place_that_is_left_is_free() {
        let places = ConnectionPlaces::new(1, None);
        let first = places.enter(None).unwrap();
        let busy = first.mark_busy();
        drop((busy, first));
        let second = places.enter(None).unwrap();
        let _busy = second.mark_busy();
        assert!(places.enter(None).is_none());
    }

    #[test]
    fn one_address_has_so_many_and_takes_from_itself_alone() {
        let places = ConnectionPlaces::new(10, Some(2));
        let (far, other) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        let elsewhere = places.enter(other).unwrap();
        let first = places.enter(far).unwrap();
        let second = places.enter(far).unwrap();
        let _third = places.enter(far).unwrap();
        assert!(first.close_token().is_cancelled());
        assert!(!second.close_token().is_cancelled() && !elsewhere.close_token().is_cancelled());
        let near: Vec<_> = (0..5).filter_map(|_| places.enter("127.0.0.1".parse().ok())).collect();
        assert_eq!(near.len(), 5, "programs of this machine share one address");
    }
}
