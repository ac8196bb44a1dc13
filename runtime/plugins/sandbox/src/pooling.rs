//! The pools of guest memory: how large they may be, and what happens when they cannot
//! be that large.
//!
//! A pool makes starting and dropping a guest 4 to 18 times cheaper than mapping memory for each
//! guest. Its price is address space (4 GiB a slot, which are only reserved) and kernel mappings. A
//! process may have `vm.max_map_count` mappings; beyond that everything that maps memory fails, and
//! so does thread creation.

use std::fmt;

use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use super::dense;
use super::error::SandboxError;
use ostler_engine::{EngineKind, base_config};
use ostler_model::limits;

/// How many guests one engine holds at once, and why they are not as many as wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolReport {
    /// The engine the pool belongs to.
    pub kind: EngineKind,
    /// How many guests were asked for.
    pub want: u32,
    /// How many guests there is room for.
    pub got: u32,
    /// Why `got` is lower than `want`, or why there is no pool. `None` when all is as wanted.
    pub lowered: Option<PoolLowered>,
}

impl fmt::Display for PoolReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, want, got, lowered } = self;
        write!(f, "room for {got} {kind} guests at once")?;
        match lowered {
            None => Ok(()),
            Some(PoolLowered::MapCount { .. }) => {
                write!(f, " instead of {want}: {}", self.remedy())
            }
            Some(PoolLowered::OnDemand { cause }) => write!(
                f,
                ", without a pool (each start is several times slower): address space could not \
                 be reserved: {cause}; check the limit on virtual memory (ulimit -v)"
            ),
        }
    }
}

impl PoolReport {
    /// What a person can do to have room for more.
    pub(super) fn remedy(&self) -> String {
        match &self.lowered {
            Some(PoolLowered::MapCount { limit }) => format!(
                "the kernel allows {limit} mappings per process; raise the sysctl vm.max_map_count \
                 for more"
            ),
            None | Some(PoolLowered::OnDemand { .. }) => {
                "raise wasm { tasks_max = … } in the agent's configuration for more".to_owned()
            }
        }
    }
}

/// How much of a pool guests hold now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolUse {
    /// How many instances of core modules are alive.
    pub instances: u64,
    /// How many linear memories are in use.
    pub memories: usize,
    /// How many tables are in use.
    pub tables: usize,
    /// How many fiber stacks are in use.
    pub stacks: usize,
}

impl PoolUse {
    /// The use of this engine's pool; all zero where it has none.
    pub(super) fn from_engine(engine: &Engine) -> Self {
        engine.pooling_allocator_metrics().map_or_else(Self::default, |metrics| Self {
            instances: metrics.core_instances(),
            memories: metrics.memories(),
            tables: metrics.tables(),
            stacks: metrics.stacks(),
        })
    }
}

/// Why a pool is smaller than wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolLowered {
    /// `vm.max_map_count` is too small for more.
    MapCount {
        /// Value of `vm.max_map_count`: mappings that one process may have.
        limit: u64,
    },
    /// The pool could not be reserved, so memory is mapped for each guest instead.
    OnDemand {
        /// The error of the kernel.
        cause: String,
    },
}

/// The kernel's limit on mappings of one process.
pub(super) fn max_map_count() -> u64 {
    std::fs::read_to_string("/proc/sys/vm/max_map_count")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(limits::MAX_MAP_COUNT_DEFAULT)
}

/// Share one budget of mappings among both engines, as slots. Plugins come first, since no task
/// starts without them. Each kind that is wanted gets at least one slot. A kind that is not wanted
/// gets none; a process that runs only tasks has no plugins.
pub(super) fn share_slots(map_count: u64, plugins: u32, tasks: u32) -> (u32, u32) {
    let budget =
        map_count.saturating_sub(limits::POOL_MAPPINGS_RESERVE) / limits::POOL_MAPPINGS_PER_SLOT;
    let budget = u32::try_from(budget).unwrap_or(u32::MAX);
    let plugin = plugins.min(budget.saturating_sub(tasks.min(1))).max(plugins.min(1));
    let task = tasks.min(budget.saturating_sub(plugin)).max(tasks.min(1));
    (plugin, task)
}

/// An engine with a pool of `got` slots. It has no pool when none is wanted or the pool
/// cannot be reserved.
pub(super) fn pooled_engine(
    kind: EngineKind,
    want: u32,
    got: u32,
    map_count: u64,
) -> Result<(Engine, PoolReport), SandboxError> {
    let mut config = base_config(kind);
    if want == 0 {
        let report = PoolReport { kind, want, got, lowered: None };
        return Ok((on_demand_engine(&config, kind)?, report));
    }
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool_config(got)));
    match Engine::new(&config) {
        Ok(engine) => {
            let lowered = (got < want).then_some(PoolLowered::MapCount { limit: map_count });
            Ok((engine, PoolReport { kind, want, got, lowered }))
        }
        Err(pool_error) => {
            let engine = on_demand_engine(&base_config(kind), kind)?;
            let lowered = Some(PoolLowered::OnDemand { cause: format!("{pool_error:#}") });
            Ok((engine, PoolReport { kind, want, got, lowered }))
        }
    }
}

