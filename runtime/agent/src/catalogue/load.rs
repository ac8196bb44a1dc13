//! One candidate: read, trusted or not, linked, asked who it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::choose::Contender;
use super::find::Candidate;
use super::verify::{Examined, ObtainError, Place, Registries, Whose, blocking, examine, obtain};
use super::{PluginEntry, PluginStatus};
use crate::upgrade::kept::Choice;
use ostler_artifact::trust::{self, Policy, TrustRefusal};
use ostler_model::config::{ConfigOrigin, UpgradeMode};
use ostler_model::grants::answers::Answers;
use ostler_model::plugin::{Manifest, PluginKind};
use ostler_model::ports::Diagnostic;
use ostler_model::trust::{PluginSource, TrustConfig, Voucher};
use ostler_plugin::{Plugin, PluginError, PluginRuntime, PluginSpec};

/// The key of a plugin's block that switches it on or off.
const ENABLED: &str = "enabled";

/// What every candidate is loaded with.
pub(super) struct Loader {
    pub(super) runtime: PluginRuntime,
    pub(super) policy: Policy,
    pub(super) registries: Registries,
    /// What the policy was made from; made anew for an upgrade, so that what was revoked since counts.
    pub(super) trust: TrustConfig,
    /// What was accepted in place of files.
    pub(super) choice: Choice,
    /// Names of all blocks and files, and of what is built in: they are taken.
    pub(super) names: BTreeSet<String>,
    /// Whether a plugin's configuration is there already, to be checked against its schema.
    pub(super) configured: bool,
}

impl Loader {
    /// The bytes of a plugin, and whether they are trusted. Nothing of them is compiled.
    pub(super) async fn examined(
        self: &Arc<Self>,
        place: Place,
        whose: &Whose,
    ) -> Result<Examined, ObtainError> {
        let content = obtain(place, &self.registries).await?;
        let (whose, loader) = (whose.clone(), Arc::clone(self));
        blocking(move || match loader.choice.instead(&whose.name, &content.bytes) {
            None => Ok(examine(content, &whose, &loader.policy)),
            Some((accepted, why)) => {
                let examined = examine(accepted, &whose.outside(), &loader.policy);
                Ok(Examined { instead: Some(why), ..examined })
            }
        })
        .await
    }
}

/// A candidate that was looked at.
pub(super) struct Looked {
    pub(super) entry: PluginEntry,
    /// When it can be used.
    pub(super) plugin: Option<Plugin>,
    pub(super) source: PluginSource,
    pub(super) configured: bool,
    /// What another version of it would be loaded with; absent where it was not loaded.
    pub(super) seed: Option<Seed>,
}

/// What another version of a plugin is loaded with.
pub(crate) struct Seed {
    /// Configuration, grants, limits, policy.
    pub(crate) spec: PluginSpec,
    /// Where the configuration stands.
    pub(crate) origin: Option<ConfigOrigin>,
    /// Its file; absent for a built-in one.
    pub(crate) path: Option<PathBuf>,
    /// Who puts a changed file in its place.
    pub(crate) mode: UpgradeMode,
    /// Whose it is, and what is demanded of its bytes.
    whose: Whose,
    /// The operator's trust.
    trust: TrustConfig,
}

/// Another version of a plugin, trusted.
pub(crate) struct Verified {
    /// What is compiled.
    pub(crate) bytes: Arc<[u8]>,
    /// Imports and exports.
    pub(crate) manifest: Manifest,
    /// Who says that it may be used.
    pub(crate) voucher: Voucher,
}

impl Seed {
    /// Read another version of the plugin that calls itself `name`, if it is trusted: the trust file
    /// is read again. Blocks.
    pub(crate) fn verified(&self, name: &str, file: &Path) -> Result<Verified, String> {
        let content = trust::component(file).map_err(|error| error.to_string())?;
        let whose = Whose { place: file.display().to_string(), ..self.whose.clone().outside() };
        let policy = trust::policy(&self.trust);
        let examined = examine(content, &whose, &policy);
        examined.verdict.map_err(|refusal| refusal.to_string())?;
        let manifest =
            examined.manifest.map_err(|error| format!("the file is no plugin: {error}"))?;
        let signed = trust::check(&examined.bytes, examined.signature.as_ref(), policy.trust());
        let of = (examined.digest, Some(manifest.kind));
        let voucher = whose.judge(name, of, &policy, &signed);
        let voucher = voucher.map_err(|refusal| refusal.to_string())?;
        Ok(Verified { bytes: examined.bytes, manifest, voucher })
    }
}

