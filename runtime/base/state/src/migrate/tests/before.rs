//! A schema before this one: its layouts, its step, and a file that an agent of it wrote.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;

/// The record of a [`SavedAllocState`] in the schema before: the description alone.
#[derive(Serialize, serde::Deserialize)]
pub(crate) struct AllocState {
    pub description: String,
}

/// The step to this schema.
pub(crate) fn step(kind: RecordKind, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
    match kind {
        RecordKind::AllocState => {
            let AllocState { description: client_description } = codec::decode_body(body)?;
            let state = SavedAllocState { client_description, ..SavedAllocState::default() };
            postcard::to_stdvec(&state).map(Some).map_err(CodecError::Value)
        }
        _ => Ok(None),
    }
}

/// A file of the schema before.
pub(crate) struct Before {
    pub file: Vec<u8>,
    /// The text of the key, and the value of each record in this agent's shape.
    pub content: Vec<(String, Value)>,
    /// The number of events of all its tasks.
    pub events: u64,
}

/// The schema before.
pub(crate) const SCHEMA_BEFORE: u16 = SCHEMA - 1;
/// The number of allocations in the file, each with one task.
const ALLOCS: u32 = 7;

/// The file that the tests use.
pub(crate) static BEFORE: LazyLock<Before> = LazyLock::new(Before::write);

impl Before {
    fn write() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let (mut ops, mut content, mut events) = (Vec::new(), Vec::new(), 0);
        let mut add = |key: RecordKey, body: Vec<u8>, value: Value| {
            ops.push(put(&key, with_schema(SCHEMA_BEFORE, body)));
            if !matches!(key, RecordKey::Meta | RecordKey::Counters) {
                content.push((key.to_string(), value));
            }
        };
        for n in 1..=ALLOCS {
            let client_description = format!("allocation {n}");
            let old = AllocState { description: client_description.clone() };
            let new = SavedAllocState { client_description, ..SavedAllocState::default() };
            let state = RecordKey::AllocState(id(n.into()));
            add(state, record(RecordKind::AllocState, &old), serde_json::to_value(new).unwrap());
            events += u64::from(n);
            let task = TaskState { events_total: n.into(), ..TaskState::default() };
            let same = serde_json::to_value(&task).unwrap();
            add(task_key(n.into()), record(RecordKind::TaskState, &task), same);
        }
        add(RecordKey::DeviceLedger, record(RecordKind::DeviceLedger, &"held"), "held".into());
        let own = RecordKey::Meta;
        add(own, record(RecordKind::Meta, &SCHEMA_BEFORE), Value::Null);
        let backend = DiskBackend::open(&path).unwrap();
        backend.commit(&ops).unwrap();
        drop(backend);
        content.sort_by(|a, b| a.0.cmp(&b.0));
        Self { file: fs::read(&path).unwrap(), content, events }
    }

    /// A copy of the file in a directory of its own.
    pub(crate) fn copy(&self) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        fs::write(&path, &self.file).unwrap();
        (dir, path)
    }

    /// The name of the copy that a migration makes.
    pub(crate) fn backup(&self) -> String {
        format!("state.redb.schema-{SCHEMA_BEFORE}")
    }

    /// The number of records, without the file's own record.
    pub(crate) fn records(&self) -> u64 {
        self.content.len() as u64
    }
}

fn value(record: &StoredRecord) -> Value {
    fn shown<T: DeserializeOwned + Serialize>(record: &StoredRecord) -> Value {
        serde_json::to_value(decode_any::<T>(record).unwrap()).unwrap()
    }
    match record.key {
        RecordKey::AllocState(_) => shown::<SavedAllocState>(record),
        RecordKey::TaskState(..) => shown::<TaskState>(record),
        RecordKey::DeviceLedger => shown::<String>(record),
        ref other => panic!("{other} is not in the file"),
    }
}

/// The content of a store, in the form of [`Before::content`].
pub(crate) fn content(store: &StateStore) -> Vec<(String, Value)> {
    let records = store.scan(&KeyPrefix::All).unwrap();
    let records = records
        .iter()
        .filter(|record| !matches!(record.key, RecordKey::Meta | RecordKey::Counters));
    let mut content: Vec<_> =
        records.map(|record| (record.key.to_string(), value(record))).collect();
    content.sort_by(|a, b| a.0.cmp(&b.0));
    content
}
