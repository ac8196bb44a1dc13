//! One call of a plugin: a new store, one function, the store dropped.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};
use wasmtime::Store;

use super::bindings::since_0_1::host::types as wit;
use super::convert;
use super::failure::Failure;
use super::observe::{CallEnd, CallObserver, EndedCall, ObservedCall};
use super::slots::{Slots, StartTurn};
use super::weigh::Weigh;
use crate::host::call_state::HostTime;
use crate::host::trace::Tracer;
use crate::host::{CallState, HostServices, PluginContext};
use ostler_health::meter::PluginMeter;
use ostler_health::metrics::BytesMoved;
use ostler_health::refresh::NextCheck;
use ostler_health::strikes::TaskKey;
use ostler_model::clock::{Stopwatch, Timestamp, timeout};
use ostler_model::grants::Grants;
use ostler_model::grants::answers::Answers;
use ostler_model::ids::JobId;
use ostler_model::json::JsonObject;
use ostler_model::limits;
use ostler_model::ports::{PluginCallError, TaskContext, TaskOwner};
use ostler_model::redact::Secrets;
use ostler_sandbox::{
    Blocks, CallError, CallPace, CpuMeter, EngineKind, GuestLimiter, GuestTask, StoreLimits,
    StoreState, Tail, classify, meter_host_calls, new_store,
};

/// How often a call whose guest waits for host work with a deadline of its own is looked at.
const HOST_WORK_LOOK: Duration = Duration::from_millis(50);

/// A future inside a store.
pub(super) type InStore<'a, T> = Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>;

/// How a call ended and what it cost. To be given to [`Caller::answer`] or [`Caller::done`], which
/// count it.
pub(super) struct Called<T> {
    result: Result<T, Failure>,
    at: Timestamp,
    took: Duration,
    cpu: Duration,
    moved: BytesMoved,
    /// Its arguments in their compact form, when somebody is told of it.
    arguments: Vec<u8>,
    observed: Option<Box<dyn ObservedCall>>,
    /// Its span in the trace of whoever called.
    span: Span,
}

impl<T> Called<T> {
    /// What it was asked with: see [`Caller::arguments`].
    pub(super) fn asked(mut self, arguments: Vec<u8>) -> Self {
        self.arguments = arguments;
        self
    }

    /// How it ended, counted by nobody.
    pub(super) fn into_result(self) -> Result<T, Failure> {
        self.result
    }

    /// Count the bytes of its arguments.
    pub(super) fn given(mut self, bytes: u64) -> Self {
        self.moved.bytes_in += bytes;
        self
    }
}

/// One question to a plugin: the function, and whom its failure counts against.
pub(super) struct Ask {
    call: &'static str,
    task: Option<Arc<TaskContext>>,
    /// Fingerprint of the task's configuration, of a start.
    config: Option<u64>,
    /// Number of the call at its observer.
    number: AtomicU64,
}

impl Ask {
    fn task_key(&self) -> Option<TaskKey> {
        self.task.as_deref().map(task_key)
    }
}

fn task_key(task: &TaskContext) -> TaskKey {
    let (job, group, task) = (&task.job_id, &task.group, &task.task);
    TaskKey { job: job.clone(), group: group.clone(), task: task.clone() }
}

/// Calls into one plugin. `P` is the pre-linked code of its world.
pub(super) struct Caller<P> {
    pre: Arc<P>,
    context: Arc<PluginContext>,
    limits: StoreLimits,
    services: HostServices,
    slots: Slots,
    meter: Arc<PluginMeter>,
    /// Absent where a host function could block: its calls stay off the caller's thread.
    pace: Option<CallPace>,
    /// May its host functions hold a thread?
    blocks: Blocks,
    observer: Option<Arc<dyn CallObserver>>,
    /// The last call computed long: the next begins among the busy guests.
    slow: AtomicBool,
}

