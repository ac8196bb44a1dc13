//! Random kills of nodes, of the server and of a link, with stock servers where `NOMAD_BIN` names the program:
//! nothing is lost, started twice or left over. Each kill comes while the ones before it are still being seen to.

use std::time::Duration;

use ostler_model::rng::Rng;
use rustix::process::Signal;

use crate::cluster::{joined, native, ready_node};
use crate::histories::{number, soak};
use crate::support::agent_process::AgentProcess;
use crate::support::ledger::{Ledger, SERVICES};
use crate::support::link::{Link, Way};
use crate::support::nomad::{NomadServer, SHORT_BEATS};
use crate::support::system::until;

const NAMES: [&str; 2] = ["one", "two"];

/// All that is killed.
struct Scene {
    link: Link,
    server: NomadServer,
    nodes: Vec<Option<AgentProcess>>,
    ledger: Ledger,
    rng: Rng,
}

#[derive(Clone, Copy, Debug)]
enum Kill {
    Node(usize),
    Server,
    Link(Way),
}

impl Scene {
    async fn new(seed: u64) -> Option<Self> {
        let link = Link::new().await;
        let named = format!("advertise {{\n rpc = \"127.0.0.1:{}\"\n}}\n{SHORT_BEATS}", link.port);
        let server = NomadServer::start_with(&named).await?;
        link.to(server.rpc);
        let ledger = Ledger::new();
        let rng = Rng::from_seed(seed);
        let mut scene = Self { link, server, nodes: Vec::new(), ledger, rng };
        for (which, name) in NAMES.iter().enumerate() {
            let node = ready_node(&scene.server, scene.way_of(which), name).await;
            scene.nodes.push(Some(node));
        }
        Some(scene)
    }

    /// The first node has only the link.
    fn way_of(&self, which: usize) -> u16 {
        [self.link.port, self.server.rpc][which]
    }

    /// Some time, up to so many milliseconds: when the next thing happens is left to chance.
    async fn chance(&self, most: u64) {
        ostler_model::clock::sleep(Duration::from_millis(self.rng.number_below(most))).await;
    }

    async fn kill(&mut self, kill: Kill) {
        match kill {
            Kill::Node(which) => {
                let agent = self.nodes[which].take().unwrap();
                agent.signal(Signal::KILL);
                let (_, home) = agent.ended().await;
                self.chance(4_000).await;
                let next = joined(home, self.way_of(which), &native(NAMES[which])).await;
                self.nodes[which] = Some(next);
            }
            Kill::Server => {
                self.server.kill().await;
                self.chance(4_000).await;
                self.server.start_again().await;
            }
            Kill::Link(way) => {
                self.link.set(way);
                self.chance(6_000).await;
                self.link.set(Way::Open);
            }
        }
    }

    async fn comes_to_rest(&self) {
        for name in NAMES {
            self.server.node(name, "ready").await;
        }
        self.ledger.comes_to_rest(&self.server).await;
    }

    fn drawn(&self) -> Kill {
        match self.rng.number_below(5) {
            which @ (0 | 1) => Kill::Node(usize::try_from(which).unwrap()),
            2 => Kill::Server,
            3 => Kill::Link(Way::Cut),
            _ => Kill::Link(Way::Silent),
        }
    }
}

#[tokio::test]
async fn nothing_is_lost_doubled_or_left_over_after_random_kills() {
    let kills = number("OSTLER_KILLS").unwrap_or(if soak() { 100 } else { 10 });
    let seed = number("OSTLER_SEED").unwrap_or_else(|| Rng::system().next_u64());
    let Some(mut scene) = Scene::new(seed).await else { return };
    eprintln!("OSTLER_SEED={seed}");
    scene.ledger.service(&scene.server).await;
    for count in 1..=kills {
        scene.ledger.work(&scene.server).await;
        scene.chance(1_500).await;
        let kill = scene.drawn();
        eprintln!("{count}: {kill:?}");
        scene.kill(kill).await;
        if count % 10 == 0 {
            scene.comes_to_rest().await;
        }
    }
    scene.comes_to_rest().await;
    let replaced = scene.server.allocs("service", "any", |_| true).await.len() - SERVICES;
    eprintln!(
        "{kills} kills, {} batch jobs, {replaced} allocations of the service replaced",
        scene.ledger.works
    );
    let stops = async || {
        scene.server.does(&["job", "stop", "-detach", "service"]).await;
        scene.ledger.live().is_empty()
    };
    until("nothing is left", stops).await;
}
