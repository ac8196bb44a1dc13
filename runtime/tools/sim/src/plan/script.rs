//! How one run of a task goes: what a driver and a process of the world do.

use std::time::Duration;

use super::{SECOND, pick};
use ostler_model::rng::Rng;

/// What a request to end does to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It ends after this time.
    After(Duration),
    /// Nothing.
    Ignored,
}

/// How the driver answers a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At once.
    Works,
    /// After this time.
    Late(Duration),
    /// Trying again may help.
    Fails,
    /// Trying again cannot help.
    Broken,
    /// Never.
    Hangs,
}

/// How one run of a task goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// The answer to its start.
    pub start: Start,
    /// It lives in the agent, and ends with it.
    pub wasm: bool,
    /// It ends by itself after this time.
    pub runs_for: Option<Duration>,
    /// With this code.
    pub exit_code: i32,
    /// What the driver's `stop` does.
    pub on_stop: Ending,
    /// What its `kill` does; the host's own kill always ends it.
    pub on_kill: Ending,
}

impl Script {
    /// It runs until it is asked to end.
    #[must_use]
    pub const fn steady() -> Self {
        Self {
            start: Start::Works,
            wasm: false,
            runs_for: None,
            exit_code: 0,
            on_stop: Ending::After(Duration::ZERO),
            on_kill: Ending::After(Duration::ZERO),
        }
    }

    /// Of a task that prepares for others: it ends by itself.
    #[must_use]
    pub fn ending(self) -> Self {
        Self { runs_for: self.runs_for.or(Some(SECOND)), ..self }
    }

    /// Drawn at random; most do as they should.
    #[must_use]
    pub fn random(rng: &Rng) -> Self {
        let starts = [
            Start::Works,
            Start::Works,
            Start::Works,
            Start::Works,
            Start::Late(3 * SECOND),
            Start::Fails,
            Start::Broken,
            Start::Hangs,
        ];
        let ending = || {
            let endings = [
                Ending::After(Duration::ZERO),
                Ending::After(SECOND),
                Ending::After(20 * SECOND),
                Ending::Ignored,
            ];
            pick(rng, &endings).unwrap_or(Ending::Ignored)
        };
        let times = [None, None, Some(Duration::ZERO), Some(2 * SECOND), Some(90 * SECOND)];
        Self {
            start: pick(rng, &starts).unwrap_or(Start::Works),
            wasm: rng.number_below(3) == 0,
            runs_for: pick(rng, &times).flatten(),
            exit_code: i32::try_from(rng.number_below(2)).unwrap_or(0),
            on_stop: ending(),
            on_kill: ending(),
        }
    }
}
