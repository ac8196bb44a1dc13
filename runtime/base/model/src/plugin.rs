//! Plugins, as plain data.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::grants::Authority;

/// The interface that a component implements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginKind {
    /// A driver, which exports `ostler:plugin/driver`.
    Driver,
    /// A device plugin, which exports `ostler:plugin/device`.
    Device,
}

impl fmt::Display for PluginKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Driver => "driver",
            Self::Device => "device",
        })
    }
}

/// Description of a component, as read from its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PluginManifest {
    /// Driver or device plugin.
    pub kind: PluginKind,
    /// Version of `ostler:plugin` that the component was built against.
    pub interface_version: String,
    /// Top-level exports, in file order.
    pub exports: Vec<String>,
    /// Top-level imports, in file order.
    pub imports: Vec<String>,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// SHA-256 of the file, hex.
    pub digest: String,
}

impl PluginManifest {
    /// The imports, grouped by what they let the plugin do; no duplicates.
    #[must_use]
    pub fn asks(&self) -> Vec<(Authority, Vec<&str>)> {
        let mut groups: Vec<(Authority, Vec<&str>)> = Vec::new();
        for import in &self.imports {
            let authority = Authority::of_import(import);
            match groups.iter_mut().find(|(known, _)| *known == authority) {
                Some((_, list)) => list.push(import),
                None => groups.push((authority, vec![import])),
            }
        }
        groups.sort_by_key(|(authority, _)| *authority);
        groups
    }
}
