//! Pulling: manifest, then blobs; redirects, credentials and patience on the way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderName, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::auth::Challenge;
use super::credentials::Credentials;
use super::error::RegistryError;
use super::manifest::{Artifact, Descriptor, MANIFEST_TYPE};
use super::transport::{Address, Answer, Transport, is_local};
use ostler_model::clock;
use ostler_model::digest::Digest;
use ostler_model::limits::{
    REGISTRY_CONNECT_WALL, REGISTRY_HEAD_WALL, REGISTRY_MANIFEST_BYTES_MAX, REGISTRY_PULL_WALL,
    REGISTRY_REDIRECTS_MAX, REGISTRY_RETRIES_MAX, REGISTRY_RETRY_WAIT_MAX, REGISTRY_SILENCE_WALL,
    REGISTRY_TOKEN_BYTES_MAX,
};
use ostler_model::oci::Reference;
use ostler_model::shown::shown;

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// Wait before a request is sent again when the registry names none.
const RETRY_WAIT: Duration = Duration::from_secs(2);
/// Longest challenge repeated in a message, bytes.
const CHALLENGE_BYTES: usize = 100;

/// How long is waited for what.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// For a connection, and again for TLS.
    pub connect: Duration,
    /// For the head of an answer.
    pub head: Duration,
    /// For the next piece of a body.
    pub silence: Duration,
    /// For all of it.
    pub pull: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: REGISTRY_CONNECT_WALL,
            head: REGISTRY_HEAD_WALL,
            silence: REGISTRY_SILENCE_WALL,
            pull: REGISTRY_PULL_WALL,
        }
    }
}

/// What a client may do, and as whom.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// Registries, host and port, that are asked over plain HTTP. This machine always is.
    pub insecure: BTreeSet<String>,
    /// Names and passwords.
    pub credentials: Credentials,
    /// Deadlines.
    pub timeouts: Timeouts,
    /// Certificate authorities in place of the machine's.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// Told how much of the component came, with each piece.
    pub progress: Option<watch::Sender<PullProgress>>,
}

/// How much of a component came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Bytes that are here.
    pub received: u64,
    /// Bytes that the manifest promises; 0 before it is known.
    pub total: u64,
}

/// What a reference means now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedReference {
    /// Digest of the manifest: what is pinned.
    pub manifest: Digest,
    /// What the manifest says.
    pub artifact: Artifact,
}

/// A plugin as it came, every byte checked against its manifest. Nobody vouches for it yet.
#[derive(Clone, Debug)]
pub struct PulledPlugin {
    /// The component.
    pub component: Arc<[u8]>,
    /// The text of its signature.
    pub signature: Option<Vec<u8>>,
}

/// The way to registries. Keeps the token of one pull; make one per plugin.
#[derive(Debug)]
pub struct Client {
    transport: Transport,
    options: ClientOptions,
    /// What the registry gave or wants as authorization.
    authorization: Mutex<Option<String>>,
}

