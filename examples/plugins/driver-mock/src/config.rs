//! What a job can tell the mock to do.

use std::time::Duration;

use ostler_sdk::driver::prelude::*;
use serde::Deserialize;

/// Schema of the `config` in the agent's `plugin` block.
pub const PLUGIN_SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "shutdown_periodic_after": {"type": "boolean", "description": "Be undetected after a time."},
    "shutdown_periodic_duration": {"type": "integer", "minimum": 0, "description": "That time, in seconds after the start of the agent."}
  }
}"#;

/// Schema of a task's `config` block.
pub const TASK_SCHEMA: &str = include_str!("task-config.schema.json");

/// A task's `config` block.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The start fails with this message.
    pub start_error: Option<String>,
    /// That failure may be tried again.
    pub start_error_recoverable: bool,
    /// The start takes this long.
    #[serde(deserialize_with = "ostler_sdk::config::duration")]
    pub start_block_for: Duration,
    /// Not zero: the task does not listen to `stop`, only to `kill`.
    #[serde(deserialize_with = "ostler_sdk::config::duration")]
    pub kill_after: Duration,
    /// `kill` fails with this message.
    pub kill_error: Option<String>,
    /// The plugin traps when it is asked about a task of this age.
    #[serde(deserialize_with = "ostler_sdk::config::duration")]
    pub plugin_exit_after: Duration,
    /// The task ends after this time; zero: it runs until it is stopped.
    #[serde(deserialize_with = "ostler_sdk::config::duration")]
    pub run_for: Duration,
    exit_code: i32,
    exit_signal: u32,
    exit_err_msg: Option<String>,
    /// Signals fail with this message.
    pub signal_error: Option<String>,
    driver_ip: String,
    driver_port_map: String,
    driver_advertise: bool,
    stdout_string: String,
    stdout_repeat: u64,
    stdout_repeat_duration: String,
    stderr_string: String,
    stderr_repeat: u64,
    stderr_repeat_duration: String,
}

impl Config {
    /// What Nomad's mock has and this one cannot do.
    pub fn refuse_unsupported(&self) -> Result<()> {
        let used = [
            ("stdout_string", !self.stdout_string.is_empty()),
            ("stdout_repeat", self.stdout_repeat > 0),
            ("stdout_repeat_duration", !self.stdout_repeat_duration.is_empty()),
            ("stderr_string", !self.stderr_string.is_empty()),
            ("stderr_repeat", self.stderr_repeat > 0),
            ("stderr_repeat_duration", !self.stderr_repeat_duration.is_empty()),
        ];
        let why = "a mock task writes no output: a plugin is not in the data path";
        let output = used.iter().filter(|(_, used)| *used).map(|(key, _)| (*key, why));
        let advertise = "automatic advertising of the driver's address is not supported";
        let advertise = self.driver_advertise.then_some(("driver_advertise", advertise));
        let wrong: Vec<_> = output
            .chain(advertise)
            .map(|(path, why)| Diagnostic { path: path.to_owned(), message: why.to_owned() })
            .collect();
        if wrong.is_empty() { Ok(()) } else { Err(Error::InvalidConfig(wrong)) }
    }

    /// How the task ends by itself.
    pub fn exit(&self, finished_at: Timestamp) -> RawExit {
        let signalled = self.exit_signal != 0;
        RawExit {
            exit_code: (!signalled).then_some(self.exit_code),
            signal: signalled.then_some(self.exit_signal),
            oom_killed: false,
            error: self.exit_err_msg.clone(),
            finished_at,
        }
    }

    /// The network the driver claims to have made, when the job says so.
    pub fn network(&self) -> Result<Option<Network>> {
        if self.driver_ip.is_empty() && self.driver_port_map.is_empty() {
            return Ok(None);
        }
        let pairs = self.driver_port_map.split(',').filter(|pair| !pair.is_empty());
        let ports: Option<Vec<Port>> = pairs
            .map(|pair| {
                let (label, value) = pair.trim().split_once(':')?;
                let value = value.parse().ok()?;
                Some(Port { label: label.to_owned(), value, host_ip: self.driver_ip.clone() })
            })
            .collect();
        let ports = ports.ok_or_else(|| {
            Error::invalid_config("driver_port_map", "expected \"label:port,label:port\"")
        })?;
        Ok(Some(Network { ip: self.driver_ip.clone(), ports }))
    }
}
