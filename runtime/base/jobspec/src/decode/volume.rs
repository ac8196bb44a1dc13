//! Decodes volumes: those that the node offers, those that a group asks for, and where tasks see them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use super::task::TaskKeys;
use crate::diagnostic::{Span, quote_text};
use crate::keys::{ByName, Context, Setting, hint, keys, keyword, neutral};
use crate::tree::SpannedKey;
use ostler_model::isolation::BASE_DEFAULT;
use ostler_model::limits::{NAME_BYTES_MAX, VOLUME_MOUNTS_MAX, VOLUMES_MAX};
use ostler_model::volume::{HostVolume, VolumeMount, VolumeRequest};

keys! {
    struct HostVolumeKeys: "a host volume", label Name {
        /// The directory; absolute.
        path: Setting<PathBuf> => (
            "a host volume needs a path: the directory that jobs may mount",
            "a host volume needs a path: the directory that jobs may mount"
        );
        /// Nobody writes to it.
        read_only: Setting<bool> = false;
    }
}

keys! {
    struct VolumeKeys: "a volume", label Name {
        /// A directory of the node, which its configuration names.
        kind "type" / Type: Setting<VolumeType> => (
            "a volume needs a type; write type = \"host\"", "a volume needs a Type: host"
        );
        /// Name of the node's `host_volume`.
        source / Source: Setting<String> => (
            "a volume needs a source: the name of a host_volume of the node",
            "a volume needs a Source: the name of a host volume of the node"
        );
        /// The tasks only read it; a node's volume that is read-only needs that.
        read_only / ReadOnly: Setting<bool> = false;
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
        volume / Volume: Setting<String> => (
            "volume_mount needs a volume: the name of one of the group's volumes",
            "a volume mount needs a Volume: the name of one of the group's volumes"
        );
        /// Path in the task.
        destination / Destination: Setting<String> => (
            "volume_mount needs a destination: a path in the task",
            "a volume mount needs a Destination: a path in the task"
        );
        /// This task only reads it.
        read_only / ReadOnly: Setting<bool> = false;
        /// What is mounted later on one side is not seen on the other.
        propagation "propagation_mode" / PropagationMode: Setting<Propagation> = Propagation::Private;
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

/// Decode the volumes that the operator offers.
pub(super) fn host_volumes(
    blocks: Vec<HostVolumeKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<String, HostVolume> {
    let (mut names, mut volumes) = (BTreeSet::new(), BTreeMap::new());
    for keys in blocks {
        cx.add_unique(&mut names, "a host volume", &keys.label);
        check_name(&keys.label, cx);
        let (read_only, at) = (keys.read_only.get(), keys.path.at);
        let Some(path) = keys.path.value else { continue };
        if !path.is_absolute() || path.components().any(|part| part == Component::ParentDir) {
            let told = quote_text(&path.to_string_lossy());
            cx.error(at, format!("{told} must be an absolute path without \"..\""));
        }
        volumes.entry(keys.label.name).or_insert(HostVolume { path, read_only });
    }
    volumes
}

fn check_name(name: &SpannedKey, cx: &mut Context<'_>) {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let length = name.name.len();
    if length == 0 || length > NAME_BYTES_MAX || !name.name.chars().all(allowed) {
        let told = quote_text(&name.name);
        let message = format!(
            "{told} is not a valid volume name: give 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
        );
        cx.error(name.span, message);
    }
}

/// Check the label of a volume of a group. Only tasks of the group refer to it, so nearly all texts are allowed.
fn check_label(name: &SpannedKey, cx: &mut Context<'_>) {
    let length = name.name.len();
    if length == 0 || length > NAME_BYTES_MAX || name.name.chars().any(char::is_control) {
        let told = quote_text(&name.name);
        let message = format!(
            "{told} is not a valid volume name: give 1 to {NAME_BYTES_MAX} bytes without control characters"
        );
        cx.error(name.span, message);
    }
}

/// Decode the volumes that a group asks for.
pub(super) fn volumes(
    blocks: ByName<VolumeKeys>,
    cx: &mut Context<'_>,
) -> BTreeMap<String, VolumeRequest> {
    let (mut names, mut volumes) = (BTreeSet::new(), BTreeMap::new());
    for keys in blocks.0 {
        cx.add_unique(&mut names, "a volume", &keys.label);
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
        let Some(source) = keys.source.non_empty(cx) else { continue };
        volumes.entry(keys.label.name).or_insert(VolumeRequest { source, read_only });
    }
    volumes
}

/// Decode the places where a task sees volumes.
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
        let (volume, destination) = (keys.volume.non_empty(cx), keys.destination.non_empty(cx));
        let (Some(volume), Some(destination)) = (volume, destination) else { continue };
        // As in Nomad, a relative path starts at the root that the task sees.
        let absolute = destination.starts_with('/') || destination.starts_with("${");
        let destination = if absolute { destination } else { format!("/{destination}") };
        if Path::new(&destination).components().any(|part| part == Component::ParentDir) {
            cx.error(place, format!("{} must not contain \"..\"", quote_text(&destination)));
        }
        if let Some("exec" | "wasm") = driver {
            check_place(&destination, driver == Some("exec"), place, cx);
        }
        mounts.push(VolumeMount { volume, destination, read_only });
    }
    mounts
}

/// The directories that no volume may cover in a task that has files of its own.
const OWN: [&str; 3] = ["/local", "/secrets", "/alloc"];
/// The directories that no volume may cover either, in a task that also has a root of its own.
const ROOTED: [&str; 3] = ["/tmp", "/proc", "/dev"];
/// The parts of the shared directory that tasks may write to.
const LENT: [&str; 2] = ["/alloc/data", "/alloc/tmp"];

/// Check that a task can have a volume at this place. `rooted` tells that the task also sees directories
/// of the system.
fn check_place(destination: &str, rooted: bool, at: Span, cx: &mut Context<'_>) {
    let filled = destination
        .replace("${NOMAD_TASK_DIR}", "/local")
        .replace("${NOMAD_SECRETS_DIR}", "/secrets")
        .replace("${NOMAD_ALLOC_DIR}", "/alloc");
    if filled.contains("${") {
        return;
    }
    let (path, told) = (Path::new(&filled), quote_text(destination));
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

/// Check that every mount is of a volume of the group.
pub(super) fn check_mounts(
    tasks: &[TaskKeys],
    volumes: &BTreeMap<String, VolumeRequest>,
    cx: &mut Context<'_>,
) {
    for mount in tasks.iter().flat_map(|task| &task.volume_mounts) {
        let Some(name) = mount.volume.value.as_ref() else { continue };
        if !name.is_empty() && !volumes.contains_key(name) {
            let instead = cx.sink.nearest(name, volumes.keys().map(String::as_str));
            let message = format!("the group has no volume {}", quote_text(name));
            cx.sink.suggest(mount.volume.at, message, instead);
        }
    }
}

impl VolumeKeys {
    pub(crate) fn from_request((name, request): (&String, &VolumeRequest)) -> Self {
        Self {
            label: SpannedKey::new(name.as_str(), crate::diagnostic::Span::default()),
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
