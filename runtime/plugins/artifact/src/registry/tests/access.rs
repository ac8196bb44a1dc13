//! Tests of credentials, tokens and TLS.

use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use super::server::Asked;
use super::*;

const AUTHORITY: &[u8] = include_bytes!("../../../fixtures/tls/authority.der");
const CERTIFICATE: &[u8] = include_bytes!("../../../fixtures/tls/server.der");
const KEY: &[u8] = include_bytes!("../../../fixtures/tls/server-key.der");

/// A client that knows a password for `host`.
fn known_at(host: &str) -> RegistryClient {
    let mut credentials = RegistryCredentials::default();
    credentials.add(host, "me".into(), "pass word".into());
    RegistryClient::new(ClientOptions { credentials, ..ClientOptions::default() })
}

const BASIC: &str = "Basic bWU6cGFzcyB3b3Jk";

fn authorization(asked: &Asked) -> Option<&str> {
    asked.headers.get("authorization").map(String::as_str)
}

fn challenged(challenge: &str) -> Reply {
    Reply::with(401, ("WWW-Authenticate", challenge))
}

#[tokio::test]
async fn a_password_is_shown_when_the_registry_asks_for_one() {
    let server = Server::with(|asked, _| {
        (authorization(asked) != Some(BASIC)).then(|| challenged("Basic realm=\"r\""))
    })
    .await;
    server.push("1", COMPONENT, None);
    pull(&known_at(&server.host()), &server.reference(":1")).await.unwrap();
    assert_eq!(authorization(&server.asked()[0]), None, "not before it is asked for");
    // A client without credentials, one with those of another host, and one with wrong ones.
    for client in [client(), known_at("other.example")] {
        let refused = client.resolve(&server.reference(":1")).await.unwrap_err();
        assert!(matches!(refused, RegistryError::Refused { status: 401, .. }), "{refused}");
        assert!(refused.to_string().contains("OSTLER_REGISTRY_PASSWORD"), "{refused}");
    }
    let mut credentials = RegistryCredentials::default();
    credentials.add(&server.host(), "me".into(), "wrong".into());
    let before = server.asked().len();
    let client = RegistryClient::new(ClientOptions { credentials, ..ClientOptions::default() });
    let refused = client.resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused { .. }), "{refused}");
    assert_eq!(server.asked().len(), before + 2, "no guessing");
}

#[tokio::test]
async fn a_token_is_fetched_once_and_used_for_everything_else() {
    let server = Server::with(|asked, _| {
        if asked.path.starts_with("/token") {
            let scope = "/token?service=reg+one&scope=repository%3Ateam%2Fplugin%3Apull";
            let known = asked.path == scope && authorization(asked) == Some(BASIC);
            return Some(if known {
                Reply::body(br#"{"access_token": "abc.def"}"#)
            } else {
                Reply::status(403)
            });
        }
        let bearer = "Bearer realm=\"/token\",service=\"reg one\"";
        (authorization(asked) != Some("Bearer abc.def")).then(|| challenged(bearer))
    })
    .await;
    server.push("1", COMPONENT, None);
    pull(&known_at(&server.host()), &server.reference(":1")).await.unwrap();
    let paths: Vec<String> = server.asked().into_iter().map(|asked| asked.path).collect();
    assert_eq!(paths.iter().filter(|path| path.starts_with("/token")).count(), 1, "{paths:?}");
    let refused = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused { status: 403, .. }), "{refused}");
}

#[tokio::test]
async fn tokens_that_cannot_stand_in_a_header_and_strange_challenges_are_refused() {
    for token in ["{}", "[", r#"{"token": ""}"#, "{\"token\": \"a\\r\\nX: y\"}"] {
        let server = Server::with(move |asked, _| {
            if asked.path.starts_with("/token") {
                Some(Reply::body(token.as_bytes()))
            } else {
                Some(challenged("Bearer realm=\"/token\""))
            }
        })
        .await;
        let error = client().resolve(&server.reference(":1")).await.unwrap_err();
        assert!(matches!(error, RegistryError::Token { .. }), "{token}: {error}");
    }
    let server = Server::with(|_, _| Some(challenged("Negotiate x"))).await;
    let error = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(error, RegistryError::Challenge { .. }), "{error}");
    let server = Server::with(|asked, _| {
        if asked.path.starts_with("/token") {
            Some(Reply::Endless)
        } else {
            Some(challenged("Bearer realm=\"/token\""))
        }
    })
    .await;
    let error = client().resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(error, RegistryError::TooLarge { .. }), "{error}");
}

