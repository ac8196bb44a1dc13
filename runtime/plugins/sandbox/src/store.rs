//! Building a store with every limit on.

use wasmtime::component::ResourceTable;
use wasmtime::{CallHook, Engine, Store};
use wasmtime_wasi::WasiCtxBuilder;

use super::error::{CallError, HostcallBudgetExceeded};
use super::limiter::GuestLimiter;
use super::meter::CpuMeter;
use ostler_model::limits::{self, PluginLimits, TaskLimits};

/// How much one store (one guest instance) may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreLimits {
    /// Most bytes of all linear memories and tables together.
    pub memory_bytes: u64,
    /// Most elements of all tables together.
    pub table_elements: u64,
    /// Most core instances alive at once.
    pub instances: u32,
    /// Most linear memories of all instances together.
    pub memories: u32,
    /// Most tables of all instances together.
    pub tables: u32,
    /// Most bytes that the guest may hand to the host as the arguments of one host call. Lists of
    /// records take up to three times this on the host.
    pub hostcall_bytes: u64,
    /// Most bytes that the guest may hand to the host as the answer of one call.
    pub answer_bytes: u64,
    /// Most component handles alive at once, and most entries of the resource table.
    pub handles: u32,
    /// Most bytes of one request for random bytes.
    pub random_bytes: u64,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self::from(&PluginLimits::default())
    }
}

impl From<&PluginLimits> for StoreLimits {
    fn from(plugin: &PluginLimits) -> Self {
        Self {
            memory_bytes: plugin.memory_bytes_max,
            table_elements: plugin.table_elements_max,
            hostcall_bytes: plugin.host_call_bytes_max.min(plugin.transfer_bytes_max),
            answer_bytes: plugin.answer_bytes_max,
            handles: plugin.handles_max,
            random_bytes: plugin.random_bytes_max,
            instances: plugin.instances_max.min(limits::GUEST_CORE_INSTANCES_MAX),
            memories: plugin.memories_max.min(limits::GUEST_MEMORIES_MAX),
            tables: plugin.tables_max.min(limits::GUEST_TABLES_MAX),
        }
    }
}

impl From<&TaskLimits> for StoreLimits {
    fn from(task: &TaskLimits) -> Self {
        Self {
            memory_bytes: task.memory_bytes_max,
            table_elements: task.table_elements_max,
            hostcall_bytes: task.transfer_bytes_max,
            answer_bytes: task.transfer_bytes_max,
            handles: task.handles_max,
            random_bytes: task.random_bytes_max,
            instances: limits::GUEST_CORE_INSTANCES_MAX,
            memories: limits::GUEST_MEMORIES_MAX,
            tables: limits::GUEST_TABLES_MAX,
        }
    }
}

/// The data of a store: whatever host functions need, and the limiter.
pub trait StoreState: Send + 'static {
    /// The limiter that [`new_store`] attaches.
    fn limiter(&mut self) -> &mut GuestLimiter;
}

/// A store with limiter, transfer bound, handle bound and epoch yield.
///
/// # Errors
/// [`CallError::Host`] when there is no memory for the store itself.
pub fn new_store<S: StoreState>(
    engine: &Engine,
    limits: &StoreLimits,
    state: S,
) -> Result<Store<S>, CallError> {
    let mut store = Store::try_new(engine, state)
        .map_err(|error| CallError::Host { message: format!("{error:#}") })?;
    store.limiter(|state| state.limiter());
    // The arguments of a host call have a limit of their own: see `meter_host_calls`.
    store.set_hostcall_fuel(fuel(limits.answer_bytes));
    store.set_max_component_handles(limits.handles as usize);
    // The guest yields to its runtime at the next tick and at every tick after it. The deadline is
    // the caller's timer, which then drops the store.
    store.set_epoch_deadline(1);
    store.epoch_deadline_async_yield_and_update(1);
    Ok(store)
}

