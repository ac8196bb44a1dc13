//! Pulls plugins: the manifest, then the blobs, with redirects, credentials and retries on the way.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, RETRY_AFTER, WWW_AUTHENTICATE};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio_rustls::rustls::pki_types::CertificateDer;

use super::auth::Challenge;
use super::credentials::RegistryCredentials;
use super::error::RegistryError;
use super::manifest::{Artifact, Descriptor, MANIFEST_TYPE};
use super::transport::{RegistryAddress, RegistryAnswer, Transport, is_local};
use ostler_model::clock;
use ostler_model::digest::Digest;
use ostler_model::limits::{
    REGISTRY_CONNECT_WALL, REGISTRY_HEAD_WALL, REGISTRY_MANIFEST_BYTES_MAX, REGISTRY_PULL_WALL,
    REGISTRY_REDIRECTS_MAX, REGISTRY_RETRIES_MAX, REGISTRY_RETRY_WAIT_MAX, REGISTRY_SILENCE_WALL,
    REGISTRY_TOKEN_BYTES_MAX,
};
use ostler_model::oci::OciReference;
use ostler_model::printable::printable_line;

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
/// The wait before a request is sent again if the registry names none.
const RETRY_WAIT: Duration = Duration::from_secs(2);
/// The longest challenge that is repeated in a message, in bytes.
const CHALLENGE_BYTES: usize = 100;

/// The longest wait for each step of a pull.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The wait for a connection, and again for TLS.
    pub connect: Duration,
    /// The wait for the head of an answer.
    pub head: Duration,
    /// The wait for the next piece of a body.
    pub silence: Duration,
    /// The wait for the whole pull.
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

/// The rights and the credentials of a client.
#[derive(Clone, Debug, Default)]
pub struct ClientOptions {
    /// The registries, host and port, that are asked over plain HTTP. This machine always is.
    pub insecure: BTreeSet<String>,
    /// Names and passwords, by registry.
    pub credentials: RegistryCredentials,
    /// The longest wait for each step of a pull.
    pub timeouts: Timeouts,
    /// The certificate authorities that replace the machine's.
    pub authorities: Option<Vec<CertificateDer<'static>>>,
    /// The channel that receives the progress with each piece.
    pub progress: Option<watch::Sender<PullProgress>>,
}

/// How much of a component has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// The number of bytes that have arrived.
    pub received: u64,
    /// The number of bytes that the manifest promises; 0 before it is known.
    pub total: u64,
}

/// The present meaning of a reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedReference {
    /// The digest of the manifest, which is what gets pinned.
    pub manifest: Digest,
    /// The content of the manifest.
    pub artifact: Artifact,
}

/// A plugin as it arrived, with every byte checked against its manifest. Nobody vouches for it yet.
#[derive(Clone, Debug)]
pub struct PulledPlugin {
    /// The bytes of the component.
    pub component: Arc<[u8]>,
    /// The text of the signature, if there is one.
    pub signature: Option<Vec<u8>>,
}

/// A client for registries. It keeps the token of one pull, so make one per plugin.
#[derive(Debug)]
pub struct RegistryClient {
    transport: Transport,
    options: ClientOptions,
    /// The authorization that the registry gave or wants.
    authorization: Mutex<Option<String>>,
}

impl RegistryClient {
    /// A client that has not asked anything yet.
    #[must_use]
    pub fn new(options: ClientOptions) -> Self {
        let transport = Transport::new(options.clone());
        Self { transport, options, authorization: Mutex::default() }
    }

    /// Find out what a reference means.
    ///
    /// # Errors
    /// [`RegistryError`]; no wait is longer than its deadline.
    pub async fn resolve(
        &self,
        reference: &OciReference,
    ) -> Result<ResolvedReference, RegistryError> {
        self.with_deadline(reference, self.manifest(reference)).await
    }

    /// Get the blobs of a resolved reference.
    ///
    /// # Errors
    /// [`RegistryError`], also when a blob is not the one that the manifest names.
    pub async fn fetch(
        &self,
        reference: &OciReference,
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
        self.with_deadline(reference, fetching).await
    }

    async fn with_deadline<T>(
        &self,
        reference: &OciReference,
        work: impl Future<Output = Result<T, RegistryError>>,
    ) -> Result<T, RegistryError> {
        let limit = self.options.timeouts.pull;
        clock::timeout(limit, work).await.unwrap_or_else(|| {
            let host = reference.registry().to_owned();
            Err(RegistryError::TimedOut { host, what: "send everything", limit })
        })
    }

