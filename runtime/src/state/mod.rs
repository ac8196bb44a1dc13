//! The state store: what the agent must still know after a restart or a crash.
//!
//! ```text
//! runner ─ put(key, value) ─► encode ─► same as the last COMMITTED bytes? ─ yes ─► Put::Unchanged
//!                             (codec)    (dedup)  │ no
//!                                                 ▼ bounded queue, the caller waits when it is full
//!                              writer thread: everything waiting ─► one transaction ─► fsync
//!                                                 ─► publish digests ─► wake the batch's waiters
//! ```
//!
//! A write is either *durable* (`put`, `delete`, `destroy_alloc`: returns when it is on disk) or *may
//! lag* (`put_later`: returns when it is queued, goes with the next durable write or within 200 ms).
//! What a crash may not take is durable: allocations, intents, identities, handles, ends. What can
//! be derived again or is only shown may lag.
//!
//! * [`keys`]: typed keys and their ordered bytes. All keys of one allocation share a prefix.
//! * [`codec`]: the checksummed envelope around every value.
//! * [`dedup`]: pure; what is known to be durable, and which allocations are destroyed.
//! * [`queue`]: writes on their way, and when the next batch is due.
//! * [`writer`]: the one thread that commits, in groups.
//! * [`backend`]: what a place to keep records must do; [`redb_store`] on disk, [`mem_store`] in
//!   memory, [`testing`] with injected faults.
//! * [`rewrite`]: a file after a failed sync; [`age`]: one that went back in time.
//! * [`store`]: the handle everybody else uses; [`read`]: its reading part.
//! * [`load`]: what happens at opening; [`stats`]: what happened since.
//! * [`migrate`]: files of older agents; `files`: copies and renames that survive a crash.
//! * [`inspect`]: looking at a file without an agent, through [`overlay`] without changing a byte;
//!   `peek`: the schema before the engine touches the file.
//! * [`lock`]: one agent per data directory.
//!
//! Rules, each kept by a test:
//! * A write is acknowledged only after its commit; a failed commit fails exactly its waiters and
//!   makes the store forget what it believed about their keys, so that the next write is real.
//! * A key with a write on its way is never taken as unchanged.
//! * Writes of one key keep their order; a durable write takes everything queued before it along.
//! * `destroy_alloc` beats every later persist of that allocation ([`Put::Destroyed`]).
//! * One bad record does not stop the agent: it is moved to a quarantine table and reported. A bad
//!   file is never deleted or changed: it is looked at through an overlay before it is opened.
//!
//! Only this module knows redb.

pub mod age;
pub mod backend;
pub mod codec;
pub mod dedup;
pub mod error;
mod expect;
mod files;
pub mod inspect;
pub mod keys;
pub mod load;
pub mod lock;
pub mod mem_store;
pub mod migrate;
pub mod overlay;
mod peek;
pub mod queue;
pub mod read;
pub mod redb_store;
pub mod rewrite;
pub mod stats;
pub mod store;
pub mod testing;
pub mod writer;

#[cfg(test)]
mod tests;

pub use age::Age;
pub use backend::Backend;
pub use error::{BackendError, StateError};
pub use expect::Expected;
pub use files::move_aside;
pub use keys::{Key, MetaItem, Prefix};
pub use load::{OpenReport, Quarantined};
pub use lock::{DataDirLock, DataDirReading, Holder, LockError, holder};
pub use migrate::Migration;
pub use read::Record;
pub use redb_store::EngineStats;
pub use stats::Stats;
pub use store::{Put, StateStore, StoreOptions};
pub use writer::Mark;
