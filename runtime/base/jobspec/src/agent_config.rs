//! The configuration of the agent: the node's name and place, plugins, their grants and limits.
//!
//! ```text
//! ostler.hcl ─ decode ─► AgentConfig (paths as written)
//!                         │ paths made absolute against the file's directory
//!                         ▼
//!                      AgentConfig ─► agent start-up
//! ```
//! ```hcl
//! name       = "edge-7"
//! datacenter = "dc1"
//! data_dir   = "/var/lib/ostler"
//! plugin_dir = "plugins"
//! jobs_dir   = "jobs"
//! meta { rack = "r1" }
//!
//! gc {
//!   interval             = "1m"
//!   disk_usage_threshold = 80
//! }
//!
//! wasm_worker { per = "namespace" }
//!
//! trust {
//!   file              = "trust.hcl"
//!   require_signature = ["plugin_dir", "oci"]
//! }
//!
//! plugin "nvidia" {
//!   file = "nvidia.wasm"
//!   grants {
//!     command "/usr/bin/nvidia-smi" { args = [["--query-gpu=*", "--format=csv,noheader,nounits"]] }
//!     files "/proc/driver/nvidia" {}
//!     files "/sys" {}
//!   }
//!   limits { call_wall = "2s" }
//!   failure {
//!     retry_first   = "1s"
//!     retry_max     = "2m"
//!     strike_window = "10m"
//!     strikes_max   = 5
//!     quarantine    = "10m"
//!   }
//!   upgrade = "auto"
//! }
//! ```

use std::path::{Path, PathBuf};

use ostler_model::access::SecretSource;
use ostler_model::config::AgentConfig;

use crate::Diagnostics;

/// Read a configuration. `file` is the path for messages. Relative paths in the text are relative to its
/// directory; in the result they are absolute.
///
/// # Errors
/// All problems of the text, with their places; never empty.
pub fn parse_agent_config(input: &[u8], file: &Path) -> Result<AgentConfig, Diagnostics> {
    let mut config = crate::decode::agent_config(input, file)?;
    resolve_paths(&mut config, &directory_of(file));
    Ok(config)
}

/// Make every path absolute against `base`, an absolute directory.
fn resolve_paths(config: &mut AgentConfig, base: &Path) {
    let resolve = |path: &mut PathBuf| *path = base.join(&*path);
    config.data_dir.iter_mut().for_each(resolve);
    config.plugin_dir.iter_mut().for_each(resolve);
    config.jobs_dir.iter_mut().for_each(resolve);
    if let Some(file) = &mut config.log.file {
        // A '/' at the end is kept.
        file.path = base.join(&file.path);
    }
    if let Some(tls) = &mut config.cluster.tls {
        tls.ca_file.iter_mut().for_each(resolve);
        if let Some((certificate, key)) = &mut tls.own {
            resolve(certificate);
            resolve(key);
        }
    }
    for token in config.acl.tokens.values_mut() {
        if let SecretSource::File(file) = &mut token.secret {
            resolve(file);
        }
    }
    config.trust.file.iter_mut().for_each(resolve);
    for plugin in config.plugins.values_mut() {
        plugin.file.iter_mut().for_each(resolve);
        for grants in plugin.grants.iter_mut() {
            let mounts = grants.answers.mounts.iter_mut().flatten();
            grants.files.iter_mut().chain(mounts).for_each(|grant| resolve(&mut grant.path));
        }
    }
}

fn directory_of(file: &Path) -> PathBuf {
    // This fails only where there is no working directory. Then paths stay as they are written.
    let absolute = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    absolute.parent().map(Path::to_path_buf).unwrap_or_default()
}

#[cfg(test)]
mod tests;
