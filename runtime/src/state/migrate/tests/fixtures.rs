//! The committed files, and what is in them in this agent's shape.

use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::device::ledger::DeviceLedger;
use crate::model::alloc::Allocation;
use crate::model::saved::{
    AcknowledgedState, DeploymentStatus, DeviceManagerState, DriverManagerState, NetworkStatus,
    NodeBoot, NodeRegistration, PluginHandle, SavedAllocState,
};
use crate::task::handle::LocalState;

/// A file that the last agent of a schema wrote.
pub(super) struct Fixture {
    pub schema: u16,
    pub file: &'static [u8],
    json: &'static str,
    /// Records in the JSON.
    pub records: u64,
    /// Records about the file itself: its schema, and from schema 2 on the counters.
    pub about: u64,
}

pub(super) const ONE: Fixture = Fixture {
    schema: 1,
    file: include_bytes!("../../../../tests/fixtures/state/schema-1.redb"),
    json: include_str!("../../../../tests/fixtures/state/schema-1.json"),
    records: 15,
    about: 1,
};

pub(super) const TWO: Fixture = Fixture {
    schema: 2,
    file: include_bytes!("../../../../tests/fixtures/state/schema-2.redb"),
    json: include_str!("../../../../tests/fixtures/state/schema-2.json"),
    records: 37,
    about: 2,
};

pub(super) const FIXTURES: [Fixture; SCHEMA as usize - 1] = [ONE, TWO];

impl Fixture {
    /// A copy in a directory of its own.
    pub fn copy(&self) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state.redb");
        fs::write(&path, self.file).unwrap();
        (dir, path)
    }

    /// The name of the copy that a migration makes.
    pub fn backup(&self) -> String {
        format!("state.redb.schema-{}", self.schema)
    }

    /// Text of the key and value of each record, in this agent's shape.
    pub fn expected(&self) -> Vec<(String, Value)> {
        let mut text: Value = serde_json::from_str(self.json).unwrap();
        assert_eq!(text["schema"], self.schema);
        let records = text["records"].as_array_mut().unwrap();
        let mut expected: Vec<_> = records
            .iter_mut()
            .map(|record| {
                let mut value = record["value"].take();
                let kind = record["kind"].as_str().unwrap();
                for step in [to_2, to_3].into_iter().skip(usize::from(self.schema) - 1) {
                    step(kind, &mut value);
                }
                (record["key"].as_str().unwrap().to_owned(), value)
            })
            .collect();
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        expected
    }
}

fn to_2(kind: &str, value: &mut Value) {
    match kind {
        "TaskState" => value["events_total"] = value["events"].as_array().unwrap().len().into(),
        "AllocState" => drop(value.as_object_mut().unwrap().remove("tasks")),
        _ => {}
    }
}

fn to_3(kind: &str, value: &mut Value) {
    match kind {
        "Alloc" => {
            let index = value["modify_index"].clone();
            add(value, json!({"create_index": index, "job_version": 0, "previous": null}));
            add(value, json!({"desired_description": ""}));
            for group in value["job"]["groups"].as_array_mut().unwrap() {
                let disk = json!({"sticky": false, "migrate": false, "size_mb": 300});
                add(group, json!({"ephemeral_disk": disk, "health": null}));
                add(group, json!({"services": [], "max_run_duration": null}));
            }
        }
        "AllocState" => add(value, json!({"forced": false, "finished": false})),
        "TaskLocal" => {
            add(value, json!({"delayed_until": null}));
            let processes = value.pointer_mut("/run/identities").and_then(Value::as_array_mut);
            for process in processes.into_iter().flatten() {
                add(process, json!({"supervisor": null}));
            }
        }
        _ => {}
    }
}

fn add(value: &mut Value, more: Value) {
    let Value::Object(more) = more else { panic!("{more}") };
    value.as_object_mut().unwrap().extend(more);
}

fn value(record: &Record) -> Value {
    fn shown<T: DeserializeOwned + Serialize>(record: &Record) -> Value {
        serde_json::to_value(record.decode::<T>().unwrap()).unwrap()
    }
    match record.key {
        Key::Alloc(_) => shown::<Allocation>(record),
        Key::AllocState(_) => shown::<SavedAllocState>(record),
        Key::DeploymentStatus(_) => shown::<DeploymentStatus>(record),
        Key::NetworkStatus(_) => shown::<NetworkStatus>(record),
        Key::AcknowledgedState(_) => shown::<AcknowledgedState>(record),
        Key::TaskLocal(..) => shown::<LocalState>(record),
        Key::TaskState(..) => shown::<TaskState>(record),
        Key::DeviceLedger => shown::<DeviceLedger>(record),
        Key::PluginHandle(_) => shown::<PluginHandle>(record),
        Key::NodeRegistration => shown::<NodeRegistration>(record),
        Key::NodeBoot => shown::<NodeBoot>(record),
        Key::DriverManager => shown::<DriverManagerState>(record),
        Key::DeviceManager => shown::<DeviceManagerState>(record),
        Key::Meta(_) | Key::Job(_) | Key::EndedPlaces(_) => {
            panic!("{} is in no fixture", record.key)
        }
    }
}

/// As [`Fixture::expected`], of a store.
pub(super) fn content(store: &StateStore) -> Vec<(String, Value)> {
    let records = store.scan(&Prefix::All).unwrap();
    let records = records.iter().filter(|record| !matches!(record.key, Key::Meta(_)));
    let mut content: Vec<_> =
        records.map(|record| (record.key.to_string(), value(record))).collect();
    content.sort_by(|a, b| a.0.cmp(&b.0));
    content
}
