//! One call of a plugin: a store is made, one function is called, and the store is dropped.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postcard::ser_flavors::Size;
use serde::Serialize;
use tokio::sync::Semaphore;
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span};
use wasmtime::Store;

use super::bindings::since_0_1::host::types as wit;
use super::convert;
use super::failure::CallFailure;
use super::functions::{AnswerSource, CallAnswer, PluginFunction};
use super::observe::{CallEnd, CallObserver, EndedCall, ObservedCall};
use super::slots::{CallSlots, StartTurn};
use crate::host::call_state::HostTime;
use crate::host::trace::Tracer;
use crate::host::{CallState, HostServices, PluginContext};
use ostler_health::meter::PluginMeter;
use ostler_health::metrics::BytesMoved;
use ostler_health::refresh::NextCheck;
use ostler_health::strikes::TaskKey;
use ostler_model::causes::chain;
use ostler_model::clock::{Stopwatch, Timestamp, timeout};
use ostler_model::grants::Grants;
use ostler_model::grants::answers::AnswerCheck;
use ostler_model::ids::{JobId, PluginName};
use ostler_model::json::JsonObject;
use ostler_model::limits;
use ostler_model::ports::{PluginCallError, TaskContext, TaskOwner};
use ostler_sandbox::{
    CallError, CallPace, CpuMeter, EngineKind, GuestLimiter, GuestTask, HostBlocking, StderrTail,
    StoreLimits, StoreState, classify, meter_host_calls, new_store,
};

/// Interval at which a call is checked whose guest waits for host work with a deadline of its own.
const HOST_WORK_LOOK: Duration = Duration::from_millis(50);

/// A future inside a store.
pub(super) type InStore<'a, T> = Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>;

/// How a call ended and what it cost. Give it to [`PluginCaller::answer`] or
/// [`PluginCaller::finish`], which count it.
pub(super) struct CallReport<T> {
    result: Result<T, CallFailure>,
    at: Timestamp,
    took: Duration,
    cpu: Duration,
    moved: BytesMoved,
    /// Arguments of the call in their compact form; empty when no observer is told of the call.
    arguments: Vec<u8>,
    observed: Option<Box<dyn ObservedCall>>,
    /// Span of the call in the trace of the caller.
    span: Span,
}

impl<T> CallReport<T> {
    /// How the call ended. It is not counted.
    pub(super) fn into_result(self) -> Result<T, CallFailure> {
        self.result
    }
}

/// One question to a plugin: the function, and the task that a failure counts against.
pub(super) struct PluginQuestion {
    call: &'static str,
    task: Option<Arc<TaskContext>>,
    /// For a start: hash of the task's configuration.
    config: Option<u64>,
    /// The number by which the observer knows the call; 0 without one.
    number: AtomicU64,
}

impl PluginQuestion {
    fn task_key(&self) -> Option<TaskKey> {
        self.task.as_deref().map(task_key)
    }
}

/// How many bytes a value has in its compact form. Nothing is written for that.
fn compact_size(value: &impl Serialize) -> u64 {
    postcard::serialize_with_flavor(value, Size::default()).map_or(0, |size: usize| size as u64)
}

fn task_key(task: &TaskContext) -> TaskKey {
    let (job, group, task) = (&task.job_id, &task.group, &task.task);
    TaskKey { job: job.clone(), group: group.clone(), task: task.clone() }
}

/// Makes calls into one plugin. `P` is the pre-linked code of the plugin's world.
pub(super) struct PluginCaller<P> {
    pre: Arc<P>,
    context: Arc<PluginContext>,
    limits: StoreLimits,
    services: HostServices,
    slots: CallSlots,
    meter: Arc<PluginMeter>,
    /// Whether calls were quick, so that they may run on the caller's thread. Absent where a host
    /// function could block.
    pace: Option<CallPace>,
    /// Whether host functions of the plugin may hold a thread.
    blocks: HostBlocking,
    observer: Option<Arc<dyn CallObserver>>,
    /// The last call computed long, so the next begins on the busy threads.
    slow: AtomicBool,
}