fn fuel(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What [`meter_host_calls`] needs of a store's data.
pub trait HostCalls: StoreState {
    /// How much the call may still spend on host functions.
    fn budget(&mut self) -> &mut HostcallBudget;
    /// The meter that tells the guest's time from the host's.
    fn cpu(&self) -> &CpuMeter;
}

/// Count every call out of the guest, WASI included. Take its time off the guest's time, and
/// limit its arguments.
pub fn meter_host_calls<S: HostCalls>(store: &mut Store<S>, limits: &StoreLimits) {
    let (of_call, of_answer) = (fuel(limits.hostcall_bytes), fuel(limits.answer_bytes));
    store.call_hook(move |mut context, hook| {
        match hook {
            CallHook::CallingHost => {
                context.data().cpu().enter_host();
                context.data_mut().budget().count_call()?;
                context.set_hostcall_fuel(of_call);
            }
            CallHook::ReturningFromHost => {
                context.data().cpu().leave_host();
                context.set_hostcall_fuel(of_answer);
            }
            CallHook::CallingWasm | CallHook::ReturningFromWasm => {}
        }
        Ok(())
    });
}

/// A resource table bounded by [`StoreLimits::handles`].
#[must_use]
pub fn new_resource_table(limits: &StoreLimits) -> ResourceTable {
    let mut table = ResourceTable::new();
    table.set_max_capacity(limits.handles as usize);
    table
}

/// A WASI context that grants nothing: no directories, no network, no output, bounded random.
#[must_use]
pub fn new_wasi_builder(limits: &StoreLimits) -> WasiCtxBuilder {
    let mut builder = WasiCtxBuilder::new();
    builder
        .max_random_size(limits.random_bytes)
        // File calls run on the guest thread itself: nine times faster than handing each to
        // another thread, and guest threads are there to be blocked.
        .allow_blocking_current_thread(true)
        .allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    builder
}

/// How much one call may still spend on host functions: how often it leaves the guest, which is
/// counted for every host function (WASI included), and how many bytes our own host functions
/// take or give.
#[derive(Debug, Clone)]
pub struct HostcallBudget {
    calls: u64,
    calls_max: u64,
    bytes: u64,
    /// The part of `bytes` that was given to the guest.
    given: u64,
    bytes_max: u64,
}

impl HostcallBudget {
    /// A full budget.
    #[must_use]
    pub const fn new(calls_max: u64, bytes_max: u64) -> Self {
        Self { calls: 0, calls_max, bytes: 0, given: 0, bytes_max }
    }

    /// The budget of one plugin call.
    #[must_use]
    pub const fn for_plugin(limits: &PluginLimits) -> Self {
        Self::new(limits.host_calls_max, limits.transfer_bytes_max)
    }

    /// Count one host call.
    ///
    /// # Errors
    /// [`HostcallBudgetExceeded`]. Return it to the engine (`?` converts it), so that the call
    /// ends as [`CallError::HostcallBudget`].
    pub fn count_call(&mut self) -> Result<(), HostcallBudgetExceeded> {
        self.calls = self.calls.saturating_add(1);
        if self.calls > self.calls_max {
            return Err(HostcallBudgetExceeded { what: "host calls", limit: self.calls_max });
        }
        Ok(())
    }

    /// How many host calls were counted so far.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.calls
    }

    /// Bytes that were moved so far: to the guest, and from it.
    #[must_use]
    pub const fn moved(&self) -> (u64, u64) {
        (self.given, self.bytes.saturating_sub(self.given))
    }

    /// Count `bytes` that a host function gives to the guest.
    ///
    /// # Errors
    /// As [`HostcallBudget::count_call`].
    pub fn give(&mut self, bytes: usize) -> Result<(), HostcallBudgetExceeded> {
        self.given = self.given.saturating_add(bytes as u64);
        self.charge(bytes)
    }

    /// Count `bytes` that a host function takes from the guest.
    ///
    /// # Errors
    /// As [`HostcallBudget::count_call`].
    pub fn charge(&mut self, bytes: usize) -> Result<(), HostcallBudgetExceeded> {
        self.bytes = self.bytes.saturating_add(bytes as u64);
        if self.bytes > self.bytes_max {
            return Err(HostcallBudgetExceeded {
                what: "bytes transferred",
                limit: self.bytes_max,
            });
        }
        Ok(())
    }
}
