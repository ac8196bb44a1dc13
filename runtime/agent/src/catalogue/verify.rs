//! Where a plugin's bytes come from and whether they are trusted, before anything of them is
//! compiled.
//!
//! ```text
//! file, built in ─────────────┐
//! registry ─ pinned? ─ yes ───┼─► the bytes, in memory ─► manifest, digest, signature ─► verdict
//!              └─ no: pull ───┘        └── the very same are compiled later ◄── trusted ┘
//! ```

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::watch;

use ostler_artifact::registry::{
    Client, ClientOptions, Credentials, PinnedPlugin, PullProgress, RegistryError,
    ResolvedReference, Store, StoreError,
};
use ostler_artifact::trust::{
    self, Demand, PluginOrigin, Policy, ReadError, Signature, SignatureError, Signed, TrustRefusal,
    Unverified,
};
use ostler_model::clock;
use ostler_model::config::AgentConfig;
use ostler_model::digest::Digest;
use ostler_model::limits::REGISTRY_START_WALL;
use ostler_model::oci::Reference;
use ostler_model::plugin::Manifest;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{PluginSource, Voucher};
use ostler_plugin::manifest::{self, ManifestError};

/// Why a plugin's bytes are not to be had.
#[derive(Debug, thiserror::Error)]
pub enum ObtainError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A registry did not give it.
    #[error("{reference} cannot be pulled: {source}")]
    Pull {
        /// The reference.
        reference: String,
        /// Why.
        source: Box<RegistryError>,
    },
    /// What was pulled before cannot be used, or what is pulled now cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A registry is too slow for an agent that starts.
    #[error(
        "{reference} was not there within {REGISTRY_START_WALL:?}; get it with `ostler plugin pull \
         {reference}` and start the agent again"
    )]
    Late {
        /// The reference.
        reference: String,
    },
    /// Reading was interrupted.
    #[error("it was given up because the agent ends")]
    GivenUp,
}

/// Where bytes are.
#[derive(Clone, Debug)]
pub(super) enum Place {
    /// In this program.
    BuiltIn(Arc<[u8]>),
    /// In a file.
    File(PathBuf),
    /// In a registry, and in the data directory once pulled.
    Registry(Reference),
}

/// How registries are asked and where what they gave is kept.
#[derive(Clone, Debug)]
pub(super) struct Registries {
    store: Store,
    /// That of the configured data directory, where this agent has another: what is pinned there
    /// need not be pulled for one command.
    configured: Option<Store>,
    insecure: BTreeSet<String>,
}

impl Registries {
    pub(super) fn new(config: &AgentConfig, data_dir: &Path) -> Self {
        let configured = config.data_dir.as_deref().filter(|dir| *dir != data_dir);
        Self {
            store: Store::of(data_dir),
            configured: configured.map(Store::of),
            insecure: insecure(config),
        }
    }

    /// What was pulled before.
    fn pinned(&self, reference: &Reference) -> Result<Option<PinnedPlugin>, StoreError> {
        match (self.store.pinned(reference)?, &self.configured) {
            (None, Some(configured)) => configured.pinned(reference),
            (found, _) => Ok(found),
        }
    }
}

/// The registries that are asked over plain HTTP.
pub(super) fn insecure(config: &AgentConfig) -> BTreeSet<String> {
    let insecure = config.registries.iter().filter(|(_, registry)| registry.insecure);
    insecure.map(|(name, _)| name.clone()).collect()
}

/// Read or pull the bytes. A registry is asked only for what was never pulled.
pub(super) async fn obtain(
    place: Place,
    registries: &Registries,
) -> Result<Unverified, ObtainError> {
    match place {
        Place::BuiltIn(bytes) => Ok(Unverified { bytes, signature: None }),
        Place::File(path) => blocking(move || Ok(trust::component(&path)?)).await,
        Place::Registry(reference) => {
            let (known, wanted) = (registries.clone(), reference.clone());
            if let Some(pinned) = blocking(move || Ok(known.pinned(&wanted)?)).await? {
                return Ok(pinned.content);
            }
            let Registries { store, insecure, .. } = registries.clone();
            let pulled = pull(&reference, &store, insecure, false, None);
            let pulled = clock::timeout(REGISTRY_START_WALL, pulled).await;
            let late = || ObtainError::Late { reference: reference.to_string() };
            Ok(pulled.ok_or_else(late)??.0.content)
        }
    }
}

