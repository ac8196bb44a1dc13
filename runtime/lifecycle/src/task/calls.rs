//! The acts of a task runner that take time: each is a future of its own, bounded, that ends in
//! a typed answer. None touches the machine.

use std::sync::Arc;
use std::time::Duration;

use super::TaskScope;
use super::handle::{Intent, LocalRecord, RunRecord, StartedRecord, TaskRecordError};
use super::hooks::{self, HookError, Preparation};
pub use super::notes::DriverNote;
pub use super::run::{Run, new_id};
use crate::queue;
use ostler_model::clock;
use ostler_model::ids::RunId;
use ostler_model::limits::{
    DRIVER_CALL_WALL_MAX, EXEC_TAKEOVER_WALL_MAX, KILL_GRACE, PLUGIN_CALL_SLACK, POLL_INTERVAL_MIN,
    START_WALL_MAX,
};
use ostler_model::ports::{
    Adoption, BoxFuture, Driver, FsIsolation, Inspected, PluginCallError, RunNote, Started,
    TaskContext,
};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::task::{DriverHandle, ExitResult, RawExit, Workload, out_of_memory};
use ostler_state::Expected;

/// What ends a task where neither job nor driver says anything else; as the drivers do.
const KILL_SIGNAL_DEFAULT: &str = "SIGINT";
/// Signal number shown for a polled task that its driver killed.
const KILLED: u32 = 9;

/// Why a start failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    /// For the event.
    pub error: String,
    /// May it go better next time?
    pub recoverable: bool,
}

/// A start with the runner's own bound around it.
async fn bounded_start(
    scope: &TaskScope,
    future: BoxFuture<'_, Result<Started, PluginCallError>>,
) -> Result<Started, PluginCallError> {
    let late = || no_answer(scope, "start", START_WALL_MAX);
    clock::timeout(START_WALL_MAX, future).await.unwrap_or_else(|| Err(late()))
}

/// Any other driver call about a task, with the runner's own bound around it: longer than the
/// driver's deadline, so that only what hangs is given up. That counts against the driver.
pub(super) async fn bounded<T>(
    scope: &TaskScope,
    (driver, task): (&dyn Driver, &TaskContext),
    call: &'static str,
    future: BoxFuture<'_, Result<T, PluginCallError>>,
) -> Result<T, PluginCallError> {
    let own = driver.call_wall().saturating_mul(2).saturating_add(PLUGIN_CALL_SLACK);
    let bound = DRIVER_CALL_WALL_MAX.max(own);
    match clock::timeout(bound, future).await {
        Some(answer) => answer,
        None => {
            driver.given_up(call, task, bound);
            Err(no_answer(scope, call, bound))
        }
    }
}

fn no_answer(scope: &TaskScope, call: &'static str, bound: Duration) -> PluginCallError {
    let (plugin, reason) = (scope.task.driver.to_string(), format!("no answer within {bound:?}"));
    PluginCallError::CallFailed { plugin, call, reason }
}

/// What a request to end a run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndRequest {
    /// It is on its way out; who waits for the workload sees its end.
    Taken,
    /// It has ended, by what its driver says: there is nothing of the host's to wait for.
    Ended,
}

/// Prepare a run. Where the driver's starts are held, the intent goes on its way to the disk first: what
/// is prepared and started meanwhile leaves nothing that a crash could not clear. That of a first run may be
/// on its way already.
///
/// # Errors
/// The first hook's that fails; or the intent cannot be queued.
pub async fn prepare(
    scope: &TaskScope,
    record: &LocalRecord,
    intent: Option<Intent>,
    notes: queue::Sender<DriverNote>,
) -> Result<Preparation, HookError> {
    let held = || scope.drivers.dispense(&scope.task.driver).is_ok_and(|one| one.starts_held());
    let intent = match intent {
        None if held() => {
            let intent = record.intend(new_id(scope)).await;
            Some(intent.map_err(|e| HookError::passing(e.text()))?)
        }
        intent => intent,
    };
    match hooks::prestart(scope, Some(notes)).await {
        Ok(preparation) => Ok(Preparation { intent, ..preparation }),
        Err(error) => {
            if let Some(intent) = intent {
                record.take_back(Some(&intent.run)).await;
            }
            Err(error)
        }
    }
}

