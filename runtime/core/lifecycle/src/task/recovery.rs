//! Recovers a run of an earlier agent: the run is owned again, or ended and forgotten.
//!
//! ```text
//!   host: is it there? ── never let go ─► NeverRan       cannot tell ─► NotReady: asked again
//!      │ yes, or it ended │ no ─► Failed
//!      ▼
//!   replay the prestart hooks: directories, logs, devices, environment are effects, not marks
//!      ▼
//!   driver.recover ── not ready, broken ─► NotReady: asked again; the run goes on meanwhile
//!      │ ok             │ does not know it ─► Failed: what still runs is killed by `clear_run`
//!      ▼
//!   Owned
//! ```

use std::sync::Arc;

use crate::queue;

use super::TaskScope;
use super::calls::{self, DriverNote, TaskRun};
use super::handle::{LocalRecord, StartedRecord};
use super::hooks;
use super::machine::TaskInput;
use super::run::secrets_of;
use ostler_model::clock;
use ostler_model::limits::KILL_GRACE;
use ostler_model::ports::{Adoption, PluginCallError, TaskDriver};
use ostler_model::redact::Secrets;
use ostler_model::task::Workload;

/// The result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// The run is owned again.
    Owned {
        /// The run ended while no agent watched it.
        ended: bool,
    },
    /// The driver cannot be asked now.
    NotReady {
        /// The driver's health text, or why the host cannot tell.
        reason: String,
        /// The host has the run.
        held: bool,
    },
    /// The processes of the run were never released.
    NeverRan,
    /// The run is lost.
    Failed {
        /// Why the run is lost, for the event.
        reason: String,
    },
}

impl From<Recovery> for TaskInput {
    fn from(recovery: Recovery) -> Self {
        match recovery {
            Recovery::Owned { ended } => Self::Recovered { ended },
            Recovery::NotReady { reason, held } => Self::RecoveryNotReady { reason, held },
            Recovery::NeverRan => Self::NeverRan,
            Recovery::Failed { reason } => Self::RecoveryFailed { reason },
        }
    }
}

/// Own the run again. May be called again after `NotReady`.
pub async fn recover(
    scope: &TaskScope,
    record: &LocalRecord,
    run: &TaskRun,
    notes: queue::QueueSender<DriverNote>,
) -> Recovery {
    let Some(workload) = run.workload() else {
        return recover_unfinished(scope);
    };
    let failed = |reason: &str| Recovery::Failed { reason: reason.to_owned() };
    let ended = match scope.node.workloads.adopt(&run.id, &run.identities(), &workload) {
        Adoption::Running => false,
        Adoption::Ended(_) => true,
        Adoption::NotRun => return Recovery::NeverRan,
        Adoption::Rebooted => return failed("the machine was restarted"),
        // The host does not run a polled workload: the driver is asked.
        Adoption::Unknown if matches!(workload, Workload::Poll(_)) => false,
        Adoption::Unknown => return failed("it ended with the process that ran it"),
        Adoption::NotNow(reason) => return Recovery::NotReady { reason, held: false },
    };
    let driver = scope.node.drivers.dispense(&scope.task.driver);
    if !run.has_context() {
        let hooks::ReplayedHooks { preparation, whole, trouble } =
            hooks::replay(scope, ended).await;
        if let Some(reason) = trouble.filter(|_| !ended) {
            // The run goes on, and the node may have what it was short of at a later try.
            return Recovery::NotReady { reason, held: true };
        }
        // The context is made once. While the driver cannot be asked, a hook that failed
        // gets another try.
        if whole || driver.is_ok() {
            let secrets = secrets_of(&preparation);
            run.set_context(scope, record, notes, preparation, secrets);
        }
    }
    match driver {
        Ok(driver) if ended => {
            run.set_driver(driver);
            Recovery::Owned { ended }
        }
        // The driver is still being loaded, and only it knows what the exit means.
        Err(error @ PluginCallError::StillLoading { .. }) if ended => {
            Recovery::NotReady { reason: error.to_string(), held: false }
        }
        // The exit is known; what it means is then read without the driver.
        Err(_) if ended => Recovery::Owned { ended },
        Ok(driver) => ask_driver(scope, record, run, driver).await,
        Err(error) => Recovery::NotReady { reason: error.to_string(), held: true },
    }
}

/// Recover a run without a handle. Whether its driver holds starts tells whether anything of it
/// can have run.
fn recover_unfinished(scope: &TaskScope) -> Recovery {
    match scope.node.drivers.dispense(&scope.task.driver) {
        Ok(driver) if driver.holds_starts() => Recovery::NeverRan,
        Ok(_) => Recovery::Failed {
            reason: "the agent ended while the task was being started".to_owned(),
        },
        Err(error) => Recovery::NotReady { reason: error.to_string(), held: false },
    }
}

