//! Pulls a module from a registry.

use ostler_artifact::registry::{ClientOptions, RegistryClient, RegistryCredentials};
use ostler_model::oci::OciReference;

use crate::child::FetchFailure;

/// A module that was pulled.
pub(crate) struct PulledModule {
    pub(crate) bytes: std::sync::Arc<[u8]>,
    pub(crate) signature: Option<Vec<u8>>,
    /// The digest of the manifest.
    pub(crate) manifest: String,
}

/// A client with everything it needs from the machine: credentials and authorities.
pub(crate) fn new_client(insecure: Vec<String>) -> RegistryClient {
    RegistryClient::new(ClientOptions {
        insecure: insecure.into_iter().collect(),
        credentials: RegistryCredentials::from_environment(),
        authorities: Some(ostler_net::machine_authorities()),
        ..ClientOptions::default()
    })
}

/// Pull a module, and check every byte against its manifest.
pub(crate) async fn pull_module(
    client: RegistryClient,
    reference: &str,
) -> Result<PulledModule, FetchFailure> {
    let reference: OciReference = reference.parse().map_err(FetchFailure::lasting)?;
    let resolved = client.resolve(&reference).await.map_err(FetchFailure::passing)?;
    let pulled = client.fetch(&reference, &resolved).await.map_err(FetchFailure::passing)?;
    let manifest = resolved.manifest.to_tagged();
    Ok(PulledModule { bytes: pulled.component, signature: pulled.signature, manifest })
}
