//! Operations on plugins while no agent runs: pulling them, and asking whether they would
//! be trusted.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;

use super::find;
use super::verify::{self, ObtainError, PluginSubject, examine};
use ostler_artifact::registry::{PullProgress, Store};
use ostler_artifact::trust::{self, SignatureCheck};
use ostler_model::config::AgentConfig;
use ostler_model::digest::Digest;
use ostler_model::oci::OciReference;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{PluginSource, Voucher};

/// The state of a plugin's signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum SignatureReport {
    /// The plugin has no signature.
    None,
    /// The signature cannot be read.
    Damaged {
        /// The reason why the signature cannot be read.
        reason: String,
    },
    /// The signature is by a key that the trust file does not have.
    UnknownKey {
        /// The number of the key, as minisign shows it.
        key_id: String,
    },
    /// The signature is by a key of the trust file, but of other bytes.
    Wrong {
        /// Name of the key.
        key: String,
        /// The number of the key, as minisign shows it.
        key_id: String,
    },
    /// The signature is by a key of the trust file, and of these bytes.
    Good {
        /// Name of the key.
        key: String,
        /// The number of the key, as minisign shows it.
        key_id: String,
        /// What the signer wrote beside it.
        comment: String,
        /// Why the key is not trusted any more; `None` while it is.
        revoked: Option<String>,
    },
}

/// The report on a plugin file, made without running it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The path of the file, as it was given.
    pub file: PathBuf,
    /// The name under which the agent would load it.
    pub name: String,
    /// The way in which the plugin would come to the agent.
    pub source: PluginSource,
    /// Driver or device plugin; `None` if the file is no plugin.
    pub kind: Option<PluginKind>,
    /// SHA-256 of the file.
    pub digest: Digest,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// The state of the file's signature.
    pub signature: SignatureReport,
    /// Whether the agent would run the plugin, as far as trust goes.
    pub trusted: bool,
    /// Who vouches for the plugin, if it is trusted.
    pub by: Option<Voucher>,
    /// Why the plugin is not trusted, and how to change that.
    pub reason: Option<String>,
}

/// Report whether an agent with this configuration would trust the plugin file. Nothing of it
/// is run.
///
/// # Errors
/// When the file cannot be read.
pub fn verify(config: &AgentConfig, file: &Path) -> Result<VerifyReport, ObtainError> {
    let content = trust::read_component(file)?;
    let policy = trust::read_policy(&config.trust);
    let whose = find_subject(config, file);
    let examined = examine(content, &whose, &policy);
    let signed = trust::check(&examined.bytes, examined.signature.as_ref(), policy.trust());
    let (by, refused) = match examined.verdict {
        Ok(by) => (Some(by), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let no_plugin =
        examined.manifest.as_ref().err().map(|error| format!("it is not a plugin: {error}"));
    let reason = refused.or(no_plugin);
    Ok(VerifyReport {
        file: file.to_owned(),
        name: whose.name,
        source: whose.source,
        kind: examined.manifest.ok().map(|manifest| manifest.kind),
        digest: examined.digest,
        size_bytes: examined.bytes.len() as u64,
        signature: report(&signed),
        trusted: reason.is_none(),
        by: by.filter(|_| reason.is_none()),
        reason,
    })
}

/// The subject as which the agent would examine a file: that of the block that names the file, that
/// of the plugin directory, or that of a block without demands.
fn find_subject(config: &AgentConfig, file: &Path) -> PluginSubject {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let wanted = real(file);
    let place = file.display().to_string();
    let names =
        |named: &Option<PathBuf>| named.as_deref().is_some_and(|named| real(named) == wanted);
    if let Some((name, block)) = config.plugins.iter().find(|(_, block)| names(&block.file)) {
        let (name, demand) = (name.clone(), find::block_demand(block));
        return PluginSubject { name, source: PluginSource::File, place, demand };
    }
    let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let dir = config.plugin_dir.as_deref().map(real);
    let source = if dir.is_some() && dir.as_deref() == wanted.parent() {
        PluginSource::PluginDir
    } else {
        PluginSource::File
    };
    let block = config.plugins.get(&name).filter(|_| source == PluginSource::PluginDir);
    let demand = block.map(find::block_demand).unwrap_or_default();
    PluginSubject { name, source, place, demand }
}

fn report(signed: &SignatureCheck<'_>) -> SignatureReport {
    match signed {
        SignatureCheck::Not => SignatureReport::None,
        SignatureCheck::Unreadable(error) => SignatureReport::Damaged { reason: error.to_string() },
        SignatureCheck::Unknown { key } => SignatureReport::UnknownKey { key_id: key.to_string() },
        SignatureCheck::Wrong { key } => {
            SignatureReport::Wrong { key: key.name.clone(), key_id: key.key.id().to_string() }
        }
        SignatureCheck::By { key, comment } => SignatureReport::Good {
            key: key.name.clone(),
            key_id: key.key.id().to_string(),
            comment: comment.clone(),
            revoked: key.revoked.clone(),
        },
    }
}

/// The report on a plugin that was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// The reference in the registry, as it was given.
    pub reference: String,
    /// Digest of the manifest that the reference is pinned to.
    pub manifest: Digest,
    /// SHA-256 of the component.
    pub digest: Digest,
    /// Bytes of the component.
    pub size_bytes: u64,
    /// Whether a signature came with the component.
    pub signed: bool,
    /// Whether the component was not there already.
    pub new: bool,
    /// The path of the component's file.
    pub file: PathBuf,
}

/// Pull a plugin, pin its reference, and also write it to `to` if that is given. With `update`, a
/// tag that was moved in its registry is accepted. Nothing of the plugin is run. `progress`
/// receives how much has arrived.
///
/// # Errors
/// When it cannot be had or kept.
pub async fn pull(
    config: &AgentConfig,
    store: &Path,
    reference: &OciReference,
    update: bool,
    to: Option<&Path>,
    progress: Option<watch::Sender<PullProgress>>,
) -> Result<PullReport, ObtainError> {
    let store = Store::for_data_dir(store);
    let (pinned, new) =
        verify::pull(reference, &store, verify::insecure(config), update, progress).await?;
    let mut report = PullReport {
        reference: reference.to_string(),
        manifest: pinned.pin.manifest,
        digest: pinned.pin.component,
        size_bytes: pinned.content.bytes.len() as u64,
        signed: pinned.pin.signed,
        new,
        file: pinned.path.clone(),
    };
    if let Some(dir) = to {
        let file = dir.join(format!("{}.wasm", reference.file_stem()));
        let target = file.clone();
        verify::run_blocking(move || Ok(pinned.copy_to(&target)?)).await?;
        report.file = file;
    }
    Ok(report)
}
