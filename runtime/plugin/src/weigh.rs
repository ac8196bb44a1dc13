//! Counts how many bytes an argument or an answer carries, for the counts of a plugin.
//!
//! Texts count by their length, numbers by their size, lists by their entries. So what is carried
//! counts, and not how it is laid out in the guest's memory.

use super::bindings::since_0_1::host::types as wit;
use super::bindings::since_0_1::{device_export as dev, driver_export as drv};

/// A value that carries a number of bytes.
pub(super) trait Weigh {
    /// How many bytes the value carries.
    fn weigh(&self) -> u64;
}

macro_rules! fixed {
    ($($type:ty),*) => {
        $(impl Weigh for $type {
            fn weigh(&self) -> u64 {
                size_of::<$type>() as u64
            }
        })*
    };
}

/// A record weighs what its fields do.
macro_rules! records {
    ($($type:ty { $($field:ident),* })*) => {
        $(impl Weigh for $type {
            fn weigh(&self) -> u64 {
                0 $(+ self.$field.weigh())*
            }
        })*
    };
}

fixed!(bool, u8, u16, u32, u64, i32, i64, f64, wit::HealthState, drv::RunState);

impl Weigh for () {
    fn weigh(&self) -> u64 {
        0
    }
}

impl Weigh for str {
    fn weigh(&self) -> u64 {
        self.len() as u64
    }
}

impl Weigh for String {
    fn weigh(&self) -> u64 {
        self.as_str().weigh()
    }
}

impl<T: Weigh> Weigh for Option<T> {
    fn weigh(&self) -> u64 {
        self.as_ref().map_or(0, Weigh::weigh)
    }
}

impl<T: Weigh> Weigh for Vec<T> {
    fn weigh(&self) -> u64 {
        self.iter().map(Weigh::weigh).sum()
    }
}

impl Weigh for wit::Scalar {
    fn weigh(&self) -> u64 {
        match self {
            Self::Int(number) => number.weigh(),
            Self::Float(number) => number.weigh(),
            Self::Boolean(truth) => truth.weigh(),
            Self::Text(text) => text.weigh(),
        }
    }
}

impl Weigh for drv::Workload {
    fn weigh(&self) -> u64 {
        match self {
            Self::Process(id) | Self::WasmTask(id) => id.weigh(),
            Self::Poll(interval) => interval.weigh(),
        }
    }
}

records! {
    wit::Attribute { value, unit }
    wit::NamedAttribute { name, attribute }
    wit::Health { state, reason }
    wit::Watches { paths, subsystems }
    wit::EnvVar { name, value }
    wit::Mount { host_path, task_path, read_only }
    wit::DeviceNode { host_path, task_path, permissions }
    wit::StatValue {
        description, unit, int_numerator, int_denominator, float_numerator, float_denominator, text,
        boolean
    }
    wit::StatEntry { path, value }
    dev::Locality { pci_bus_id, numa_node }
    dev::Instance { id, health, locality }
    dev::Group { vendor, type_, name, instances, attributes }
    dev::DeviceFingerprint { health, groups, next_check, watch }
    dev::Claim { vendor, type_, name, ids }
    dev::Reservation { env, mounts, device_nodes }
    dev::InstanceStats { id, summary, stats, taken_at }
    dev::GroupStats { vendor, type_, name, instances }
    drv::DriverFingerprint { health, attributes, next_check, watch }
    drv::Resources { cpu_mhz, memory_bytes, memory_max_bytes }
    drv::Port { label, value, host_ip }
    drv::TaskConfig {
        id, alloc_id, job_id, group_name, task_name, config_json, env, resources, ports, mounts,
        device_nodes, task_dir, alloc_dir, user
    }
    drv::Handle { version, data }
    drv::Network { ip, ports }
    drv::Started { handle, workload, network }
    drv::RawExit { exit_code, signal, oom_killed, error, finished_at }
    drv::ExitResult { exit_code, signal, oom_killed, error }
    drv::Status { state, exit, attributes }
    drv::ExecPlan { argv, env, cwd, user }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_weighs_what_it_carries() {
        let attribute =
            wit::Attribute { value: wit::Scalar::Int(80), unit: Some("GiB".to_owned()) };
        let named = wit::NamedAttribute { name: "memory".to_owned(), attribute };
        assert_eq!(named.weigh(), 6 + 8 + 3);
        let claim = dev::Claim {
            vendor: "v".to_owned(),
            type_: "gpu".to_owned(),
            name: String::new(),
            ids: vec!["a".to_owned(), "bc".to_owned()],
        };
        assert_eq!(claim.weigh(), 1 + 3 + 3);
        assert_eq!(drv::Handle { version: 1, data: vec![0; 100] }.weigh(), 104);
    }
}
