//! The storage engine alone: one transaction and one durable commit per write.

use std::path::Path;

use redb::{Database, Durability, ReadableDatabase as _, ReadableTable as _, TableDefinition};

type Records = TableDefinition<'static, &'static [u8], &'static [u8]>;
const STATE: Records = TableDefinition::new("state");

/// Page cache, bytes: as the store's.
const CACHE: usize = ostler_model::limits::STATE_CACHE_BYTES;

/// A database with one table, as a caller without a store would use it.
#[derive(Debug)]
pub struct BareRedb {
    database: Database,
}

impl BareRedb {
    /// Make a database.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn create(path: &Path) -> Self {
        let mut builder = Database::builder();
        let database = builder.set_cache_size(CACHE).create(path).expect("a database");
        let bare = Self { database };
        bare.put_all([]);
        bare
    }

    /// Open a database, repaired by the engine where it was not closed.
    ///
    /// # Panics
    /// When it cannot be opened.
    #[must_use]
    pub fn open(path: &Path) -> Self {
        let mut builder = Database::builder();
        Self { database: builder.set_cache_size(CACHE).open(path).expect("a database") }
    }

    /// Write records in one transaction.
    ///
    /// # Panics
    /// When the database refuses.
    pub fn put_all<'a>(&self, records: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) {
        let mut transaction = self.database.begin_write().expect("a transaction");
        transaction.set_durability(Durability::Immediate).expect("durable");
        {
            let mut table = transaction.open_table(STATE).expect("a table");
            for (key, value) in records {
                table.insert(key, value).expect("the record is taken");
            }
        }
        transaction.commit().expect("the commit");
    }

    /// Write one record in its own transaction.
    ///
    /// # Panics
    /// When the database refuses.
    pub fn put(&self, key: &[u8], value: &[u8]) {
        self.put_all([(key, value)]);
    }

    /// Read every record; returns their number and their bytes.
    ///
    /// # Panics
    /// When the database cannot be read.
    #[must_use]
    pub fn scan(&self) -> (u64, u64) {
        let read = self.database.begin_read().expect("a transaction");
        let table = read.open_table(STATE).expect("a table");
        let (mut records, mut bytes) = (0, 0);
        for record in table.iter().expect("a scan") {
            let (key, value) = record.expect("a record");
            records += 1;
            let len = key.value().len() + std::hint::black_box(value.value()).len();
            bytes += u64::try_from(len).unwrap_or(0);
        }
        (records, bytes)
    }
}
