//! Creates the fetcher of what tasks bring along, within the limits of the configuration.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::AgentOptions;
use ostler_fetch::{FetchOptions, Fetcher};
use ostler_model::artifact::Artifacts;
use ostler_model::clock;

/// The fetcher for tasks. Without it an agent still runs what needs nothing fetched.
pub(super) async fn fetcher(
    options: &AgentOptions,
    data_dir: &Path,
    notices: &mut Vec<String>,
) -> Option<Arc<dyn Artifacts>> {
    let config = &options.config;
    let insecure = config.registries.iter().filter(|(_, registry)| registry.insecure);
    let options = FetchOptions {
        data_dir: data_dir.to_owned(),
        program: options.compiler.clone().unwrap_or_else(|| "/proc/self/exe".into()),
        config: config.artifact.clone(),
        insecure: insecure.map(|(host, _)| host.clone()).collect(),
        trust: config.trust.clone(),
        clock: options.clock.clone(),
    };
    let begun = clock::run_blocking(move || Fetcher::open(options)).await;
    match begun.map_err(io::Error::other).and_then(|begun| begun) {
        Ok(fetcher) => Some(Arc::new(fetcher)),
        Err(error) => {
            let dir = data_dir.join("artifacts");
            notices.push(format!(
                "nothing can be fetched for tasks: cannot use {}: {error}",
                dir.display()
            ));
            None
        }
    }
}
