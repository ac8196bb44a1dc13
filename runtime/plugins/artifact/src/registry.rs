//! Plugins from OCI registries: a tag is resolved once and pinned to a digest, and what is pulled
//! is checked while it arrives.
//!
//! ```text
//! oci://registry/repository:tag
//!    │ Store::read_pinned ─ there ─► bytes of the data directory, checked against the pin; no network
//!    │ not there, or `plugin pull`
//!    ▼
//! RegistryClient::resolve ─► manifest, its digest ─► another than pinned? ─► Moved, unless --update
//!    ▼
//! RegistryClient::fetch ─► component (and signature), each of the size and digest the manifest says
//!    ▼
//! Store::keep_pulled ─► files, then the pin: tag → digest
//! ```
//! A registry is not trusted: every body is bounded, every wait has a deadline, redirects are few
//! and take no credentials to another host, and plain HTTP is spoken only with this machine or
//! where the configuration allows it.

mod auth;
mod client;
mod credentials;
mod error;
mod manifest;
mod store;
mod transport;

pub use client::{
    ClientOptions, PullProgress, PulledPlugin, RegistryClient, ResolvedReference, Timeouts,
};
pub use credentials::RegistryCredentials;
pub use error::RegistryError;
pub use manifest::{Artifact, Descriptor, OciManifestError};
pub use store::{Pin, PinnedPlugin, Store, StoreError};

#[cfg(test)]
mod tests;
