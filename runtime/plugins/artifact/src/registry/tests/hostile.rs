//! Tests of registries that lie, stop, never stop, and lead astray.

use super::*;
use ostler_model::limits::{
    REGISTRY_MANIFEST_BYTES_MAX, REGISTRY_REDIRECTS_MAX, REGISTRY_RETRIES_MAX,
};

const SHORT: Duration = Duration::from_millis(200);
/// Long enough on any machine for what must come in time.
const ENOUGH: Duration = Duration::from_secs(3);

/// The error of a registry whose blobs are answered by `reply`.
async fn blobs(
    client: RegistryClient,
    reply: impl Fn() -> Reply + Send + Sync + 'static,
) -> RegistryError {
    let server = Server::with(move |asked, _| asked.path.contains("/blobs/").then(&reply)).await;
    server.push("1", COMPONENT, None);
    pull(&client, &server.reference(":1")).await.unwrap_err()
}

#[tokio::test]
async fn a_blob_of_other_bytes_is_refused_however_long_it_is() {
    let same_length = blobs(client(), || Reply::body(&[b'x'; COMPONENT.len()])).await;
    assert!(matches!(same_length, RegistryError::Digest { .. }), "{same_length}");
    let longer = blobs(client(), || Reply::body(&[COMPONENT, b"!"].concat())).await;
    assert!(matches!(longer, RegistryError::TooLarge { .. }), "{longer}");
    let shorter = blobs(client(), || Reply::body(&COMPONENT[1..])).await;
    assert!(matches!(shorter, RegistryError::Short { .. }), "{shorter}");
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_refused() {
    let reply = || Reply::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n\0asm".to_vec());
    let cut = blobs(client(), reply).await;
    assert!(matches!(cut, RegistryError::Http { .. }), "{cut}");
    // Without a length, the end of the connection is the end of the body, and only the manifest
    // shows that it is too short.
    let cut = blobs(client(), || Reply::Raw(b"HTTP/1.1 200 OK\r\n\r\n\0asm".to_vec())).await;
    assert!(matches!(cut, RegistryError::Short { .. }), "{cut}");
}

#[tokio::test]
async fn a_body_without_end_is_given_up_at_the_first_byte_too_many() {
    let endless = blobs(client(), || Reply::Endless).await;
    assert!(matches!(endless, RegistryError::TooLarge { .. }), "{endless}");
    let server = Server::with(|_, _| Some(Reply::Endless)).await;
    let endless = client().resolve(&server.reference(":1")).await.unwrap_err();
    let max = REGISTRY_MANIFEST_BYTES_MAX;
    assert!(matches!(endless, RegistryError::TooLarge { max: m, .. } if m == max), "{endless}");
    // A body that is too large by its head is not even read.
    let head = || Reply::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n".to_vec());
    let server = Server::with(move |_, _| Some(head())).await;
    let large = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(large, RegistryError::TooLarge { .. }), "{large}");
}

#[tokio::test]
async fn a_registry_that_stops_in_the_middle_is_given_up() {
    let late = |error: &RegistryError, wanted| matches!(error, RegistryError::TimedOut { what, .. } if what.contains(wanted));
    let body = || Reply::Stall(b"HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n\0".to_vec());
    let stopped = blobs(hurried(ENOUGH), body).await;
    assert!(late(&stopped, "send more"), "{stopped}");
    let server = Server::with(|_, _| Some(Reply::Stall(b"HTTP/1.1 200".to_vec()))).await;
    let silent = hurried(SHORT).resolve(&server.reference(":1")).await.unwrap_err();
    assert!(late(&silent, "answer"), "{silent}");
    // Every piece comes in time, but all of it too late.
    let timeouts = Timeouts { pull: SHORT, ..Timeouts::default() };
    let client = RegistryClient::new(ClientOptions { timeouts, ..ClientOptions::default() });
    let slow = client.resolve(&server.reference(":1")).await.unwrap_err();
    assert!(late(&slow, "send everything"), "{slow}");
}

