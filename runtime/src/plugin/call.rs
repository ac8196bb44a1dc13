//! One call of a plugin: a new store, one function, the store dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use wasmtime::Store;

use super::bindings::since_0_1::host::types as wit;
use super::convert;
use crate::clock::{Stopwatch, Timestamp, timeout};
use crate::driver::api::{PluginCallError, TaskContext};
use crate::host::call_state::HostTime;
use crate::host::{CallState, HostServices, PluginContext};
use crate::sandbox::{
    CallError, EngineKind, GuestLimiter, GuestTask, StoreLimits, StoreState, classify, new_store,
};

/// How often a call whose guest waits for host work with a deadline of its own is looked at.
const HOST_WORK_LOOK: Duration = Duration::from_millis(50);

/// A future inside a store.
pub(super) type InStore<'a, T> = Pin<Box<dyn Future<Output = wasmtime::Result<T>> + Send + 'a>>;

/// How often a plugin was called and how it went.
#[derive(Debug, Default)]
pub struct CallCounters {
    /// Calls begun.
    pub calls: AtomicU64,
    /// Calls that trapped, hung or broke a limit.
    pub failed: AtomicU64,
    /// Processor time of the guest, nanoseconds.
    pub cpu_nanos: AtomicU64,
}

/// Calls into one plugin. `P` is the pre-linked code of its world.
pub(super) struct Caller<P> {
    pre: Arc<P>,
    context: Arc<PluginContext>,
    limits: StoreLimits,
    services: HostServices,
    slots: Arc<Semaphore>,
    counters: Arc<CallCounters>,
}

impl<P: Send + Sync + 'static> Caller<P> {
    pub(super) fn new(
        pre: P,
        context: Arc<PluginContext>,
        limits: StoreLimits,
        services: HostServices,
        slots: Arc<Semaphore>,
    ) -> Self {
        let counters = Arc::new(CallCounters::default());
        Self { pre: Arc::new(pre), context, limits, services, slots, counters }
    }

    /// The error for a call that did not answer, or answered against the rules.
    pub(super) fn failed(&self, call: &'static str, reason: impl ToString) -> PluginCallError {
        let plugin = self.context.name.clone();
        PluginCallError::CallFailed { plugin, call, reason: reason.to_string() }
    }

    /// The answer, or the plugin's own error, or that the call failed.
    pub(super) fn answer<T>(
        &self,
        call: &'static str,
        called: Result<Result<T, wit::PluginError>, CallError>,
    ) -> Result<T, PluginCallError> {
        called.map_err(|e| self.failed(call, e))?.map_err(convert::plugin_error)
    }

    /// The host's time, against which an answer is checked.
    pub(super) fn now(&self) -> Timestamp {
        self.services.clock.now()
    }

    pub(super) fn counters(&self) -> &Arc<CallCounters> {
        &self.counters
    }

    /// Run `body` on a new instance within the plugin's deadline. The wait for a free instance
    /// counts; host work with a deadline of its own does not.
    pub(super) async fn call<T, F>(
        &self,
        task: Option<Arc<TaskContext>>,
        body: F,
    ) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let result = self.bounded(task, body).await;
        if result.is_err() {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    async fn bounded<T, F>(&self, task: Option<Arc<TaskContext>>, body: F) -> Result<T, CallError>
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let limit = self.context.limits.call_wall_max;
        let watch = Stopwatch::start();
        let too_late = CallError::DeadlineExceeded { limit };
        let slot = timeout(limit, Arc::clone(&self.slots).acquire_owned()).await;
        let Some(Ok(slot)) = slot else { return Err(too_late) };
        let host_time = Arc::new(HostTime::default());
        let guest = self.guest(task, Arc::clone(&host_time), body);
        let mut guest = self.services.sandbox.spawn(async move {
            let _slot = slot;
            guest.await
        });
        let result = within(limit, &watch, &host_time, &mut guest).await;
        let cpu = u64::try_from(guest.cpu().total().as_nanos()).unwrap_or(u64::MAX);
        self.counters.cpu_nanos.fetch_add(cpu, Ordering::Relaxed);
        result
    }

    fn guest<T, F>(
        &self,
        task: Option<Arc<TaskContext>>,
        host_time: Arc<HostTime>,
        body: F,
    ) -> impl Future<Output = Result<T, CallError>> + Send + 'static
    where
        T: Send + 'static,
        F: for<'a> FnOnce(&'a P, &'a mut Store<CallState>) -> InStore<'a, T> + Send + 'static,
    {
        let pre = Arc::clone(&self.pre);
        let context = Arc::clone(&self.context);
        let services = self.services.clone();
        let limits = self.limits.clone();
        async move {
            let sandbox = Arc::clone(&services.sandbox);
            let state = CallState::new(context, task, services, host_time, &limits)?;
            let mut store = new_store(sandbox.engine(EngineKind::Plugin), &limits, state)?;
            bound_host_calls(&mut store);
            let limiter: &mut GuestLimiter = store.data_mut().limiter();
            let usage = limiter.usage();
            body(&pre, &mut store).await.map_err(|error| classify(error, &limits, &usage))
        }
    }
}

/// Count every call out of the guest, WASI included.
fn bound_host_calls(store: &mut Store<CallState>) {
    store.call_hook(|mut context, hook| {
        if matches!(hook, wasmtime::CallHook::CallingHost) {
            context.data_mut().budget.count_call()?;
        }
        Ok(())
    });
}

async fn within<T>(
    limit: Duration,
    watch: &Stopwatch,
    host_time: &HostTime,
    guest: &mut GuestTask<T>,
) -> Result<T, CallError> {
    loop {
        let host_works = host_time.running();
        let left = (limit + host_time.spent()).saturating_sub(watch.elapsed());
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
