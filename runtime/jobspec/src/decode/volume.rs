//! Volumes: what the node offers, what a group asks for, and where its tasks see it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::task::TaskKeys;
use crate::diagnostic::{Span, shown};
use crate::keys::{ByName, Context, Given, hint, keys, keyword, neutral};
use crate::tree::Key;
use ostler_model::isolation::BASE_DEFAULT;
use ostler_model::limits::{NAME_BYTES_MAX, VOLUME_MOUNTS_MAX, VOLUMES_MAX};
use ostler_model::volume::{HostVolume, VolumeMount, VolumeRequest};

keys! {
    struct HostVolumeKeys: "a host volume", label Name {
        /// The directory; absolute.
        path: Given<PathBuf> => (
            "a host volume needs a path: the directory that jobs may mount",
            "a host volume needs a path: the directory that jobs may mount"
        );
        /// Nobody writes to it.
        read_only: Given<bool> = false;
    }
}

keys! {
    struct VolumeKeys: "a volume", label Name {
        /// A directory of the node, which its configuration names.
        kind "type" / Type: Given<VolumeType> => (
            "a volume needs a type; write type = \"host\"", "a volume needs a Type: host"
        );
        /// Name of the node's `host_volume`.
        source / Source: Given<String> => (
            "a volume needs a source: the name of a host_volume of the node",
            "a volume needs a Source: the name of a host volume of the node"
        );
        /// The tasks only read it; a node's volume that is read-only needs that.
        read_only / ReadOnly: Given<bool> = false;
    }
    not_yet {
        "per_alloc" / PerAlloc [hint("leave it out; a host volume is one for all allocations")];
        "sticky" / Sticky; "access_mode" / AccessMode [neutral("", &["single-node-writer"])];
        "attachment_mode" / AttachmentMode [neutral("", &["file-system"])];
        "mount_options" / MountOptions => null;
    }
}

