//! Record `Alloc` of schema 2: an allocation with its whole job. Schema 1 had the same.
//!
//! Names and JSON objects are those of the living model: they are kept as text.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Timestamp;
use crate::model::ids::{AllocId, GroupName, JobId, PluginName, TaskName};
use crate::model::json::JsonObject;

/// Enums without values, by the order of their variants.
macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(in super::super) enum $name { $($variant),+ }
    )+};
}

/// Structs, by the order of their fields.
macro_rules! structs {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),+ $(,)? })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub(in super::super) struct $name { $(pub $field: $type),+ }
    )+};
}

enums! {
    DesiredStatus { Run, Stop }
    JobKind { Service, Batch, System, Sysbatch }
    LifecycleHook { Prestart, Poststart, Poststop }
    RestartMode { Fail, Delay }
    Operator {
        Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual, Version, Semver, Regexp,
        SetContainsAll, SetContainsAny, IsSet, IsNotSet,
    }
}

structs! {
    /// The record.
    Alloc {
        id: AllocId,
        name: String,
        job: Job,
        group: GroupName,
        index: u32,
        created_at: Timestamp,
        desired: DesiredStatus,
        ports: Vec<AllocatedPort>,
        devices: BTreeMap<TaskName, Vec<AllocatedDevice>>,
        modify_index: u64,
    }
    AllocatedPort { label: String, value: u16, to: u16, host_ip: String }
    AllocatedDevice { group: GroupKey, ids: Vec<String> }
    GroupKey { vendor: String, kind: String, name: String }
    Job {
        id: JobId,
        name: String,
        kind: JobKind,
        namespace: String,
        priority: u8,
        datacenters: Vec<String>,
        meta: BTreeMap<String, String>,
        constraints: Vec<Constraint>,
        groups: Vec<TaskGroup>,
        source_dir: Option<PathBuf>,
    }
    TaskGroup {
        name: GroupName,
        count: u32,
        meta: BTreeMap<String, String>,
        constraints: Vec<Constraint>,
        network: Option<NetworkSpec>,
        tasks: Vec<Task>,
        shutdown_delay: Option<Duration>,
    }
    NetworkSpec { ports: Vec<PortSpec> }
    PortSpec { label: String, fixed: Option<u16>, to: Option<u16> }
    Task {
        name: TaskName,
        driver: PluginName,
        config: JsonObject,
        env: BTreeMap<String, String>,
        meta: BTreeMap<String, String>,
        constraints: Vec<Constraint>,
        resources: Resources,
        restart: RestartPolicy,
        kill_timeout: Duration,
        kill_signal: Option<String>,
        leader: bool,
        lifecycle: Option<Lifecycle>,
        logs: LogConfig,
        user: Option<String>,
        shutdown_delay: Option<Duration>,
    }
    Resources {
        cpu_mhz: u32,
        memory_mb: u32,
        memory_max_mb: Option<u32>,
        devices: Vec<DeviceRequest>,
    }
    DeviceRequest {
        name: String,
        count: u32,
        constraints: Vec<Constraint>,
        affinities: Vec<Affinity>,
    }
    RestartPolicy { attempts: u32, interval: Duration, delay: Duration, mode: RestartMode }
    Lifecycle { hook: LifecycleHook, sidecar: bool }
    LogConfig { max_files: u32, max_file_size_mb: u32, disabled: bool }
    Constraint { left: String, operator: Operator, right: String }
    Affinity { rule: Constraint, weight: i8 }
}