impl Client {
    /// Nothing is asked yet.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        let transport = Transport::new(options.clone());
        Self { transport, options, authorization: Mutex::default() }
    }

    /// Find out what a reference means.
    ///
    /// # Errors
    /// [`RegistryError`]; nothing is waited for beyond the deadlines.
    pub async fn resolve(&self, reference: &Reference) -> Result<ResolvedReference, RegistryError> {
        self.in_time(reference, self.manifest(reference)).await
    }

    /// Get the blobs of what was resolved.
    ///
    /// # Errors
    /// [`RegistryError`], also when a blob is not the one that the manifest names.
    pub async fn fetch(
        &self,
        reference: &Reference,
        resolved: &ResolvedReference,
    ) -> Result<PulledPlugin, RegistryError> {
        let fetching = async {
            let Artifact { component, signature } = &resolved.artifact;
            let told = self.options.progress.as_ref();
            let component = self.blob(reference, component, "the component", told).await?;
            let signature = match signature {
                Some(one) => Some(self.blob(reference, one, "the signature", None).await?),
                None => None,
            };
            Ok(PulledPlugin { component: component.into(), signature })
        };
        self.in_time(reference, fetching).await
    }

    async fn in_time<T>(
        &self,
        reference: &Reference,
        work: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let limit = self.options.timeouts.pull;
        clock::timeout(limit, work).await.unwrap_or_else(|| {
            let host = reference.registry().to_owned();
            Err(RegistryError::TimedOut { host, what: "send everything", limit })
        })
    }

    async fn manifest(&self, reference: &Reference) -> Result<ResolvedReference, RegistryError> {
        let path = format!("/v2/{}/manifests/{}", reference.repository(), reference.version());
        let what = format!("the manifest of {reference}");
        let mut answer = self.get(reference, &path, Some(MANIFEST_TYPE), &what).await?;
        let body = answer.body(REGISTRY_MANIFEST_BYTES_MAX, &what).await?;
        let (found, host) = (Digest::of(&body), reference.registry().to_owned());
        let said = answer.header(CONTENT_DIGEST).and_then(|text| text.parse().ok());
        for expected in reference.digest().into_iter().chain(said) {
            if expected != found {
                return Err(RegistryError::Digest { host, what, expected, found });
            }
        }
        let artifact = Artifact::read(&body, answer.header(CONTENT_TYPE))
            .map_err(|source| RegistryError::Manifest { host, source })?;
        Ok(ResolvedReference { manifest: found, artifact })
    }

    /// A blob, hashed while it arrives and given up at the first byte too many.
    async fn blob(
        &self,
        reference: &Reference,
        wanted: &Descriptor,
        what: &str,
        told: Option<&watch::Sender<PullProgress>>,
    ) -> Result<Vec<u8>, RegistryError> {
        let path = format!("/v2/{}/blobs/{}", reference.repository(), wanted.digest.tagged());
        let mut answer = self.get(reference, &path, None, what).await?;
        let host = || reference.registry().to_owned();
        let what = || what.to_owned();
        let mut hasher = Sha256::new();
        let mut bytes: Vec<u8> = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            if (bytes.len() as u64).saturating_add(chunk.len() as u64) > wanted.size {
                let (host, what, max) = (host(), what(), wanted.size);
                return Err(RegistryError::TooLarge { host, what, max });
            }
            hasher.update(&chunk);
            bytes.extend_from_slice(&chunk);
            if let Some(told) = told {
                let received = bytes.len() as u64;
                told.send_replace(PullProgress { received, total: wanted.size });
            }
        }
        let (expected, found) = (wanted.size, bytes.len() as u64);
        if found != expected {
            return Err(RegistryError::Short { host: host(), what: what(), expected, found });
        }
        let found = Digest::from_bytes(hasher.finalize().into());
        if found != wanted.digest {
            let (host, what, expected) = (host(), what(), wanted.digest);
            return Err(RegistryError::Digest { host, what, expected, found });
        }
        Ok(bytes)
    }

    /// Get something of a registry: redirects followed, credentials shown when it asks, patient
    /// when it is busy. The answer's status is 200.
    async fn get(
        &self,
        reference: &Reference,
        path: &str,
        accept: Option<&'static str>,
        what: &str,
    ) -> Result<Answer, RegistryError> {
        let registry = reference.registry();
        let plain = is_local(registry) || self.options.insecure.contains(registry);
        let start = Address::of_registry(registry, path, plain);
        let (mut redirects, mut retries, mut asked) = (0, 0, false);
        let mut at = start.clone();
        loop {
            // What is meant for the registry is shown to no other host.
            let own = at.is_same_place(&start).then(|| self.authorization()).flatten();
            let answer = self.transport.get(&at, accept, own.as_deref()).await?;
            let (host, status) = (at.host().to_owned(), answer.response.status());
            match status {
                StatusCode::OK => return Ok(answer),
                StatusCode::MOVED_PERMANENTLY
                | StatusCode::FOUND
                | StatusCode::SEE_OTHER
                | StatusCode::TEMPORARY_REDIRECT
                | StatusCode::PERMANENT_REDIRECT => {
                    redirects += 1;
                    if redirects > REGISTRY_REDIRECTS_MAX {
                        let limit = REGISTRY_REDIRECTS_MAX;
                        return Err(RegistryError::Redirects { host, limit });
                    }
                    at = redirected(&at, &answer)?;
                }
                StatusCode::UNAUTHORIZED if !asked && at.is_same_place(&start) => {
                    asked = true;
                    self.authorize(&start, reference, &answer).await?;
                }
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                    return Err(RegistryError::Refused { host, status: status.as_u16() });
                }
                StatusCode::NOT_FOUND => {
                    return Err(RegistryError::Missing { host, what: what.to_owned() });
                }
                StatusCode::TOO_MANY_REQUESTS
                | StatusCode::BAD_GATEWAY
                | StatusCode::SERVICE_UNAVAILABLE
                | StatusCode::GATEWAY_TIMEOUT => {
                    retries += 1;
                    let wait = retry_wait(answer.header(RETRY_AFTER));
                    let Some(wait) = wait.filter(|_| retries <= REGISTRY_RETRIES_MAX) else {
                        return Err(RegistryError::Busy { host, status: status.as_u16() });
                    };
                    drop(answer);
                    clock::sleep(wait).await;
                    // What a redirect named may be good only once.
                    at = start.clone();
                }
                _ => {
                    let what = what.to_owned();
                    return Err(RegistryError::Status { host, status: status.as_u16(), what });
                }
            }
        }
    }

    fn authorization(&self) -> Option<String> {
        self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Get what the registry asks for with a 401.
    async fn authorize(
        &self,
        registry: &Address,
        reference: &Reference,
        answer: &Answer,
    ) -> Result<(), RegistryError> {
        let host = registry.host();
        let headers = answer.response.headers().get_all(WWW_AUTHENTICATE);
        let texts: Vec<&str> = headers.iter().filter_map(|header| header.to_str().ok()).collect();
        let Some(challenge) = texts.iter().find_map(|text| Challenge::parse(text)) else {
            let challenge = shown(texts.join("; "), CHALLENGE_BYTES);
            return Err(RegistryError::Challenge { host: host.to_owned(), challenge });
        };
        let basic = self.options.credentials.basic(host);
        let authorization = match challenge {
            Challenge::Basic => {
                basic.ok_or(RegistryError::Refused { host: host.to_owned(), status: 401 })?
            }
            Challenge::Bearer { realm, service, scope } => {
                let scope =
                    scope.unwrap_or_else(|| format!("repository:{}:pull", reference.repository()));
                let realm = Address::sent_by(registry, &realm)?;
                if !registry.may_lead_to(&realm) {
                    return Err(RegistryError::Plain { host: realm.host().to_owned() });
                }
                self.token(realm, service, &scope, basic).await?
            }
        };
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization);
        Ok(())
    }

    /// Ask a token service.
    async fn token(
        &self,
        realm: Address,
        service: Option<String>,
        scope: &str,
        basic: Option<String>,
    ) -> Result<String, RegistryError> {
        #[derive(serde::Deserialize)]
        struct Given {
            token: Option<String>,
            access_token: Option<String>,
        }
        let realm = realm.with_query(&token_query(service.as_deref(), scope));
        let host = realm.host().to_owned();
        let mut answer = self.transport.get(&realm, None, basic.as_deref()).await?;
        match answer.response.status() {
            StatusCode::OK => {}
            status => return Err(RegistryError::Refused { host, status: status.as_u16() }),
        }
        let body = answer.body(REGISTRY_TOKEN_BYTES_MAX, "the token").await?;
        let given: Option<Given> = serde_json::from_slice(&body).ok();
        let token = given.and_then(|given| given.token.or(given.access_token));
        let fits =
            |token: &String| !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let token = token.filter(fits).ok_or(RegistryError::Token { host })?;
        Ok(format!("Bearer {token}"))
    }
}

fn token_query(service: Option<&str>, scope: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    if let Some(service) = service {
        query.append_pair("service", service);
    }
    query.append_pair("scope", scope).finish()
}

fn redirected(from: &Address, answer: &Answer) -> Result<Address, RegistryError> {
    let host = from.host().to_owned();
    let reason = "it redirects to nowhere";
    let location =
        answer.header(LOCATION).ok_or(RegistryError::Address { host: host.clone(), reason })?;
    let next = Address::sent_by(from, location)?;
    match from.may_lead_to(&next) {
        true => Ok(next),
        false => Err(RegistryError::Plain { host: next.host().to_owned() }),
    }
}

/// How long to wait; `None` when the registry names more than is worth waiting for. Dates are read
/// as no number.
fn retry_wait(header: Option<&str>) -> Option<Duration> {
    let seconds = header.and_then(|text| text.trim().parse().ok());
    let wait = seconds.map_or(RETRY_WAIT, Duration::from_secs);
    (wait <= REGISTRY_RETRY_WAIT_MAX).then_some(wait)
}