async fn ask_driver(
    scope: &TaskScope,
    record: &LocalRecord,
    run: &TaskRun,
    driver: Arc<dyn TaskDriver>,
) -> Recovery {
    let (Some(context), Some(handle)) = (run.context(), run.handle()) else {
        return Recovery::NeverRan;
    };
    let call = driver.recover(Arc::clone(&context), handle.clone());
    match calls::bounded_call(scope, (&*driver, &*context), "recover", call).await {
        Ok(started) => {
            // Set only now, because the driver might have answered that it does not know the task.
            run.set_driver(driver);
            scope.context.network.set_of_driver(&scope.task.name, started.network.clone());
            // A run of an older agent may have no note.
            calls::note_run(scope, record, run).await;
            if run.set_driver_answer(started.clone()) {
                let written = record.update(|local| {
                    if let Some(now) = local.run.as_mut() {
                        now.started = Some(StartedRecord::from(started));
                    }
                });
                if let Err(error) = written.await {
                    tracing::error!(run = %run.id, error = %error.text(), "handle not recorded");
                }
            }
            Recovery::Owned { ended: false }
        }
        Err(error) if is_passing(&error) => {
            Recovery::NotReady { reason: error.to_string(), held: true }
        }
        Err(error) => {
            let reason = error.to_string();
            let polled = matches!(run.workload(), Some(Workload::Poll(_)));
            if polled && !matches!(error, PluginCallError::NotFound(_)) {
                // Nobody else can end it: only when it is dead may another run begin.
                let call = driver.kill(Arc::clone(&context), handle);
                let killed = calls::bounded_call(scope, (&*driver, &*context), "kill", call).await;
                if let Err(alive) = killed.or_else(not_found_is_dead) {
                    let reason = format!("{reason}; and it cannot be killed: {alive}");
                    return Recovery::NotReady { reason, held: true };
                }
            }
            Recovery::Failed { reason }
        }
    }
}

fn not_found_is_dead(error: PluginCallError) -> Result<(), PluginCallError> {
    if matches!(error, PluginCallError::NotFound(_)) { Ok(()) } else { Err(error) }
}

/// May the driver work later? Then the run is left alone.
fn is_passing(error: &PluginCallError) -> bool {
    error.is_recoverable() || matches!(error, PluginCallError::UnknownPlugin { .. })
}

/// End what is left of a run, and make driver and host forget it. Bounded. `false` when a process
/// did not end, or may not have ended: then nothing is forgotten, and the call may be repeated.
pub async fn clear_run(scope: &TaskScope, record: &LocalRecord, run: &TaskRun) -> bool {
    run.abandon();
    let identities = run.identities();
    let known = run.workload();
    let workload = known.clone().unwrap_or_else(|| Workload::Process(String::new()));
    let mut ended = true;
    if identities.is_empty() && matches!(workload, Workload::WasmTask(_)) {
        let _adopted = scope.node.workloads.adopt(&run.id, &identities, &workload);
        scope.node.workloads.kill_run(&run.id);
        let gone = scope.node.workloads.wait(&run.id, &workload);
        if clock::timeout(KILL_GRACE, gone).await.is_none() {
            tracing::error!(run = %run.id, "a WASM task did not end after its kill");
            ended = false;
        }
    }
    if !identities.is_empty() {
        // Owned for as long as it takes to end them, those that can be.
        let _adopted = scope.node.workloads.adopt(&run.id, &identities, &workload);
        scope.node.workloads.kill_run(&run.id);
        for identity in &identities {
            let gone = scope.node.workloads.wait(&run.id, &Workload::Process(identity.id()));
            if clock::timeout(KILL_GRACE, gone).await.is_none() {
                tracing::error!(run = %run.id, pid = identity.pid, "a process did not end after its kill");
                ended = false;
            }
        }
        // The host cannot wait for a process that it does not own: such a process is found
        // by its identity.
        ended &= scope.node.workloads.end_leftovers(&run.id, &identities).await;
    }
    if !ended {
        return false;
    }
    if run.driver().is_none()
        && let Ok(driver) = scope.node.drivers.dispense(&scope.task.driver)
    {
        run.set_driver(driver);
    }
    if known.is_some() && !run.has_context() {
        let (notes, _) = queue::channel(1);
        // Nothing was prepared, so only the `env` block of the job is known.
        let mut secrets = Secrets::for_task();
        scope.task.env.iter().for_each(|(name, value)| secrets.learn_variable(name, value));
        run.set_context(scope, record, notes, hooks::Preparation::default(), secrets);
    }
    calls::forget_run(scope, record, run, false).await;
    true
}
