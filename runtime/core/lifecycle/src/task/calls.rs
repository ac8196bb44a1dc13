//! The acts of a task runner that take time. Each is a bounded future of its own that ends with a
//! typed answer. None of them touches the machine.

use std::sync::Arc;
use std::time::Duration;

use super::TaskScope;
use super::handle::{LocalRecord, RunIntent, RunRecord, StartedRecord, TaskRecordError};
use super::hooks::{self, HookError, Preparation};
pub use super::notes::DriverNote;
pub use super::run::{TaskRun, new_id};
use crate::queue;
use ostler_model::clock;
use ostler_model::ids::RunId;
use ostler_model::limits::{
    DRIVER_CALL_WALL_MAX, EXEC_TAKEOVER_WALL_MAX, KILL_GRACE, PLUGIN_CALL_SLACK, POLL_INTERVAL_MIN,
    START_WALL_MAX,
};
use ostler_model::ports::{
    Adoption, BoxFuture, FsIsolation, InspectResult, PluginCallError, RunNote, StartedTask,
    TaskContext, TaskDriver,
};
use ostler_model::session::{ExecCommand, ExecSession};
use ostler_model::task::{DriverHandle, ExitResult, RawExit, Workload, out_of_memory};
use ostler_state::ExpectedWrite;

/// The signal that ends a task where neither job nor driver names another. The drivers have
/// the same default.
const KILL_SIGNAL_DEFAULT: &str = "SIGINT";
/// Signal number shown for a polled task that its driver killed.
const KILLED: u32 = 9;

/// Why a start failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskStartError {
    /// What failed, for the event.
    pub error: String,
    /// A later start may succeed.
    pub recoverable: bool,
}

/// Run a driver's start with the runner's own bound.
async fn bounded_start(
    scope: &TaskScope,
    future: BoxFuture<'_, Result<StartedTask, PluginCallError>>,
) -> Result<StartedTask, PluginCallError> {
    let late = || no_answer(scope, "start", START_WALL_MAX);
    clock::timeout(START_WALL_MAX, future).await.unwrap_or_else(|| Err(late()))
}

/// Run any other driver call about a task with the runner's own bound. The bound is longer than the
/// driver's deadline, so that only a call that hangs is given up. That counts against the driver.
pub(super) async fn bounded_call<T>(
    scope: &TaskScope,
    (driver, task): (&dyn TaskDriver, &TaskContext),
    call: &'static str,
    future: BoxFuture<'_, Result<T, PluginCallError>>,
) -> Result<T, PluginCallError> {
    let own = driver.call_wall().saturating_mul(2).saturating_add(PLUGIN_CALL_SLACK);
    let bound = DRIVER_CALL_WALL_MAX.max(own);
    match clock::timeout(bound, future).await {
        Some(answer) => answer,
        None => {
            driver.report_hang(call, task, bound);
            Err(no_answer(scope, call, bound))
        }
    }
}

fn no_answer(scope: &TaskScope, call: &'static str, bound: Duration) -> PluginCallError {
    let (plugin, reason) = (scope.task.driver.to_string(), format!("no answer within {bound:?}"));
    PluginCallError::CallFailed { plugin, call, reason }
}

/// The result of a request to end a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndRequest {
    /// The run is ending. Whoever waits for the workload sees its end.
    Taken,
    /// The driver says that the run has ended, and the host has nothing to wait for.
    Ended,
}