#[tokio::test]
async fn another_host_gets_the_request_and_none_of_the_credentials() {
    let blobs = Server::new().await;
    blobs.put("/blob", COMPONENT);
    // The same machine under another name is another host.
    let elsewhere = format!("http://127.0.0.1:{}/blob", blobs.host().split(':').nth(1).unwrap());
    let server = Server::with(move |asked, _| {
        if authorization(asked) != Some(BASIC) {
            return Some(challenged("Basic"));
        }
        asked.path.contains("/blobs/").then(|| Reply::with(307, ("Location", &elsewhere)))
    })
    .await;
    server.push("1", COMPONENT, None);
    let pulled = pull(&known_at(&server.host()), &server.reference(":1")).await.unwrap();
    assert_eq!(&*pulled.component, COMPONENT);
    assert_eq!(blobs.asked().len(), 1);
    assert_eq!(authorization(&blobs.asked()[0]), None);

    // Asking for credentials does not help either.
    let greedy = Server::with(|_, _| Some(challenged("Basic"))).await;
    let elsewhere = format!("http://{}/blob", greedy.host());
    let server = Server::with(move |_, _| Some(Reply::with(307, ("Location", &elsewhere)))).await;
    let mut credentials = RegistryCredentials::default();
    credentials.add(&greedy.host(), "me".into(), "pass word".into());
    let client = RegistryClient::new(ClientOptions { credentials, ..ClientOptions::default() });
    let refused = client.resolve(&server.reference(":1")).await.unwrap_err();
    assert!(matches!(refused, RegistryError::Refused { .. }), "{refused}");
    assert!(greedy.asked().iter().all(|asked| authorization(asked).is_none()));
}

fn acceptor() -> TlsAcceptor {
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(KEY));
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![CertificateDer::from(CERTIFICATE)], key)
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

/// Pull over TLS. This machine is asked without TLS, so another server redirects to the one
/// with TLS.
async fn over_tls(server: &Server, options: ClientOptions) -> Result<PulledPlugin, RegistryError> {
    let client = RegistryClient::new(options);
    let (reference, answer) = (server.reference(":1"), format!("https://{}", server.host()));
    let front = {
        let to = answer.clone();
        Server::with(move |asked, _| {
            Some(Reply::with(307, ("Location", &format!("{to}{}", asked.path))))
        })
        .await
    };
    let front: OciReference =
        reference.to_string().replace(&server.host(), &front.host()).parse().unwrap();
    pull(&client, &front).await
}

#[tokio::test]
async fn tls_is_spoken_with_who_has_a_certificate_of_a_known_authority_only() {
    let server = Server::with_tls(acceptor()).await;
    server.push("1", COMPONENT, None);
    let authorities = Some(vec![CertificateDer::from(AUTHORITY)]);
    let known = ClientOptions { authorities, ..ClientOptions::default() };
    let pulled = over_tls(&server, known).await.unwrap();
    assert_eq!(&*pulled.component, COMPONENT);
    let authorities = Some(vec![CertificateDer::from(CERTIFICATE)]);
    let error = over_tls(&server, ClientOptions { authorities, ..ClientOptions::default() })
        .await
        .unwrap_err();
    assert!(matches!(error, RegistryError::Tls { .. }), "{error}");
    let none = ClientOptions { authorities: Some(Vec::new()), ..ClientOptions::default() };
    let error = over_tls(&server, none).await.unwrap_err();
    assert!(matches!(error, RegistryError::NoRoots), "{error}");
}
