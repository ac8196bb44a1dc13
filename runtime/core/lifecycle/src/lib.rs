//! The life of an allocation and of its tasks: what is done when, and what is remembered of it.
//!
//! ```text
//! AllocRunner ── events ─► alloc::machine (pure) ─► hooks, health, updates, saves
//!      │ one TaskRunner for each task
//!      ▼
//! TaskRunner ─── events ─► task::machine (pure) ─► drivers and workloads, by the traits of the model
//! ```
//! Knows no plugin, no sandbox and no WebAssembly: drivers are [`ostler_model::ports`]. Start with
//! [`task::machine`] and [`alloc::machine`], then their runners.

pub mod alloc;
pub mod by_task;
pub mod context;
mod kinds;
pub mod queue;
pub mod services;
pub mod task;
pub mod watch;

/// Wait for a timer; for ever while none is set.
async fn wait_for_timer(timer: &mut Option<ostler_model::ports::BoxFuture<'static, ()>>) {
    match timer {
        Some(timer) => timer.await,
        None => std::future::pending().await,
    }
}