keys! {
    struct VolumeMountKeys: "a volume mount" {
        /// The name of the group's volume.
        volume / Volume: Given<String> => (
            "volume_mount needs a volume: the name of one of the group's volumes",
            "a volume mount needs a Volume: the name of one of the group's volumes"
        );
        /// Path in the task.
        destination / Destination: Given<String> => (
            "volume_mount needs a destination: a path in the task",
            "a volume mount needs a Destination: a path in the task"
        );
        /// This task only reads it.
        read_only / ReadOnly: Given<bool> = false;
        /// What is mounted later on one side is not seen on the other.
        propagation "propagation_mode" / PropagationMode: Given<Propagation> = Propagation::Private;
    }
    not_yet { "selinux_label" / SELinuxLabel; }
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum VolumeType {
    #[default]
    Host,
    Csi,
}

keyword! {
    VolumeType, "type of a volume": "host" = Host, "csi" = Csi;
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Propagation {
    #[default]
    Private,
    HostToTask,
    Bidirectional,
}

keyword! {
    Propagation, "propagation mode":
        "private" = Private, "host-to-task" = HostToTask, "bidirectional" = Bidirectional;
}

/// Volumes that the operator offers.
pub(super) fn host_volumes(
    blocks: Vec<HostVolumeKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<String, HostVolume> {
    let (mut names, mut volumes) = (BTreeSet::new(), BTreeMap::new());
    for keys in blocks {
        cx.unique(&mut names, "a host volume", &keys.label);
        check_name(&keys.label, cx);
        let (read_only, at) = (keys.read_only.get(), keys.path.at);
        let Some(path) = keys.path.value else { continue };
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            let told = shown(&path.to_string_lossy());
            cx.error(at, format!("{told} must be an absolute path without \"..\""));
        }
        volumes.entry(keys.label.name).or_insert(HostVolume { path, read_only });
    }
    volumes
}

fn check_name(name: &Key, cx: &mut Context<'_>) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let length = name.name.len();
    if length == 0 || length > NAME_BYTES_MAX || !name.name.chars().all(allowed) {
        let told = shown(&name.name);
        let message = format!(
            "{told} is no name of a volume: 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        );
        cx.error(name.span, message);
    }
}

/// Tasks of the group alone say this name.
fn check_label(name: &Key, cx: &mut Context<'_>) {
    let length = name.name.len();
    if length == 0 || length > NAME_BYTES_MAX || name.name.chars().any(char::is_control) {
        let told = shown(&name.name);
        let message = format!(
            "{told} is no name of a volume: 1 to {NAME_BYTES_MAX} bytes without control characters"
        );
        cx.error(name.span, message);
    }
}

/// Volumes that a group asks for.
pub(super) fn volumes(
    blocks: ByName<VolumeKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<String, VolumeRequest> {
    let (mut names, mut volumes) = (BTreeSet::new(), BTreeMap::new());
    for keys in blocks.0 {
        cx.unique(&mut names, "a volume", &keys.label);
        check_label(&keys.label, cx);
        if names.len() == VOLUMES_MAX + 1 {
            cx.error(keys.at, format!("a group has at most {VOLUMES_MAX} volumes"));
        }
        if keys.kind.value == Some(VolumeType::Csi) {
            let message = "a volume of type csi needs a CSI plugin of a cluster; a node offers \
                           directories of its own, as type = \"host\"";
            cx.error(keys.kind.at, message);
        }
        let read_only = keys.read_only.get();
        let Some(source) = keys.source.filled(cx) else { continue };
        volumes.entry(keys.label.name).or_insert(VolumeRequest { source, read_only });
    }
    volumes
}

/// Where a task sees volumes.
pub(super) fn mounts(
    blocks: Vec<VolumeMountKeys>,
    driver: Option<&str>,
    cx: &mut Context<'_>,
) -> Vec<VolumeMount> {
    let mut mounts = Vec::with_capacity(blocks.len());
    for keys in blocks {
        let at = keys.at;
        if mounts.len() == VOLUME_MOUNTS_MAX {
            cx.error(at, format!("a task mounts at most {VOLUME_MOUNTS_MAX} volumes"));
            break;
        }
        if !matches!(keys.propagation.value, None | Some(Propagation::Private)) {
            let message = "is valid in Nomad, not supported by Ostler yet: mounts are private";
            cx.error(keys.propagation.at, format!("{} {message}", keys.propagation.key));
        }
        let (read_only, place) = (keys.read_only.get(), keys.destination.at);
        let (volume, destination) = (keys.volume.filled(cx), keys.destination.filled(cx));
        let (Some(volume), Some(destination)) = (volume, destination) else { continue };
        // As in Nomad, a relative path is one below the root that the task sees.
        let absolute = destination.starts_with('/') || destination.starts_with("${");
        let destination = if absolute { destination } else { format!("/{destination}") };
        if Path::new(&destination).components().any(|part| part == Component::ParentDir) {
            cx.error(place, format!("{} must not hold \"..\"", shown(&destination)));
        }
        if let Some("exec" | "wasm") = driver {
            check_place(&destination, driver == Some("exec"), place, cx);
        }
        mounts.push(VolumeMount { volume, destination, read_only });
    }
    mounts
}

/// What of a task with files of its own no volume covers.
const OWN: [&str; 3] = ["/local", "/secrets", "/alloc"];
/// What of one with a root of its own too.
const ROOTED: [&str; 3] = ["/tmp", "/proc", "/dev"];
/// What of the shared directory is the tasks' to write.
const LENT: [&str; 2] = ["/alloc/data", "/alloc/tmp"];

/// Can the task see a volume there? `rooted`: beside directories of the system.
fn check_place(destination: &str, rooted: bool, at: Span, cx: &mut Context<'_>) {
    let filled = destination
        .replace("${NOMAD_TASK_DIR}", "/local")
        .replace("${NOMAD_SECRETS_DIR}", "/secrets")
        .replace("${NOMAD_ALLOC_DIR}", "/alloc");
    if filled.contains("${") {
        return;
    }
    let (path, told) = (Path::new(&filled), shown(destination));
    let mut own = OWN.iter().chain(ROOTED.iter().filter(|_| rooted));
    if let Some(own) = own.find(|own| Path::new(own).starts_with(path)) {
        return cx
            .error(at, format!("{told} would cover {own} of the task; choose a path below it"));
    }
    if path.starts_with("/alloc") && !LENT.iter().any(|lent| path.starts_with(lent)) {
        let lent = LENT.join(" and ");
        return cx.error(at, format!("{told} cannot be: /alloc is read-only but for {lent}"));
    }
    let system = BASE_DEFAULT.iter().find(|base| path.starts_with(base)).filter(|_| rooted);
    if let Some(system) = system {
        let message = format!(
            "{told} is in {system}, which the task sees as it is on the node, read-only: it has to be there \
             on the node, and what is there is covered"
        );
        cx.sink.warn(at, message);
    }
}

/// Every mount is of a volume of the group.
pub(super) fn mounts_fit(
    tasks: &[TaskKeys],
    volumes: &BTreeMap<String, VolumeRequest>,
    cx: &mut Context<'_>,
) {
    for mount in tasks.iter().flat_map(|task| &task.volume_mounts) {
        let Some(name) = mount.volume.value.as_ref() else { continue };
        if !name.is_empty() && !volumes.contains_key(name) {
            let instead = cx.sink.nearest(name, volumes.keys().map(String::as_str));
            let message = format!("the group has no volume {}", shown(name));
            cx.sink.suggest(mount.volume.at, message, instead);
        }
    }
}

impl VolumeKeys {
    pub(crate) fn of((name, request): (&String, &VolumeRequest)) -> Self {
        Self {
            label: Key::new(name.as_str(), crate::diagnostic::Span::default()),
            kind: VolumeType::Host.into(),
            source: request.source.clone().into(),
            read_only: request.read_only.into(),
            ..Self::default()
        }
    }
}

impl From<&VolumeMount> for VolumeMountKeys {
    fn from(mount: &VolumeMount) -> Self {
        Self {
            volume: mount.volume.clone().into(),
            destination: mount.destination.clone().into(),
            read_only: mount.read_only.into(),
            propagation: Propagation::Private.into(),
            ..Self::default()
        }
    }
}
