//! Tests of pulling from a real server in this process, which can do everything a registry may
//! do wrong.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod access;
mod hostile;
mod manifests;
mod pulls;
mod server;

use std::time::Duration;

use server::{Reply, Server};

use super::*;
use ostler_model::digest::Digest;
use ostler_model::oci::OciReference;

const COMPONENT: &[u8] = b"\0asm not really";
const SIGNATURE: &[u8] = b"a signature, as far as the registry knows\n";

/// A client with long deadlines and no credentials.
fn client() -> RegistryClient {
    RegistryClient::new(ClientOptions::default())
}

/// A client that waits only this long for anything.
fn hurried(wall: Duration) -> RegistryClient {
    let timeouts = Timeouts { head: wall, silence: wall, ..Timeouts::default() };
    RegistryClient::new(ClientOptions { timeouts, ..ClientOptions::default() })
}

async fn pull(
    client: &RegistryClient,
    reference: &OciReference,
) -> Result<PulledPlugin, RegistryError> {
    let resolved = client.resolve(reference).await?;
    client.fetch(reference, &resolved).await
}

/// The manifest of a component, and of a signature when there is one.
fn manifest(component: &[u8], signature: Option<&[u8]>) -> Vec<u8> {
    let layer = |media_type: &str, bytes: &[u8]| {
        serde_json::json!({
            "mediaType": media_type, "digest": Digest::compute(bytes).to_tagged(), "size": bytes.len(),
        })
    };
    let mut layers = vec![layer("application/wasm", component)];
    layers.extend(signature.map(|text| layer("application/vnd.ostler.minisign.v1", text)));
    serde_json::to_vec(&serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layer("application/vnd.wasm.config.v0+json", b"{}"),
        "layers": layers,
    }))
    .unwrap()
}