impl Looked {
    /// It as one of several that could be used.
    pub(super) fn contender(&self) -> Option<Contender> {
        let (kind, name, version) = match self.plugin.as_ref()? {
            Plugin::Driver(plugin) => (PluginKind::Driver, &plugin.name, &plugin.version),
            Plugin::Device(plugin) => (PluginKind::Device, &plugin.name, &plugin.version),
        };
        Some(Contender {
            kind,
            name: name.to_string(),
            version: version.clone(),
            configured: self.configured,
            source: self.source,
            place: self.entry.source.clone(),
            block: self.entry.name.clone(),
        })
    }
}

/// What there is to say of a candidate before it is looked at.
pub(super) fn bare(candidate: &Candidate) -> PluginEntry {
    PluginEntry {
        name: candidate.whose.name.clone(),
        source: candidate.whose.place.clone(),
        kind: None,
        describes_as: None,
        version: None,
        interface_version: None,
        digest: None,
        trust: None,
        size_bytes: 0,
        status: PluginStatus::Loading,
        grants: candidate.grants.clone(),
        asks: Vec::new(),
    }
}

/// What there is to say of a candidate, and the plugin when it can be used.
pub(super) async fn load(candidate: Candidate, loader: Arc<Loader>) -> Looked {
    let (source, configured) = (candidate.whose.source, candidate.configured);
    let mut entry = PluginEntry { status: PluginStatus::Disabled, ..bare(&candidate) };
    let loaded = match look(candidate, &loader, &mut entry).await {
        Ok(loaded) => loaded,
        Err(reason) => {
            entry.status = PluginStatus::Refused(reason);
            None
        }
    };
    let (plugin, seed) = loaded.unzip();
    Looked { entry, plugin, source, configured, seed }
}

/// The plugin, or `None` when it is switched off, or why it is refused.
async fn look(
    candidate: Candidate,
    loader: &Arc<Loader>,
    entry: &mut PluginEntry,
) -> Result<Option<(Plugin, Seed)>, String> {
    let place = candidate.bytes?;
    // Nothing is pulled for a plugin that is switched off.
    if !candidate.enabled && candidate.whose.source == PluginSource::Oci {
        return Ok(None);
    }
    let examined = loader.examined(place, &candidate.whose).await.map_err(|e| e.to_string())?;
    note(&examined, entry);
    if !candidate.enabled {
        return Ok(None);
    }
    let Examined { bytes, digest, manifest, signature, verdict, instead } = examined;
    // First of all: bytes that are not trusted are not even said to be wrong.
    let voucher = verdict.map_err(|refusal| refusal.to_string())?;
    let manifest = manifest.map_err(|error| PluginError::from(error).to_string())?;
    let kind = manifest.kind;
    let spec = PluginSpec {
        name: candidate.whose.name.clone(),
        config: candidate.config,
        grants: candidate.grants,
        limits: candidate.limits,
        failure: candidate.failure,
    };
    let seed = Seed {
        spec: spec.clone(),
        origin: candidate.origin.clone(),
        path: candidate.path,
        mode: candidate.upgrade,
        whose: candidate.whose.clone(),
        trust: loader.trust.clone(),
    };
    let loaded = match loader.configured {
        true => loader.runtime.load(spec, manifest, Arc::clone(&bytes)).await,
        false => loader.runtime.load_unconfigured(spec, manifest, Arc::clone(&bytes)).await,
    };
    let plugin = loaded.map_err(|error| reason(&error, candidate.origin.as_ref()))?;
    let (name, version) = (plugin.name(), plugin.version());
    entry.version = Some(version.to_owned());
    let own = Answers { name: &seed.spec.name, grants: &seed.spec.grants };
    named(&own, kind, name.as_str(), &loader.names)?;
    entry.describes_as = Some(name.to_string());
    let whose = match instead {
        Some(_) => candidate.whose.outside(),
        None => candidate.whose,
    };
    let named = Named { whose: &whose, voucher, name: name.as_str() };
    let signed = || trust::check(&bytes, signature.as_ref(), loader.policy.trust());
    let confirmed = named
        .confirm(|whose, name| whose.judge(name, (digest, Some(kind)), &loader.policy, &signed()));
    entry.trust = Some(confirmed.map_err(|refusal| refusal.to_string())?);
    Ok(Some((plugin, seed)))
}

