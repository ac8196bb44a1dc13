//! Shares of what there is only so much of: streams, queries that wait, large bodies on their way, and commands
//! inside tasks.
//!
//! ```text
//! take ─┬─ over the socket, no token ─► places of their own
//!       └─ a token; over TCP none ────► places of all these ─ fewer are the caller's than are free? ─┬─ yes ─► Share
//!                                                                                                    └─ no ──► Full
//! ```
//! Who takes as many as it can gets half of the places, the next one half of the rest, and so on: there is one for
//! whoever comes next. The operator's own are apart from all others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::HttpBody as _;
use axum::extract::{Request, State};
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use super::access::Access;
use super::error::Failure;
use super::router::Shared;
use super::socket::within_files;
use ostler_model::access::TokenId;
use ostler_model::limits::{
    API_BODIES_MAX, API_BODY_SMALL_BYTES_MAX, API_CONNECTIONS_MAX, API_STREAMS_MAX,
    API_TCP_BODIES_MAX, API_TCP_CONNECTIONS_MAX, API_TCP_STREAMS_MAX, API_TCP_WAITS_MAX,
    EXEC_SESSIONS_MAX,
};

/// Against whose share something counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Caller {
    /// The agent's user, over the socket.
    Operator,
    /// Whoever bears this token.
    Token(TokenId),
    /// Programs of this machine over TCP, where no tokens are asked for.
    Near,
}

impl Caller {
    /// Who sent a request that was let in.
    pub(super) fn of(request: &Request) -> Self {
        request.extensions().get::<Access>().map_or(Self::Near, Access::caller)
    }
}

/// What is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Followed logs, files, events.
    Streams,
    /// Queries that wait for a change.
    Waits,
    /// Bodies of requests that are not small, until they are answered: each is in memory.
    Bodies,
    /// Commands that run inside tasks.
    Commands,
}

impl Sort {
    const fn name(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Waits => "waiting queries",
            Self::Bodies => "large bodies",
            Self::Commands => "commands inside tasks",
        }
    }
}

/// The places of one sort.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    sort: Sort,
    operator: Pool,
    others: Pool,
}

#[derive(Clone, Debug)]
struct Pool {
    most: usize,
    held: Arc<Mutex<BTreeMap<Caller, usize>>>,
}

/// One place; free again when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    pool: Pool,
    caller: Caller,
}

impl Shares {
    /// Those of streams. Fewer than connections, so that streams alone lock nobody out.
    pub(super) fn of_streams() -> Self {
        let operator = within_files(API_CONNECTIONS_MAX, 3) / 4;
        let others = within_files(API_TCP_CONNECTIONS_MAX, 6) / 4;
        Self::new(Sort::Streams, operator.min(API_STREAMS_MAX), others.min(API_TCP_STREAMS_MAX))
    }

    /// Those of queries that wait. With all streams they are fewer than connections.
    pub(super) fn of_waits() -> Self {
        let others = within_files(API_TCP_CONNECTIONS_MAX, 6) * 2 / 3;
        Self::new(Sort::Waits, API_CONNECTIONS_MAX, others.min(API_TCP_WAITS_MAX))
    }

    /// Those of large bodies.
    pub(super) fn of_bodies() -> Self {
        Self::new(Sort::Bodies, API_BODIES_MAX, API_TCP_BODIES_MAX)
    }

    /// Those of commands inside tasks.
    pub(super) fn of_commands() -> Self {
        Self::new(Sort::Commands, EXEC_SESSIONS_MAX, EXEC_SESSIONS_MAX)
    }

    fn new(sort: Sort, operator: usize, others: usize) -> Self {
        let pool = |most: usize| Pool { most: most.max(1), held: Arc::default() };
        Self { sort, operator: pool(operator), others: pool(others) }
    }

    /// How many are taken.
    pub(super) fn count(&self) -> usize {
        let of = |pool: &Pool| pool.held().values().sum::<usize>();
        of(&self.operator) + of(&self.others)
    }

