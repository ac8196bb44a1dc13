//! One history from a seed, whichever kind it is of: played, shortened, shown.

use std::path::Path;

use crate::joined::plan::JoinedPlan;
use crate::plan::Plan;
use crate::play::{Failure, Played};
use crate::shrink::shrink;
use crate::{joined, play};

/// What happens to a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum History {
    /// By itself.
    Alone(Plan),
    /// That servers have.
    Joined(JoinedPlan),
}

impl History {
    /// Draw one.
    #[must_use]
    pub fn from_seed(seed: u64, joined: bool) -> Self {
        if joined {
            Self::Joined(JoinedPlan::from_seed(seed))
        } else {
            Self::Alone(Plan::from_seed(seed))
        }
    }

    /// Play it in a directory of its own.
    ///
    /// # Errors
    /// See [`Failure`].
    pub fn play(&self, dir: &Path) -> Result<Played, Box<Failure>> {
        match self {
            Self::Alone(plan) => play::play(plan, dir),
            Self::Joined(plan) => joined::play::play(plan, dir),
        }
    }

    /// The shortest one that fails still.
    #[must_use]
    pub fn shortest(&self, fails: impl Fn(&Self) -> bool) -> Self {
        match self {
            Self::Alone(plan) => {
                let with = |steps: &[_]| Plan { steps: steps.to_vec(), ..plan.clone() };
                let steps = shrink(&plan.steps, |steps| fails(&Self::Alone(with(steps))));
                Self::Alone(with(&steps))
            }
            Self::Joined(plan) => {
                let with = |steps: &[_]| JoinedPlan { steps: steps.to_vec(), ..plan.clone() };
                let steps = shrink(&plan.steps, |steps| fails(&Self::Joined(with(steps))));
                Self::Joined(with(&steps))
            }
        }
    }

    /// What happens, a line each.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::Alone(plan) => {
                let steps = plan.steps.iter();
                steps.map(|step| format!("after {:?}: {:?}", step.after, step.act)).collect()
            }
            Self::Joined(plan) => {
                let steps = plan.steps.iter();
                steps.map(|step| format!("after {:?}: {:?}", step.after, step.act)).collect()
            }
        }
    }
}
