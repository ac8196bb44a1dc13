//! Building a store with every limit on.

use wasmtime::component::ResourceTable;
use wasmtime::{CallHook, Engine, Store};
use wasmtime_wasi::WasiCtxBuilder;

use super::error::{CallError, HostcallBudgetExceeded};
use super::limiter::GuestLimiter;
use super::meter::CpuMeter;
use ostler_model::limits::{self, PluginLimits, TaskLimits};

/// What one store (one guest instance) may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreLimits {
    /// Linear memory and tables over all of them together, bytes.
    pub memory_bytes: u64,
    /// Table elements over all tables together.
    pub table_elements: u64,
    /// Core instances.
    pub instances: u32,
    /// Linear memories.
    pub memories: u32,
    /// Tables.
    pub tables: u32,
    /// Bytes the guest may hand to the host as the arguments of one host call. Lists of records take
    /// up to three times this on the host.
    pub hostcall_bytes: u64,
    /// The same for the answer of a call of the guest.
    pub answer_bytes: u64,
    /// Component handles alive at once, and entries of the resource table.
    pub handles: u32,
    /// Bytes of one request for random bytes.
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
/// [`CallError::Host`] when memory for the store itself cannot be had.
pub fn new_store<S: StoreState>(
    engine: &Engine,
    limits: &StoreLimits,
    state: S,
) -> Result<Store<S>, CallError> {
    let mut store = Store::try_new(engine, state)
        .map_err(|error| CallError::Host { message: format!("{error:#}") })?;
    store.limiter(|state| state.limiter());
    // What a host call is given is bounded by its own limit: see `meter_host_calls`.
    store.set_hostcall_fuel(fuel(limits.answer_bytes));
    store.set_max_component_handles(limits.handles as usize);
    // Yield to the guest runtime at the next tick and at every tick after it. The deadline is the
    // caller's timer, which then drops the store.
    store.set_epoch_deadline(1);
    store.epoch_deadline_async_yield_and_update(1);
    Ok(store)
}

fn fuel(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// What [`meter_host_calls`] needs of a store's data.
pub trait HostCalls: StoreState {
    /// What the call may still spend.
    fn budget(&mut self) -> &mut HostcallBudget;
    /// Where the guest's time is told from the host's.
    fn cpu(&self) -> &CpuMeter;
}

/// Count every call out of the guest, WASI included, take its time off the guest's, and bound what
/// it is given.
pub fn meter_host_calls<S: HostCalls>(store: &mut Store<S>, limits: &StoreLimits) {
    let (of_call, of_answer) = (fuel(limits.hostcall_bytes), fuel(limits.answer_bytes));
    store.call_hook(move |mut context, hook| {
        match hook {
            CallHook::CallingHost => {
                context.data().cpu().host_entered();
                context.data_mut().budget().count_call()?;
                context.set_hostcall_fuel(of_call);
            }
            CallHook::ReturningFromHost => {
                context.data().cpu().host_left();
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

/// What one call may still spend on host functions: how often it leaves the guest, counted where
/// every host function passes (WASI included), and the bytes that ours are given or give.
#[derive(Debug, Clone)]
pub struct HostcallBudget {
    calls: u64,
    calls_max: u64,
    bytes: u64,
    /// Of those: to the guest.
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

    /// Account for one host call.
    ///
    /// # Errors
    /// [`HostcallBudgetExceeded`]: return it to the engine (`?` converts it), so that the call ends
    /// as [`CallError::HostcallBudget`].
    pub fn count_call(&mut self) -> Result<(), HostcallBudgetExceeded> {
        self.calls = self.calls.saturating_add(1);
        if self.calls > self.calls_max {
            return Err(HostcallBudgetExceeded { what: "host calls", limit: self.calls_max });
        }
        Ok(())
    }

    /// Host calls so far.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.calls
    }

    /// Bytes so far: to the guest, and from it.
    #[must_use]
    pub const fn moved(&self) -> (u64, u64) {
        (self.given, self.bytes.saturating_sub(self.given))
    }

    /// Account for `bytes` that a host function gives.
    ///
    /// # Errors
    /// As [`HostcallBudget::count_call`].
    pub fn give(&mut self, bytes: usize) -> Result<(), HostcallBudgetExceeded> {
        self.given = self.given.saturating_add(bytes as u64);
        self.charge(bytes)
    }

    /// Account for `bytes` that a host function takes.
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