/// Start, keep what identifies the run and how to reach it, let it go. The intent is durable before
/// anything of the run can have had an effect: before the driver is asked, or, where its starts are
/// held, before the run is let go. After an error nothing of it is left.
///
/// # Errors
/// When the intent or the handle cannot be written, the driver fails, or the program does not run.
pub async fn start(scope: &TaskScope, record: &LocalRecord, run: &Run) -> Result<(), StartError> {
    // From here until its identity is written, or it failed.
    let coming = scope.state.expect();
    let (Some(config), Some((driver, context))) = (run.take_config(), parts(run)) else {
        let error = format!("{} was started before", run.id);
        return Err(StartError { error, recoverable: false });
    };
    let mut intent = run.take_intent();
    // Another version of the driver may be in its place by now.
    if !driver.starts_held() || intent.is_none() {
        intended(record, run, intent.take()).await?;
    }
    let call = driver.start(context, config);
    let begun = match bounded_start(scope, call).await {
        Ok(Started { workload: Workload::Poll(_), handle, .. })
            if scope.network.get().is_some() =>
        {
            // To be ended by what is given back now.
            run.set_started(Started { workload: Workload::Poll(0), handle, network: None });
            let error = format!(
                "driver {} runs its tasks itself, outside of the network of their allocation; use a driver \
                 whose tasks the host runs, such as exec, or a network of mode host",
                scope.task.driver
            );
            Err(StartError { error, recoverable: false })
        }
        Ok(started) => go(scope, record, run, (started, intent, coming)).await,
        Err(error) => {
            Err(StartError { recoverable: error.recoverable(), error: error.to_string() })
        }
    };
    if begun.is_err() {
        undo(scope, record, run).await;
    }
    begun
}

/// Wait until the intent is durable.
async fn intended(
    record: &LocalRecord,
    run: &Run,
    intent: Option<Intent>,
) -> Result<(), StartError> {
    let written = async {
        let intent = match intent {
            Some(intent) => intent,
            None => record.intend(run.id.clone()).await?,
        };
        intent.durable().await
    };
    written.await.map_err(|e| StartError { error: e.text(), recoverable: true })
}

/// Until here what the host started is held: not one instruction of it has run. It is let go when the
/// intent is durable, and all that a later agent needs to own the run is kept: by the record, or by a
/// note beside the run's exit, which the record follows.
async fn go(
    scope: &TaskScope,
    record: &LocalRecord,
    run: &Run,
    (started, intent, coming): (Started, Option<Intent>, Expected),
) -> Result<(), StartError> {
    scope.network.set_of_driver(&scope.task.name, started.network.clone());
    run.set_started(started.clone());
    let identities = run.release();
    let change = |local: &mut super::handle::LocalState| {
        if let Some(now) = local.run.as_mut() {
            now.identities = identities;
            now.started = Some(StartedRecord::from(started));
        }
        // Also when a plan made before this start was written after its intent.
        local.delayed_until = None;
    };
    let failed = |e: TaskRecordError| StartError { error: e.text(), recoverable: true };
    record.stepped();
    record.update_later(change).await.map_err(failed)?;
    let intended = async {
        match intent {
            Some(intent) => intent.durable().await,
            None => Ok(()),
        }
    };
    let (intended, kept) = tokio::join!(intended, note(scope, record, run));
    intended.map_err(failed)?;
    drop(coming);
    if !kept {
        record.update_with_other_starts(|_| {}).await.map_err(failed)?;
    }
    let released = scope.workloads.release(&run.id).await;
    released.map_err(|error| StartError { error, recoverable: true })
}

/// Keep what the run is of where an agent finds it whose state file does not know it. Whether it is
/// kept: the host runs it, and the note outlives the agent as long as the run may.
pub(super) async fn note(scope: &TaskScope, record: &LocalRecord, run: &Run) -> bool {
    if !matches!(run.workload(), Some(Workload::Process(_) | Workload::WasmTask(_))) {
        return false;
    }
    let Some(known) = record.run().await.filter(|known| known.id == run.id) else { return false };
    let alloc = &scope.allocation;
    let Ok(known) = serde_json::to_value(&known) else { return false };
    let about = RunNote {
        alloc: alloc.id,
        task: scope.task.name.clone(),
        job: alloc.job.id.clone(),
        group: alloc.group.clone(),
        index: alloc.index,
        record: known,
    };
    scope.workloads.note(&run.id, about).await
}

/// Leave nothing of a start that failed.
async fn undo(scope: &TaskScope, record: &LocalRecord, run: &Run) {
    run.abandon();
    end_polled(scope, run).await;
    run.clear_started();
    scope.workloads.kill_run(&run.id);
    scope.workloads.forget_run(&run.id);
    let _said = forget(record, &run.id).await;
}