/// An engine of the dense profile, which holds `guests` guests without a mapping for each.
pub(super) fn dense_engine(guests: u32) -> Result<(Engine, PoolReport), SandboxError> {
    let (kind, want) = (EngineKind::Task, guests);
    let mut config = base_config(EngineKind::Dense);
    if guests > 0 {
        dense::hold(&mut config, guests).map_err(|source| SandboxError::Dense { source })?;
    }
    let report = PoolReport { kind, want, got: guests, lowered: None };
    Ok((on_demand_engine(&config, kind)?, report))
}

fn on_demand_engine(config: &Config, kind: EngineKind) -> Result<Engine, SandboxError> {
    Engine::new(config)
        .map_err(|error| SandboxError::Engine { kind, message: format!("{error:#}") })
}

fn pool_config(slots: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    let ceiling = usize::try_from(limits::TASK_MEMORY_BYTES_CEILING).unwrap_or(usize::MAX);
    // Counts. Instances live on the heap, so they cost nothing until they are used.
    pool.total_stacks(slots)
        .total_memories(slots)
        .total_tables(slots.saturating_mul(limits::POOL_TABLES_PER_SLOT))
        .total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(limits::GUEST_CORE_INSTANCES_MAX))
        .max_core_instances_per_component(limits::GUEST_CORE_INSTANCES_MAX)
        .max_memories_per_component(limits::GUEST_MEMORIES_MAX)
        .max_memories_per_module(limits::GUEST_MEMORIES_MAX)
        .max_tables_per_component(limits::GUEST_TABLES_MAX)
        .max_tables_per_module(limits::GUEST_TABLES_MAX)
        .table_elements(limits::GUEST_TABLE_ELEMENTS_CEILING)
        // This is only reserved. The limiter decides how much a guest really gets.
        .max_memory_size(ceiling)
        .max_unused_warm_slots(limits::POOL_WARM_SLOTS)
        // A freed slot is reset by copying its dirty pages back (found by PAGEMAP_SCAN where the
        // kernel has it) instead of unmapping them, which interrupts every other core.
        .linear_memory_keep_resident(limits::POOL_MEMORY_RESIDENT_BYTES)
        .table_keep_resident(limits::POOL_SMALL_RESIDENT_BYTES)
        .async_stack_keep_resident(limits::POOL_SMALL_RESIDENT_BYTES)
        .pagemap_scan(Enabled::Auto);
    pool
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_kernel_limit_holds_both_pools_at_their_defaults() {
        let (plugins, tasks) =
            share_slots(65_530, limits::PLUGIN_INSTANCES_MAX, limits::TASK_INSTANCES_MAX);
        assert_eq!((plugins, tasks), (limits::PLUGIN_INSTANCES_MAX, limits::TASK_INSTANCES_MAX));
    }

    #[test]
    fn tasks_give_way_before_plugins_when_mappings_are_scarce() {
        assert_eq!(share_slots(limits::POOL_MAPPINGS_RESERVE + 6 * 200, 128, 4_096), (128, 72));
        assert_eq!(share_slots(0, 128, 4_096), (1, 1));
    }

    #[test]
    fn a_process_of_tasks_alone_reserves_nothing_for_plugins_and_the_other_way_round() {
        assert_eq!(share_slots(65_530, 0, 10_000), (0, 10_000));
        assert_eq!(share_slots(65_530, 128, 0), (128, 0));
        assert_eq!(share_slots(0, 0, 10_000), (0, 1));
    }

    #[test]
    fn ten_thousand_tasks_fit_a_stock_kernel() {
        let map_count = limits::MAX_MAP_COUNT_DEFAULT;
        let (_, tasks) = share_slots(map_count, 0, limits::TASK_INSTANCES_MAX);
        assert_eq!(tasks, 10_000);
    }

    #[test]
    fn a_lowered_pool_names_the_sysctl_to_raise() {
        let report = PoolReport {
            kind: EngineKind::Task,
            want: 10,
            got: 4,
            lowered: Some(PoolLowered::MapCount { limit: 9_000 }),
        };
        let text = report.to_string();
        assert!(text.contains("room for 4 task guests at once instead of 10"), "{text}");
        assert!(text.contains("vm.max_map_count"), "{text}");
    }
}
