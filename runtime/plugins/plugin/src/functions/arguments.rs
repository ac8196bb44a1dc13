//! How the arguments of calls are said in the contract.

use std::time::Duration;

use super::{CallArgument, dev, drv, wit};
use ostler_model::ids::PluginName;
use ostler_model::ports::{PluginCallError, TaskConfig};
use ostler_model::resources::AllocatedDevice;
use ostler_model::task::{DriverHandle, RawExit};

/// Arguments that every plugin can be given: `type => type in the contract, lent as`, and how it is
/// converted and lent.
macro_rules! arguments {
    ($($type:ty => $contract:ty, $lent:ty, $convert:expr, $lend:expr;)+) => {$(
        impl CallArgument for $type {
            type Contract = $contract;
            type Lent<'a> = $lent;

            fn into_contract(self, _plugin: &PluginName) -> Result<$contract, PluginCallError> {
                let convert: fn(Self) -> $contract = $convert;
                Ok(convert(self))
            }

            fn lend(given: &$contract) -> Self::Lent<'_> {
                let lend: for<'a> fn(&'a $contract) -> $lent = $lend;
                lend(given)
            }
        }
    )+};
}

arguments! {
    bool => bool, bool, |given| given, |given| *given;
    Duration => u64, u64, millis, |given| *given;
    String => String, &'a str, |given| given, |given| given.as_str();
    Option<String> => Option<String>, Option<&'a str>, |given| given, |given| given.as_deref();
    Vec<String> => Vec<String>, &'a [String], |given| given, |given| given.as_slice();
    RawExit => drv::RawExit, &'a drv::RawExit, raw_exit, |given| given;
    TaskConfig => drv::TaskConfig, &'a drv::TaskConfig, task_config, |given| given;
    &AllocatedDevice => dev::Claim, &'a dev::Claim, claim, |given| given;
}

impl CallArgument for DriverHandle {
    type Contract = drv::Handle;
    type Lent<'a> = &'a drv::Handle;

    fn into_contract(self, plugin: &PluginName) -> Result<drv::Handle, PluginCallError> {
        if self.plugin != plugin.as_str() {
            return Err(PluginCallError::NotFound(format!(
                "the handle was made by {}, not by {plugin}",
                self.plugin
            )));
        }
        Ok(drv::Handle { version: self.version, data: self.data })
    }

    fn lend(given: &drv::Handle) -> &drv::Handle {
        given
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn claim(device: &AllocatedDevice) -> dev::Claim {
    dev::Claim {
        vendor: device.group.vendor.clone(),
        type_: device.group.kind.clone(),
        name: device.group.name.clone(),
        ids: device.ids.clone(),
    }
}

fn raw_exit(exit: RawExit) -> drv::RawExit {
    drv::RawExit {
        exit_code: exit.exit_code,
        signal: exit.signal,
        oom_killed: exit.oom_killed,
        error: exit.error,
        finished_at: exit.finished_at.nanos(),
    }
}

fn task_config(config: TaskConfig) -> drv::TaskConfig {
    let env = config.env.into_iter().map(|(name, value)| wit::EnvVar { name, value }).collect();
    let ports = config
        .ports
        .into_iter()
        .map(|port| drv::Port { label: port.label, value: port.value, host_ip: port.host_ip })
        .collect();
    let mounts = config.mounts.into_iter().map(|mount| wit::Mount {
        host_path: mount.host_path,
        task_path: mount.task_path,
        read_only: mount.read_only,
    });
    let nodes = config.device_nodes.into_iter().map(|node| wit::DeviceNode {
        host_path: node.host_path,
        task_path: node.task_path,
        permissions: node.permissions,
    });
    drv::TaskConfig {
        id: config.run_id.to_string(),
        alloc_id: config.alloc_id.to_string(),
        job_id: config.job_id.to_string(),
        group_name: config.group.to_string(),
        task_name: config.task.to_string(),
        config_json: config.config.text().to_owned(),
        env,
        resources: drv::Resources {
            cpu_mhz: config.cpu_mhz,
            memory_bytes: config.memory_bytes,
            memory_max_bytes: config.memory_max_bytes,
        },
        ports,
        mounts: mounts.collect(),
        device_nodes: nodes.collect(),
        task_dir: config.task_dir.to_string_lossy().into_owned(),
        alloc_dir: config.alloc_dir.to_string_lossy().into_owned(),
        user: config.user,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn plugin() -> PluginName {
        PluginName::new("p").unwrap()
    }

    fn handle(plugin: &str) -> DriverHandle {
        DriverHandle { plugin: plugin.to_owned(), version: 7, data: b"ab".to_vec() }
    }

    /// Recordings have these bytes.
    #[test]
    fn the_arguments_of_a_call_are_recorded_as_they_always_were() {
        let handle = handle("p").into_contract(&plugin()).unwrap();
        let signal = Some("HUP".to_owned()).into_contract(&plugin()).unwrap();
        let timeout = Duration::from_secs(1).into_contract(&plugin()).unwrap();
        let stop = postcard::to_stdvec(&(&handle, &signal, &timeout)).unwrap();
        assert_eq!(stop, b"\x07\x02ab\x01\x03HUP\xe8\x07");
        let argv = vec!["sh".to_owned()].into_contract(&plugin()).unwrap();
        let exec = postcard::to_stdvec(&(&handle, argv, true)).unwrap();
        assert_eq!(exec, b"\x07\x02ab\x01\x02sh\x01");
    }

    #[test]
    fn a_handle_goes_to_no_plugin_but_the_one_that_made_it() {
        let refused = handle("other").into_contract(&plugin()).unwrap_err();
        assert_eq!(refused.to_string(), "not found: the handle was made by other, not by p");
    }
}
