//! The state store, which keeps what the agent must still know after a restart or a crash.
//!
//! ```text
//! runner ─ put(key, value) ─► encode ─► same as the last COMMITTED bytes? ─ yes ─► PutOutcome::Unchanged
//!                             (codec)    (dedup)  │ no
//!                                                 ▼ bounded queue, the caller waits when it is full
//!                              writer thread: everything waiting ─► one transaction ─► fsync
//!                                                 ─► publish digests ─► wake the batch's waiters
//! ```
//! The last two steps are one record of a journal, which is moved into the tree later ([`disk_store`]).
//!
//! A write is either *durable* (`put`, `delete`, `destroy_alloc`: it returns when the data is on
//! disk) or *may lag* (`put_later`: it goes with the next durable write or within 200 ms). Only
//! this crate knows redb, and it knows nothing of the meaning of its values. Which records there
//! are is a table ([`records`]). Start reading with [`store`] and its rules, then [`writer`].

pub mod age;
mod ahead;
pub mod backend;
pub mod codec;
pub mod dedup;
pub mod disk_store;
pub mod durable;
pub mod error;
mod expect;
mod files;
pub mod inspect;
pub mod journal;
mod journal_file;
pub mod keys;
pub mod load;
pub mod lock;
pub mod mem_store;
pub mod migrate;
pub mod overlay;
pub mod own_file;
mod peek;
mod private;
pub mod queue;
pub mod read;
pub mod records;
pub mod redb_store;
pub mod rewrite;
pub mod stats;
pub mod store;
pub mod testing;
pub mod writer;
mod writer_pace;

#[cfg(test)]
mod tests;

pub use age::Age;
pub use ahead::WriteAhead;
pub use backend::Backend;
pub use error::{BackendError, StateError};
pub use expect::ExpectedWrite;
pub use files::move_aside;
pub use keys::KeyPrefix;
pub use load::{OpenReport, QuarantinedRecord};
pub use lock::{DataDirLock, DataDirReading, Holder, LockError, holder};
pub use migrate::Migration;
pub use private::{STATE_FILE, make_private};
pub use read::StoredRecord;
pub use records::{Record, RecordKey};
pub use redb_store::EngineStats;
pub use stats::Stats;
pub use store::{CommitPace, PutOutcome, StateStore, StoreOptions};
pub use writer::WriteMark;
