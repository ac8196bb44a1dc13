//! The list of plugins that are still being loaded, as it can be shown before any is in use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::load::LoadAttempt;
use super::{PluginEntry, PluginStatus};
use ostler_node::NodePublisher;

/// Stands for all plugins until it is known which ones there are.
const LOOKING: &str = "(the list of plugins)";

/// The list of plugins while they are being loaded, shared with the node's view.
pub(crate) struct Board {
    entries: Mutex<Vec<PluginEntry>>,
    /// The node whose view names the plugins that are being loaded.
    node: NodePublisher,
}

impl Board {
    /// An empty list; no plugin is known yet.
    pub(crate) fn new(node: NodePublisher) -> Self {
        node.update(|node| node.loading = vec![LOOKING.to_owned()]);
        Self { entries: Mutex::default(), node }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<PluginEntry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every plugin that is being examined, with what is known of it so far.
    pub(crate) fn entries(&self) -> Vec<PluginEntry> {
        self.lock().clone()
    }

    /// Set the list to these plugins, which are being loaded.
    pub(super) fn set_entries(&self, entries: Vec<PluginEntry>) {
        let mut now = self.lock();
        *now = entries;
        self.publish_loading(&now);
    }

    /// Update the entry at this index with the result of its load.
    pub(super) fn update_entry(&self, at: usize, looked: &LoadAttempt) {
        let mut now = self.lock();
        let Some(entry) = now.get_mut(at) else { return };
        *entry = looked.entry.clone();
        if looked.plugin.is_some() {
            entry.status = PluginStatus::Waiting;
        }
        self.publish_loading(&now);
    }

    /// Names of the plugins that are still being loaded.
    pub(super) fn loading_names(&self) -> Vec<String> {
        names(&self.lock())
    }

    /// Note that every plugin that can be used is in use.
    pub(crate) fn clear_loading(&self) {
        self.node.update(|node| node.loading = Vec::new());
    }

    fn publish_loading(&self, entries: &[PluginEntry]) {
        let names = names(entries);
        if names.is_empty() {
            // The last plugin was loaded. The list is cleared when all of them are in use.
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
