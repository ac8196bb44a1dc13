//! Remembers what did not compile, so that it is not compiled again with the same limits.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::CodeKey;
use crate::compile::CompileError;
use ostler_model::clock::Stopwatch;
use ostler_model::limits::{COMPILE_FAILED_KEPT, COMPILE_FAILED_KEPT_MAX, CompileLimits};

struct FailedCompile {
    key: CodeKey,
    within: CompileLimits,
    text: String,
    since: Stopwatch,
}

/// Compilations that ran into a limit, the newest last.
#[derive(Default)]
pub(super) struct FailedCompiles(Mutex<VecDeque<FailedCompile>>);

impl FailedCompiles {
    /// Why this code did not compile with limits at least as large as `within`.
    pub(super) fn find(&self, key: CodeKey, within: &CompileLimits) -> Option<String> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| one.since.elapsed() < COMPILE_FAILED_KEPT);
        let found = kept.iter().find(|one| one.key == key && is_no_larger(within, &one.within));
        found.map(|one| one.text.clone())
    }

    /// Remember a failed compilation, if it ran into a limit.
    pub(super) fn keep(&self, key: CodeKey, within: &CompileLimits, error: &CompileError) {
        if !error.is_limit_error() {
            return;
        }
        let (text, since) = (error.to_string(), Stopwatch::start());
        let one = FailedCompile { key, within: *within, text, since };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|other| other.key != key);
        kept.push_back(one);
        if kept.len() > COMPILE_FAILED_KEPT_MAX {
            kept.pop_front();
        }
    }
}

fn is_no_larger(now: &CompileLimits, then: &CompileLimits) -> bool {
    now.cpu_max <= then.cpu_max
        && now.wall_max <= then.wall_max
        && now.address_space_bytes_max <= then.address_space_bytes_max
}