impl<P: Send + Sync + 'static> PluginCaller<P> {
    pub(super) fn new(
        pre: P,
        context: Arc<PluginContext>,
        limits: StoreLimits,
        services: HostServices,
        slots: Arc<Semaphore>,
        meter: Arc<PluginMeter>,
        observer: Option<Arc<dyn CallObserver>>,
    ) -> Self {
        // Host functions that need no grant never block, and a call leaves the caller's thread
        // before it touches a granted file. Whatever else is granted might block.
        let near = context.grants.opens_only_files()
            && context.limits.call_wall_max >= limits::INLINE_DEADLINE_MIN;
        let slots = CallSlots::new(slots);
        let pace = near.then(CallPace::default);
        // Directories are opened and files are read on the thread of the call.
        let opens = !context.grants.files.is_empty();
        let blocks = if opens { HostBlocking::Maybe } else { HostBlocking::Never };
        let (pre, slow) = (Arc::new(pre), AtomicBool::new(false));
        Self { pre, context, limits, services, slots, meter, pace, blocks, observer, slow }
    }

    /// Take note of the schemas with which the plugin described itself: that of its own
    /// configuration, and that of its tasks.
    pub(super) fn note_description(&self, own: &str, task: &str) {
        self.context.learn_schema(own);
        if let Some(observer) = &self.observer {
            observer.note_description(own, task);
        }
    }

    /// The arguments of a call (a tuple) in their compact form, which is empty when no observer is
    /// told of the call, and how many bytes that form has.
    fn encode_arguments(&self, arguments: &impl Serialize) -> (Vec<u8>, u64) {
        if self.observer.is_none() {
            return (Vec::new(), compact_size(arguments));
        }
        // Plain data is written into memory, so this does not fail. If it did, the arguments could
        // not be read again.
        let bytes = postcard::to_stdvec(arguments).unwrap_or_default();
        let size = bytes.len() as u64;
        (bytes, size)
    }

    /// A question about no task, if the plugin may be asked it now.
    pub(super) fn ask(&self, call: &'static str) -> Result<PluginQuestion, PluginCallError> {
        self.meter.admit(call, None)?;
        Ok(PluginQuestion { call, task: None, config: None, number: AtomicU64::new(0) })
    }

    /// A question about an existing task, if the plugin may be asked it now.
    pub(super) fn ask_about(
        &self,
        call: &'static str,
        task: Arc<TaskContext>,
    ) -> Result<PluginQuestion, PluginCallError> {
        self.meter.admit(call, None)?;
        Ok(PluginQuestion { call, task: Some(task), config: None, number: AtomicU64::new(0) })
    }

    /// The question to start a task, if the plugin may be asked it with this configuration now.
    pub(super) fn ask_to_start(
        &self,
        task: Arc<TaskContext>,
        config: &JsonObject,
    ) -> Result<PluginQuestion, PluginCallError> {
        let mut hasher = DefaultHasher::new();
        config.text().hash(&mut hasher);
        let config = hasher.finish();
        let (task, number) = (Some(task), AtomicU64::new(0));
        let ask = PluginQuestion { call: "start", task, config: Some(config), number };
        if self.meter.is_suspect() {
            let key = ask.task_key();
            self.meter.admit("start", key.as_ref().map(|key| (key, config)))?;
        }
        Ok(ask)
    }

    /// Put a question to the plugin, which calls itself so, with these arguments of the contract. The
    /// answer is counted and checked.
    pub(super) async fn put<A, T>(
        &self,
        ask: &PluginQuestion,
        plugin: &PluginName,
        function: PluginFunction<P, A, T::Contract>,
        arguments: A,
    ) -> Result<T, PluginCallError>
    where
        A: Serialize + Send + 'static,
        T: CallAnswer,
    {
        let (input, size) = self.encode_arguments(&arguments);
        let called = self.call(ask.task.clone(), move |pre, store| function(pre, store, arguments));
        let mut called = called.await;
        (called.arguments, called.moved.bytes_in) = (input, called.moved.bytes_in + size);
        let mut given = self.answer(ask, called)?;
        let mut secrets = None;
        T::scrub(&mut given, &mut |text| {
            let secrets = secrets.get_or_insert_with(|| self.context.secrets(ask.task.as_deref()));
            secrets.scrub_text(text);
        });
        let source = AnswerSource { plugin, clock: &self.services.clock };
        T::check(given, &source).map_err(|error| self.count_broken(ask, error))
    }

    /// Count an answer against the rules as a strike. Returns the error for the caller.
    fn count_broken(&self, ask: &PluginQuestion, reason: impl Display) -> PluginCallError {
        let reason = self.scrub_secrets(ask, reason.to_string());
        if let Some(observer) = &self.observer {
            observer.mark_broken(ask.number.load(Ordering::Relaxed), reason.clone());
        }
        self.strike(ask, reason)
    }

    /// Remove the secrets that the plugin was given with this question from a text with words
    /// of the plugin.
    pub(super) fn scrub_secrets(&self, ask: &PluginQuestion, mut text: String) -> String {
        self.context.secrets(ask.task.as_deref()).scrub_text(&mut text);
        text
    }

    fn strike(&self, ask: &PluginQuestion, reason: impl Display) -> PluginCallError {
        let task = ask.task_key().map(|key| (key, ask.config));
        let plugin = self.context.name.as_str();
        tracing::warn!(plugin, call = ask.call, "a call of the plugin failed: {reason}");
        self.meter.record_failure(ask.call, task, &reason);
        self.call_error(ask, &reason)
    }

    /// Count a call that did not answer. It is a strike only when it was the plugin's fault.
    fn count_failure(&self, ask: &PluginQuestion, failure: &CallFailure) -> PluginCallError {
        if failure.is_plugin_fault() {
            self.strike(ask, failure)
        } else {
            self.call_error(ask, failure)
        }
    }

    /// Count a call that the caller gave up after this time: a strike, as for a call that ran into
    /// its own deadline.
    pub(super) fn count_timeout(
        &self,
        call: &'static str,
        task: Option<&TaskContext>,
        after: Duration,
    ) {
        self.meter.record_end(call, after, Duration::ZERO, BytesMoved::default());
        let task = task.map(|task| (task_key(task), None));
        self.meter.record_failure(call, task, &format!("no answer within {after:?}"));
    }

    /// Who owns the files of a task that the plugin starts as this user, or isolated as the user
    /// that its grant says. A user that is not granted is refused when the task is started.
    pub(super) async fn owner(
        &self,
        user: Option<String>,
        isolated: bool,
    ) -> Result<TaskOwner, PluginCallError> {
        let grants = &self.context.grants;
        if !grants.process || !grants.allow_user(user.as_deref()) {
            return Ok(TaskOwner::Agent);
        }
        // A user that the configuration or the job names is the same user in every allocation.
        let of_alloc = isolated && user.is_none() && grants.isolated_user().is_none();
        let isolated_as = isolated.then(|| grants.isolated_user_or_default());
        let found = self.services.processes.owner(user, isolated_as).await;
        let found = found.map_err(|error| PluginCallError::Fatal(chain(&error)))?;
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

    /// Wait for the turn of a start of this job. It must be held until the start has answered.
    pub(super) async fn start_turn(&self, job: &JobId) -> StartTurn {
        self.slots.start(job).await
    }

    fn call_error(&self, ask: &PluginQuestion, reason: &impl Display) -> PluginCallError {
        let plugin = self.context.name.clone();
        PluginCallError::CallFailed { plugin, call: ask.call, reason: reason.to_string() }
    }

    /// Count a call, and return its result.
    pub(super) fn finish<T>(
        &self,
        call: &'static str,
        called: CallReport<T>,
    ) -> Result<T, CallFailure> {
        let (result, _number) = self.count_end(call, called, |_answer| CallEnd::Answered);
        result
    }

    /// Count a call and tell its observer. Returns its result, and its number at the observer.
    fn count_end<T>(
        &self,
        call: &'static str,
        called: CallReport<T>,
        end: impl FnOnce(&T) -> CallEnd<&'static CallFailure>,
    ) -> (Result<T, CallFailure>, u64) {
        let CallReport { result, at, took, cpu, moved, arguments, observed, span } = called;
        self.meter.record_end(call, took, cpu, moved);
        let end: CallEnd<&CallFailure> = match &result {
            Ok(answer) => {
                self.meter.record_answer();
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
        let number = observed.map_or(0, |observed| observed.end_call(ended));
        (result, number)
    }

    /// Count a call, and return the answer, or the plugin's own error, or that the call failed.
    fn answer<T: Serialize>(
        &self,
        ask: &PluginQuestion,
        mut called: CallReport<Result<T, wit::PluginError>>,
    ) -> Result<T, PluginCallError> {
        match &mut called.result {
            Ok(Ok(answer)) => called.moved.bytes_out += compact_size(answer),
            Ok(Err(error)) => {
                let secrets = self.context.secrets(ask.task.as_deref());
                for text in convert::words(error) {
                    secrets.scrub_text(text);
                }
            }
            Err(_already_without) => {}
        }
        let (answer, number) = self.count_end(ask.call, called, |answer| match answer {
            Ok(_) => CallEnd::Answered,
            Err(error) => CallEnd::Refused(convert::plugin_error(error.clone()).to_string()),
        });
        ask.number.store(number, Ordering::Relaxed);
        let answer = answer.map_err(|e| self.count_failure(ask, &e))?;
        answer.map_err(convert::plugin_error)
    }

    /// Write the last calls of the plugin to a file. `None`: its calls are not recorded.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(super) async fn record(&self) -> io::Result<Option<PathBuf>> {
        match &self.observer {
            Some(observer) => observer.write_now().await,
            None => Ok(None),
        }
    }

    /// Remove the paths from a plugin's watches that it may not read, so that they tell it nothing.
    pub(super) fn narrow_watches(&self, mut next: NextCheck) -> NextCheck {
        let asked = next.paths.len();
        next.paths.retain(|path| self.context.grants.allow_watch(Path::new(path)));
        let dropped = asked - next.paths.len();
        if dropped > 0 {
            let plugin = self.context.name.as_str();
            tracing::warn!(plugin, dropped, "it asks to watch paths outside its files grants");
        }
        next
    }

    /// The grants of the plugin.
    pub(super) fn grants(&self) -> &Grants {
        &self.context.grants
    }

    /// What the answers of the plugin may cause.
    pub(super) fn answers(&self) -> AnswerCheck<'_> {
        AnswerCheck { name: &self.context.name, grants: &self.context.grants }
    }

    pub(super) fn meter(&self) -> &Arc<PluginMeter> {
        &self.meter
    }

    /// Run `body` on a new instance within the plugin's deadline. The deadline begins when
    /// the guest does: the wait for a place does not count, nor does host work with a
    /// deadline of its own.
    pub(super) async fn call<T, F>(&self, task: Option<Arc<TaskContext>>, body: F) -> CallReport<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let observed = self.observer.clone().map(CallObserver::begin_call);
        let log = observed.as_ref().map(|observed| observed.host_calls());
        let tracer = log.map_or(Tracer::Off, Tracer::Recording);
        let plugin = self.context.name.as_str();
        let span =
            ostler_trace::span_here!("plugin call", otel.name = Empty, plugin, error = Empty);
        let called = self.run_traced(task, tracer, body).instrument(span.clone()).await;
        CallReport { observed, span, ..called }
    }

    /// As `call`, with a tracer that answers in the host's place.
    pub(super) async fn play<T, F>(&self, tracer: Tracer, body: F) -> CallReport<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        self.run_traced(None, tracer, body).await
    }

    async fn run_traced<T, F>(
        &self,
        task: Option<Arc<TaskContext>>,
        tracer: Tracer,
        body: F,
    ) -> CallReport<T>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let (watch, at) = (Stopwatch::start(), self.services.clock.now());
        let (mut cpu, tail) = (Duration::ZERO, Arc::new(StderrTail::default()));
        let about = (task.clone(), tracer, Arc::clone(&tail));
        let (result, moved) = match self.run_bounded(&mut cpu, about, body).await {
            Ok((answer, moved)) => (Ok(answer), moved),
            Err(error) => {
                let secrets = self.context.secrets(task.as_deref());
                (
                    Err(CallFailure::without_secrets(error, tail.last_words(), &secrets)),
                    BytesMoved::default(),
                )
            }
        };
        let took = watch.elapsed();
        CallReport {
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

    async fn run_bounded<T, F>(
        &self,
        cpu: &mut Duration,
        about: (Option<Arc<TaskContext>>, Tracer, Arc<StderrTail>),
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
        if let Some(result) = guest.take_inline_result() {
            *cpu = guest.cpu().total();
            return result;
        }
        let result = join_within(limit, &host_time, &mut guest).await;
        *cpu = guest.cpu().total();
        self.slow.store(*cpu > limits::CALL_SLOW, Ordering::Relaxed);
        if let Some(pace) = &self.pace {
            pace.record_end(*cpu);
        }
        result
    }

    fn guest<T, F>(
        &self,
        (task, tracer, tail): (Option<Arc<TaskContext>>, Tracer, Arc<StderrTail>),
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
            host_time.start();
            let sandbox = Arc::clone(&services.sandbox);
            let mut state = CallState::new(context, task, services, host_time, cpu, &limits, tail);
            state.tracer = tracer;
            let mut store = new_store(sandbox.engine(EngineKind::Plugin), &limits, state)?;
            meter_host_calls(&mut store, &limits);
            let limiter: &mut GuestLimiter = store.data_mut().limiter();
            let usage = limiter.usage();
            let answer = body(&pre, &mut store).await;
            if usage.peak_memory_bytes() > limits::INLINE_MEMORY_BYTES_MAX {
                // Go to a guest thread, if it is not on one.
                tokio::task::yield_now().await;
            }
            meter.record_peaks(usage.peak_memory_bytes(), store.data().budget.calls());
            let answer = answer.map_err(|error| classify(error, &limits, &usage))?;
            let (bytes_in, bytes_out) = store.data().budget.moved();
            Ok((answer, BytesMoved { bytes_in, bytes_out }))
        }
    }
}

async fn join_within<T>(
    limit: Duration,
    host_time: &HostTime,
    guest: &mut GuestTask<T>,
) -> Result<T, CallError> {
    let waiting = Stopwatch::start();
    loop {
        let Some(ran) = host_time.elapsed() else {
            // Nothing of this plugin has run yet, so it is not the plugin that holds the call up.
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
        let host_works = host_time.is_running();
        let left = (limit + host_time.host_work()).saturating_sub(ran);
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
