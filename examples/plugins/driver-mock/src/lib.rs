//! Driver `mock_driver`: pretends to run tasks, in every way a test needs.
//!
//! Nothing runs: the handle holds when the task started and what its configuration says, and
//! `inspect` works out from the clock whether it has ended. A handle cannot change, so the mock
//! does not know that it was stopped: `stop` answers `not-found`, which tells the agent that the
//! task is gone, unless `kill_after` says that it does not listen; then the agent's `kill` ends it.

use std::time::Duration;

use config::Config;
use ostler_sdk::driver::prelude::*;
use serde::{Deserialize, Serialize};

mod config;

/// How often the agent asks where a task is that ends by itself, or takes its plugin with it.
const POLL_MS: u64 = 100;
/// How often it asks about one that does neither: there is no news of it, and two thousand of them are
/// to cost next to nothing.
const POLL_AT_REST_MS: u64 = 60_000;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct PluginConfig {
    shutdown_periodic_after: bool,
    /// Seconds.
    shutdown_periodic_duration: u64,
}

/// What a handle holds.
#[derive(Serialize, Deserialize)]
struct Remembered {
    started_at: u64,
    /// The task's `config` block as it came.
    config_json: String,
}

impl Remembered {
    fn config(&self) -> Result<Config> {
        ostler_sdk::config::parse(&self.config_json)
    }

    fn workload(config: &Config) -> Workload {
        let at_rest = config.run_for.is_zero() && config.plugin_exit_after.is_zero();
        Workload::Poll(if at_rest { POLL_AT_REST_MS } else { POLL_MS })
    }

    fn age(&self) -> Duration {
        Duration::from_nanos(clock::now().saturating_sub(self.started_at))
    }
}

struct Mock;

impl Driver for Mock {
    type Runs = Polled<POLL_MS>;

    fn describe() -> DriverInfo {
        DriverInfo::new("mock_driver", env!("CARGO_PKG_VERSION"))
            .send_signals()
            .network_modes([NetworkMode::Host, NetworkMode::None])
            .config_schema(config::PLUGIN_SCHEMA)
            .task_config_schema(config::TASK_SCHEMA)
    }

    /// The monotonic clock of the agent counts from its start.
    fn fingerprint() -> Result<Fingerprint> {
        let config: PluginConfig = host::config()?;
        let up = Duration::from_nanos(clock::monotonic());
        let until = Duration::from_secs(config.shutdown_periodic_duration);
        if config.shutdown_periodic_after && up >= until {
            return Ok(Fingerprint::new(Health::undetected("shut down, as configured")));
        }
        let found = Fingerprint::new(Health::healthy());
        Ok(if config.shutdown_periodic_after { found.check_after(100) } else { found })
    }

    fn start(task: TaskConfig) -> Result<Started> {
        let config: Config = task.parse()?;
        config.refuse_unsupported()?;
        wait(config.start_block_for);
        if let Some(message) = config.start_error.clone() {
            return Err(if config.start_error_recoverable {
                Error::Recoverable(message)
            } else {
                Error::Fatal(message)
            });
        }
        let network = config.network()?;
        let remembered = Remembered { started_at: clock::now(), config_json: task.config_json };
        let mut started = Started::remembering::<Self>(task.id, &remembered)?;
        started.workload = Remembered::workload(&config);
        started.network = network;
        Ok(started)
    }

    fn recover(handle: Handle) -> Result<Started> {
        let remembered: Remembered = handle.state()?;
        let config = remembered.config()?;
        let (workload, network) = (Remembered::workload(&config), config.network()?);
        Ok(Started { handle, workload, network })
    }

    fn stop(handle: Handle, _signal: Option<String>, _timeout: Milliseconds) -> Result<()> {
        let config = handle.state::<Remembered>()?.config()?;
        if config.kill_after.is_zero() {
            Err(Error::not_found("the mock task ended when it was asked to"))
        } else {
            Ok(())
        }
    }

    fn kill(handle: Handle) -> Result<()> {
        match handle.state::<Remembered>()?.config()?.kill_error {
            Some(message) => Err(Error::Fatal(message)),
            None => Ok(()),
        }
    }

    fn inspect(handle: Handle) -> Result<Status> {
        let remembered: Remembered = handle.state()?;
        let config = remembered.config()?;
        let age = remembered.age();
        let ended = !config.run_for.is_zero() && age >= config.run_for;
        if !ended && !config.plugin_exit_after.is_zero() && age >= config.plugin_exit_after {
            std::process::abort();
        }
        let finished_at = remembered.started_at.saturating_add(nanos(config.run_for));
        Ok(Status {
            state: if ended { RunState::Exited } else { RunState::Running },
            exit: ended.then(|| config.exit(finished_at)),
            attributes: vec![],
        })
    }

    fn signal(handle: Handle, _signal: String) -> Result<()> {
        match handle.state::<Remembered>()?.config()?.signal_error {
            Some(message) => Err(Error::Fatal(message)),
            None => Ok(()),
        }
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Keep this call busy, with few host calls, so that a test can see its deadline at work.
fn wait(span: Duration) {
    let until = clock::monotonic().saturating_add(nanos(span));
    while !span.is_zero() && clock::monotonic() < until {
        for step in 0..1_000_000_u32 {
            std::hint::black_box(step);
        }
    }
}

ostler_sdk::export_driver!(Mock);

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests;
