//! Loads one candidate: it is read, judged, linked and asked who it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::choose::Contender;
use super::find::PluginCandidate;
use super::verify::{
    ExaminedBytes, ObtainError, PluginBytesPlace, PluginSubject, Registries, examine, obtain,
    run_blocking,
};
use super::{PluginEntry, PluginStatus};
use crate::upgrade::copies::AcceptedCopies;
use ostler_artifact::trust::{self, Policy, TrustRefusal};
use ostler_model::config::{ConfigOrigin, UpgradeMode};
use ostler_model::grants::answers::AnswerCheck;
use ostler_model::plugin::{PluginKind, PluginManifest};
use ostler_model::ports::Diagnostic;
use ostler_model::trust::{PluginSource, TrustConfig, Voucher};
use ostler_plugin::{Plugin, PluginError, PluginRuntime, PluginSpec};

/// The key of a plugin's block that switches it on or off.
const ENABLED: &str = "enabled";

/// The settings that every candidate is loaded with.
pub(super) struct Loader {
    pub(super) runtime: PluginRuntime,
    pub(super) policy: Policy,
    pub(super) registries: Registries,
    /// The trust settings that the policy was made from. An upgrade makes the policy anew, so that
    /// revocations since then count.
    pub(super) trust: TrustConfig,
    /// The copies that are used in place of files.
    pub(super) choice: AcceptedCopies,
    /// Names of all blocks, files and built-in plugins. These names are taken.
    pub(super) names: BTreeSet<String>,
    /// Whether the configuration of the plugin is known already, so that it can be checked against
    /// its schema.
    pub(super) configured: bool,
}

impl Loader {
    /// Get the bytes of a plugin and judge whether they are trusted. Nothing of them is compiled.
    pub(super) async fn examine_place(
        self: &Arc<Self>,
        place: PluginBytesPlace,
        whose: &PluginSubject,
    ) -> Result<ExaminedBytes, ObtainError> {
        let content = obtain(place, &self.registries).await?;
        let (whose, loader) = (whose.clone(), Arc::clone(self));
        run_blocking(move || match loader.choice.accepted_copy(&whose.name, &content.bytes) {
            None => Ok(examine(content, &whose, &loader.policy)),
            Some((accepted, why)) => {
                let examined = examine(accepted, &whose.into_file(), &loader.policy);
                Ok(ExaminedBytes { instead: Some(why), ..examined })
            }
        })
        .await
    }
}

/// The result of examining one candidate.
pub(super) struct LoadAttempt {
    pub(super) entry: PluginEntry,
    /// The plugin, if it can be used.
    pub(super) plugin: Option<Plugin>,
    pub(super) source: PluginSource,
    pub(super) configured: bool,
    /// What another version of the plugin would be loaded with; `None` if the plugin was
    /// not loaded.
    pub(super) seed: Option<Seed>,
}

/// What another version of a plugin is loaded with.
pub(crate) struct Seed {
    /// Configuration, grants, limits and failure policy.
    pub(crate) spec: PluginSpec,
    /// Where the configuration stands, for messages.
    pub(crate) origin: Option<ConfigOrigin>,
    /// The plugin's file; `None` for a built-in plugin.
    pub(crate) path: Option<PathBuf>,
    /// Whether a changed file is put in place by the agent or by the operator.
    pub(crate) mode: UpgradeMode,
    /// The name and origin of the plugin, and the demands on its bytes.
    whose: PluginSubject,
    /// The trust settings of the operator.
    trust: TrustConfig,
}

/// A trusted file with another version of a plugin.
pub(crate) struct VerifiedFile {
    /// The bytes to compile.
    pub(crate) bytes: Arc<[u8]>,
    /// Imports and exports of the component.
    pub(crate) manifest: PluginManifest,
    /// Who vouches for the file.
    pub(crate) voucher: Voucher,
}

impl Seed {
    /// Read another version of the plugin that calls itself `name`, and check that it is trusted.
    /// The trust file is read again. Blocks.
    pub(crate) fn verify_file(&self, name: &str, file: &Path) -> Result<VerifiedFile, String> {
        let content = trust::read_component(file).map_err(|error| error.to_string())?;
        let whose =
            PluginSubject { place: file.display().to_string(), ..self.whose.clone().into_file() };
        let policy = trust::read_policy(&self.trust);
        let examined = examine(content, &whose, &policy);
        examined.verdict.map_err(|refusal| refusal.to_string())?;
        let manifest =
            examined.manifest.map_err(|error| format!("the file is not a plugin: {error}"))?;
        let signed = trust::check(&examined.bytes, examined.signature.as_ref(), policy.trust());
        let of = (examined.digest, Some(manifest.kind));
        let voucher = whose.judge(name, of, &policy, &signed);
        let voucher = voucher.map_err(|refusal| refusal.to_string())?;
        Ok(VerifiedFile { bytes: examined.bytes, manifest, voucher })
    }
}

