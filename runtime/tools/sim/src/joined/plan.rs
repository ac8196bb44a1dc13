//! What happens to a node that servers have, drawn from a seed: a list that can be shortened.

use std::time::Duration;

use ostler_model::rng::Rng;

use super::net::Way;
use crate::plan::{Disk, pick};

/// Names of the servers. The node is told of the first two, the servers name the others.
pub(crate) const SERVERS: [&str; 4] = ["s1", "s2", "s3", "s4"];

/// How the servers answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    /// As they should.
    #[default]
    Works,
    /// Nobody leads: calls are refused.
    Leaderless,
    /// Nodes are not registered.
    RefusesNodes,
    /// So many seconds later.
    Late(u64),
    /// Some answers are bytes of any kind.
    Babbles,
    /// Some answers are longer than can be taken.
    Endless,
    /// Some streams end in place of an answer.
    HangsUp,
    /// What was remembered, to whoever takes older answers.
    Older,
    /// Answers lack what was asked for.
    Lacks,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinedAct {
    /// So many allocations are placed.
    Place(u64),
    /// One that needs what another one has, in its place; that one is stopped.
    Replace,
    /// One is stopped.
    Stop(u64),
    /// One is changed, and nothing is to be done for it.
    Change(u64),
    /// One is forgotten.
    Forget(u64),
    /// Every one that is over is forgotten.
    Collect,
    /// The servers forget the node, and what it has is lost.
    ForgetNode,
    /// What the servers know now is remembered.
    Remember,
    /// They know what is remembered, and nothing newer.
    SetBack,
    /// They answer so from now on.
    Mood(Mood),
    /// The way to a server is so from now on.
    Way(usize, Way),
    /// Connections to a server end.
    Cut(usize),
    /// The servers name these, by bits.
    Name(u64),
    /// A process ends by itself with this code.
    End(u64, i32),
    /// The disk does so from now on.
    Disk(Disk),
    /// The agent is killed at this door from now, and gone for a while; so many of what comes next happens
    /// before it is there again.
    Kill {
        /// How many doors are passed before.
        doors: u64,
        /// How long nobody runs.
        gone: Duration,
        /// The machine loses power there, and is started anew.
        power: bool,
        /// Acts.
        away: usize,
    },
    /// The agent leaves, and is gone for a while.
    Leave(Duration),
    /// Everything that is broken works again.
    Mend,
}

/// Something happens after a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinedStep {
    /// Time since the one before.
    pub after: Duration,
    /// What.
    pub act: JoinedAct,
}

/// What happens to a node and its servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JoinedPlan {
    /// What is random in the world comes from it too.
    pub seed: u64,
    /// In order.
    pub steps: Vec<JoinedStep>,
}

impl JoinedPlan {
    /// Draw a plan.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let rng = Rng::from_seed(seed ^ 0x0c1b_57e2);
        let mut steps =
            vec![JoinedStep { after: Duration::from_secs(1), act: JoinedAct::Place(3) }];
        for _ in 0..4 + rng.number_below(24) {
            let after = Duration::from_millis(match rng.number_below(4) {
                0 => 0,
                1 => rng.number_below(1_000),
                2 => rng.number_below(20_000),
                _ => rng.number_below(120_000),
            });
            steps.push(JoinedStep { after, act: act(&rng) });
        }
        Self { seed, steps }
    }
}

fn act(rng: &Rng) -> JoinedAct {
    let any = || rng.number_below(1 << 20);
    let server = || usize::try_from(rng.number_below(4)).unwrap_or(0);
    let gone = || {
        Duration::from_millis(match rng.number_below(3) {
            0 => 0,
            1 => rng.number_below(5_000),
            _ => rng.number_below(300_000),
        })
    };
    match rng.number_below(40) {
        0..=4 => JoinedAct::Place(1 + rng.number_below(4)),
        5 | 6 => JoinedAct::Replace,
        7..=9 => JoinedAct::Stop(any()),
        10 | 11 => JoinedAct::Change(any()),
        12 => JoinedAct::Forget(any()),
        13 => JoinedAct::Collect,
        14 => JoinedAct::ForgetNode,
        15 | 16 => JoinedAct::Remember,
        17 => JoinedAct::SetBack,
        18..=21 => JoinedAct::Mood(mood(rng)),
        22..=26 => JoinedAct::Way(server(), way(rng)),
        27 | 28 => JoinedAct::Cut(server()),
        29 => JoinedAct::Name(rng.number_below(16)),
        30 | 31 => JoinedAct::End(any(), i32::try_from(rng.number_below(2)).unwrap_or(0)),
        32 => JoinedAct::Disk(
            pick(rng, &[Disk::Works, Disk::Full, Disk::Forgets, Disk::Slow]).unwrap_or(Disk::Works),
        ),
        33..=35 => JoinedAct::Kill {
            doors: if rng.number_below(2) == 0 {
                rng.number_below(12)
            } else {
                rng.number_below(100)
            },
            gone: gone(),
            power: rng.number_below(3) == 0,
            away: usize::try_from(rng.number_below(4)).unwrap_or(0),
        },
        36 => JoinedAct::Leave(gone()),
        _ => JoinedAct::Mend,
    }
}

fn mood(rng: &Rng) -> Mood {
    let moods = [
        Mood::Works,
        Mood::Leaderless,
        Mood::RefusesNodes,
        Mood::Late(1 + rng.number_below(30)),
        Mood::Babbles,
        Mood::Endless,
        Mood::HangsUp,
        Mood::Older,
        Mood::Older,
        Mood::Lacks,
    ];
    pick(rng, &moods).unwrap_or_default()
}

fn way(rng: &Rng) -> Way {
    let ways = [
        Way::Works,
        Way::Refuses,
        Way::Silent,
        Way::Deaf,
        Way::Mute,
        Way::Garbles,
        Way::Slow(1 + rng.number_below(12)),
    ];
    pick(rng, &ways).unwrap_or_default()
}