/// Driver and context, once both are at hand.
fn parts(run: &Run) -> Option<(Arc<dyn Driver>, Arc<TaskContext>)> {
    Some((Arc::clone(run.driver()?), run.context()?))
}

/// What a call into the driver about a started run needs. Nothing where no driver's handle is kept of it.
fn call_parts(run: &Run) -> Option<(Arc<dyn Driver>, Arc<TaskContext>, DriverHandle)> {
    let (driver, context) = parts(run)?;
    let handle = run.handle().filter(|handle| !handle.plugin.is_empty())?;
    Some((driver, context, handle))
}

/// Whether it is durable that there is no run.
async fn forget(record: &LocalRecord, run: &RunId) -> bool {
    let written = record.update(|local| local.run = None).await;
    if let Err(error) = &written {
        tracing::error!(%run, error = %error.text(), "end of run not recorded");
    }
    written.is_ok()
}

/// Wait until the workload is gone; its exit stays in the run. Not bounded: the machine's timers
/// are the second way out.
pub async fn watch(scope: &TaskScope, run: &Run) {
    let Some(started) = run.started() else {
        return;
    };
    let exit = match &started.workload {
        Workload::Poll(millis) => poll(scope, run, &started.handle, *millis).await,
        workload => scope.workloads.wait(&run.id, workload).await,
    };
    run.set_exit(exit);
}

async fn poll(scope: &TaskScope, run: &Run, handle: &DriverHandle, millis: u64) -> RawExit {
    let interval = Duration::from_millis(millis).max(POLL_INTERVAL_MIN);
    loop {
        clock::sleep(interval).await;
        let Some((driver, context)) = parts(run) else {
            // A run of an earlier agent whose driver is not at hand yet.
            continue;
        };
        let call = driver.inspect(Arc::clone(&context), handle.clone());
        match bounded(scope, (&*driver, &*context), "inspect", call).await {
            Ok(Inspected::Exited(exit)) => return exit,
            Ok(Inspected::Running | Inspected::Unknown) => {}
            Err(PluginCallError::NotFound(what)) => {
                return unknown_to_driver(scope, &what);
            }
            Err(error) => tracing::warn!(run = %run.id, %error, "inspect failed, asking again"),
        }
    }
}

/// The exit of a polled run of which its driver says that there is none.
fn unknown_to_driver(scope: &TaskScope, what: &str) -> RawExit {
    RawExit {
        error: Some(format!("the driver no longer knows the task: {what}")),
        finished_at: scope.clock.now(),
        ..RawExit::default()
    }
}

/// Is it a workload whose end only its driver can tell?
pub(super) fn is_polled(run: &Run) -> bool {
    matches!(run.workload(), Some(Workload::Poll(_)))
}

/// Ask the driver to stop the task, or, while it cannot be asked, signal the task's process. A task
/// that is not found is stopped.
///
/// # Errors
/// The text for the event.
pub async fn stop(scope: &TaskScope, run: &Run, timeout: Duration) -> Result<EndRequest, String> {
    let signal = scope.task.kill_signal.clone();
    let Some((driver, context, handle)) = call_parts(run) else {
        let Some(workload) = run.workload() else {
            // Nothing of it is known that a signal could be sent to.
            scope.workloads.kill_run(&run.id);
            return Ok(EndRequest::Taken);
        };
        let signal = signal.as_deref().unwrap_or(KILL_SIGNAL_DEFAULT);
        return scope.workloads.signal(&run.id, &workload, signal).map(|()| EndRequest::Taken);
    };
    let call = driver.stop(Arc::clone(&context), handle, signal, timeout);
    match bounded(scope, (&*driver, &*context), "stop", call).await {
        Ok(()) => Ok(EndRequest::Taken),
        Err(error) => gone(scope, run, error),
    }
}

/// Ask the driver to kill the task, or, while it cannot be asked, kill what the host has of it. Of a polled one,
/// success is its end.
///
/// # Errors
/// The text for the event.
pub async fn kill(scope: &TaskScope, run: &Run) -> Result<EndRequest, String> {
    let Some((driver, context, handle)) = call_parts(run) else {
        if is_polled(run) {
            let driver = &scope.task.driver;
            return Err(format!("driver {driver} is not there now, and only it can end the task"));
        }
        scope.workloads.kill_run(&run.id);
        return Ok(EndRequest::Taken);
    };
    let call = driver.kill(Arc::clone(&context), handle);
    match bounded(scope, (&*driver, &*context), "kill", call).await {
        Ok(()) if is_polled(run) => {
            let finished_at = scope.clock.now();
            run.set_exit(RawExit { signal: Some(KILLED), finished_at, ..RawExit::default() });
            Ok(EndRequest::Ended)
        }
        Ok(()) => Ok(EndRequest::Taken),
        Err(error) => gone(scope, run, error),
    }
}