#[tokio::test]
async fn what_is_no_http_is_refused() {
    let large = [b"HTTP/1.1 200 OK\r\nX: ".to_vec(), vec![b'x'; 200_000]].concat();
    for raw in [b"hello\r\n\r\n".to_vec(), b"".to_vec(), large] {
        let server = Server::with(move |_, _| Some(Reply::Raw(raw.clone()))).await;
        let error = client().resolve(&server.reference(":1")).await.unwrap_err();
        assert!(matches!(error, RegistryError::Http { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_manifest_of_another_digest_than_asked_for_or_said_is_refused() {
    let wanted = Digest::compute(b"wanted");
    let server = Server::new().await;
    server.push("1", COMPONENT, None);
    let other = manifest(COMPONENT, None);
    server.put(&format!("/v2/team/plugin/manifests/{}", wanted.to_tagged()), &other);
    let reference = server.reference(&format!("@{}", wanted.to_tagged()));
    let error = client().resolve(&reference).await.unwrap_err();
    assert!(matches!(error, RegistryError::Digest { .. }), "{error}");

    let server = Server::with(move |_, _| {
        let said = vec![("Docker-Content-Digest".to_owned(), wanted.to_tagged())];
        Some(Reply::Full(200, said, manifest(COMPONENT, None)))
    })
    .await;
    let error = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(error, RegistryError::Digest { .. }), "{error}");
}

#[tokio::test]
async fn redirects_in_circles_and_to_nowhere_are_given_up() {
    let server = Server::with(|asked, _| Some(Reply::with(307, ("Location", &asked.path)))).await;
    let circles = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(circles, RegistryError::Redirects { .. }), "{circles}");
    assert_eq!(server.asked().len(), REGISTRY_REDIRECTS_MAX + 1);
    for (location, wanted) in [
        ("ftp://localhost/x", "neither http nor https"),
        ("file:///etc/passwd", "not an address"),
        ("//other.example/x", "neither http nor https"),
        ("http://user@localhost/x", "user name"),
        ("not an address", "not an address"),
        ("relative", "neither http nor https"),
    ] {
        let server = Server::with(move |_, _| Some(Reply::with(302, ("Location", location)))).await;
        let error = client().resolve(&server.reference(":1")).await.unwrap_err();
        assert!(error.to_string().contains(wanted), "{location}: {error}");
    }
    let server = Server::with(|_, _| Some(Reply::status(302))).await;
    let error = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(error.to_string().contains("redirects without an address"), "{error}");
}

#[tokio::test]
async fn plain_http_goes_only_to_this_machine_and_where_it_is_allowed() {
    let server =
        Server::with(|_, _| Some(Reply::with(307, ("Location", "http://192.0.2.1:9/secret"))))
            .await;
    let error = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(&error, RegistryError::Plain { host } if host == "192.0.2.1:9"), "{error}");
}

#[tokio::test]
async fn a_busy_registry_is_asked_again_and_at_last_given_up() {
    let server =
        Server::with(|_, before| (before < 2).then(|| Reply::with(429, ("Retry-After", "0"))))
            .await;
    server.push("1", COMPONENT, None);
    pull(&client(), &server.reference(":1")).await.unwrap();
    assert_eq!(server.asked().len(), 4);

    let server = Server::with(|_, _| Some(Reply::with(503, ("Retry-After", "0")))).await;
    let busy = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(busy, RegistryError::Busy { status: 503, .. }), "{busy}");
    assert_eq!(server.asked().len(), REGISTRY_RETRIES_MAX + 1);

    let server = Server::with(|_, _| Some(Reply::with(429, ("Retry-After", "86400")))).await;
    let busy = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(busy, RegistryError::Busy { .. }), "{busy}");
    assert_eq!(server.asked().len(), 1, "nobody waits a day");
}

#[tokio::test]
async fn any_other_status_is_said() {
    for status in [204, 206, 400, 418, 500] {
        let server = Server::with(move |_, _| Some(Reply::status(status))).await;
        let error = client().resolve(&server.reference(":1")).await.unwrap_err();
        let said = matches!(error, RegistryError::Status { status: s, .. } if s == status);
        assert!(said, "{error}");
    }
}
