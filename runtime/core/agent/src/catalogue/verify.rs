//! Where a plugin's bytes come from and whether they are trusted, before anything of them
//! is compiled.
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
    ClientOptions, PinnedPlugin, PullProgress, RegistryClient, RegistryCredentials, RegistryError,
    ResolvedReference, Store, StoreError,
};
use ostler_artifact::trust::{
    self, Demand, PluginOrigin, Policy, ReadError, Signature, SignatureCheck, SignatureError,
    TrustRefusal, UnverifiedComponent,
};
use ostler_model::clock;
use ostler_model::config::AgentConfig;
use ostler_model::digest::Digest;
use ostler_model::limits::REGISTRY_START_WALL;
use ostler_model::oci::OciReference;
use ostler_model::plugin::PluginKind;
use ostler_model::plugin::PluginManifest;
use ostler_model::trust::{PluginSource, Voucher};
use ostler_plugin::manifest::{self, ManifestError};

/// Why the bytes of a plugin cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ObtainError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The registry did not deliver the plugin.
    #[error("{reference} cannot be pulled: {source}")]
    Pull {
        /// The reference in the registry, as it was configured.
        reference: String,
        /// The error of the registry.
        source: Box<RegistryError>,
    },
    /// What was pulled before cannot be used, or what is pulled now cannot be stored.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The registry is too slow for an agent that starts.
    #[error(
        "{reference} was not pulled within {REGISTRY_START_WALL:?}; get it with `ostler plugin pull \
         {reference}` and start the agent again"
    )]
    Late {
        /// The reference in the registry, as it was configured.
        reference: String,
    },
    /// Reading was interrupted.
    #[error("it was given up because the agent is shutting down")]
    GivenUp,
}

/// Where the bytes of a plugin are.
#[derive(Clone, Debug)]
pub(super) enum PluginBytesPlace {
    /// In this program.
    BuiltIn(Arc<[u8]>),
    /// In a file.
    File(PathBuf),
    /// In a registry, and in the data directory once pulled.
    Registry(OciReference),
}

/// The settings for asking registries, and the stores of what they delivered.
#[derive(Clone, Debug)]
pub(super) struct Registries {
    store: Store,
    /// The store of the configured data directory, if this agent uses another one. What is pinned
    /// there need not be pulled for one command.
    configured: Option<Store>,
    insecure: BTreeSet<String>,
}

impl Registries {
    pub(super) fn new(config: &AgentConfig, data_dir: &Path) -> Self {
        let configured = config.data_dir.as_deref().filter(|dir| *dir != data_dir);
        Self {
            store: Store::for_data_dir(data_dir),
            configured: configured.map(Store::for_data_dir),
            insecure: insecure(config),
        }
    }