    /// A place for this caller.
    ///
    /// # Errors
    /// When none is free, or the caller has as many as are free for others.
    pub(super) fn take(&self, caller: Caller) -> Result<Share, Failure> {
        let pool = match caller {
            Caller::Operator => &self.operator,
            Caller::Token(_) | Caller::Near => &self.others,
        };
        let what = self.sort.name();
        let mut held = pool.held();
        let free = pool.most.saturating_sub(held.values().sum());
        let own = held.get(&caller).copied().unwrap_or(0);
        if free == 0 {
            return Err(Failure::NoneFree { what });
        }
        if caller != Caller::Operator && own >= free {
            return Err(Failure::TooManyOfOne { what, own });
        }
        held.insert(caller, own + 1);
        drop(held);
        Ok(Share { pool: pool.clone(), caller })
    }
}

/// A body that may be large is read while there is room for it.
pub(super) async fn with_room(State(api): Shared, request: Request, next: Next) -> Response {
    let size = request.body().size_hint();
    let small = size.upper().is_some_and(|most| most <= API_BODY_SMALL_BYTES_MAX);
    // No read has one that is looked at.
    if small || [Method::GET, Method::HEAD].contains(request.method()) {
        return next.run(request).await;
    }
    match api.bodies.take(Caller::of(&request)) {
        Ok(_share) => next.run(request).await,
        Err(full) => full.into_response(),
    }
}

impl Pool {
    fn held(&self) -> MutexGuard<'_, BTreeMap<Caller, usize>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Share {
    /// One of its own.
    pub(super) fn of_test() -> Self {
        let pool = Pool { most: 1, held: Arc::default() };
        Self { pool, caller: Caller::Near }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut held = self.pool.held();
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

    fn token(number: u128) -> Caller {
        Caller::Token(TokenId::new(uuid::Uuid::from_u128(number)))
    }

    /// All that one can get.
    fn greedy(shares: &Shares, caller: Caller) -> Vec<Share> {
        std::iter::from_fn(|| shares.take(caller).ok()).collect()
    }

    #[test]
    fn who_takes_all_it_can_gets_half_and_the_next_one_half_of_the_rest() {
        let shares = Shares::new(Sort::Streams, 8, 320);
        let first = greedy(&shares, token(1));
        assert_eq!(first.len(), 160);
        assert!(matches!(
            shares.take(token(1)),
            Err(Failure::TooManyOfOne { what: "streams", own: 160 })
        ));
        let second = greedy(&shares, token(2));
        assert_eq!(second.len(), 80);
        assert_eq!(greedy(&shares, Caller::Near).len(), 40);
        drop(first);
        assert_eq!(greedy(&shares, token(1)).len(), 120, "as many as are left then");
    }

    #[test]
    fn seven_that_take_all_they_can_leave_places_for_an_eighth() {
        let shares = Shares::new(Sort::Streams, 8, 320);
        let held: Vec<_> = (0..7).map(|number| greedy(&shares, token(number))).collect();
        assert!(held.iter().all(|own| !own.is_empty()));
        assert!(shares.take(token(7)).is_ok());
    }

    #[test]
    fn the_operator_has_places_that_nobody_else_takes() {
        let shares = Shares::new(Sort::Waits, 8, 8);
        let _theirs: Vec<_> = (0..9).map(|number| greedy(&shares, token(number))).collect();
        let own = greedy(&shares, Caller::Operator);
        assert_eq!(own.len(), 8, "all of them");
        let full = shares.take(Caller::Operator).unwrap_err();
        assert!(matches!(full, Failure::NoneFree { what: "waiting queries" }), "{full}");
        drop(own);
        assert_eq!(greedy(&shares, Caller::Operator).len(), 8);
    }

    #[test]
    fn one_token_may_follow_a_hundred_logs_and_fifty_streams_and_wait_with_five_hundred_queries() {
        let near = |shares: &Shares| greedy(shares, Caller::Near).len();
        let (streams, waits) = (API_TCP_STREAMS_MAX, API_TCP_WAITS_MAX);
        assert!(near(&Shares::new(Sort::Streams, 1, streams)) >= 150);
        assert!(near(&Shares::new(Sort::Waits, 1, waits)) >= 500);
        assert!(streams + waits < API_TCP_CONNECTIONS_MAX);
    }
}
