//! An allocation of schema 2, with its whole job, as the living model has it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::super::v1;
use super::v2;
use crate::model::alloc::{Allocation, ClientStatus, DesiredStatus};
use crate::model::device::GroupKey;
use crate::model::ids::{AllocId, GroupName, JobId, PluginName, TaskName};
use crate::model::job::{
    Affinity, Constraint, EphemeralDisk, Job, JobKind, Lifecycle, LifecycleHook, LogConfig,
    NetworkSpec, Operator, PortSpec, RestartMode, RestartPolicy, Task, TaskGroup,
};
use crate::model::json::JsonObject;
use crate::model::resources::{AllocatedDevice, AllocatedPort, DeviceRequest, Resources};
use crate::model::time::Timestamp;

/// From a layout of schema 2 to the living type; `From` cannot be had for what is in a collection.
pub(super) trait Upgrade<T> {
    fn upgrade(self) -> T;
}

impl<A: Upgrade<B>, B> Upgrade<Vec<B>> for Vec<A> {
    fn upgrade(self) -> Vec<B> {
        self.into_iter().map(A::upgrade).collect()
    }
}

impl<A: Upgrade<B>, B> Upgrade<Option<B>> for Option<A> {
    fn upgrade(self) -> Option<B> {
        self.map(A::upgrade)
    }
}

impl<K: Ord, A: Upgrade<B>, B> Upgrade<BTreeMap<K, B>> for BTreeMap<K, A> {
    fn upgrade(self) -> BTreeMap<K, B> {
        self.into_iter().map(|(key, value)| (key, value.upgrade())).collect()
    }
}

/// Types that are the same in both.
macro_rules! same {
    ($($name:ty)+) => {$(
        impl Upgrade<Self> for $name {
            fn upgrade(self) -> Self {
                self
            }
        }
    )+};
}

/// Enums whose variants are all still there.
macro_rules! same_variants {
    ($($name:ident { $($variant:ident),+ $(,)? })+) => {$(
        impl Upgrade<$name> for v2::$name {
            fn upgrade(self) -> $name {
                match self { $(Self::$variant => $name::$variant),+ }
            }
        }
    )+};
}

/// Structs that have the same fields, and those that schema 2 had no place for, with their values.
macro_rules! fields {
    ($($name:ident { $($field:ident),+ $(; $($new:ident: $value:expr),+)? $(,)? })+) => {$(
        impl Upgrade<$name> for v2::$name {
            fn upgrade(self) -> $name {
                let Self { $($field),+ } = self;
                $name { $($field: $field.upgrade(),)+ $($($new: $value),+)? }
            }
        }
    )+};
}

same! { bool i8 u8 u16 u32 String PathBuf Duration AllocId GroupName JobId PluginName TaskName JsonObject }

same_variants! {
    DesiredStatus { Run, Stop }
    JobKind { Service, Batch, System, Sysbatch }
    LifecycleHook { Prestart, Poststart, Poststop }
    RestartMode { Fail, Delay }
    Operator {
        Equal, NotEqual, Less, LessOrEqual, Greater, GreaterOrEqual, Version, Semver, Regexp,
        SetContainsAll, SetContainsAny, IsSet, IsNotSet,
    }
}

fields! {
    AllocatedPort { label, value, to, host_ip }
    AllocatedDevice { group, ids }
    GroupKey { vendor, kind, name }
    Job {
        id, name, kind, namespace, priority, datacenters, meta, constraints, groups, source_dir
    }
    TaskGroup {
        name, count, meta, constraints, network, tasks, shutdown_delay;
        // What a job file has that says nothing of them.
        ephemeral_disk: EphemeralDisk::default(),
        health: None,
        services: Vec::new(),
        max_run_duration: None
    }
    NetworkSpec { ports }
    PortSpec { label, fixed, to }
    Task {
        name, driver, config, env, meta, constraints, resources, restart, kill_timeout, kill_signal,
        leader, lifecycle, logs, user, shutdown_delay
    }
    Resources { cpu_mhz, memory_mb, memory_max_mb, devices }
    DeviceRequest { name, count, constraints, affinities }
    RestartPolicy { attempts, interval, delay, mode }
    Lifecycle { hook, sidecar }
    LogConfig { max_files, max_file_size_mb, disabled }
    Constraint { left, operator, right }
    Affinity { rule, weight }
}

impl From<v2::Alloc> for Allocation {
    fn from(old: v2::Alloc) -> Self {
        let v2::Alloc {
            id,
            name,
            job,
            group,
            index,
            created_at,
            desired,
            ports,
            devices,
            modify_index,
        } = old;
        Self {
            id,
            name,
            job: Arc::new(job.upgrade()),
            group,
            index,
            created_at: Timestamp::from_nanos(created_at),
            desired: desired.upgrade(),
            ports: ports.upgrade(),
            devices: devices.upgrade(),
            modify_index,
            // No agent of schema 2 changed an allocation after it placed it.
            create_index: modify_index,
            job_version: 0,
            previous: None,
            desired_description: String::new(),
        }
    }
}

/// By the number, which is one of four.
pub(super) fn client_status(old: v1::ClientStatus) -> ClientStatus {
    match u32::from(old) {
        0 => ClientStatus::Pending,
        1 => ClientStatus::Running,
        2 => ClientStatus::Complete,
        _ => ClientStatus::Failed,
    }
}
