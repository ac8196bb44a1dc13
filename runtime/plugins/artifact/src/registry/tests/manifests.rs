//! Tests of manifests: those of a plugin and all others.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn read(change: impl FnOnce(&mut Value)) -> Result<Artifact, OciManifestError> {
    let mut value: Value = serde_json::from_slice(&manifest(COMPONENT, Some(SIGNATURE))).unwrap();
    change(&mut value);
    Artifact::read(&serde_json::to_vec(&value).unwrap(), None)
}

#[test]
fn the_component_and_its_signature_are_found_among_other_layers() {
    let found = read(|value| {
        let other = json!({ "mediaType": "text/plain", "digest": "sha512:x", "size": 1 });
        value["layers"].as_array_mut().unwrap().insert(0, other);
        // Some tools push an empty configuration.
        value["config"]["mediaType"] = json!("application/vnd.oci.empty.v1+json");
    })
    .unwrap();
    assert_eq!(found.component.digest, Digest::compute(COMPONENT));
    assert_eq!(found.component.size, COMPONENT.len() as u64);
    assert_eq!(found.signature.unwrap().digest, Digest::compute(SIGNATURE));
    // A manifest may leave its type to the header.
    let untyped = read(|value| drop(value.as_object_mut().unwrap().remove("mediaType")));
    assert!(untyped.is_ok());
}

#[test]
fn what_is_no_plugin_is_said_to_be_none() {
    type Change = fn(&mut Value);
    let changes: [(Change, &str); 11] = [
        (|v| v["schemaVersion"] = json!(1), "schema 1"),
        (|v| v["mediaType"] = json!("application/vnd.oci.image.index.v1+json"), "index"),
        (|v| v["manifests"] = json!([]), "index"),
        (|v| v["mediaType"] = json!("application/vnd.docker.x"), "of the type"),
        (
            |v| v["config"]["mediaType"] = json!("application/vnd.oci.image.config.v1+json"),
            "not a WebAssembly",
        ),
        (|v| v["layers"] = json!([]), "has 0 layers"),
        (|v| v["layers"][1]["mediaType"] = json!("application/wasm"), "has 2 layers"),
        (|v| v["layers"][0]["size"] = json!(u64::MAX), "at most"),
        (|v| v["layers"][1]["size"] = json!(1 << 20), "signature has"),
        (|v| v["layers"][0]["digest"] = json!("sha512:00"), "not a SHA-256"),
        (|v| v["layers"][0]["size"] = json!(-1), "cannot be read"),
    ];
    for (change, wanted) in changes {
        let error = read(change).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    let many = read(|v| v["layers"] = Value::Array(vec![v["layers"][0].clone(); 100]));
    assert_eq!(many, Err(OciManifestError::Layers(100)));
    let signatures = read(|v| {
        let signature = v["layers"][1].clone();
        v["layers"].as_array_mut().unwrap().push(signature);
    });
    assert_eq!(signatures, Err(OciManifestError::Signatures(2)));
    let typed = Artifact::read(
        br#"{"schemaVersion":2}"#,
        Some("application/vnd.oci.image.index.v1+json; charset=utf-8"),
    );
    assert_eq!(typed, Err(OciManifestError::Index));
}

proptest! {
    #[test]
    fn any_bytes_are_a_manifest_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..300_usize, byte: u8,
    ) {
        prop_assert!(Artifact::read(&bytes, None).is_err());
        let whole = manifest(COMPONENT, None);
        let mut near = whole.to_vec();
        if let Some(place) = near.get_mut(at) {
            *place = byte;
        }
        let read = Artifact::read(&near, None);
        prop_assert!(near != whole || read.is_ok(), "nothing was changed: {:?}", read);
    }
}
