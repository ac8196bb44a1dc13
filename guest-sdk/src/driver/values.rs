//! Constructors of a driver's answers, and the format of its handles.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{
    Capabilities, Driver, DriverInfo, ExitResult, Fingerprint, FsIsolation, Handle, Network,
    NetworkMode, RawExit, Runs, Started, TaskConfig,
};
use crate::error::Error;
use crate::types::{Health, Milliseconds, NamedAttribute, Watches};

/// The schema of a configuration without keys.
pub const EMPTY_SCHEMA: &str = r#"{"type": "object", "additionalProperties": false}"#;

/// The version of the format in which this SDK writes handles.
const HANDLE_VERSION: u32 = 1;

impl DriverInfo {
    /// A driver without configuration that sends no signals, runs no commands inside a task,
    /// isolates nothing, and whose tasks use the node's network.
    pub fn new(name: impl Into<String>, version: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            version: version.into(),
            capabilities: Capabilities {
                send_signals: false,
                exec: false,
                fs_isolation: FsIsolation::None,
                network_modes: vec![NetworkMode::Host],
            },
            config_schema: EMPTY_SCHEMA.to_owned(),
            task_config_schema: EMPTY_SCHEMA.to_owned(),
        }
    }

    /// Tasks take signals.
    pub fn send_signals(mut self) -> Self {
        self.capabilities.send_signals = true;
        self
    }

    /// Commands can be run inside a task.
    pub fn exec(mut self) -> Self {
        self.capabilities.exec = true;
        self
    }

    /// How much of the node's file system a task sees.
    pub fn fs_isolation(mut self, isolation: FsIsolation) -> Self {
        self.capabilities.fs_isolation = isolation;
        self
    }

    /// The network modes a task can run in.
    pub fn network_modes(mut self, modes: impl Into<Vec<NetworkMode>>) -> Self {
        self.capabilities.network_modes = modes.into();
        self
    }

    /// JSON Schema of the `config` in the agent's `plugin` block.
    pub fn config_schema(mut self, schema: impl Into<String>) -> Self {
        self.config_schema = schema.into();
        self
    }

    /// JSON Schema of a task's `config` block.
    pub fn task_config_schema(mut self, schema: impl Into<String>) -> Self {
        self.task_config_schema = schema.into();
        self
    }
}

impl Fingerprint {
    /// A fingerprint with this health, which is repeated only when a watch fires.
    pub fn new(health: Health) -> Self {
        Self { health, attributes: vec![], next_check: None, watch: Watches::none() }
    }

    /// Publish an attribute as `driver.<driver>.<name>`.
    pub fn attribute(mut self, attribute: NamedAttribute) -> Self {
        self.attributes.push(attribute);
        self
    }

    /// Ask again after this time.
    pub fn check_after(mut self, milliseconds: Milliseconds) -> Self {
        self.next_check = Some(milliseconds);
        self
    }

    /// Ask again when this path changes.
    pub fn watch_path(mut self, path: impl Into<String>) -> Self {
        self.watch.paths.push(path.into());
        self
    }
}

impl TaskConfig {
    /// The task's `config` block as a typed value.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] when it does not fit `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, Error> {
        crate::config::parse(&self.config_json)
    }

    /// Value of a variable in the task's environment.
    pub fn env_value(&self, name: &str) -> Option<&str> {
        self.env.iter().find(|var| var.name == name).map(|var| var.value.as_str())
    }
}

/// The content that this SDK puts into a handle.
#[derive(Serialize, Deserialize)]
struct Remembered<S> {
    /// The id of the workload.
    id: String,
    /// Anything else that the driver wants to know later.
    #[serde(skip_serializing_if = "Option::is_none", default = "Option::default")]
    state: Option<S>,
}

impl Handle {
    fn write<S: Serialize>(id: String, state: Option<S>) -> Result<Self, Error> {
        let data = serde_json::to_vec(&Remembered { id, state })
            .map_err(|error| Error::fatal(format!("cannot write the task's handle: {error}")))?;
        Ok(Self { version: HANDLE_VERSION, data })
    }

    fn read<S: DeserializeOwned>(&self) -> Result<Remembered<S>, Error> {
        if self.version != HANDLE_VERSION {
            let found = self.version;
            return Err(Error::not_found(format!(
                "the handle has format {found}; this driver reads format {HANDLE_VERSION}"
            )));
        }
        serde_json::from_slice(&self.data).map_err(|error| {
            Error::not_found(format!("the handle was not made by this driver: {error}"))
        })
    }

    /// Id of the workload.
    ///
    /// # Errors
    /// [`Error::NotFound`] when the handle is not one of this driver's.
    pub fn id(&self) -> Result<String, Error> {
        Ok(self.read::<serde::de::IgnoredAny>()?.id)
    }

    /// What [`Started::remembering`] stored.
    ///
    /// # Errors
    /// [`Error::NotFound`] when the handle is not one of this driver's or holds no such state.
    pub fn state<S: DeserializeOwned>(&self) -> Result<S, Error> {
        self.read::<S>()?
            .state
            .ok_or_else(|| Error::not_found("the handle holds no state of the driver"))
    }
}

impl Started {
    /// A task of driver `D` that runs as the workload with this id.
    ///
    /// # Errors
    /// Never in practice: the handle could not be written.
    pub fn new<D: Driver>(id: String) -> Result<Self, Error> {
        let handle = Handle::write::<()>(id.clone(), None)?;
        Ok(Self { handle, workload: D::Runs::workload(id), network: None })
    }

    /// The same as [`Started::new`], with state that later calls read with [`Handle::state`]. The
    /// agent accepts handles of at most 64 KiB.
    ///
    /// # Errors
    /// The state cannot be written as JSON.
    pub fn remembering<D: Driver>(id: String, state: &impl Serialize) -> Result<Self, Error> {
        let handle = Handle::write(id.clone(), Some(state))?;
        Ok(Self { handle, workload: D::Runs::workload(id), network: None })
    }

    /// Address and ports that differ from the allocation's.
    pub fn network(mut self, network: Network) -> Self {
        self.network = Some(network);
        self
    }
}

impl From<RawExit> for ExitResult {
    /// The usual meaning of an exit: the code that the host saw, or 128 plus the number of the
    /// signal. An exit with neither is unknown, which is no success: it gets code 255 and an error.
    fn from(exit: RawExit) -> Self {
        let signal = exit.signal.unwrap_or(0);
        let exit_code = match (exit.exit_code, i32::try_from(signal)) {
            (Some(code), _) => code,
            (None, Ok(signal @ 1..)) => 128_i32.saturating_add(signal),
            (None, _) if exit.oom_killed => 137,
            (None, _) => 255,
        };
        let unknown = exit_code == 255 && exit.exit_code.is_none();
        let error = exit.error.or_else(|| unknown.then(|| "the exit status is unknown".to_owned()));
        Self { exit_code, signal, oom_killed: exit.oom_killed, error }
    }
}
