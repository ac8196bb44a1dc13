//! The table of attacks.

use super::arena::{Arena, Outcome};

/// One attack.
pub struct Attack {
    pub name: &'static str,
    /// What it does, for people.
    pub tries: &'static str,
    /// One of these stands in what is said of its end.
    pub stopped_by: &'static [&'static str],
    pub run: Run,
}

type Run = Box<dyn Fn(&Arena) -> std::pin::Pin<Box<dyn Future<Output = Outcome> + '_>>>;

/// Boxes an attack of the table.
macro_rules! attack {
    ($name:literal, $tries:literal, [$($stop:literal),+], $run:expr) => {
        Attack {
            name: $name,
            tries: $tries,
            stopped_by: &[$($stop),+],
            run: Box::new(|arena| Box::pin($run(arena))),
        }
    };
}

macro_rules! on_fingerprint {
    ($name:literal, $mode:literal, $tries:literal, [$($stop:literal),+]) => {
        attack!($name, $tries, [$($stop),+], |arena| devices::call(arena, "mode", $mode))
    };
}

macro_rules! by_task {
    ($name:literal, [$($word:literal),+], $tries:literal, [$($stop:literal),+]) => {
        attack!($name, $tries, [$($stop),+], |arena| tasks::both(arena, &[$($word),+]))
    };
}

macro_rules! by_module {
    ($name:literal, $tries:literal, [$($stop:literal),+], $wat:expr) => {
        attack!($name, $tries, [$($stop),+], |arena| tasks::wat(arena, $wat))
    };
}

/// Bytes that are hard to compile.
macro_rules! by_bytes {
    ($name:literal, $tries:literal, [$($stop:literal),+], $bytes:expr) => {
        attack!($name, $tries, [$($stop),+], |arena| bytes::compile(arena, $bytes))
    };
}

mod by_modules;
mod by_plugins;
mod by_tasks;

pub fn all() -> Vec<Attack> {
    let mut all = by_plugins::plugins();
    all.extend(by_plugins::answers());
    all.extend(by_plugins::doors());
    all.extend(by_tasks::by_drivers());
    all.extend(by_tasks::by_tasks());
    all.extend(by_tasks::by_holders());
    all.extend(by_modules::by_modules());
    all.extend(by_modules::compiling());
    all
}
