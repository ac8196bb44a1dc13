//! Decodes a task.

use std::collections::BTreeMap;
use std::time::Duration;

use super::accept_name;
use super::artifact::{self, ArtifactKeys};
use super::constraint::{AffinityKeys, ConstraintKeys, constraints, node_affinities};
use super::network;
use super::resources::{ResourceKeys, resources};
use super::restart::{self, RestartKeys};
use super::service::{self, ServiceKeys};
use super::task_path::TaskPlaces;
use super::template::{TemplateKeys, templates};
use super::volume::{self, VolumeMountKeys};
use crate::diagnostic::{Span, quote_text};
use crate::keys::FieldBounds::Whole;
use crate::keys::{
    CONSUL, Context, FreeForm, MESH, MOST, Setting, VAULT, hint, keys, keyword, left_out,
    neutral_left_out,
};
use ostler_model::ids::{PluginName, TaskName};
use ostler_model::job::{Lifecycle, LifecycleHook, LogConfig, RestartPolicy, Service, Task};
use ostler_model::limits::KILL_TIMEOUT_DEFAULT;
use ostler_model::signal::SIGNALS;

const IDENTITY: &str = "identities are signed by the servers of a cluster, and no task here is given one; \
                        leave it out";
/// The identity that newer servers and clients write for every task. No task gets it here.
const UNUSED_IDENTITY: &str = r#"{"Name":"default","Env":false,"File":false}"#;
const CSI: &str = "this agent runs no CSI plugins; mount the storage on the node itself";
const PAYLOAD: &str = "it belongs to jobs that servers dispatch; without them, let a template or an artifact make \
                       the file";

/// The name of the shared directory, which stands beside the tasks' directories.
const SHARED_DIRECTORY: &str = "alloc";

keys! {
    struct TaskKeys: "a task", label Name {
        /// What runs it: `exec`, `raw_exec`, `wasm` or another plugin.
        driver / Driver: Setting<String> => (
            "a task needs a driver; write driver = \"exec\" or another", "a task needs a Driver"
        );
        /// What the driver is told; the driver says which keys there are.
        config / Config: FreeForm;
        /// Environment of the task.
        env / Env: BTreeMap<String, String>;
        /// For people, and as `NOMAD_META_*` for the task.
        meta / Meta: BTreeMap<String, String>;
        /// What has to hold of the node.
        constraints "constraint" / Constraints: Vec<ConstraintKeys>;
        /// What is preferred of a node: kept, and without effect where there is one node.
        affinities "affinity" / Affinities: Vec<AffinityKeys>;
        /// What is reserved for it.
        resources / Resources: Option<ResourceKeys>;
        /// When it is started again.
        restart / RestartPolicy: Option<RestartKeys>;
        /// From the stop signal to the kill.
        kill_timeout / KillTimeout: Setting<Duration> = KILL_TIMEOUT_DEFAULT;
        /// The stop signal, such as `SIGTERM`.
        kill_signal / KillSignal: Setting<String>, "the driver's";
        /// Its end ends the group.
        leader / Leader: Setting<bool> = false;
        /// When it runs in the life of the allocation; without it, it is a main task.
        lifecycle / Lifecycle: Option<LifecycleKeys>;
        /// Files that its output is kept in.
        logs / LogConfig: Option<LogKeys>;
        /// User that it runs as.
        user / User: Setting<String>, "the driver's";
        /// Wait before the stop signal, also of a restart.
        shutdown_delay / ShutdownDelay: Setting<Duration>, "none";
        /// What it offers.
        services "service" / Services: Vec<ServiceKeys>;
        /// What it brings along, fetched before its first start.
        artifacts "artifact" / Artifacts: Vec<ArtifactKeys>;
        /// Files that are made before each start, see [templates](templates.md).
        templates "template" / Templates: Vec<TemplateKeys>;
        /// A volume of its group, and where the task sees it.
        volume_mounts "volume_mount" / VolumeMounts: Vec<VolumeMountKeys>;
    }
    not_yet {
        "vault" / Vault [left_out(VAULT)] => null; "consul" / Consul [left_out(CONSUL)];
        "identity" / Identities [neutral_left_out(IDENTITY, &[UNUSED_IDENTITY])];
        "" / Identity [neutral_left_out(IDENTITY, &[UNUSED_IDENTITY])];
        "csi_plugin" / CSIPluginConfig [left_out(CSI)] => null;
        "dispatch_payload" / DispatchPayload [left_out(PAYLOAD)] => null;
        "scaling" / ScalingPolicies [hint("put scaling into the group, for its count")] => null;
        "kind" / Kind [left_out(MESH)] => ""; "action" / Actions; "schedule" / Schedule; "secret" / Secrets;
    }
}

