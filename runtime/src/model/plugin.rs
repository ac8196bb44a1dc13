//! Plugins, as plain data.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Which contract a component fulfils.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PluginKind {
    /// Exports `ostler:plugin/driver`.
    Driver,
    /// Exports `ostler:plugin/device`.
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