/// What a driver does not know has ended. The end of its own workloads the host sees by itself.
fn gone(scope: &TaskScope, run: &Run, error: PluginCallError) -> Result<EndRequest, String> {
    match error {
        PluginCallError::NotFound(what) if is_polled(run) => {
            run.set_exit(unknown_to_driver(scope, &what));
            Ok(EndRequest::Ended)
        }
        PluginCallError::NotFound(_) => Ok(EndRequest::Taken),
        error => Err(error.to_string()),
    }
}

/// End a polled run of which no record will be left: the host's own kill does not reach it.
async fn end_polled(scope: &TaskScope, run: &Run) {
    if !is_polled(run) || run.exit().is_some() {
        return;
    }
    if let Err(error) = kill(scope, run).await {
        tracing::error!(run = %run.id, %error, "a task that was started in vain may still run");
    }
    destroy(scope, run).await;
}

/// Send a signal; by the host's own means while the driver cannot be asked.
///
/// # Errors
/// The driver's, or the host's.
pub async fn signal(scope: &TaskScope, run: &Run, signal: String) -> Result<(), PluginCallError> {
    let Some((driver, context, handle)) = call_parts(run) else {
        let gone = || PluginCallError::NotFound(run.id.to_string());
        let workload = run.workload().ok_or_else(gone)?;
        let sent = scope.workloads.signal(&run.id, &workload, &signal);
        return sent.map_err(PluginCallError::Recoverable);
    };
    let call = driver.signal(Arc::clone(&context), handle, signal);
    bounded(scope, (&*driver, &*context), "signal", call).await
}

/// Who asks from far away reads no more than some hundred bytes.
const NOT_ON_NODE: &str = "the task is not isolated";

/// Run a command inside the task: what exactly its driver says, and the host runs it.
///
/// # Errors
/// The driver's, or the host's.
pub async fn exec(
    scope: &TaskScope,
    run: &Run,
    command: ExecCommand,
) -> Result<ExecSession, PluginCallError> {
    let ExecCommand { argv, terminal, on_node } = command;
    if call_parts(run).is_none() {
        let _in_time = clock::timeout(EXEC_TAKEOVER_WALL_MAX, run.has_driver()).await;
    }
    let Some((driver, context, handle)) = call_parts(run) else {
        let reason = "it has not taken the task over yet".to_owned();
        return Err(PluginCallError::NotReady { name: scope.task.driver.to_string(), reason });
    };
    let capabilities = driver.capabilities();
    if let (Err(why), FsIsolation::None) = (on_node, capabilities.fs_isolation) {
        return Err(PluginCallError::PermissionDenied(format!("{NOT_ON_NODE}: {why}")));
    }
    if !capabilities.exec {
        let what = format!("driver {} runs no commands inside its tasks", scope.task.driver);
        return Err(PluginCallError::Unsupported(what));
    }
    let call = driver.exec(Arc::clone(&context), handle, argv, terminal.is_some());
    let plan = bounded(scope, (&*driver, &*context), "exec", call).await?;
    let gone = || PluginCallError::NotFound(run.id.to_string());
    let workload = run.workload().ok_or_else(gone)?;
    let session = scope.workloads.exec(&run.id, &workload, plan, terminal);
    session.await.map_err(PluginCallError::Fatal)
}

/// Did the run end before its program was let go? The host knows it of a run of an earlier agent
/// that was killed in between.
#[must_use]
pub fn never_ran(scope: &TaskScope, run: &Run) -> bool {
    let Some(workload) = run.workload().filter(|_| run.is_restored()) else { return false };
    scope.workloads.adopt(&run.id, &run.identities(), &workload) == Adoption::NotRun
}

/// The exit of a run that nobody saw end.
pub(super) fn not_known(error: String) -> ExitResult {
    RawExit { error: Some(error), ..RawExit::default() }.into()
}

/// What of a run does not end although it was killed, for people.
#[must_use]
pub fn undead(scope: &TaskScope, run: &Run) -> String {
    let left = scope.workloads.left(&run.id, &run.identities());
    match left.len() {
        0 if matches!(run.workload(), Some(Workload::WasmTask(_))) => "the WASM task".to_owned(),
        0 => "the task".to_owned(),
        1 => format!("process {}", left.join("")),
        _ => format!("processes {}", left.join(", ")),
    }
}

