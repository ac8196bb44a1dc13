//! Which plugins are still being loaded: what can be told before any is in use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::load::Looked;
use super::{PluginEntry, PluginStatus};
use ostler_node::Node;

/// Stands for all of them until it is known which there are.
const LOOKING: &str = "(looking which there are)";

/// See the module.
pub(crate) struct Board {
    entries: Mutex<Vec<PluginEntry>>,
    /// Also told to everybody who looks at the node.
    node: Node,
}

impl Board {
    /// Nothing is loaded yet.
    pub(crate) fn new(node: Node) -> Self {
        node.update(|node| node.loading = vec![LOOKING.to_owned()]);
        Self { entries: Mutex::default(), node }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PluginEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every plugin that is looked at, as far as it is known.
    pub(crate) fn entries(&self) -> Vec<PluginEntry> {
        self.lock().clone()
    }

    /// These are being loaded.
    pub(super) fn begin(&self, entries: Vec<PluginEntry>) {
        let mut now = self.lock();
        *now = entries;
        self.tell(&now);
    }

    /// The plugin in this place was looked at.
    pub(super) fn looked(&self, at: usize, looked: &Looked) {
        let mut now = self.lock();
        let Some(entry) = now.get_mut(at) else { return };
        *entry = looked.entry.clone();
        if looked.plugin.is_some() {
            entry.status = PluginStatus::Waiting;
        }
        self.tell(&now);
    }

    /// Names of those that are still being loaded.
    pub(super) fn coming(&self) -> Vec<String> {
        names(&self.lock())
    }

    /// What can be used is in use.
    pub(crate) fn over(&self) {
        self.node.update(|node| node.loading = Vec::new());
    }

    fn tell(&self, entries: &[PluginEntry]) {
        let names = names(entries);
        if names.is_empty() {
            // The last one was loaded. `over` says so when all are in use.
            return;
        }
        self.node.update(|node| node.loading = names);
    }
}

fn names(entries: &[PluginEntry]) -> Vec<String> {
    let loading = entries.iter().filter(|entry| entry.status == PluginStatus::Loading);
    let mut names: Vec<String> = loading.map(|entry| entry.name.clone()).collect();
    names.sort_unstable();
    names.dedup();
    names
}
