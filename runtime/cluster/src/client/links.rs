//! The connection to a server, and which server is next when it ends.
//!
//! ```text
//! Links ─► Link: session ─┬─ a stream for each of the loops: a server answers one call after another on
//!                         │  a stream, and holds the question for news for minutes
//!                         └─ arrivals ─► who answers servers
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ostler_model::limits::{
    CLUSTER_ANSWER_BYTES_MAX, CLUSTER_SERVERS_MAX, CLUSTER_STEP_WALL_DEFAULT, CLUSTER_TELL_WALL,
};
use tokio::sync::mpsc;

use super::{ClusterOptions, ServerDoor};
use crate::caller::Caller;
use crate::dial::DialError;
use crate::servers::ServerCalls;
use crate::session::{Arrivals, Session};
use ostler_model::rng::Rng;
use ostler_model::server_address::ServerAddress;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Line {
    /// Registering and heartbeats.
    Live,
    /// The question for news.
    Follow,
    /// Allocations that the news name.
    Pull,
    /// What becomes of allocations.
    Tell,
}

/// A connection that is in use.
struct Link {
    session: Session,
    lines: BTreeMap<Line, ServerCalls>,
}

/// See the module.
pub(super) struct Links {
    options: ClusterOptions,
    door: Arc<dyn ServerDoor>,
    /// The next one first.
    servers: Mutex<VecDeque<ServerAddress>>,
    link: tokio::sync::Mutex<Option<Link>>,
    /// Who answers servers hears of each new connection.
    arrivals: mpsc::Sender<Arrivals>,
}

impl Links {
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

    /// Calls on this line of the connection; of a new one where there is none.
    ///
    /// # Errors
    /// When the next server cannot be reached; the one after it is tried the next time.
    pub(super) async fn calls(&self, line: Line) -> Result<ServerCalls, DialError> {
        let mut link = self.link.lock().await;
        let link = self.linked(&mut link).await?;
        // A stream ends before its connection when what came on it cannot be read, or a call was late.
        if let Some(calls) = link.lines.get(&line).filter(|calls| calls.stands()) {
            return Ok(calls.clone());
        }
        let wall = match line {
            Line::Tell => CLUSTER_TELL_WALL,
            Line::Live | Line::Follow | Line::Pull => CLUSTER_STEP_WALL_DEFAULT,
        };
        let calls = self.open(&link.session, wall).await?;
        link.lines.insert(line, calls.clone());
        Ok(calls)
    }

    /// Calls on a line that nobody else uses: what is held there holds up nobody. It ends with them.
    ///
    /// # Errors
    /// As [`Self::calls`].
    pub(super) async fn line_of_its_own(&self) -> Result<ServerCalls, DialError> {
        let session = {
            let mut link = self.link.lock().await;
            self.linked(&mut link).await?.session.clone()
        };
        self.open(&session, CLUSTER_STEP_WALL_DEFAULT).await
    }

    async fn linked<'a>(&self, link: &'a mut Option<Link>) -> Result<&'a mut Link, DialError> {
        if link.as_ref().is_some_and(|link| link.session.is_over()) {
            *link = None;
        }
        match link {
            Some(link) => Ok(link),
            none => Ok(none.insert(self.dial().await?)),
        }
    }

    async fn open(&self, session: &Session, wall: Duration) -> Result<ServerCalls, DialError> {
        let caller = Caller::open(session, CLUSTER_ANSWER_BYTES_MAX).await;
        let caller = caller.map_err(DialError::Ended)?;
        let region = self.options.region.clone();
        Ok(ServerCalls::new(caller, region, String::new(), wall))
    }

    /// A call failed: the next one is made to another server, and nobody waits for this one any more.
    pub(super) async fn give_up(&self) {
        if let Some(link) = self.link.lock().await.take() {
            link.session.give_up();
        }
    }

    /// Servers that a server has named are tried too.
    pub(super) fn named(&self, named: Vec<ServerAddress>) {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        // Those of the configuration stay: all others may be gone together.
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

    async fn dial(&self) -> Result<Link, DialError> {
        let server = self.next_server().ok_or(DialError::NoServer)?;
        let (session, arrivals) = self.door.dial(&server).await?;
        tracing::info!(%server, "connected to a server");
        // Where the earlier ones are not taken yet, this connection is not answered on: servers ask on
        // another one.
        drop(self.arrivals.try_send(arrivals));
        Ok(Link { session, lines: BTreeMap::new() })
    }
}

/// At any place: the nodes of a cluster have the same list, and are not to go to the same server all at once.
fn insert(servers: &mut VecDeque<ServerAddress>, server: ServerAddress, rng: &Rng) {
    let places = u64::try_from(servers.len()).unwrap_or(u64::MAX).saturating_add(1);
    let at = usize::try_from(rng.below(places)).unwrap_or(0).min(servers.len());
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
            let (mut servers, rng) = (VecDeque::new(), Rng::seeded(node));
            all.iter().cloned().for_each(|server| insert(&mut servers, server, &rng));
            let at = all.iter().position(|server| *server == servers[0]).unwrap();
            first[at] += 1;
            let tried: BTreeSet<_> = servers.iter().map(ToString::to_string).collect();
            assert_eq!(tried.len(), 3);
        }
        assert!(first.iter().all(|nodes| (70..130).contains(nodes)), "{first:?}");
    }
}