/// Why a plugin may not call itself so, if it may not. Jobs name a driver: it has the name of its
/// block, or the one that is granted. A device plugin is known by its groups, and may have any name
/// that is not another's.
fn named(
    own: &Answers<'_>,
    kind: PluginKind,
    name: &str,
    taken: &BTreeSet<String>,
) -> Result<(), String> {
    match kind {
        PluginKind::Driver => own.driver(name).map_err(|excess| excess.to_string()),
        PluginKind::Device if name != own.name && taken.contains(name) => Err(format!(
            "it calls itself {name}, which is the name of another plugin; to use it in its place, give \
             its file in the block of that name: plugin \"{name}\" {{ file = \"…\" }}"
        )),
        PluginKind::Device => Ok(()),
    }
}

/// A plugin that was trusted under the name of its block or file, and the name it gives itself.
struct Named<'a> {
    whose: &'a Whose,
    voucher: Voucher,
    name: &'a str,
}

impl Named<'_> {
    /// Who vouches for it under its own name too: who may sign `acme-x` may not pass something off
    /// as `exec`.
    fn confirm(
        self,
        judge: impl FnOnce(&Whose, &str) -> Result<Voucher, TrustRefusal>,
    ) -> Result<Voucher, TrustRefusal> {
        match self.voucher {
            Voucher::Key { .. } | Voucher::Digest { .. } if self.name != self.whose.name => {
                judge(self.whose, self.name)
            }
            voucher => Ok(voucher),
        }
    }
}

/// Put down what can be told without running it.
fn note(examined: &Examined, entry: &mut PluginEntry) {
    entry.size_bytes = examined.bytes.len() as u64;
    entry.digest = Some(examined.digest.to_string());
    if let Some(why) = &examined.instead {
        entry.source = format!("{}, as it was accepted before ({why})", entry.source);
    }
    entry.trust = examined.verdict.as_ref().ok().cloned();
    if let Ok(manifest) = &examined.manifest {
        entry.kind = Some(manifest.kind);
        entry.asks = manifest.asks().into_iter().map(|(authority, _)| authority).collect();
        entry.interface_version = Some(manifest.interface_version.clone());
    }
}

/// Why it is refused; a wrong configuration with the places where it is written.
pub(crate) fn reason(error: &PluginError, origin: Option<&ConfigOrigin>) -> String {
    match (error, origin) {
        (PluginError::Config(problems), Some(origin)) => {
            let lines: Vec<String> = problems.iter().map(|one| placed(one, origin)).collect();
            format!("its configuration is wrong: {}", lines.join("; "))
        }
        _ => error.to_string(),
    }
}

fn placed(problem: &Diagnostic, origin: &ConfigOrigin) -> String {
    let place = origin.place(&problem.path);
    if problem.unknown && problem.path == ENABLED {
        // Nomad's raw_exec has it inside.
        return format!("{place}: config.{ENABLED}: it stands beside config, not in it");
    }
    let separator = if problem.path.is_empty() { ": " } else { "." };
    format!("{place}: config{separator}{problem}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_says_where_it_stands_and_what_was_meant() {
        let origin = ConfigOrigin { file: "a.hcl".to_owned(), line: 3, ..ConfigOrigin::default() };
        let unknown = |path: &str, suggestion: Option<&str>| Diagnostic {
            path: path.to_owned(),
            message: format!("{path:?} is unknown"),
            unknown: true,
            suggestion: suggestion.map(str::to_owned),
        };
        let told = |problem: Diagnostic| placed(&problem, &origin);
        let known = told(unknown("comand", Some("command")));
        assert_eq!(known, "a.hcl:3: config.comand: \"comand\" is unknown; did you mean command?");
        let beside = told(unknown("enabled", None));
        assert_eq!(beside, "a.hcl:3: config.enabled: it stands beside config, not in it");
        let whole = Diagnostic { message: "it is too large".to_owned(), ..Diagnostic::default() };
        assert_eq!(told(whole), "a.hcl:3: config: it is too large");
    }
}
