//! Limits of the networks and volumes of allocations.

use std::time::Duration;

/// Most ports of one network of a job: each costs a look through those of the node.
pub const NETWORK_PORTS_MAX: usize = 1_024;
/// Longest name of a host that Linux has, bytes.
pub const HOSTNAME_BYTES_MAX: usize = 64;
/// Most volumes of one group: each is a name that people wrote.
pub const VOLUMES_MAX: usize = 64;
/// Most mounts of volumes of one task: each is a mount of the kernel, or an open directory.
pub const VOLUME_MOUNTS_MAX: usize = 64;

/// Most servers, searches or options of a `dns` block; the resolver of libc takes fewer.
pub const DNS_TEXTS_MAX: usize = 32;
/// How long one CNI plugin may take: it makes an interface and writes rules.
pub const CNI_PLUGIN_WALL_MAX: Duration = Duration::from_secs(20);
/// Longest answer of a CNI plugin that is read, and longest configuration of a network, bytes.
pub const CNI_TEXT_BYTES_MAX: usize = 256 * 1024;
/// Most configurations of CNI networks that are read: a directory of them, by the order of their names.
pub const CNI_NETWORKS_MAX: usize = 64;
/// Most plugins of one network: each is a process for every allocation.
pub const CNI_PLUGINS_MAX: usize = 16;
