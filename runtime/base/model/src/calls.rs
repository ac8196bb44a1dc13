//! The calls that the agent makes to plugins, one row each. A new call is a row here, its function in
//! the WIT, and who asks it.
//!
//! ```text
//! /// what the plugin does
//! method "name in the contract" call_function(argument: type, ...) -> answer;
//!
//! row ─┬─► a method of `TaskDriver` (`ports.rs`) or `DeviceSource` (in the crate of devices)
//!      ├─► how a loaded plugin is asked, and the proxy over it (the crate of plugins: `functions`)
//!      ├─► how a recorded call is made again, and what is secret of its arguments
//!      └─► the counts of what its calls cost (the crate of plugin health)
//! ```
//! The types are those of the agent. How a type is said in the contract, and how an answer is checked,
//! the crate of plugins says once for each type. Every call of a driver is about one start of a task, so
//! its context comes first and is not in the row; all but `start` are given the handle of the task first,
//! which recordings rely on. A row borrows for `'a`. `describe`, and the `fingerprint` of drivers, are asked by
//! the crate of plugins alone and have no row.
//!
//! Each of the two tables gives its rows to the macro that it is called with. Drivers and devices of tests
//! implement the methods that they are asked; every other answers that it is not supported.

/// The calls to drivers about a task, as rows for the macro `$rows`.
#[macro_export]
macro_rules! driver_calls {
    ($rows:ident) => {
        $rows! {
            /// Start a task. On an error the host has killed whatever the call spawned.
            start "start" call_start(config: TaskConfig) -> StartedTask;
            /// Own a task again that an earlier agent started.
            recover "recover" call_recover(handle: DriverHandle) -> StartedTask;
            /// Interpret an exit that the host saw.
            interpret_exit "exited" call_exited(handle: DriverHandle, exit: RawExit) -> ExitResult;
            /// Ask the task to end; returns at once.
            stop "stop" call_stop(
                handle: DriverHandle,
                signal: Option<String>,
                timeout: Duration
            ) -> ();
            /// End the task now.
            kill "kill" call_kill(handle: DriverHandle) -> ();
            /// Forget the task.
            destroy "destroy" call_destroy(handle: DriverHandle, force: bool) -> ();
            /// Tell whether the task runs (for `Workload::Poll`).
            inspect "inspect" call_inspect(handle: DriverHandle) -> InspectResult;
            /// Send a signal by name.
            signal "signal" call_signal(handle: DriverHandle, signal: String) -> ();
            /// The program, environment and user for a command inside the task.
            exec "exec" call_exec(
                handle: DriverHandle,
                argv: Vec<String>,
                terminal: bool
            ) -> ExecPlan;
        }
    };
}

/// The calls to device plugins, as rows for the macro `$rows`.
#[macro_export]
macro_rules! device_calls {
    ($rows:ident) => {
        $rows! {
            /// The devices that are present now.
            fingerprint "fingerprint" call_fingerprint() -> DeviceFingerprint;
            /// How a task uses these instances. Asked before each start of the task.
            reserve "reserve" call_reserve(device: &'a AllocatedDevice) -> Reservation;
            /// Tell the plugin that the task which used these instances ended.
            release "release" call_release(device: &'a AllocatedDevice) -> ();
            /// Measure the devices; `Unsupported` from a plugin that never measures.
            stats "stats" call_stats() -> Vec<DeviceGroupStats>;
        }
    };
}

/// The names that rows have in the contract.
macro_rules! names {
    ($($(#[$doc:meta])+ $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;)+) => {
        &[$($function),+]
    };
}

/// The names of the calls to drivers about a task, in the contract.
pub const DRIVER_FUNCTIONS: &[&str] = driver_calls!(names);

/// The names of the calls to device plugins, in the contract.
pub const DEVICE_FUNCTIONS: &[&str] = device_calls!(names);

#[cfg(test)]
mod tests {
    use super::*;

    /// The name of each row in the contract, the function that the bindings have for it, and the
    /// arguments.
    macro_rules! bound {
        ($(
            $(#[$doc:meta])+
            $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
        )+) => {
            [$(($function, stringify!($call), stringify!($arguments))),+]
        };
    }

    #[test]
    fn each_row_calls_the_function_that_it_names_and_no_two_name_the_same() {
        let mut rows = Vec::from(driver_calls!(bound));
        rows.extend(device_calls!(bound));
        for (function, call, _) in &rows {
            assert_eq!(call.strip_prefix("call_"), Some(*function));
            assert_eq!(
                rows.iter().filter(|(other, ..)| other == function).count(),
                1,
                "{function}"
            );
        }
        let names: Vec<&str> = [DRIVER_FUNCTIONS, DEVICE_FUNCTIONS].concat();
        assert_eq!(names, rows.iter().map(|(function, ..)| *function).collect::<Vec<_>>());
    }

    #[test]
    fn every_call_about_a_task_that_runs_begins_with_its_handle() {
        for (function, _, arguments) in driver_calls!(bound) {
            let handle =
                arguments.replace(char::is_whitespace, "").starts_with("(handle:DriverHandle");
            assert_eq!(handle, function != "start", "{function}{arguments}");
        }
    }
}
