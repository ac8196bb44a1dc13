//! The records' types: they come back from the state file, and their bytes do not change unnoticed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fmt::Debug;

use serde::de::DeserializeOwned;

use super::*;
use crate::ids::{JobId, Namespace};
use crate::job::JobKind;

/// Through the form of the state file and through that for people.
#[track_caller]
fn comes_back<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    let bytes = postcard::to_stdvec(value).unwrap();
    assert_eq!(&postcard::from_bytes::<T>(&bytes).unwrap(), value);
    let text = serde_json::to_string(value).unwrap();
    assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value);
}

fn name(text: &str) -> PluginName {
    PluginName::new(text).unwrap()
}

fn deployment() -> DeploymentStatus {
    DeploymentStatus {
        healthy: Some(false),
        changed_at: Some(Timestamp::from_nanos(5)),
        canary: true,
        modify_index: 9,
        deployment: None,
    }
}

fn network() -> NetworkStatus {
    NetworkStatus {
        interface_name: "eth0".into(),
        address: "172.26.64.2".into(),
        address_ipv6: "fd00::2".into(),
        dns: Some(DnsConfig {
            servers: vec!["10.0.0.1".into()],
            searches: vec!["example.org".into()],
            options: vec!["ndots:2".into()],
        }),
    }
}

fn job_record() -> JobRecord {
    let job = Job {
        id: JobId::in_namespace(&Namespace::new("shop").unwrap(), "web").unwrap(),
        name: "Web".into(),
        kind: JobKind::Batch,
        priority: 70,
        datacenters: vec!["dc1".into()],
        meta: BTreeMap::from([("a".into(), "b".into())]),
        constraints: Vec::new(),
        groups: Vec::new(),
        source_dir: Some("/jobs".into()),
        placement: crate::placement::Placement::default(),
        all_at_once: false,
        parent: None,
    };
    JobRecord {
        job: Arc::new(job),
        version: 1,
        submitted_at: Timestamp::from_nanos(2),
        create_index: 3,
        modify_index: 4,
        job_modify_index: 5,
        stopped: true,
        origin: JobOrigin::File("/jobs/web.hcl".into()),
        stable: false,
    }
}

fn ended() -> EndedPlaces {
    let place = EndedPlace {
        alloc: "00000000-0000-0000-0000-00000000002a".parse().unwrap(),
        status: ClientStatus::Failed,
        restarts: 3,
        ended_at: Timestamp::from_nanos(7),
    };
    EndedPlaces { create_index: 1, version: 2, places: BTreeMap::from([(5, place)]) }
}

fn handle() -> PluginHandle {
    PluginHandle {
        block: "exec".into(),
        kind: PluginKind::Device,
        version: "1.0.0".into(),
        interface_version: "0.1.0".into(),
        digest: "ab".repeat(32),
        size_bytes: 70_000,
        source: "built-in".into(),
    }
}

#[test]
fn every_record_comes_back_as_it_was_with_no_field_at_its_default() {
    comes_back(&SavedAllocState {
        client_status: ClientStatus::Failed,
        client_description: "Failed tasks".into(),
        forced: true,
        finished: true,
    });
    comes_back(&deployment());
    comes_back(&network());
    comes_back(&AcknowledgedState {
        client_status: ClientStatus::Running,
        client_description: "Tasks are running".into(),
        deployment_status: Some(deployment()),
        network_status: Some(network()),
        tasks: BTreeMap::from([(
            TaskName::new("web").unwrap(),
            TaskState { restarts: 3, failed: true, ..TaskState::default() },
        )]),
    });
    comes_back(&handle());
    let health = HealthState::Healthy;
    let (version, digest) = ("1.0.0".to_owned(), "ab".repeat(32));
    let seen = DriverRecord { version: version.clone(), digest: digest.clone(), health };
    comes_back(&DriverManagerState { drivers: BTreeMap::from([(name("exec"), seen)]) });
    let key = GroupKey { vendor: "acme".into(), kind: "gpu".into(), name: "a/b".into() };
    comes_back(&job_record());
    comes_back(&ended());
    let groups = vec![DeviceGroupRecord { key, instances: vec!["0".into(), "1".into()] }];
    let seen = DevicePluginRecord { version, digest, health, groups };
    comes_back(&DeviceManagerState { plugins: BTreeMap::from([(name("pci"), seen)]) });
    comes_back(&NodeBoot { boot_id: "b".into() });
    comes_back(&NodeRegistration {
        id: "00000000-0000-0000-0000-00000000002a".parse().unwrap(),
        name: "box".into(),
        registered_at: Timestamp::from_nanos(7),
    });
}

/// Records are not self-describing: a field more, or another order, needs a new schema.
#[test]
fn the_bytes_of_the_records_do_not_change_unnoticed() {
    let bytes = |value: &[u8]| value.to_vec();
    let saved = SavedAllocState {
        client_status: ClientStatus::Failed,
        client_description: "x".into(),
        forced: true,
        finished: false,
    };
    assert_eq!(postcard::to_stdvec(&saved).unwrap(), bytes(b"\x03\x01x\x01\x00"));
    assert_eq!(postcard::to_stdvec(&deployment()).unwrap(), bytes(b"\x01\x00\x01\x05\x01\x09\x00"));
    let dns = b"\x01\x0810.0.0.1\x01\x0bexample.org\x01\x07ndots:2";
    let expected = [b"\x04eth0\x0b172.26.64.2\x07fd00::2\x01".as_slice(), dns].concat();
    assert_eq!(postcard::to_stdvec(&network()).unwrap(), expected);
    let job =
        b"\x08shop web\x03Web\x01\x46\x01\x03dc1\x01\x01a\x01b\x00\x00\x00\x00\x00\x01\x05/jobs\x00"
            .as_slice();
    let expected = [job, b"\x01\x02\x03\x04\x05\x01\x01\x0d/jobs/web.hcl\0"].concat();
    assert_eq!(postcard::to_stdvec(&job_record()).unwrap(), expected);
    let expected = b"\x01\x02\x01\x05\x2400000000-0000-0000-0000-00000000002a\x03\x03\x07";
    assert_eq!(postcard::to_stdvec(&ended()).unwrap(), expected);
    let digest = "ab".repeat(32);
    let tail = b"\xf0\xa2\x04\x08built-in";
    let expected =
        [b"\x04exec\x01\x051.0.0\x050.1.0\x40".as_slice(), digest.as_bytes(), tail].concat();
    assert_eq!(postcard::to_stdvec(&handle()).unwrap(), expected);
}

#[test]
fn an_allocation_without_a_verdict_is_neither_healthy_nor_unhealthy() {
    let none = DeploymentStatus::default();
    assert!(!none.is_healthy() && !none.is_unhealthy());
    let verdict =
        |healthy| DeploymentStatus { healthy: Some(healthy), ..DeploymentStatus::default() };
    assert!(verdict(true).is_healthy() && !verdict(true).is_unhealthy());
    assert!(!verdict(false).is_healthy() && verdict(false).is_unhealthy());
}
