//! Write Ostler drivers and device plugins.
//!
//! A plugin is a set of functions, not a server: the agent makes a fresh instance of the
//! component for a call, takes the answer and drops the instance. Nothing kept in memory
//! reaches the next call. What a driver must remember of a task goes into its
//! [`Handle`](driver::Handle), which the agent stores and passes back.
//!
//! ```text
//!            describe fingerprint start stop …
//!   agent ────────────────────────────────────► your type: `impl Driver` or `impl DevicePlugin`
//!     ▲                                              │
//!     └──── process, wasm-task, command, clock … ◄───┘   the functions of `host`
//! ```
//!
//! - [`driver`]: the trait [`Driver`](driver::Driver); two functions are enough for a driver
//!   that runs processes or WASM tasks.
//! - [`device`]: the trait [`DevicePlugin`](device::DevicePlugin).
//! - [`host`]: what a plugin may ask the agent for. A component imports, and so asks to be
//!   granted, only the interfaces that its code can reach.
//! - [`config`]: reading configuration into typed values.
//! - [`error`]: the error every call answers with.
//! - [`testing`]: a fake agent, so that a plugin's tests run natively with plain `cargo test`.
//!
//! `docs/plugin-authors.md` of Ostler makes a driver and a device plugin from nothing: manifest,
//! code, build, check, the grants and a job. A whole driver:
//!
//! ```
//! use ostler_sdk::driver::prelude::*;
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     command: String,
//! }
//!
//! struct Shout;
//!
//! impl Driver for Shout {
//!     type Runs = Process;
//!
//!     fn describe() -> DriverInfo {
//!         DriverInfo::new("shout", "0.1.0").task_config_schema(
//!             r#"{"type": "object", "required": ["command"], "additionalProperties": false,
//!                 "properties": {"command": {"type": "string"}}}"#,
//!         )
//!     }
//!
//!     fn start(task: TaskConfig) -> Result<Started, Error> {
//!         let config: Config = task.parse()?;
//!         let id = process::spawn(&process::SpawnRequest {
//!             command: config.command,
//!             search: vec![],
//!             args: vec![],
//!             env: task.env,
//!             cwd: task.task_dir,
//!             user: task.user,
//!         })?;
//!         Started::new::<Self>(id)
//!     }
//! }
//! ostler_sdk::export_driver!(Shout);
//! ```

// The generated code names this crate from inside and from the plugins alike.
extern crate self as ostler_sdk;

#[doc(hidden)]
pub mod bindings;
pub mod config;
pub mod device;
pub mod driver;
pub mod error;
pub mod host;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
pub mod types;

#[doc(hidden)]
pub use wit_bindgen;

/// Export a type that implements [`Driver`](driver::Driver) as the driver of this component.
///
/// Once per crate; the crate's type must be `cdylib`.
#[macro_export]
macro_rules! export_driver {
    ($driver:ident) => {
        $crate::bindings::driver::export!($driver with_types_in $crate::bindings::driver);
    };
}

/// Export a type that implements [`DevicePlugin`](device::DevicePlugin) as the device plugin of
/// this component.
///
/// Once per crate; the crate's type must be `cdylib`.
#[macro_export]
macro_rules! export_device {
    ($plugin:ident) => {
        $crate::bindings::device::export!($plugin with_types_in $crate::bindings::device);
    };
}
