//! Places of connections.
//!
//! ```text
//! enter ─ one is free ────────────────────────────────► Place ─ dropped ─► free
//!   └─ none: the connection that asked nothing for the longest is closed ─► its place
//!        └─ all are being answered ─► none
//! ```
//! So connections that do nothing, however many, keep nobody out, and neither do those that never finish
//! their request's head.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// So many at once, and perhaps so many of one address.
#[derive(Clone)]
pub(super) struct Places(Arc<Shared>);

struct Shared {
    most: usize,
    of_one: Option<usize>,
    held: Mutex<Held>,
    /// Counts what happens: a later number is a later time.
    turns: AtomicU64,
}

#[derive(Default)]
struct Held {
    next: u64,
    all: BTreeMap<u64, Arc<Connection>>,
}

struct Connection {
    client: Option<IpAddr>,
    /// Requests being answered.
    busy: AtomicUsize,
    /// When the last one was, or when it came.
    since: AtomicU64,
    closed: CancellationToken,
}

/// One of them.
pub(super) struct Place {
    connection: Arc<Connection>,
    at: Option<(Places, u64)>,
}

/// While a request is answered.
pub(super) struct Busy(Arc<Connection>, Option<Places>);

impl Places {
    pub(super) fn new(most: usize, of_one: Option<usize>) -> Self {
        let turns = AtomicU64::new(0);
        Self(Arc::new(Shared { most, of_one, held: Mutex::default(), turns }))
    }

    /// A place for a connection of this client. Another that asks nothing may have to go for it.
    pub(super) fn enter(&self, client: Option<IpAddr>) -> Option<Place> {
        let mut held = self.held();
        // This machine's own programs all have one address.
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
        Some(Place { connection, at: Some((self.clone(), number)) })
    }

    fn turn(&self) -> u64 {
        self.0.turns.fetch_add(1, Ordering::Relaxed)
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Close the one of these that asked nothing for the longest.
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

impl Place {
    /// For a connection that takes none.
    pub(super) fn none() -> Self {
        Self { connection: Arc::new(Connection::new(None, 0)), at: None }
    }

    /// Cancelled when somebody else needs the place.
    pub(super) fn closed(&self) -> &CancellationToken {
        &self.connection.closed
    }

    /// A request begins; it ends when this is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.connection.busy.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(&self.connection), self.at.as_ref().map(|(places, _)| places.clone()))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(places) = &self.1 {
            self.0.since.store(places.turn(), Ordering::Relaxed);
        }
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some((places, number)) = &self.at {
            places.held().all.remove(number);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn who_asks_nothing_for_the_longest_makes_room_for_who_comes() {
        let places = Places::new(2, None);
        let first = places.enter(None).unwrap();
        let second = places.enter(None).unwrap();
        drop(first.busy());
        let third = places.enter(None).unwrap();
        assert!(second.closed().is_cancelled(), "the first one was answered later");
        assert!(!first.closed().is_cancelled() && !third.closed().is_cancelled());
    }

    #[test]
    fn who_is_being_answered_keeps_the_place() {
        let places = Places::new(1, None);
        let first = places.enter(None).unwrap();
        let busy = first.busy();
        assert!(places.enter(None).is_none());
        drop(busy);
        assert!(places.enter(None).is_some() && first.closed().is_cancelled());
    }

    #[test]
    fn a_place_that_is_left_is_free() {
        let places = Places::new(1, None);
        let first = places.enter(None).unwrap();
        let busy = first.busy();
        drop((busy, first));
        let second = places.enter(None).unwrap();
        let _busy = second.busy();
        assert!(places.enter(None).is_none());
    }

    #[test]
    fn one_address_has_so_many_and_takes_from_itself_alone() {
        let places = Places::new(10, Some(2));
        let (far, other) = ("10.0.0.1".parse().ok(), "10.0.0.2".parse().ok());
        let elsewhere = places.enter(other).unwrap();
        let first = places.enter(far).unwrap();
        let second = places.enter(far).unwrap();
        let _third = places.enter(far).unwrap();
        assert!(first.closed().is_cancelled());
        assert!(!second.closed().is_cancelled() && !elsewhere.closed().is_cancelled());
        let near: Vec<_> = (0..5).filter_map(|_| places.enter("127.0.0.1".parse().ok())).collect();
        assert_eq!(near.len(), 5, "programs of this machine share one address");
    }
}