    async fn manifest(&self, reference: &OciReference) -> Result<ResolvedReference, RegistryError> {
        let path = format!("/v2/{}/manifests/{}", reference.repository(), reference.version());
        let what = format!("the manifest of {reference}");
        let mut answer = self.get(reference, &path, Some(MANIFEST_TYPE), &what).await?;
        let body = answer.body(REGISTRY_MANIFEST_BYTES_MAX, &what).await?;
        let (found, host) = (Digest::compute(&body), reference.registry().to_owned());
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

    /// Get a blob. It is hashed while it arrives, and given up at the first byte too many.
    async fn blob(
        &self,
        reference: &OciReference,
        wanted: &Descriptor,
        what: &str,
        told: Option<&watch::Sender<PullProgress>>,
    ) -> Result<Vec<u8>, RegistryError> {
        let path = format!("/v2/{}/blobs/{}", reference.repository(), wanted.digest.to_tagged());
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

    /// Get something from a registry. Redirects are followed, credentials are shown when the
    /// registry asks for them, and a busy registry is asked again. The answer's status is 200.
    async fn get(
        &self,
        reference: &OciReference,
        path: &str,
        accept: Option<&'static str>,
        what: &str,
    ) -> Result<RegistryAnswer, RegistryError> {
        let registry = reference.registry();
        let plain = is_local(registry) || self.options.insecure.contains(registry);
        let start = RegistryAddress::for_registry(registry, path, plain);
        let (mut redirects, mut retries, mut asked) = (0, 0, false);
        let mut at = start.clone();
        loop {
            // Credentials for the registry are shown to no other host.
            let own = at.is_same_place(&start).then(|| self.authorization()).flatten();
            let answer = self.transport.get(&at, accept, own.as_deref()).await?;
            let (host, status) = (at.host().to_owned(), answer.status());
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
                    at = redirect_target(&at, &answer)?;
                }
                StatusCode::UNAUTHORIZED if !asked && at.is_same_place(&start) => {
                    asked = true;
                    self.authorize(&start, reference, answer.headers()).await?;
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
                    // The target of a redirect may be valid only once.
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

    /// Get the authorization that the registry demands with a 401.
    async fn authorize(
        &self,
        registry: &RegistryAddress,
        reference: &OciReference,
        headers: &HeaderMap,
    ) -> Result<(), RegistryError> {
        let host = registry.host();
        let headers = headers.get_all(WWW_AUTHENTICATE);
        let texts: Vec<&str> = headers.iter().filter_map(|header| header.to_str().ok()).collect();
        let Some(challenge) = texts.iter().find_map(|text| Challenge::parse(text)) else {
            let challenge = printable_line(texts.join("; "), CHALLENGE_BYTES);
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
                let realm = RegistryAddress::from_redirect(registry, &realm)?;
                if !registry.can_redirect_to(&realm) {
                    return Err(RegistryError::Plain { host: realm.host().to_owned() });
                }
                self.fetch_token(realm, service, &scope, basic).await?
            }
        };
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization);
        Ok(())
    }

    /// Get a token from a token service.
    async fn fetch_token(
        &self,
        realm: RegistryAddress,
        service: Option<String>,
        scope: &str,
        basic: Option<String>,
    ) -> Result<String, RegistryError> {
        #[derive(serde::Deserialize)]
        struct TokenReply {
            token: Option<String>,
            access_token: Option<String>,
        }
        let realm = realm.with_query(&token_query(service.as_deref(), scope));
        let host = realm.host().to_owned();
        let mut answer = self.transport.get(&realm, None, basic.as_deref()).await?;
        match answer.status() {
            StatusCode::OK => {}
            status => return Err(RegistryError::Refused { host, status: status.as_u16() }),
        }
        let body = answer.body(REGISTRY_TOKEN_BYTES_MAX, "the token").await?;
        let given: Option<TokenReply> = serde_json::from_slice(&body).ok();
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

fn redirect_target(
    from: &RegistryAddress,
    answer: &RegistryAnswer,
) -> Result<RegistryAddress, RegistryError> {
    let host = from.host().to_owned();
    let reason = "it redirects without an address";
    let location =
        answer.header(LOCATION).ok_or(RegistryError::Address { host: host.clone(), reason })?;
    let next = RegistryAddress::from_redirect(from, location)?;
    if from.can_redirect_to(&next) {
        Ok(next)
    } else {
        Err(RegistryError::Plain { host: next.host().to_owned() })
    }
}

/// How long to wait; `None` if the registry names a wait that is too long. A date counts as
/// no number.
fn retry_wait(header: Option<&str>) -> Option<Duration> {
    let seconds = header.and_then(|text| text.trim().parse().ok());
    let wait = seconds.map_or(RETRY_WAIT, Duration::from_secs);
    (wait <= REGISTRY_RETRY_WAIT_MAX).then_some(wait)
}
