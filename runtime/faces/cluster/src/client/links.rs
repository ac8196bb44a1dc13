//! The connection to a server, and the choice of the next server when it ends.
//!
//! ```text
//! ServerLinks ─► ServerLink: session ─┬─ a stream for each purpose, because a server answers the calls of a
//!                                     │  stream one after another, and holds the question for news for minutes
//!                                     └─ arrivals ─► answers to the calls of servers
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_model::limits::{
    CLUSTER_ANSWER_BYTES_MAX, CLUSTER_SERVERS_MAX, CLUSTER_STEP_WALL_DEFAULT, CLUSTER_TELL_WALL,
};
use tokio::sync::mpsc;

use super::{ClusterOptions, ServerDoor};
use crate::caller::ServerCaller;
use crate::dial::DialError;
use crate::servers::ServerCalls;
use crate::session::{Arrivals, ClusterSession};
use ostler_model::rng::Rng;
use ostler_model::server_address::ServerAddress;

/// What a stream to the server is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LinkPurpose {
    /// Registration and heartbeats.
    Live,
    /// The question for a newer list of allocations.
    Follow,
    /// Reading the allocations that the list names.
    Pull,
    /// Reporting the states of allocations.
    Tell,
}

/// The connection that is in use, with its streams.
struct ServerLink {
    session: ClusterSession,
    lines: BTreeMap<LinkPurpose, ServerCalls>,
}

/// The connection to the cluster; see the module.
pub(super) struct ServerLinks {
    options: ClusterOptions,
    door: Arc<dyn ServerDoor>,
    /// The servers, the next one first.
    servers: Mutex<VecDeque<ServerAddress>>,
    link: tokio::sync::Mutex<Option<ServerLink>>,
    /// Gets the streams that servers open on each new connection.
    arrivals: mpsc::Sender<Arrivals>,
}

impl ServerLinks {
    pub(super) fn new(
        options: &ClusterOptions,
        door: Arc<dyn ServerDoor>,
        arrivals: mpsc::Sender<Arrivals>,
    ) -> Self {
        let mut servers = VecDeque::new();
        for server in &options.servers {
            insert(&mut servers, server.clone(), &options.rng);
        }
        let servers = Mutex::new(servers);
        let link = tokio::sync::Mutex::default();
        Self { options: options.clone(), door, servers, link, arrivals }
    }

    /// Calls on the stream of the connection for this purpose. Connects first if necessary.
    ///
    /// # Errors
    /// When the next server cannot be reached. The next call tries the one after it.
    pub(super) async fn calls(&self, line: LinkPurpose) -> Result<ServerCalls, DialError> {
        let mut link = self.link.lock().await;
        let link = self.open_link(&mut link).await?;
        // A stream ends before its connection when data on it cannot be read, or a call was late.
        if let Some(calls) = link.lines.get(&line).filter(|calls| calls.is_open()) {
            return Ok(calls.clone());
        }
        let wall = match line {
            LinkPurpose::Tell => CLUSTER_TELL_WALL,
            LinkPurpose::Live | LinkPurpose::Follow | LinkPurpose::Pull => {
                CLUSTER_STEP_WALL_DEFAULT
            }
        };
        let calls = self.open(&link.session, wall).await?;
        link.lines.insert(line, calls.clone());
        Ok(calls)
    }

    /// Calls on a new stream that nobody else uses, so that a call that the server holds delays
    /// nobody. The stream ends with them.
    ///
    /// # Errors
    /// As [`Self::calls`].
    pub(super) async fn open_own_stream(&self) -> Result<ServerCalls, DialError> {
        let session = {
            let mut link = self.link.lock().await;
            self.open_link(&mut link).await?.session.clone()
        };
        self.open(&session, CLUSTER_STEP_WALL_DEFAULT).await
    }

    async fn open_link<'a>(
        &self,
        link: &'a mut Option<ServerLink>,
    ) -> Result<&'a mut ServerLink, DialError> {
        if link.as_ref().is_some_and(|link| link.session.is_over()) {
            *link = None;
        }
        match link {
            Some(link) => Ok(link),
            none => Ok(none.insert(self.dial().await?)),
        }
    }

    async fn open(
        &self,
        session: &ClusterSession,
        wall: Duration,
    ) -> Result<ServerCalls, DialError> {
        let caller = ServerCaller::open(session, CLUSTER_ANSWER_BYTES_MAX).await;
        let caller = caller.map_err(DialError::Ended)?;
        let region = self.options.region.clone();
        Ok(ServerCalls::new(caller, region, String::new(), wall))
    }

    /// Give up the connection after a failed call. The next call goes to another server, and nobody
    /// waits for this one any more.
    pub(super) async fn give_up(&self) {
        if let Some(link) = self.link.lock().await.take() {
            link.session.give_up();
        }
    }

    /// Add the servers that a server has named to those that are tried.
    pub(super) fn add_servers(&self, named: Vec<ServerAddress>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        // The servers of the configuration stay, because all others may be gone together.
        servers.retain(|known| self.options.servers.contains(known) || named.contains(known));
        for server in named {
            if !servers.contains(&server) && servers.len() < CLUSTER_SERVERS_MAX {
                insert(&mut servers, server, &self.options.rng);
            }
        }
    }

    fn next_server(&self) -> Option<ServerAddress> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let next = servers.pop_front()?;
        servers.push_back(next.clone());
        Some(next)
    }

    async fn dial(&self) -> Result<ServerLink, DialError> {
        let server = self.next_server().ok_or(DialError::NoServer)?;
        let (session, arrivals) = self.door.dial(&server).await?;
        tracing::info!(%server, "connected to a server");
        // If the earlier ones are not taken yet, nobody answers on this connection; servers ask on
        // another one.
        drop(self.arrivals.try_send(arrivals));
        Ok(ServerLink { session, lines: BTreeMap::new() })
    }
}

/// Insert a server at a random position. The nodes of a cluster have the same list, and must not
/// all go to the same server at once.
fn insert(servers: &mut VecDeque<ServerAddress>, server: ServerAddress, rng: &Rng) {
    let places = u64::try_from(servers.len()).unwrap_or(u64::MAX).saturating_add(1);
    let at = usize::try_from(rng.number_below(places)).unwrap_or(0).min(servers.len());
    servers.insert(at, server);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn nodes_with_one_list_begin_with_different_servers_and_try_each() {
        let all: Vec<_> = ["s1", "s2", "s3"].map(|name| name.parse().unwrap()).into();
        let mut first = [0; 3];
        for node in 0..300 {
            let (mut servers, rng) = (VecDeque::new(), Rng::from_seed(node));
            all.iter().cloned().for_each(|server| insert(&mut servers, server, &rng));
            let at = all.iter().position(|server| *server == servers[0]).unwrap();
            first[at] += 1;
            let tried: BTreeSet<_> = servers.iter().map(ToString::to_string).collect();
            assert_eq!(tried.len(), 3);
        }
        assert!(first.iter().all(|nodes| (70..130).contains(nodes)), "{first:?}");
    }
}
