//! Shares of what is limited: streams, queries that wait, large bodies on their way, and commands
//! inside tasks.
//!
//! ```text
//! take ─┬─ over the socket without a token ─► the operator's places
//!       └─ with a token, or over TCP ───────► the others' places ─ has fewer than are free? ─┬─ yes ─► Share
//!                                                                                            └─ no ──► refused
//! ```
//! A caller that takes as many places as it can gets half of them, the next one half of the rest,
//! and so on, so that there is always a place for the next caller. The places of the operator are
//! separate from all others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::RequestCaller;
use super::error::RequestFailure;
use super::places::limit_by_files;
use ostler_model::limits::{
    API_BODIES_MAX, API_CONNECTIONS_MAX, API_STREAMS_MAX, API_TCP_BODIES_MAX,
    API_TCP_CONNECTIONS_MAX, API_TCP_STREAMS_MAX, API_TCP_WAITS_MAX, EXEC_SESSIONS_MAX,
};

/// The kind of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShareKind {
    /// Streams of logs, files and events.
    Streams,
    /// Queries that wait for a change.
    Waits,
    /// Large bodies of requests, until the requests are answered, because each body is in memory.
    Bodies,
    /// Commands that run inside tasks.
    Commands,
}

impl ShareKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Waits => "waiting queries",
            Self::Bodies => "large bodies",
            Self::Commands => "commands inside tasks",
        }
    }
}

/// The places of one kind.
#[derive(Clone, Debug)]
pub(super) struct CallerShares {
    sort: ShareKind,
    operator: Pool,
    others: Pool,
}

#[derive(Clone, Debug)]
struct Pool {
    most: usize,
    held: Arc<Mutex<BTreeMap<RequestCaller, usize>>>,
}

/// One place; it is free again when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    pool: Pool,
    caller: RequestCaller,
}

impl CallerShares {
    /// The places of streams. They are fewer than those of connections, so that streams alone lock
    /// nobody out.
    pub(super) fn for_streams() -> Self {
        let operator = limit_by_files(API_CONNECTIONS_MAX, 3) / 4;
        let others = limit_by_files(API_TCP_CONNECTIONS_MAX, 6) / 4;
        Self::new(
            ShareKind::Streams,
            operator.min(API_STREAMS_MAX),
            others.min(API_TCP_STREAMS_MAX),
        )
    }

    /// The places of queries that wait. Together with those of streams they are fewer than those of connections.
    pub(super) fn for_waits() -> Self {
        let others = limit_by_files(API_TCP_CONNECTIONS_MAX, 6) * 2 / 3;
        Self::new(ShareKind::Waits, API_CONNECTIONS_MAX, others.min(API_TCP_WAITS_MAX))
    }

    /// The places of large bodies.
    pub(super) fn for_bodies() -> Self {
        Self::new(ShareKind::Bodies, API_BODIES_MAX, API_TCP_BODIES_MAX)
    }

    /// The places of commands inside tasks.
    pub(super) fn for_commands() -> Self {
        Self::new(ShareKind::Commands, EXEC_SESSIONS_MAX, EXEC_SESSIONS_MAX)
    }

    fn new(sort: ShareKind, operator: usize, others: usize) -> Self {
        let pool = |most: usize| Pool { most: most.max(1), held: Arc::default() };
        Self { sort, operator: pool(operator), others: pool(others) }
    }

    /// The number of places that are taken.
    pub(super) fn count(&self) -> usize {
        let of = |pool: &Pool| pool.lock_held().values().sum::<usize>();
        of(&self.operator) + of(&self.others)
    }

    /// Take a place for this caller.
    ///
    /// # Errors
    /// When no place is free, or the caller has at least as many as are free.
    pub(super) fn take(&self, caller: RequestCaller) -> Result<Share, RequestFailure> {
        let pool = match caller {
            RequestCaller::Operator => &self.operator,
            RequestCaller::Token(_) | RequestCaller::Near => &self.others,
        };
        let what = self.sort.name();
        let mut held = pool.lock_held();
        let free = pool.most.saturating_sub(held.values().sum());
        let own = held.get(&caller).copied().unwrap_or(0);
        if free == 0 {
            return Err(RequestFailure::NoneFree { what });
        }
        if caller != RequestCaller::Operator && own >= free {
            return Err(RequestFailure::TooManyOfOne { what, own });
        }
        held.insert(caller, own + 1);
        drop(held);
        Ok(Share { pool: pool.clone(), caller })
    }
}

impl Pool {
    fn lock_held(&self) -> MutexGuard<'_, BTreeMap<RequestCaller, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Share {
    /// A place in a pool of its own.
    pub(super) fn of_test() -> Self {
        let pool = Pool { most: 1, held: Arc::default() };
        Self { pool, caller: RequestCaller::Near }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.pool.lock_held();
        match held.get_mut(&self.caller) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(held.remove(&self.caller)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::access::TokenId;

    fn token(number: u128) -> RequestCaller {
        RequestCaller::Token(TokenId::new(uuid::Uuid::from_u128(number)))
    }

    /// Take as many places as one caller can get.
    fn greedy(shares: &CallerShares, caller: RequestCaller) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(caller).ok()).collect()
    }

    #[test]
    fn who_takes_all_it_can_gets_half_and_the_next_one_half_of_the_rest() {
        let shares = CallerShares::new(ShareKind::Streams, 8, 320);
        let first = greedy(&shares, token(1));
        assert_eq!(first.len(), 160);
        assert!(matches!(
            shares.take(token(1)),
            Err(RequestFailure::TooManyOfOne { what: "streams", own: 160 })
        ));
        let second = greedy(&shares, token(2));
        assert_eq!(second.len(), 80);
        assert_eq!(greedy(&shares, RequestCaller::Near).len(), 40);
        drop(first);
        assert_eq!(greedy(&shares, token(1)).len(), 120, "as many as are left then");
    }

    #[test]
    fn seven_that_take_all_they_can_leave_places_for_an_eighth() {
        let shares = CallerShares::new(ShareKind::Streams, 8, 320);
        let held: Vec<_> = (0..7).map(|number| greedy(&shares, token(number))).collect();
        assert!(held.iter().all(|own| !own.is_empty()));
        assert!(shares.take(token(7)).is_ok());
    }

    #[test]
    fn the_operator_has_places_that_nobody_else_takes() {
        let shares = CallerShares::new(ShareKind::Waits, 8, 8);
        let _theirs: Vec<_> = (0..9).map(|number| greedy(&shares, token(number))).collect();
        let own = greedy(&shares, RequestCaller::Operator);
        assert_eq!(own.len(), 8, "all of them");
        let full = shares.take(RequestCaller::Operator).unwrap_err();
        assert!(matches!(full, RequestFailure::NoneFree { what: "waiting queries" }), "{full}");
        drop(own);
        assert_eq!(greedy(&shares, RequestCaller::Operator).len(), 8);
    }

    #[test]
    fn one_token_may_follow_a_hundred_logs_and_fifty_streams_and_wait_with_five_hundred_queries() {
        let near = |shares: &CallerShares| greedy(shares, RequestCaller::Near).len();
        let (streams, waits) = (API_TCP_STREAMS_MAX, API_TCP_WAITS_MAX);
        assert!(near(&CallerShares::new(ShareKind::Streams, 1, streams)) >= 150);
        assert!(near(&CallerShares::new(ShareKind::Waits, 1, waits)) >= 500);
        assert!(streams + waits < API_TCP_CONNECTIONS_MAX);
    }
}
