//! What is done with plugins while no agent runs: pulling them and asking whether they would be
//! trusted.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tokio::sync::watch;

use super::find;
use super::verify::{self, ObtainError, Whose, examine};
use ostler_artifact::registry::{PullProgress, Store};
use ostler_artifact::trust::{self, Signed};
use ostler_model::config::AgentConfig;
use ostler_model::digest::Digest;
use ostler_model::oci::Reference;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::{PluginSource, Voucher};

/// What there is of a signature.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum SignatureReport {
    /// No signature.
    None,
    /// One that cannot be read.
    Damaged {
        /// Why.
        reason: String,
    },
    /// By a key that the trust file does not have.
    UnknownKey {
        /// Its number.
        key_id: String,
    },
    /// By a key of the trust file, of other bytes.
    Wrong {
        /// Name of the key.
        key: String,
        /// Its number.
        key_id: String,
    },
    /// By a key of the trust file, of these bytes.
    Good {
        /// Name of the key.
        key: String,
        /// Its number.
        key_id: String,
        /// What the signer wrote beside it.
        comment: String,
        /// Why the key is not trusted any more.
        revoked: Option<String>,
    },
}

/// What can be said of a plugin file without running it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// The file.
    pub file: PathBuf,
    /// The name under which the agent would load it.
    pub name: String,
    /// How it would come to the agent.
    pub source: PluginSource,
    /// Driver or device plugin; absent when it is none.
    pub kind: Option<PluginKind>,
    /// SHA-256 of the file.
    pub digest: Digest,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Its signature.
    pub signature: SignatureReport,
    /// The agent would run it, as far as trust goes.
    pub trusted: bool,
    /// Who says so.
    pub by: Option<Voucher>,
    /// Why not, and what would mend it.
    pub reason: Option<String>,
}

/// Would an agent with this configuration trust the plugin file? Nothing of it is run.
///
/// # Errors
/// When the file cannot be read.
pub fn verify(config: &AgentConfig, file: &Path) -> Result<VerifyReport, ObtainError> {
    let content = trust::component(file)?;
    let policy = trust::policy(&config.trust);
    let whose = whose(config, file);
    let examined = examine(content, &whose, &policy);
    let signed = trust::check(&examined.bytes, examined.signature.as_ref(), policy.trust());
    let (by, refused) = match examined.verdict {
        Ok(by) => (Some(by), None),
        Err(refusal) => (None, Some(refusal.to_string())),
    };
    let no_plugin =
        examined.manifest.as_ref().err().map(|error| format!("it is no plugin: {error}"));
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

/// As whose the agent would take a file: of the block that names it, or of the plugin directory;
/// else as if a block without demands named it.
fn whose(config: &AgentConfig, file: &Path) -> Whose {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let wanted = real(file);
    let place = file.display().to_string();
    let names =
        |named: &Option<PathBuf>| named.as_deref().is_some_and(|named| real(named) == wanted);
    if let Some((name, block)) = config.plugins.iter().find(|(_, block)| names(&block.file)) {
        let (name, demand) = (name.clone(), find::demand(block));
        return Whose { name, source: PluginSource::File, place, demand };
    }
    let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let dir = config.plugin_dir.as_deref().map(real);
    let source = match dir.is_some() && dir.as_deref() == wanted.parent() {
        true => PluginSource::PluginDir,
        false => PluginSource::File,
    };
    let block = config.plugins.get(&name).filter(|_| source == PluginSource::PluginDir);
    let demand = block.map(find::demand).unwrap_or_default();
    Whose { name, source, place, demand }
}

fn report(signed: &Signed<'_>) -> SignatureReport {
    match signed {
        Signed::Not => SignatureReport::None,
        Signed::Unreadable(error) => SignatureReport::Damaged { reason: error.to_string() },
        Signed::Unknown { key } => SignatureReport::UnknownKey { key_id: key.to_string() },
        Signed::Wrong { key } => {
            SignatureReport::Wrong { key: key.name.clone(), key_id: key.key.id().to_string() }
        }
        Signed::By { key, comment } => SignatureReport::Good {
            key: key.name.clone(),
            key_id: key.key.id().to_string(),
            comment: comment.clone(),
            revoked: key.revoked.clone(),
        },
    }
}

/// What was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// The reference.
    pub reference: String,
    /// Digest of the manifest that the reference is pinned to.
    pub manifest: Digest,
    /// SHA-256 of the component.
    pub digest: Digest,
    /// Bytes of the component.
    pub size_bytes: u64,
    /// A signature came with it.
    pub signed: bool,
    /// It was not there already.
    pub new: bool,
    /// The file.
    pub file: PathBuf,
}

/// Pull a plugin, pin its reference, and put it into `to` as well when that is given. With `update`
/// a tag that was moved in its registry is accepted. Nothing of it is run. `progress` is told how much of
/// it is here.
///
/// # Errors
/// When it cannot be had or kept.
pub async fn pull(
    config: &AgentConfig,
    store: &Path,
    reference: &Reference,
    update: bool,
    to: Option<&Path>,
    progress: Option<watch::Sender<PullProgress>>,
) -> Result<PullReport, ObtainError> {
    let store = Store::of(store);
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
        verify::blocking(move || Ok(pinned.place(&target)?)).await?;
        report.file = file;
    }
    Ok(report)
}