    /// The plugin that was pulled and pinned before, if there is one.
    fn find_pinned(&self, reference: &OciReference) -> Result<Option<PinnedPlugin>, StoreError> {
        match (self.store.read_pinned(reference)?, &self.configured) {
            (None, Some(configured)) => configured.read_pinned(reference),
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
    place: PluginBytesPlace,
    registries: &Registries,
) -> Result<UnverifiedComponent, ObtainError> {
    match place {
        PluginBytesPlace::BuiltIn(bytes) => Ok(UnverifiedComponent { bytes, signature: None }),
        PluginBytesPlace::File(path) => {
            run_blocking(move || Ok(trust::read_component(&path)?)).await
        }
        PluginBytesPlace::Registry(reference) => {
            let (known, wanted) = (registries.clone(), reference.clone());
            if let Some(pinned) = run_blocking(move || Ok(known.find_pinned(&wanted)?)).await? {
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

/// Pull a reference and pin it. With `update`, a tag that was moved is accepted. Returns whether
/// anything new came. `progress` receives how much has arrived.
pub(super) async fn pull(
    reference: &OciReference,
    store: &Store,
    insecure: BTreeSet<String>,
    update: bool,
    progress: Option<watch::Sender<PullProgress>>,
) -> Result<(PinnedPlugin, bool), ObtainError> {
    let failed =
        |error| ObtainError::Pull { reference: reference.to_string(), source: Box::new(error) };
    let credentials = run_blocking(|| Ok(RegistryCredentials::from_environment())).await?;
    let options = ClientOptions { insecure, credentials, progress, ..ClientOptions::default() };
    let client = RegistryClient::new(options);
    let resolved = client.resolve(reference).await.map_err(failed)?;
    if let Some(pinned) = find_unchanged(reference, store, &resolved, update).await? {
        return Ok((pinned, false));
    }
    let pulled = client.fetch(reference, &resolved).await.map_err(failed)?;
    let (store, reference) = (store.clone(), reference.clone());
    let kept = run_blocking(move || Ok(store.keep_pulled(&reference, &resolved, &pulled)?)).await?;
    Ok((kept, true))
}

/// The pinned plugin that is there already, if it is still what the reference means. A damaged one
/// is pulled again.
async fn find_unchanged(
    reference: &OciReference,
    store: &Store,
    resolved: &ResolvedReference,
    update: bool,
) -> Result<Option<PinnedPlugin>, ObtainError> {
    let (store, reference, resolved) = (store.clone(), reference.clone(), resolved.clone());
    run_blocking(move || {
        store.check(&reference, &resolved, update)?;
        let pinned = store.read_pinned(&reference).ok().flatten();
        Ok(pinned.filter(|pinned| pinned.pin.manifest == resolved.manifest))
    })
    .await
}

pub(super) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObtainError> + Send + 'static,
) -> Result<T, ObtainError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(ObtainError::GivenUp))
}

/// The findings about the bytes of a plugin. They are all made from the one buffer that is compiled
/// when the bytes are trusted.
#[derive(Debug)]
pub(super) struct ExaminedBytes {
    pub(super) bytes: Arc<[u8]>,
    pub(super) digest: Digest,
    /// What the component says of itself, or why it is no plugin.
    pub(super) manifest: Result<PluginManifest, ManifestError>,
    pub(super) signature: Option<Result<Signature, SignatureError>>,
    /// Who says that the bytes may be used, or why they may not.
    pub(super) verdict: Result<Voucher, TrustRefusal>,
    /// Why these bytes, which were accepted before, are used in place of those that were found;
    /// `None` if they are not.
    pub(super) instead: Option<String>,
}

/// The plugin whose bytes are examined.
#[derive(Clone, Debug)]
pub(super) struct PluginSubject {
    /// Name of the block, or of the file.
    pub(super) name: String,
    pub(super) source: PluginSource,
    /// The path of the file, or the reference.
    pub(super) place: String,
    pub(super) demand: Demand,
}

impl PluginSubject {
    /// The same plugin, but from a file, which is no longer part of the agent.
    pub(super) fn into_file(self) -> Self {
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
        signed: &SignatureCheck<'_>,
    ) -> Result<Voucher, TrustRefusal> {
        let subject = PluginOrigin { name, source: self.source, place: &self.place, kind, digest };
        trust::verdict(policy, &self.demand, &subject, signed)
    }
}

/// Examine bytes without compiling them. Blocks, because it hashes them and checks a signature.
pub(super) fn examine(
    content: UnverifiedComponent,
    whose: &PluginSubject,
    policy: &Policy,
) -> ExaminedBytes {
    let UnverifiedComponent { bytes, signature } = content;
    let digest = Digest::compute(&bytes);
    let manifest = manifest::read(&bytes);
    let kind = manifest.as_ref().ok().map(|manifest| manifest.kind);
    let signed = trust::check(&bytes, signature.as_ref(), policy.trust());
    let verdict = whose.judge(&whose.name, (digest, kind), policy, &signed);
    ExaminedBytes { bytes, digest, manifest, signature, verdict, instead: None }
}