/// A polled run counts as over although its driver does not end it: nobody else could tell. Why.
pub(super) fn give_up(scope: &TaskScope, run: &Run) -> String {
    let error = "the workload did not end after it was killed".to_owned();
    let finished_at = scope.clock.now();
    run.set_exit(RawExit { error: Some(error.clone()), finished_at, ..RawExit::default() });
    error
}

/// Read the exit, run the exited hooks.
pub async fn finish_run(scope: &TaskScope, run: &Run) -> (ExitResult, Option<String>) {
    let (exit, trouble) = read_exit(scope, run).await;
    hooks::exited(scope).await;
    (exit, trouble)
}

/// Make driver and host forget the run, and the record. What follows it is durable already; `over`:
/// nothing does, so no later agent asks the host how it ended, and the record may lag.
pub async fn forget_run(scope: &TaskScope, record: &LocalRecord, run: &Run, over: bool) {
    destroy(scope, run).await;
    let forgotten = match over {
        true => record.update_later(|local| local.run = None).await.is_ok(),
        // While the record names the run, a later agent asks.
        false => forget(record, &run.id).await,
    };
    if forgotten {
        scope.workloads.forget_run(&run.id);
    }
}

/// Make the driver forget the run. One that it does not know is forgotten.
async fn destroy(scope: &TaskScope, run: &Run) {
    let Some((driver, context, handle)) = call_parts(run) else { return };
    let call = driver.destroy(Arc::clone(&context), handle, true);
    match bounded(scope, (&*driver, &*context), "destroy", call).await {
        Ok(()) | Err(PluginCallError::NotFound(_)) => {}
        Err(error) => tracing::warn!(run = %run.id, %error, "driver did not forget the run"),
    }
}

/// How the run ended, and what kept its driver from reading it.
async fn read_exit(scope: &TaskScope, run: &Run) -> (ExitResult, Option<String>) {
    let lost = || RawExit {
        error: Some("the exit of the workload was lost".to_owned()),
        ..RawExit::default()
    };
    let raw = run.exit().unwrap_or_else(lost).said();
    let (exit, trouble) = match call_parts(run) {
        None => (raw.clone().into(), None),
        Some((driver, context, handle)) => {
            let call = driver.exited(Arc::clone(&context), handle, raw.clone());
            match bounded(scope, (&*driver, &*context), "exited", call).await {
                Ok(exit) => (exit, None),
                Err(error) => {
                    let trouble = format!("exit taken as the host saw it: {error}");
                    (raw.clone().into(), Some(trouble))
                }
            }
        }
    };
    let mut exit = exit.coded(&raw);
    if exit.oom_killed && !exit.successful() && exit.error.is_none() {
        exit.error = Some(out_of_memory(scope.task.resources.memory_limit_bytes()));
    }
    (exit, trouble)
}

/// Stop hooks, and what an abandoned start may have left. Then the record says complete.
pub async fn end(scope: &TaskScope, record: &LocalRecord, run: Option<&Run>) {
    if let Some(run) = run {
        // A start that was dropped is first waited for: what it spawns last must be killed too.
        if clock::timeout(KILL_GRACE, run.start_over()).await.is_none() {
            tracing::error!(run = %run.id, "the start call did not end after it was dropped");
        }
        end_polled(scope, run).await;
        scope.workloads.kill_run(&run.id);
    }
    hooks::stop(scope).await;
    // An intent that was not taken up is none's.
    let begun = |known: RunRecord| run.is_some() || known.started.is_some();
    let forgotten = !record.run().await.is_some_and(begun);
    let complete = |local: &mut super::handle::LocalState| {
        local.run = None;
        local.run_complete = true;
    };
    // Of a run that is forgotten nobody asks any more: the end of the allocation takes this along.
    let written = match forgotten {
        true => record.update_later(complete).await,
        false => record.update(complete).await,
    };
    match (written, run) {
        // One that is forgotten, the host forgot when that was durable, if it ever was.
        (Ok(()), Some(run)) if !forgotten => scope.workloads.forget_run(&run.id),
        (Ok(()), _) => {}
        // The host remembers how the run ended: a later agent that finds it on record asks there.
        (Err(error), _) => {
            tracing::error!(task = %scope.task.name, error = %error.text(), "end of task not recorded");
            let _kept = record.update_later(|_| {}).await;
        }
    }
}
