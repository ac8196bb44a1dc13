//! A schema before this one: its layouts, its step, and a file that an agent of it wrote.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::*;

/// How the schema before kept an [`SavedAllocState`]: the description alone.
#[derive(Serialize, serde::Deserialize)]
pub(crate) struct AllocState {
    pub description: String,
}

/// The step to this schema.
pub(crate) fn step(kind: Kind, body: &[u8]) -> Result<Option<Vec<u8>>, CodecError> {
    match kind {
        Kind::AllocState => {
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
    /// Text of the key and value of each record, in this agent's shape.
    pub content: Vec<(String, Value)>,
    /// Events of all its tasks.
    pub events: u64,
}

/// The schema before.
pub(crate) const SCHEMA_BEFORE: u16 = SCHEMA - 1;
/// Allocations in the file, each with one task.
const ALLOCS: u32 = 7;

/// The file that tests bring along.
pub(crate) static BEFORE: LazyLock<Before> = LazyLock::new(Before::write);

impl Before {
    fn write() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        let (mut ops, mut content, mut events) = (Vec::new(), Vec::new(), 0);
        let mut add = |key: Key, body: Vec<u8>, value: Value| {
            ops.push(put(&key, with_schema(SCHEMA_BEFORE, body)));
            if !matches!(key, Key::Meta(_)) {
                content.push((key.to_string(), value));
            }
        };
        for n in 1..=ALLOCS {
            let client_description = format!("allocation {n}");
            let old = AllocState { description: client_description.clone() };
            let new = SavedAllocState { client_description, ..SavedAllocState::default() };
            let state = Key::AllocState(id(n.into()));
            add(state, record(Kind::AllocState, &old), serde_json::to_value(new).unwrap());
            events += u64::from(n);
            let task = TaskState { events_total: n.into(), ..TaskState::default() };
            let same = serde_json::to_value(&task).unwrap();
            add(task_key(n.into()), record(Kind::TaskState, &task), same);
        }
        add(Key::DeviceLedger, record(Kind::DeviceLedger, &"held"), "held".into());
        let own = Key::Meta(MetaItem::SchemaVersion);
        add(own, record(Kind::Meta, &SCHEMA_BEFORE), Value::Null);
        let backend = DiskBackend::open(&path).unwrap();
        backend.commit(&ops).unwrap();
        drop(backend);
        content.sort_by(|a, b| a.0.cmp(&b.0));
        Self { file: fs::read(&path).unwrap(), content, events }
    }

    /// A copy in a directory of its own.
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

    /// Records, the file's own left out.
    pub(crate) fn records(&self) -> u64 {
        self.content.len() as u64
    }
}

fn value(record: &Record) -> Value {
    fn shown<T: DeserializeOwned + Serialize>(record: &Record) -> Value {
        serde_json::to_value(record.decode::<T>().unwrap()).unwrap()
    }
    match record.key {
        Key::AllocState(_) => shown::<SavedAllocState>(record),
        Key::TaskState(..) => shown::<TaskState>(record),
        Key::DeviceLedger => shown::<String>(record),
        ref other => panic!("{other} is not in the file"),
    }
}

/// As [`Before::content`], of a store.
pub(crate) fn content(store: &StateStore) -> Vec<(String, Value)> {
    let records = store.scan(&Prefix::All).unwrap();
    let records = records.iter().filter(|record| !matches!(record.key, Key::Meta(_)));
    let mut content: Vec<_> =
        records.map(|record| (record.key.to_string(), value(record))).collect();
    content.sort_by(|a, b| a.0.cmp(&b.0));
    content
}
