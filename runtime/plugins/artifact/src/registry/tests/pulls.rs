//! Tests of what a registry does right, and of what the data directory keeps of it.

use super::*;

#[tokio::test]
async fn a_tag_is_resolved_and_its_component_and_signature_are_pulled() {
    let server = Server::new().await;
    let digest = server.push("1.0", COMPONENT, Some(SIGNATURE));
    let reference = server.reference(":1.0");
    let client = client();
    let resolved = client.resolve(&reference).await.unwrap();
    assert_eq!(resolved.manifest, digest);
    let pulled = client.fetch(&reference, &resolved).await.unwrap();
    assert_eq!((&*pulled.component, pulled.signature.as_deref()), (COMPONENT, Some(SIGNATURE)));
    assert!(server.asked().iter().all(|asked| !asked.headers.contains_key("authorization")));

    let by_digest = server.reference(&format!("@{}", digest.to_tagged()));
    assert_eq!(client.resolve(&by_digest).await.unwrap(), resolved);
    server.push("plain", b"other", None);
    let pulled = pull(&client, &server.reference(":plain")).await.unwrap();
    assert_eq!((&*pulled.component, pulled.signature), (&b"other"[..], None));
}

#[tokio::test]
async fn who_waits_for_a_pull_is_told_how_much_of_the_component_is_here() {
    let server = Server::new().await;
    server.push("1.0", COMPONENT, Some(SIGNATURE));
    let (tell, progress) = tokio::sync::watch::channel(PullProgress::default());
    let client =
        RegistryClient::new(ClientOptions { progress: Some(tell), ..ClientOptions::default() });
    pull(&client, &server.reference(":1.0")).await.unwrap();
    let total = COMPONENT.len() as u64;
    // The component's signature, which comes after it, is not counted.
    assert_eq!(*progress.borrow(), PullProgress { received: total, total });
}

#[tokio::test]
async fn what_is_not_there_and_what_does_not_listen_is_named() {
    let server = Server::new().await;
    let missing = client().resolve(&server.reference(":none")).await.unwrap_err();
    assert!(matches!(missing, RegistryError::Missing { .. }), "{missing}");
    assert!(missing.to_string().contains("team/plugin:none"), "{missing}");
    let nobody: OciReference = "oci://127.0.0.1:1/a:1".parse().unwrap();
    let refused = client().resolve(&nobody).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Connect { .. }), "{refused}");
}

#[tokio::test]
async fn a_pin_holds_until_a_moved_tag_is_accepted() {
    let (server, dir) = (Server::new().await, tempfile::tempdir().unwrap());
    let (store, client) = (Store::for_data_dir(dir.path()), client());
    let reference = server.reference(":1.0");
    let old = server.push("1.0", COMPONENT, Some(SIGNATURE));
    let resolved = client.resolve(&reference).await.unwrap();
    assert_eq!(store.read_pinned(&reference).unwrap().map(|pinned| pinned.pin), None);
    let pulled = client.fetch(&reference, &resolved).await.unwrap();
    let kept = store.keep_pulled(&reference, &resolved, &pulled).unwrap();
    assert_eq!((kept.pin.manifest, kept.pin.signed), (old, true));
    store.check(&reference, &resolved, false).unwrap();

    let new = server.push("1.0", b"moved", None);
    let moved = client.resolve(&reference).await.unwrap();
    let refused = store.check(&reference, &moved, false).unwrap_err().to_string();
    for part in [&old.to_tagged(), &new.to_tagged(), "ostler plugin pull --update oci://"] {
        assert!(refused.contains(part), "no {part} in {refused}");
    }
    let pinned = store.read_pinned(&reference).unwrap().unwrap();
    assert_eq!(&*pinned.content.bytes, COMPONENT, "what is pinned is still there");
    assert!(pinned.content.signature.is_some());

    store.check(&reference, &moved, true).unwrap();
    let pulled = client.fetch(&reference, &moved).await.unwrap();
    store.keep_pulled(&reference, &moved, &pulled).unwrap();
    let now = store.read_pinned(&reference).unwrap().unwrap();
    assert_eq!((&*now.content.bytes, now.pin.manifest), (&b"moved"[..], new));
    assert!(now.content.signature.is_none());
    assert!(!pinned.path.exists(), "nothing names the old one");
}

#[tokio::test]
async fn what_was_pulled_is_checked_against_its_pin_each_time() {
    let (server, dir) = (Server::new().await, tempfile::tempdir().unwrap());
    let (store, client, reference) =
        (Store::for_data_dir(dir.path()), client(), server.reference(":1"));
    server.push("1", COMPONENT, None);
    let resolved = client.resolve(&reference).await.unwrap();
    let pulled = client.fetch(&reference, &resolved).await.unwrap();
    let kept = store.keep_pulled(&reference, &resolved, &pulled).unwrap();
    std::fs::write(&kept.path, b"\0asm somebody else's").unwrap();
    let changed = store.read_pinned(&reference).unwrap_err();
    assert!(matches!(changed, StoreError::Changed { .. }), "{changed}");
    std::fs::remove_file(&kept.path).unwrap();
    assert!(matches!(store.read_pinned(&reference).unwrap_err(), StoreError::Unread { .. }));

    // This is a pin under the name of another.
    let pins = dir.path().join("oci/pins");
    let own = std::fs::read_dir(&pins).unwrap().next().unwrap().unwrap().path();
    server.push("2", b"two", None);
    let other = server.reference(":2");
    let resolved = client.resolve(&other).await.unwrap();
    let pulled = client.fetch(&other, &resolved).await.unwrap();
    store.keep_pulled(&other, &resolved, &pulled).unwrap();
    let second = std::fs::read_dir(&pins).unwrap().map(|e| e.unwrap().path());
    let second = second.into_iter().find(|path| *path != own).unwrap();
    std::fs::copy(&second, &own).unwrap();
    assert!(matches!(store.read_pinned(&reference).unwrap_err(), StoreError::Damaged { .. }));
    std::fs::write(&own, "{").unwrap();
    assert!(matches!(store.read_pin(&reference).unwrap_err(), StoreError::Damaged { .. }));
}

#[tokio::test]
async fn a_copy_has_its_signature_beside_it_and_no_older_one() {
    let (server, dir) = (Server::new().await, tempfile::tempdir().unwrap());
    let (store, client) = (Store::for_data_dir(dir.path()), client());
    let to = dir.path().join("plugins/x.wasm");
    for (tag, signature) in [("1", Some(SIGNATURE)), ("2", None)] {
        server.push(tag, COMPONENT, signature);
        let reference = server.reference(&format!(":{tag}"));
        let resolved = client.resolve(&reference).await.unwrap();
        let pulled = client.fetch(&reference, &resolved).await.unwrap();
        let kept = store.keep_pulled(&reference, &resolved, &pulled).unwrap();
        kept.copy_to(&to).unwrap();
        let mode = |path: &std::path::Path| {
            std::os::unix::fs::PermissionsExt::mode(&path.metadata().unwrap().permissions()) & 0o77
        };
        assert_eq!(mode(&kept.path), 0, "for this user alone");
        assert_eq!(mode(&to) & 0o22, 0, "for others to read");
        assert_eq!(std::fs::read(&to).unwrap(), COMPONENT);
        let beside = std::fs::read(dir.path().join("plugins/x.wasm.minisig")).ok();
        assert_eq!(beside.as_deref(), signature);
    }
}