/// Pull a reference and pin it. With `update` a tag that was moved is accepted. Says whether
/// anything new came. `progress` is told how much of it is here.
pub(super) async fn pull(
    reference: &Reference,
    store: &Store,
    insecure: BTreeSet<String>,
    update: bool,
    progress: Option<watch::Sender<PullProgress>>,
) -> Result<(PinnedPlugin, bool), ObtainError> {
    let failed =
        |error| ObtainError::Pull { reference: reference.to_string(), source: Box::new(error) };
    let credentials = blocking(|| Ok(Credentials::of_environment())).await?;
    let options = ClientOptions { insecure, credentials, progress, ..ClientOptions::default() };
    let client = Client::new(options);
    let resolved = client.resolve(reference).await.map_err(failed)?;
    if let Some(pinned) = unchanged(reference, store, &resolved, update).await? {
        return Ok((pinned, false));
    }
    let pulled = client.fetch(reference, &resolved).await.map_err(failed)?;
    let (store, reference) = (store.clone(), reference.clone());
    let kept = blocking(move || Ok(store.keep(&reference, &resolved, &pulled)?)).await?;
    Ok((kept, true))
}

/// What is there already and still meant. What is there and damaged is pulled again.
async fn unchanged(
    reference: &Reference,
    store: &Store,
    resolved: &ResolvedReference,
    update: bool,
) -> Result<Option<PinnedPlugin>, ObtainError> {
    let (store, reference, resolved) = (store.clone(), reference.clone(), resolved.clone());
    blocking(move || {
        store.check(&reference, &resolved, update)?;
        let pinned = store.pinned(&reference).ok().flatten();
        Ok(pinned.filter(|pinned| pinned.pin.manifest == resolved.manifest))
    })
    .await
}

pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObtainError> + Send + 'static,
) -> Result<T, ObtainError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(ObtainError::GivenUp))
}

/// What was found out about bytes, all from the one buffer that is compiled when they are trusted.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) bytes: Arc<[u8]>,
    pub(super) digest: Digest,
    /// What the component says of itself, or why it is no plugin.
    pub(super) manifest: Result<Manifest, ManifestError>,
    pub(super) signature: Option<Result<Signature, SignatureError>>,
    /// Who says that the bytes may be used, or why they may not.
    pub(super) verdict: Result<Voucher, TrustRefusal>,
    /// These bytes were accepted before, in place of those that were found, and why.
    pub(super) instead: Option<String>,
}

/// Whose bytes are examined.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    /// Name of the block, or of the file.
    pub(super) name: String,
    pub(super) source: PluginSource,
    /// The file or the reference.
    pub(super) place: String,
    pub(super) demand: Demand,
}

impl Whose {
    /// The same plugin out of a file, which is no longer part of the agent.
    pub(super) fn outside(self) -> Self {
        let source = match self.source {
            PluginSource::BuiltIn => PluginSource::File,
            outside => outside,
        };
        Self { source, ..self }
    }

    pub(super) fn judge(
        &self,
        name: &str,
        (digest, kind): (Digest, Option<PluginKind>),
        policy: &Policy,
        signed: &Signed<'_>,
    ) -> Result<Voucher, TrustRefusal> {
        let subject = PluginOrigin { name, source: self.source, place: &self.place, kind, digest };
        trust::verdict(policy, &self.demand, &subject, signed)
    }
}

/// Look at bytes without compiling them. Blocking: hashes and checks a signature.
pub(super) fn examine(content: Unverified, whose: &Whose, policy: &Policy) -> Examined {
    let Unverified { bytes, signature } = content;
    let digest = Digest::of(&bytes);
    let manifest = manifest::read(&bytes);
    let kind = manifest.as_ref().ok().map(|manifest| manifest.kind);
    let signed = trust::check(&bytes, signature.as_ref(), policy.trust());
    let verdict = whose.judge(&whose.name, (digest, kind), policy, &signed);
    Examined { bytes, digest, manifest, signature, verdict, instead: None }
}