/// Prepare a run. Where the driver holds its starts, the intent goes on its way to the disk first.
/// What is prepared and started meanwhile leaves nothing behind that the next agent could not clear
/// after a crash. The intent of a first run may be on its way already.
///
/// # Errors
/// The first hook's that fails; or the intent cannot be queued.
pub async fn prepare(
    scope: &TaskScope,
    record: &LocalRecord,
    intent: Option<RunIntent>,
    notes: queue::QueueSender<DriverNote>,
) -> Result<Preparation, HookError> {
    let held =
        || scope.node.drivers.dispense(&scope.task.driver).is_ok_and(|one| one.holds_starts());
    let intent = match intent {
        None if held() => {
            let intent = record.intend(new_id(scope)).await;
            Some(intent.map_err(|e| HookError::passing_setup(e.text()))?)
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

/// Start a run, keep its identities and its handle, and release it. The intent is durable before
/// anything of the run can have an effect: before the driver is asked, or, where the driver holds
/// its starts, before the run is released. After an error nothing of the run is left.
///
/// # Errors
/// When the intent or the handle cannot be written, the driver fails, or the program does not run.
pub async fn start(
    scope: &TaskScope,
    record: &LocalRecord,
    run: &TaskRun,
) -> Result<(), TaskStartError> {
    // Announces a write to the store, until the identity of the run is written or the start failed.
    let coming = scope.node.state.expect();
    let (Some(config), Some((driver, context))) = (run.take_config(), driver_and_context(run))
    else {
        let error = format!("{} was started before", run.id);
        return Err(TaskStartError { error, recoverable: false });
    };
    let mut intent = run.take_intent();
    // Another version of the driver may be in its place by now.
    if !driver.holds_starts() || intent.is_none() {
        make_intent_durable(record, run, intent.take()).await?;
    }
    let call = driver.start(context, config);
    let begun = match bounded_start(scope, call).await {
        Ok(StartedTask { workload: Workload::Poll(_), handle, .. })
            if scope.context.network.get().is_some() =>
        {
            // The undo below ends the run by this handle.
            run.set_driver_answer(StartedTask {
                workload: Workload::Poll(0),
                handle,
                network: None,
            });
            let error = format!(
                "driver {} runs its tasks itself, outside of the network of their allocation; use a driver \
                 whose tasks the host runs, such as exec, or a network of mode host",
                scope.task.driver
            );
            Err(TaskStartError { error, recoverable: false })
        }
        Ok(started) => release_run(scope, record, run, (started, intent, coming)).await,
        Err(error) => {
            Err(TaskStartError { recoverable: error.is_recoverable(), error: error.to_string() })
        }
    };
    if begun.is_err() {
        undo_start(scope, record, run).await;
    }
    begun
}

/// Wait until the intent is durable.
async fn make_intent_durable(
    record: &LocalRecord,
    run: &TaskRun,
    intent: Option<RunIntent>,
) -> Result<(), TaskStartError> {
    let written = async {
        let intent = match intent {
            Some(intent) => intent,
            None => record.intend(run.id.clone()).await?,
        };
        intent.wait_durable().await
    };
    written.await.map_err(|e| TaskStartError { error: e.text(), recoverable: true })
}

/// Release a started run. Until now the host holds it: not one instruction of it has run. It is
/// released when the intent is durable, and when all that a later agent needs to own the run is
/// kept: by the record, or by a note beside the run's exit, which the record follows.
async fn release_run(
    scope: &TaskScope,
    record: &LocalRecord,
    run: &TaskRun,
    (started, intent, coming): (StartedTask, Option<RunIntent>, ExpectedWrite),
) -> Result<(), TaskStartError> {
    scope.context.network.set_of_driver(&scope.task.name, started.network.clone());
    run.set_driver_answer(started.clone());
    let identities = run.release();
    let change = |local: &mut super::handle::LocalState| {
        if let Some(now) = local.run.as_mut() {
            now.identities = identities;
            now.started = Some(StartedRecord::from(started));
        }
        // This clears a delay of an older plan too, which may have been written after the intent.
        local.delayed_until = None;
    };
    let failed = |e: TaskRecordError| TaskStartError { error: e.text(), recoverable: true };
    record.count_step();
    record.update_later(change).await.map_err(failed)?;
    let intended = async {
        match intent {
            Some(intent) => intent.wait_durable().await,
            None => Ok(()),
        }
    };
    let (intended, kept) = tokio::join!(intended, note_run(scope, record, run));
    intended.map_err(failed)?;
    drop(coming);
    if !kept {
        record.update_with_other_starts(|_| {}).await.map_err(failed)?;
    }
    let released = scope.node.workloads.release(&run.id).await;
    released
        .map_err(|failed| TaskStartError { error: failed.text, recoverable: failed.recoverable })
}

/// Keep a note that says which task the run belongs to, for an agent whose state file does not know
/// the run. True when the note is kept: the host runs the workload, and the note outlives the agent
/// as long as the run may.
pub(super) async fn note_run(scope: &TaskScope, record: &LocalRecord, run: &TaskRun) -> bool {
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
    scope.node.workloads.note(&run.id, about).await
}

/// Remove everything of a start that failed.
async fn undo_start(scope: &TaskScope, record: &LocalRecord, run: &TaskRun) {
    run.abandon();
    end_polled(scope, run).await;
    run.clear_driver_answer();
    scope.node.workloads.kill_run(&run.id);
    scope.node.workloads.forget_run(&run.id);
    let _said = forget_record(record, &run.id).await;
}

/// Driver and context of a run, once both are known.
fn driver_and_context(run: &TaskRun) -> Option<(Arc<dyn TaskDriver>, Arc<TaskContext>)> {
    Some((Arc::clone(run.driver()?), run.context()?))
}

/// What a driver call about a started run needs. `None` where the run has no handle of a driver.
fn call_parts(run: &TaskRun) -> Option<(Arc<dyn TaskDriver>, Arc<TaskContext>, DriverHandle)> {
    let (driver, context) = driver_and_context(run)?;
    let handle = run.handle().filter(|handle| !handle.plugin.is_empty())?;
    Some((driver, context, handle))
}

/// Write that there is no run. Returns whether that is durable.
async fn forget_record(record: &LocalRecord, run: &RunId) -> bool {
    let written = record.update(|local| local.run = None).await;
    if let Err(error) = &written {
        tracing::error!(%run, error = %error.text(), "end of run not recorded");
    }
    written.is_ok()
}

/// Wait until the workload is gone, and keep its exit in the run. Not bounded; the timers of the
/// machine are the second way out.
pub async fn watch(scope: &TaskScope, run: &TaskRun) {
    let Some(started) = run.driver_answer() else {
        return;
    };
    let exit = match &started.workload {
        Workload::Poll(millis) => poll(scope, run, &started.handle, *millis).await,
        workload => scope.node.workloads.wait(&run.id, workload).await,
    };
    run.set_exit(exit);
}

async fn poll(scope: &TaskScope, run: &TaskRun, handle: &DriverHandle, millis: u64) -> RawExit {
    let interval = Duration::from_millis(millis).max(POLL_INTERVAL_MIN);
    loop {
        clock::sleep(interval).await;
        let Some((driver, context)) = driver_and_context(run) else {
            // The driver of an earlier agent's run is not known yet.
            continue;
        };
        let call = driver.inspect(Arc::clone(&context), handle.clone());
        match bounded_call(scope, (&*driver, &*context), "inspect", call).await {
            Ok(InspectResult::Exited(exit)) => return exit,
            Ok(InspectResult::Running | InspectResult::Unknown) => {}
            Err(PluginCallError::NotFound(what)) => {
                return unknown_run_exit(scope, &what);
            }
            Err(error) => tracing::warn!(run = %run.id, %error, "inspect failed, asking again"),
        }
    }
}

/// The exit of a polled run that its driver does not know.
fn unknown_run_exit(scope: &TaskScope, what: &str) -> RawExit {
    RawExit {
        error: Some(format!("the driver no longer knows the task: {what}")),
        finished_at: scope.node.clock.now(),
        ..RawExit::default()
    }
}

/// Is the workload one whose end only its driver can tell?
pub(super) fn is_polled(run: &TaskRun) -> bool {
    matches!(run.workload(), Some(Workload::Poll(_)))
}

/// Ask the driver to stop the task, or, while the driver cannot be asked, signal the task's
/// process. A task that the driver does not find counts as stopped.
///
/// # Errors
/// The text for the event.
pub async fn stop(
    scope: &TaskScope,
    run: &TaskRun,
    timeout: Duration,
) -> Result<EndRequest, String> {
    let signal = scope.task.kill_signal.clone();
    let Some((driver, context, handle)) = call_parts(run) else {
        let Some(workload) = run.workload() else {
            // Nothing of the run is known that a signal could be sent to.
            scope.node.workloads.kill_run(&run.id);
            return Ok(EndRequest::Taken);
        };
        let signal = signal.as_deref().unwrap_or(KILL_SIGNAL_DEFAULT);
        return scope.node.workloads.signal(&run.id, &workload, signal).map(|()| EndRequest::Taken);
    };
    let call = driver.stop(Arc::clone(&context), handle, signal, timeout);
    match bounded_call(scope, (&*driver, &*context), "stop", call).await {
        Ok(()) => Ok(EndRequest::Taken),
        Err(error) => end_after_error(scope, run, error),
    }
}

/// Ask the driver to kill the task, or, while the driver cannot be asked, kill what the host has of
/// it. A polled run has ended when the driver's kill succeeds.
///
/// # Errors
/// The text for the event.
pub async fn kill(scope: &TaskScope, run: &TaskRun) -> Result<EndRequest, String> {
    let Some((driver, context, handle)) = call_parts(run) else {
        if is_polled(run) {
            let driver = &scope.task.driver;
            return Err(format!(
                "driver {driver} is not available now, and only it can end the task"
            ));
        }
        scope.node.workloads.kill_run(&run.id);
        return Ok(EndRequest::Taken);
    };
    let call = driver.kill(Arc::clone(&context), handle);
    match bounded_call(scope, (&*driver, &*context), "kill", call).await {
        Ok(()) if is_polled(run) => {
            let finished_at = scope.node.clock.now();
            run.set_exit(RawExit { signal: Some(KILLED), finished_at, ..RawExit::default() });
            Ok(EndRequest::Ended)
        }
        Ok(()) => Ok(EndRequest::Taken),
        Err(error) => end_after_error(scope, run, error),
    }
}

/// The result of a stop or kill that failed. A run that its driver does not know has ended; the
/// host sees the end of its own workloads by itself.
fn end_after_error(
    scope: &TaskScope,
    run: &TaskRun,
    error: PluginCallError,
) -> Result<EndRequest, String> {
    match error {
        PluginCallError::NotFound(what) if is_polled(run) => {
            run.set_exit(unknown_run_exit(scope, &what));
            Ok(EndRequest::Ended)
        }
        PluginCallError::NotFound(_) => Ok(EndRequest::Taken),
        error => Err(error.to_string()),
    }
}

/// End a polled run of which no record will be left. The host's own kill does not reach such a run.
async fn end_polled(scope: &TaskScope, run: &TaskRun) {
    if !is_polled(run) || run.exit().is_some() {
        return;
    }
    if let Err(error) = kill(scope, run).await {
        tracing::error!(run = %run.id, %error, "a task that was started in vain may still run");
    }
    destroy(scope, run).await;
}

/// Send a signal to the task. The host sends it by its own means while the driver cannot be asked.
///
/// # Errors
/// The driver's, or the host's.
pub async fn signal(
    scope: &TaskScope,
    run: &TaskRun,
    signal: String,
) -> Result<(), PluginCallError> {
    let Some((driver, context, handle)) = call_parts(run) else {
        let gone = || PluginCallError::NotFound(run.id.to_string());
        let workload = run.workload().ok_or_else(gone)?;
        let sent = scope.node.workloads.signal(&run.id, &workload, &signal);
        return sent.map_err(PluginCallError::Recoverable);
    };
    let call = driver.signal(Arc::clone(&context), handle, signal);
    bounded_call(scope, (&*driver, &*context), "signal", call).await
}

/// Why a command is refused from another node. It is short, because an asker on another node gets
/// some hundred bytes.
const NOT_ISOLATED: &str = "the task is not isolated";

/// Run a command inside the task. Its driver says what exactly is to be run, and the
/// host runs that.
///
/// # Errors
/// The driver's, or the host's.
pub async fn exec(
    scope: &TaskScope,
    run: &TaskRun,
    command: ExecCommand,
) -> Result<ExecSession, PluginCallError> {
    let ExecCommand { argv, terminal, on_node } = command;
    if call_parts(run).is_none() {
        let _in_time = clock::timeout(EXEC_TAKEOVER_WALL_MAX, run.wait_driver()).await;
    }
    let Some((driver, context, handle)) = call_parts(run) else {
        let reason = "it has not taken the task over yet".to_owned();
        return Err(PluginCallError::NotReady { name: scope.task.driver.to_string(), reason });
    };
    let capabilities = driver.capabilities();
    if let (Err(why), FsIsolation::None) = (on_node, capabilities.fs_isolation) {
        return Err(PluginCallError::PermissionDenied(format!("{NOT_ISOLATED}: {why}")));
    }
    if !capabilities.exec {
        let what = format!("driver {} runs no commands inside its tasks", scope.task.driver);
        return Err(PluginCallError::Unsupported(what));
    }
    let call = driver.exec(Arc::clone(&context), handle, argv, terminal.is_some());
    let plan = bounded_call(scope, (&*driver, &*context), "exec", call).await?;
    let gone = || PluginCallError::NotFound(run.id.to_string());
    let workload = run.workload().ok_or_else(gone)?;
    let session = scope.node.workloads.exec(&run.id, &workload, plan, terminal);
    session.await.map_err(PluginCallError::Fatal)
}

/// Did the run end before its program was released? The host knows that of a run whose agent was
/// killed before the release.
#[must_use]
pub fn never_ran(scope: &TaskScope, run: &TaskRun) -> bool {
    let Some(workload) = run.workload().filter(|_| run.is_restored()) else { return false };
    scope.node.workloads.adopt(&run.id, &run.identities(), &workload) == Adoption::NotRun
}

/// The exit of a run that nobody saw end.
pub(super) fn unknown_exit(error: String) -> ExitResult {
    RawExit { error: Some(error), ..RawExit::default() }.into()
}

/// A text for people: the parts of a run that do not end although they were killed.
#[must_use]
pub fn undead_text(scope: &TaskScope, run: &TaskRun) -> String {
    let left = scope.node.workloads.list_leftovers(&run.id, &run.identities());
    match left.len() {
        0 if matches!(run.workload(), Some(Workload::WasmTask(_))) => "the WASM task".to_owned(),
        0 => "the task".to_owned(),
        1 => format!("process {}", left.join("")),
        _ => format!("processes {}", left.join(", ")),
    }
}

/// Count a polled run as over although its driver does not end it, because nobody else can tell.
/// Returns the reason.
pub(super) fn give_up(scope: &TaskScope, run: &TaskRun) -> String {
    let error = "the workload did not end after it was killed".to_owned();
    let finished_at = scope.node.clock.now();
    run.set_exit(RawExit { error: Some(error.clone()), finished_at, ..RawExit::default() });
    error
}

/// Read the exit of a run, and run the exited hooks.
pub async fn finish_run(scope: &TaskScope, run: &TaskRun) -> (ExitResult, Option<String>) {
    let (exit, trouble) = read_exit(scope, run).await;
    hooks::run_exited_hooks(scope).await;
    (exit, trouble)
}

/// Make driver, host and record forget the run. What follows the run is durable already.
/// With `over` no run follows, so no later agent asks the host how the run ended, and the
/// record may lag.
pub async fn forget_run(scope: &TaskScope, record: &LocalRecord, run: &TaskRun, over: bool) {
    destroy(scope, run).await;
    let forgotten = if over {
        record.update_later(|local| local.run = None).await.is_ok()
    } else {
        // While the record names the run, a later agent asks for its end.
        forget_record(record, &run.id).await
    };
    if forgotten {
        scope.node.workloads.forget_run(&run.id);
    }
}

/// Make the driver forget the run. A run that the driver does not know counts as forgotten.
async fn destroy(scope: &TaskScope, run: &TaskRun) {
    let Some((driver, context, handle)) = call_parts(run) else { return };
    let call = driver.destroy(Arc::clone(&context), handle, true);
    match bounded_call(scope, (&*driver, &*context), "destroy", call).await {
        Ok(()) | Err(PluginCallError::NotFound(_)) => {}
        Err(error) => tracing::warn!(run = %run.id, %error, "driver did not forget the run"),
    }
}

/// Read how the run ended. The second value says what kept the driver from reading the exit.
async fn read_exit(scope: &TaskScope, run: &TaskRun) -> (ExitResult, Option<String>) {
    let lost = || RawExit {
        error: Some("the exit of the workload was lost".to_owned()),
        ..RawExit::default()
    };
    let raw = run.exit().unwrap_or_else(lost).fill_missing_error();
    let (exit, trouble) = match call_parts(run) {
        None => (raw.clone().into(), None),
        Some((driver, context, handle)) => {
            let call = driver.interpret_exit(Arc::clone(&context), handle, raw.clone());
            match bounded_call(scope, (&*driver, &*context), "exited", call).await {
                Ok(exit) => (exit, None),
                Err(error) => {
                    let trouble = format!("exit taken as the host saw it: {error}");
                    (raw.clone().into(), Some(trouble))
                }
            }
        }
    };
    let mut exit = exit.with_failure_code(&raw);
    if exit.oom_killed && !exit.is_successful() && exit.error.is_none() {
        exit.error = Some(out_of_memory(scope.task.resources.memory_limit_bytes()));
    }
    (exit, trouble)
}

/// Run the stop hooks and end what an abandoned start may have left. Then write that the
/// task is complete.
pub async fn end(scope: &TaskScope, record: &LocalRecord, run: Option<&TaskRun>) {
    if let Some(run) = run {
        // A start that was dropped must end first, because what it spawns last must be killed too.
        if clock::timeout(KILL_GRACE, run.wait_start_call()).await.is_none() {
            tracing::error!(run = %run.id, "the start call did not end after it was dropped");
        }
        end_polled(scope, run).await;
        scope.node.workloads.kill_run(&run.id);
    }
    hooks::run_stop_hooks(scope).await;
    // An intent that no run took up counts as no run.
    let begun = |known: RunRecord| run.is_some() || known.started.is_some();
    let forgotten = !record.run().await.is_some_and(begun);
    let complete = |local: &mut super::handle::LocalState| {
        local.run = None;
        local.run_complete = true;
    };
    // Nobody asks for a run that is forgotten, so this may lag: the end of the allocation
    // writes it along.
    let written =
        if forgotten { record.update_later(complete).await } else { record.update(complete).await };
    match (written, run) {
        // The host forgot a forgotten run when that was durable, if it ever was.
        (Ok(()), Some(run)) if !forgotten => scope.node.workloads.forget_run(&run.id),
        (Ok(()), _) => {}
        // The host still knows how the run ended: a later agent that finds the run on
        // record asks it.
        (Err(error), _) => {
            tracing::error!(task = %scope.task.name, error = %error.text(), "end of task not recorded");
            let _kept = record.update_later(|_| {}).await;
        }
    }
}