impl<P: Send + Sync + 'static> Caller<P> {
    pub(super) fn new(
        pre: P,
        context: Arc<PluginContext>,
        limits: StoreLimits,
        services: HostServices,
        slots: Arc<Semaphore>,
        meter: Arc<PluginMeter>,
        observer: Option<Arc<dyn CallObserver>>,
    ) -> Self {
        // What no plugin needs a grant for never blocks, and a call goes elsewhere before it touches a
        // granted file; whatever else is granted might.
        let near = context.grants.opens_only_files()
            && context.limits.call_wall_max >= limits::INLINE_DEADLINE_MIN;
        let slots = Slots::new(slots);
        let pace = near.then(CallPace::default);
        // Directories are opened and files read on the thread of the call, also those of a WASM task.
        let opens = !context.grants.files.is_empty() || context.grants.wasm_task;
        let blocks = if opens { Blocks::Maybe } else { Blocks::Never };
        let (pre, slow) = (Arc::new(pre), AtomicBool::new(false));
        Self { pre, context, limits, services, slots, meter, pace, blocks, observer, slow }
    }

    /// The plugin described itself: the schemas of its own configuration and of its tasks'.
    pub(super) fn described(&self, own: &str, task: &str) {
        self.context.described(own);
        if let Some(observer) = &self.observer {
            observer.described(own, task);
        }
    }

    /// The arguments of a call (a tuple) in their compact form; nothing when nobody is told of it.
    pub(super) fn arguments(&self, arguments: &impl Serialize) -> Vec<u8> {
        if self.observer.is_none() {
            return Vec::new();
        }
        // Into memory, of plain data: it does not fail. Were it to, they could not be read again.
        postcard::to_stdvec(arguments).unwrap_or_default()
    }

    /// A question about no task, when the plugin may be asked it now.
    pub(super) fn ask(&self, call: &'static str) -> Result<Ask, PluginCallError> {
        self.meter.admit(call, None)?;
        Ok(Ask { call, task: None, config: None, number: AtomicU64::new(0) })
    }

    /// A question about a task that is there, when the plugin may be asked it now.
    pub(super) fn ask_about(
        &self,
        call: &'static str,
        task: &Arc<TaskContext>,
    ) -> Result<Ask, PluginCallError> {
        self.meter.admit(call, None)?;
        Ok(Ask { call, task: Some(Arc::clone(task)), config: None, number: AtomicU64::new(0) })
    }

    /// The question to start a task, when the plugin may be asked it with this configuration now.
    pub(super) fn ask_to_start(
        &self,
        task: &Arc<TaskContext>,
        config: &JsonObject,
    ) -> Result<Ask, PluginCallError> {
        let mut hasher = DefaultHasher::new();
        config.text().hash(&mut hasher);
        let config = hasher.finish();
        let (task, number) = (Some(Arc::clone(task)), AtomicU64::new(0));
        let ask = Ask { call: "start", task, config: Some(config), number };
        if self.meter.suspect() {
            let key = ask.task_key();
            self.meter.admit("start", key.as_ref().map(|key| (key, config)))?;
        }
        Ok(ask)
    }

    /// The error for a call that did not answer, or answered against the rules: a strike.
    pub(super) fn failed(&self, ask: &Ask, reason: impl Display) -> PluginCallError {
        let reason = self.without_secrets(ask, reason.to_string());
        if let Some(observer) = &self.observer {
            observer.broken(ask.number.load(Ordering::Relaxed), reason.clone());
        }
        self.strike(ask, reason)
    }

    /// A text that has words of the plugin, without the secrets that it was given with this question.
    pub(super) fn without_secrets(&self, ask: &Ask, mut text: String) -> String {
        self.context.secrets(ask.task.as_deref()).scrub_text(&mut text);
        text
    }

    /// What the plugin was given that is secret, whatever it is asked.
    pub(super) fn own_secrets(&self) -> Secrets {
        self.context.secrets(None)
    }

    fn strike(&self, ask: &Ask, reason: impl Display) -> PluginCallError {
        let task = ask.task_key().map(|key| (key, ask.config));
        let plugin = self.context.name.as_str();
        tracing::warn!(plugin, call = ask.call, "a call of the plugin failed: {reason}");
        self.meter.failed(ask.call, task, &reason);
        self.call_failed(ask, &reason)
    }

    /// A call that the plugin did not answer for: no strike when it was not its fault.
    fn unanswered(&self, ask: &Ask, failure: &Failure) -> PluginCallError {
        if failure.of_the_plugin() {
            self.strike(ask, failure)
        } else {
            self.call_failed(ask, failure)
        }
    }

    /// Who asked gave a call up after so long: a strike, as of one that ran into its own deadline.
    pub(super) fn given_up(&self, call: &'static str, task: Option<&TaskContext>, after: Duration) {
        self.meter.ended(call, after, Duration::ZERO, BytesMoved::default());
        let task = task.map(|task| (task_key(task), None));
        self.meter.failed(call, task, &format!("no answer within {after:?}"));
    }

    /// Whose the files are of a task that the plugin starts as this user, or isolated as whom its grant says.
    /// What is not granted is refused when it is started.
    pub(super) async fn owner(
        &self,
        user: Option<String>,
        isolated: bool,
    ) -> Result<TaskOwner, PluginCallError> {
        let grants = &self.context.grants;
        if !grants.process || !grants.allow_user(user.as_deref()) {
            return Ok(TaskOwner::Agent);
        }
        // Whom the configuration names, and who is named by the job, is that user in every allocation.
        let of_alloc = isolated && user.is_none() && grants.isolated_user().is_none();
        let isolated_as = isolated.then(|| grants.isolated_as());
        let found = self.services.processes.owner(user, isolated_as).await;
        let found = found.map_err(|error| PluginCallError::Fatal(ostler_process::chain(&error)))?;
        Ok(match found {
            None => TaskOwner::Agent,
            Some(otherwise) if of_alloc => TaskOwner::OfAlloc { otherwise },
            Some(user) => TaskOwner::User(user),
        })
    }

    /// The deadline of one call.
    pub(super) fn call_wall(&self) -> Duration {
        self.context.limits.call_wall_max
    }

    /// The turn of a start of this job; to be held until it has answered.
    pub(super) async fn start_turn(&self, job: &JobId) -> StartTurn {
        self.slots.start(job).await
    }

    fn call_failed(&self, ask: &Ask, reason: &impl Display) -> PluginCallError {
        let plugin = self.context.name.clone();
        PluginCallError::CallFailed { plugin, call: ask.call, reason: reason.to_string() }
    }

    /// Count a call; what it gave.
    pub(super) fn done<T>(&self, call: &'static str, called: Called<T>) -> Result<T, Failure> {
        let (result, _number) = self.ended(call, called, |_answer| CallEnd::Answered);
        result
    }

    /// Count a call and tell its observer of it; what it gave, and its number there.
    fn ended<T>(
        &self,
        call: &'static str,
        called: Called<T>,
        end: impl FnOnce(&T) -> CallEnd<&'static Failure>,
    ) -> (Result<T, Failure>, u64) {
        let Called { result, at, took, cpu, moved, arguments, observed, span } = called;
        self.meter.ended(call, took, cpu, moved);
        let end: CallEnd<&Failure> = match &result {
            Ok(answer) => {
                self.meter.answered();
                end(answer)
            }
            Err(failure) => CallEnd::Failed(failure),
        };
        span.record("otel.name", display(format_args!("plugin {call}")));
        match &end {
            CallEnd::Answered => {}
            CallEnd::Refused(why) | CallEnd::Broken(why) => {
                span.record("error", why.as_str());
            }
            CallEnd::Failed(failure) => {
                span.record("error", display(failure));
            }
        }
        drop(span);
        let ended = EndedCall { function: call, at, took, arguments, end };
        let number = observed.map_or(0, |observed| observed.ended(ended));
        (result, number)
    }

    /// The answer, or the plugin's own error, or that the call failed. Counted.
    pub(super) fn answer<T: Weigh>(
        &self,
        ask: &Ask,
        mut called: Called<Result<T, wit::PluginError>>,
    ) -> Result<T, PluginCallError> {
        match &mut called.result {
            Ok(Ok(answer)) => called.moved.bytes_out += answer.weigh(),
            Ok(Err(error)) => {
                let secrets = self.context.secrets(ask.task.as_deref());
                for text in convert::words(error) {
                    secrets.scrub_text(text);
                }
            }
            Err(_already_without) => {}
        }
        let (answer, number) = self.ended(ask.call, called, |answer| match answer {
            Ok(_) => CallEnd::Answered,
            Err(error) => CallEnd::Refused(convert::plugin_error(error.clone()).to_string()),
        });
        ask.number.store(number, Ordering::Relaxed);
        let answer = answer.map_err(|e| self.unanswered(ask, &e))?;
        answer.map_err(convert::plugin_error)
    }

    /// Write its last calls to a file. `None`: nothing is recorded of it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) async fn record(&self) -> io::Result<Option<PathBuf>> {
        match &self.observer {
            Some(observer) => observer.write_now().await,
            None => Ok(None),
        }
    }

    /// What of a plugin's watches is granted: a path that it may not read tells it nothing.
    pub(super) fn narrowed(&self, mut next: NextCheck) -> NextCheck {
        let asked = next.paths.len();
        next.paths.retain(|path| self.context.grants.allow_watch(Path::new(path)));
        let dropped = asked - next.paths.len();
        if dropped > 0 {
            let plugin = self.context.name.as_str();
            tracing::warn!(plugin, dropped, "it asks to watch paths outside its files grants");
        }
        next
    }

    /// What it was granted.
    pub(super) fn grants(&self) -> &Grants {
        &self.context.grants
    }

    /// What its answers may cause.
    pub(super) fn answers(&self) -> Answers<'_> {
        Answers { name: &self.context.name, grants: &self.context.grants }
    }

    /// The host's time, against which an answer is checked.
    pub(super) fn now(&self) -> Timestamp {
        self.services.clock.now()
    }

    pub(super) fn meter(&self) -> &Arc<PluginMeter> {
        &self.meter
    }

    /// Run `body` on a new instance within the plugin's deadline. It begins with the guest: the wait
    /// for a place does not count, nor does host work with a deadline of its own.
    pub(super) async fn call<T, F>(&self, task: Option<Arc<TaskContext>>, body: F) -> Called<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let observed = self.observer.clone().map(CallObserver::begins);
        let log = observed.as_ref().map(|observed| observed.host_calls());
        let tracer = log.map_or(Tracer::Off, Tracer::Recording);
        let plugin = self.context.name.as_str();
        let span =
            ostler_trace::span_here!("plugin call", otel.name = Empty, plugin, error = Empty);
        let called = self.traced(task, tracer, body).instrument(span.clone()).await;
        Called { observed, span, ..called }
    }

    /// Run `body` likewise with answers of somebody else in the host's place.
    pub(super) async fn play<T, F>(&self, tracer: Tracer, body: F) -> Called<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        self.traced(None, tracer, body).await
    }

    async fn traced<T, F>(
        &self,
        task: Option<Arc<TaskContext>>,
        tracer: Tracer,
        body: F,
    ) -> Called<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let (watch, at) = (Stopwatch::start(), self.now());
        let (mut cpu, tail) = (Duration::ZERO, Arc::new(Tail::default()));
        let about = (task.clone(), tracer, Arc::clone(&tail));
        let (result, moved) = match self.bounded(&mut cpu, about, body).await {
            Ok((answer, moved)) => (Ok(answer), moved),
            Err(error) => {
                let secrets = self.context.secrets(task.as_deref());
                (Err(Failure::without(error, tail.said(), &secrets)), BytesMoved::default())
            }
        };
        let took = watch.elapsed();
        Called {
            result,
            at,
            took,
            cpu,
            moved,
            arguments: Vec::new(),
            observed: None,
            span: Span::none(),
        }
    }

    async fn bounded<T, F>(
        &self,
        cpu: &mut Duration,
        about: (Option<Arc<TaskContext>>, Tracer, Arc<Tail>),
        body: F,
    ) -> Result<(T, BytesMoved), CallError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let limit = self.context.limits.call_wall_max;
        let slot = self.slots.take(limit).await?;
        let (host_time, meter) = (Arc::new(HostTime::default()), CpuMeter::default());
        let guest = self.guest(about, Arc::clone(&host_time), meter.clone(), body);
        let guest = async move {
            let _slot = slot;
            guest.await
        };
        let cpu_max = self.context.limits.call_cpu_max;
        let sandbox = &self.services.sandbox;
        let blocks = self.blocks;
        let mut guest = match &self.pace {
            _ if self.slow.load(Ordering::Relaxed) => {
                sandbox.spawn_slow(guest, meter, cpu_max, blocks)
            }
            Some(pace) => sandbox.spawn_near(pace, guest, meter, cpu_max, blocks),
            None => sandbox.spawn_bounded(guest, meter, cpu_max, blocks),
        };
        if let Some(result) = guest.ended_near() {
            *cpu = guest.cpu().total();
            return result;
        }
        let result = within(limit, &host_time, &mut guest).await;
        *cpu = guest.cpu().total();
        self.slow.store(*cpu > limits::CALL_SLOW, Ordering::Relaxed);
        if let Some(pace) = &self.pace {
            pace.ended(*cpu);
        }
        result
    }

    fn guest<T, F>(
        &self,
        (task, tracer, tail): (Option<Arc<TaskContext>>, Tracer, Arc<Tail>),
        host_time: Arc<HostTime>,
        cpu: CpuMeter,
        body: F,
    ) -> impl Future<Output = Result<(T, BytesMoved), CallError>> + Send + 'static
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let pre = Arc::clone(&self.pre);
        let context = Arc::clone(&self.context);
        let services = self.services.clone();
        let limits = self.limits.clone();
        let meter = Arc::clone(&self.meter);
        async move {
            host_time.begin();
            let sandbox = Arc::clone(&services.sandbox);
            let mut state = CallState::new(context, task, services, host_time, cpu, &limits, tail);
            state.tracer = tracer;
            let mut store = new_store(sandbox.engine(EngineKind::Plugin), &limits, state)?;
            meter_host_calls(&mut store, &limits);
            let limiter: &mut GuestLimiter = store.data_mut().limiter();
            let usage = limiter.usage();
            let answer = body(&pre, &mut store).await;
            if usage.peak_memory_bytes() > limits::INLINE_MEMORY_BYTES_MAX {
                // To a guest thread, if it is not on one.
                tokio::task::yield_now().await;
            }
            meter.used(usage.peak_memory_bytes(), store.data().budget.calls());
            let answer = answer.map_err(|error| classify(error, &limits, &usage))?;
            let (bytes_in, bytes_out) = store.data().budget.moved();
            Ok((answer, BytesMoved { bytes_in, bytes_out }))
        }
    }
}

async fn within<T>(
    limit: Duration,
    host_time: &HostTime,
    guest: &mut GuestTask<T>,
) -> Result<T, CallError> {
    let waiting = Stopwatch::start();
    loop {
        let Some(ran) = host_time.ran() else {
            // Nothing of this plugin has run yet: whatever holds it up, it is not the plugin.
            let left = limit.saturating_sub(waiting.elapsed());
            if left.is_zero() {
                guest.abort();
                let message = format!("no thread was free for it within {limit:?}");
                return Err(CallError::PoolExhausted { message });
            }
            if let Some(result) = timeout(left, guest.join()).await {
                return result;
            }
            continue;
        };
        let host_works = host_time.running();
        let left = (limit + host_time.spent()).saturating_sub(ran);
        if left.is_zero() && !host_works {
            guest.abort();
            return Err(CallError::DeadlineExceeded { limit });
        }
        let wait = if host_works { HOST_WORK_LOOK } else { left };
        if let Some(result) = timeout(wait, guest.join()).await {
            return result;
        }
    }
}