keys! {
    struct LifecycleKeys: "lifecycle", for Lifecycle {
        /// Before the main tasks, when they run, or when they are over.
        hook / Hook: Setting<LifecycleHook> => (
            "lifecycle needs a hook: prestart, poststart or poststop",
            "Lifecycle needs a Hook: prestart, poststart or poststop"
        );
        /// Runs as long as the main tasks do instead of to its own end.
        sidecar / Sidecar: Setting<bool> = false;
    }
}

keys! {
    struct LogKeys: "logs", for LogConfig (LogConfig::default()) {
        /// Files kept of each stream, the newest included.
        max_files / MaxFiles: Setting<u32> [Whole(1, MOST)];
        /// Size of one file, MiB.
        max_file_size_mb "max_file_size" / MaxFileSizeMB: Setting<u32> [Whole(1, MOST)];
        /// The output is dropped.
        disabled / Disabled: Setting<bool>;
    }
    not_yet {
        "enabled" / Enabled [hint("use disabled")];
    }
}

keyword! {
    LifecycleHook, "lifecycle hook":
        "prestart" = Prestart, "poststart" = Poststart, "poststop" = Poststop;
}

/// Decode a task. `policy` is the restart policy of its group. The services of the task are added to `services`.
pub(super) fn task(
    keys: TaskKeys,
    policy: RestartPolicy,
    scope: service::ServiceScope<'_>,
    services: &mut Vec<Service>,
    cx: &mut Context<'_>,
) -> Option<Task> {
    let label = keys.label;
    if label.name == SHARED_DIRECTORY {
        let message = "a task cannot be called alloc: the shared directory has that name";
        cx.error(label.span, message);
    }
    let name = accept_name(TaskName::new(label.name), label.span, cx);
    let resources = keys.resources.map(|block| resources(block, cx)).unwrap_or_default();
    if let Some(name) = &name {
        let with_own = network::with_ports(scope.network, &resources.ports);
        let network = with_own.as_ref().or(scope.network);
        services.extend(service::services(
            keys.services,
            service::ServiceScope { task: Some(name), network, ..scope },
            cx,
        ));
        let mut places = keys.config.places;
        places.insert(String::new(), keys.config.at.unwrap_or(keys.at));
        if let Some(group) = scope.group {
            cx.places.insert(group, name.as_str(), keys.driver.at, places);
        }
    }
    let constraints = constraints(keys.constraints, cx);
    let affinities = node_affinities(keys.affinities, cx);
    let places = TaskPlaces::new(name.as_ref(), keys.driver.value.as_deref(), &keys.config.members);
    let artifacts = artifact::artifacts(keys.artifacts, places, cx);
    let restart = restart::policy(keys.restart, policy, cx);
    let kill_signal = keys.kill_signal.with_place().and_then(|given| signal(given, cx));
    let volume_mounts = volume::mounts(keys.volume_mounts, keys.driver.value.as_deref(), cx);
    let driver = keys.driver.parse_with(cx, PluginName::new);
    let lifecycle = keys.lifecycle.and_then(|block| {
        let hook = block.hook.value?;
        if hook == LifecycleHook::Poststop && block.sidecar.value == Some(true) {
            let key = block.sidecar.key;
            let message = format!(
                "{key} has no effect on a poststop task: it runs to its own end when the others are over"
            );
            cx.sink.warn(block.sidecar.at, message);
        }
        Some(block.apply_to(Lifecycle { hook, sidecar: false }))
    });
    let templates = templates(keys.templates, keys.at, places, cx);
    Some(Task {
        name: name?,
        driver: driver?,
        config: keys.config.members,
        env: keys.env,
        meta: keys.meta,
        constraints,
        affinities,
        resources,
        restart,
        kill_timeout: keys.kill_timeout.get(),
        kill_signal,
        leader: keys.leader.get(),
        lifecycle,
        logs: keys.logs.unwrap_or_default().apply_to(LogConfig::default()),
        user: keys.user.value.filter(|user| !user.is_empty()),
        shutdown_delay: keys.shutdown_delay.value.filter(|delay| !delay.is_zero()),
        payload: None,
        artifacts,
        templates,
        volume_mounts,
    })
}

pub(super) fn signal((name, at): (String, Span), cx: &mut Context<'_>) -> Option<String> {
    if name.is_empty() || SIGNALS.contains(&name.as_str()) {
        return Some(name).filter(|name| !name.is_empty());
    }
    let full = format!("SIG{}", name.to_ascii_uppercase().trim_start_matches("SIG"));
    let instead = cx.sink.nearest(&full, SIGNALS);
    let message = format!("{} is not a signal; write for example \"SIGTERM\"", quote_text(&name));
    cx.sink.suggest(at, message, instead);
    None
}
