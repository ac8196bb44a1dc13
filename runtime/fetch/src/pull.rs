//! A module from a registry.

use ostler_artifact::registry::{Client, ClientOptions, Credentials, machine_authorities};
use ostler_model::oci::Reference;

use crate::child::Failure;

/// What came.
pub(crate) struct Pulled {
    pub(crate) bytes: std::sync::Arc<[u8]>,
    pub(crate) signature: Option<Vec<u8>>,
    /// Digest of the manifest.
    pub(crate) manifest: String,
}

/// Read what is needed of the machine: credentials and authorities.
pub(crate) fn prepare(insecure: Vec<String>) -> Client {
    Client::new(ClientOptions {
        insecure: insecure.into_iter().collect(),
        credentials: Credentials::of_environment(),
        authorities: Some(machine_authorities()),
        ..ClientOptions::default()
    })
}

/// Pull it, every byte checked against its manifest.
pub(crate) async fn pull(client: Client, reference: &str) -> Result<Pulled, Failure> {
    let reference: Reference = reference.parse().map_err(Failure::lasting)?;
    let resolved = client.resolve(&reference).await.map_err(Failure::passing)?;
    let pulled = client.fetch(&reference, &resolved).await.map_err(Failure::passing)?;
    let manifest = resolved.manifest.tagged();
    Ok(Pulled { bytes: pulled.component, signature: pulled.signature, manifest })
}
