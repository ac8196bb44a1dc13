//! WASM tasks in a process of their own, the worker, which goes on without the agent.
//!
//! ```text
//! agent                                         worker: this program as `__worker`, confined
//!  WorkerTasks ── file read, compiled, sealed     │
//!     │ start, with descriptors ────────────────► │ mapped, linked, held ── release ─► guest threads
//!     │ ◄──────────────────────── held, its id    │                                      │
//!     │ ◄──────────────────────── exited ──────── │ ◄── exit; kept until forgotten ◄─────┤
//!     │ forget_run ─────────────────────────────► │                                      ▼
//!     x  the agent is gone: what is held ends, what runs goes on                     log files
//!  next agent: finds it in /proc, connects, asks for the list, owns the tasks again
//! ```
//! Start with [`protocol`], which is frozen; then [`WorkerTasks`] (the agent's side) and [`main`].

mod backoff;
mod client;
mod connect;
mod dir_waits;
mod discovery;
mod home;
mod link;
mod look;
mod notes;
mod order;
mod process;
pub mod protocol;
mod record;
mod runs;
mod serve;
mod setup;
mod share;
mod tasks;

pub use discovery::data_dir_of;
pub use look::{end_run, find_tasks};
pub use runs::{FoundTasks, LivingTask};
pub use serve::{ARGUMENT, main};
pub use tasks::{OpenedWorkerTasks, WorkerOptions, WorkerTasks};