impl LoadAttempt {
    /// This plugin as one of several that could be used under the same name.
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

/// The entry of a candidate before it is examined.
pub(super) fn unexamined_entry(candidate: &PluginCandidate) -> PluginEntry {
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

/// Load a candidate. The result has its entry, and the plugin if it can be used.
pub(super) async fn load(candidate: PluginCandidate, loader: Arc<Loader>) -> LoadAttempt {
    let (source, configured) = (candidate.whose.source, candidate.configured);
    let mut entry = PluginEntry { status: PluginStatus::Disabled, ..unexamined_entry(&candidate) };
    let loaded = match try_load(candidate, &loader, &mut entry).await {
        Ok(loaded) => loaded,
        Err(reason) => {
            entry.status = PluginStatus::Refused(reason);
            None
        }
    };
    let (plugin, seed) = loaded.unzip();
    LoadAttempt { entry, plugin, source, configured, seed }
}

/// Examine and load a candidate. Returns `None` if it is switched off, and an error if it
/// is refused.
async fn try_load(
    candidate: PluginCandidate,
    loader: &Arc<Loader>,
    entry: &mut PluginEntry,
) -> Result<Option<(Plugin, Seed)>, String> {
    let place = candidate.bytes?;
    // Nothing is pulled for a plugin that is switched off.
    if !candidate.enabled && candidate.whose.source == PluginSource::Oci {
        return Ok(None);
    }
    let examined =
        loader.examine_place(place, &candidate.whose).await.map_err(|e| e.to_string())?;
    fill_entry(&examined, entry);
    if !candidate.enabled {
        return Ok(None);
    }
    let ExaminedBytes { bytes, digest, manifest, signature, verdict, instead } = examined;
    // Trust is checked first: for untrusted bytes no other problem is reported.
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
    let loaded = if loader.configured {
        loader.runtime.load(spec, manifest, Arc::clone(&bytes)).await
    } else {
        loader.runtime.load_unconfigured(spec, manifest, Arc::clone(&bytes)).await
    };
    let plugin = loaded.map_err(|error| refusal_reason(&error, candidate.origin.as_ref()))?;
    let (name, version) = (plugin.name(), plugin.version());
    entry.version = Some(version.to_owned());
    let own = AnswerCheck { name: &seed.spec.name, grants: &seed.spec.grants };
    check_name(&own, kind, name.as_str(), &loader.names)?;
    entry.describes_as = Some(name.to_string());
    let whose = match instead {
        Some(_) => candidate.whose.into_file(),
        None => candidate.whose,
    };
    let named = NamedPlugin { whose: &whose, voucher, name: name.as_str() };
    let signed = || trust::check(&bytes, signature.as_ref(), loader.policy.trust());
    let confirmed = named
        .confirm(|whose, name| whose.judge(name, (digest, Some(kind)), &loader.policy, &signed()));
    entry.trust = Some(confirmed.map_err(|refusal| refusal.to_string())?);
    Ok(Some((plugin, seed)))
}

/// Check whether a plugin may give itself this name. Jobs name a driver, so a driver must have the
/// name of its block or the one it was granted. A device plugin is known by its groups, and may
/// have any name that no other plugin has.
fn check_name(
    own: &AnswerCheck<'_>,
    kind: PluginKind,
    name: &str,
    taken: &BTreeSet<String>,
) -> Result<(), String> {
    match kind {
        PluginKind::Driver => own.check_driver(name).map_err(|excess| excess.to_string()),
        PluginKind::Device if name != own.name && taken.contains(name) => Err(format!(
            "it calls itself {name}, which is the name of another plugin; to use it in its place, give \
             its file in the block of that name: plugin \"{name}\" {{ file = \"…\" }}"
        )),
        PluginKind::Device => Ok(()),
    }
}

/// A plugin that is trusted under the name of its block or file, and the name it gives itself.
struct NamedPlugin<'a> {
    whose: &'a PluginSubject,
    voucher: Voucher,
    name: &'a str,
}

impl NamedPlugin<'_> {
    /// Find out who vouches for the plugin under its own name too: whoever may sign `acme-x` must
    /// not pass something off as `exec`.
    fn confirm(
        self,
        judge: impl FnOnce(&PluginSubject, &str) -> Result<Voucher, TrustRefusal>,
    ) -> Result<Voucher, TrustRefusal> {
        match self.voucher {
            Voucher::Key { .. } | Voucher::Digest { .. } if self.name != self.whose.name => {
                judge(self.whose, self.name)
            }
            voucher => Ok(voucher),
        }
    }
}

/// Fill the entry with what can be said of the plugin without running it.
fn fill_entry(examined: &ExaminedBytes, entry: &mut PluginEntry) {
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

/// The reason of a refusal. A wrong configuration is reported with the places where it is written.
pub(crate) fn refusal_reason(error: &PluginError, origin: Option<&ConfigOrigin>) -> String {
    match (error, origin) {
        (PluginError::Config(problems), Some(origin)) => {
            let lines: Vec<String> =
                problems.iter().map(|one| locate_problem(one, origin)).collect();
            format!("its configuration is wrong: {}", lines.join("; "))
        }
        _ => error.to_string(),
    }
}

fn locate_problem(problem: &Diagnostic, origin: &ConfigOrigin) -> String {
    let place = origin.place(&problem.path);
    if problem.unknown && problem.path == ENABLED {
        // In Nomad's raw_exec this key stands inside the configuration.
        return format!("{place}: config.{ENABLED}: it belongs beside config, not in it");
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
        let told = |problem: Diagnostic| locate_problem(&problem, &origin);
        let known = told(unknown("comand", Some("command")));
        assert_eq!(known, "a.hcl:3: config.comand: \"comand\" is unknown; did you mean command?");
        let beside = told(unknown("enabled", None));
        assert_eq!(beside, "a.hcl:3: config.enabled: it belongs beside config, not in it");
        let whole = Diagnostic { message: "it is too large".to_owned(), ..Diagnostic::default() };
        assert_eq!(told(whole), "a.hcl:3: config: it is too large");
    }
}
