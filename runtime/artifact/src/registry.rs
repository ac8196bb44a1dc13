//! Plugins from OCI registries: a tag is resolved once and pinned to a digest; what is pulled is
//! checked while it arrives.
//!
//! ```text
//! oci://registry/repository:tag
//!    │ Store::pinned ─ there ─► bytes of the data directory, checked against the pin; no network
//!    │ not there, or `plugin pull`
//!    ▼
//! Client::resolve ─► manifest, its digest ─► another than pinned? ─► Moved, unless --update
//!    ▼
//! Client::fetch ─► component (and signature), each of the size and digest the manifest says
//!    ▼
//! Store::keep ─► files, then the pin: tag → digest
//! ```
//! A registry is a stranger: every body is bounded, every wait has a deadline, redirects are few and
//! take no credentials to another host, and plain HTTP is spoken only with this machine or where the
//! configuration says so.

mod auth;
mod client;
mod credentials;
mod error;
mod manifest;
mod store;
mod transport;

pub use client::{Client, ClientOptions, PullProgress, PulledPlugin, ResolvedReference, Timeouts};
pub use credentials::Credentials;
pub use error::RegistryError;
pub use manifest::{Artifact, Descriptor, OciManifestError};
pub use store::{Pin, PinnedPlugin, Store, StoreError};
pub use transport::{machine_authorities, machine_tls};

#[cfg(test)]
mod tests;
