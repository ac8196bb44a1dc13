//! Who asks, and what they may do.
//!
//! ```text
//! connection: Peer ─┐
//! X-Nomad-Token ────┼─► caller ─► Access: rights ─┬─► needs: this path, this namespace or object? ─► handler
//! Host, Origin ─────┘ 403                         └─► Params: lists have what may be seen of them
//! ```
//! Over the agent's socket, which only its user can open, everything is allowed, unless a token is sent: then
//! what that allows. Over TCP everything is allowed where the configuration asks for no tokens, else what the
//! token allows; a path that [`needs`] does not know is for `admin` alone.

mod hosts;
mod needs;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};

use axum::body::{Body, HttpBody as _};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;

use super::error::Failure;
use super::evaluations;
use super::guarded::{Guard, Guarded};
use super::params::Params;
use super::router::{Api, Shared};
use super::shares::Caller;
pub(super) use hosts::Hosts;
use needs::{Need, Scope, need};
use ostler_access::Bearer;
use ostler_model::access::{Level, Rights};
use ostler_model::ids::{NAMESPACE, Namespace};

/// Has the secret of a token.
const TOKEN: HeaderName = HeaderName::from_static("x-nomad-token");
/// Set by browsers: whose page asks.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const BEARER: &str = "bearer";

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// The agent's socket.
    Socket,
    /// Over TCP.
    Tcp(SocketAddr),
}

/// What the one who asks may do.
#[derive(Clone, Debug)]
pub(super) struct Access {
    rights: Arc<Rights>,
    bearer: Option<Arc<Bearer>>,
    socket: bool,
}

static ALL: LazyLock<Arc<Rights>> = LazyLock::new(|| Arc::new(Rights::all()));
static NONE: LazyLock<Arc<Rights>> = LazyLock::new(Arc::default);

impl Default for Access {
    /// Nothing.
    fn default() -> Self {
        Self { rights: Arc::clone(&NONE), bearer: None, socket: false }
    }
}

impl Access {
    /// Everything.
    pub(super) fn all() -> Self {
        Self { rights: Arc::clone(&ALL), bearer: None, socket: false }
    }

    fn of(bearer: Bearer) -> Self {
        let rights = Arc::new(bearer.rights.clone());
        Self { rights, bearer: Some(Arc::new(bearer)), socket: false }
    }

    /// May one do this in a namespace?
    pub(super) fn allow(&self, level: Level, namespace: &str) -> bool {
        self.is_valid() && self.rights.allow(level, namespace)
    }

    /// May one do this to the node?
    pub(super) fn allow_everywhere(&self, level: Level) -> bool {
        self.is_valid() && self.rights.allow_everywhere(level)
    }

    /// May one do this in any namespace at all?
    pub(super) fn allow_somewhere(&self, level: Level) -> bool {
        self.is_valid() && self.rights.allow_somewhere(level)
    }

    /// The token may have ended since the request began.
    fn is_valid(&self) -> bool {
        self.bearer.as_ref().is_none_or(|bearer| !bearer.is_ended())
    }

    /// May one do this in a namespace? It is said when not.
    pub(super) fn require(&self, level: Level, namespace: &str) -> Result<(), Failure> {
        match self.allow(level, namespace) {
            true => Ok(()),
            false => Err(self.refusal(level, &format!("in namespace {}", cut(namespace)))),
        }
    }

    /// Against whose share of streams and waiting queries it counts.
    pub(super) fn caller(&self) -> Caller {
        match &self.bearer {
            Some(bearer) => Caller::Token(bearer.token.accessor),
            None if self.socket => Caller::Operator,
            None => Caller::Near,
        }
    }

    /// Whose token was sent.
    pub(super) fn bearer(&self) -> Option<&Arc<Bearer>> {
        self.bearer.as_ref()
    }

    fn refusal(&self, level: Level, place: &str) -> Failure {
        match &self.bearer {
            None => Failure::NeedsToken,
            Some(bearer) => Failure::Forbidden {
                token: match bearer.token.name.is_empty() {
                    true => bearer.token.accessor.to_string(),
                    false => bearer.token.name.clone(),
                },
                level,
                place: place.to_owned(),
            },
        }
    }
}

fn cut(name: &str) -> String {
    name.chars().take(64).collect()
}

const EVERYWHERE: &str = "everywhere";
const ANYWHERE: &str = "in any namespace";

/// Let in who may ask this, with what they may see.
pub(super) async fn admit(
    State(api): Shared,
    named: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    // As handlers read it, percent signs and all.
    let id = named.ok().and_then(|named| {
        let id = named.iter().find(|(name, _)| *name == "id");
        id.map(|(_, id)| id.to_owned())
    });
    let access = match judge(&api, &request, id.as_deref()) {
        Ok(access) => access,
        Err(failure) => return failure.into_response(),
    };
    let bearer = access.bearer.clone();
    request.extensions_mut().insert(access);
    let Some(bearer) = bearer else { return next.run(request).await };
    let response = if request.method() == Method::GET {
        // One that waits for a change ends with its token.
        tokio::select! {
            biased;
            () = bearer.ended() => return Failure::UnknownToken.into_response(),
            response = next.run(request) => response,
        }
    } else {
        let held = Arc::clone(&bearer);
        next.run(request.map(|body| Body::new(Guarded { body, guard: held }))).await
    };
    match response.body().is_end_stream() {
        true => response,
        false => until_ended(bearer, response),
    }
}

/// A body arrives only while the token of its sender counts: what it asks is done after it.
impl Guard for Arc<Bearer> {
    fn refusal(&self) -> Option<Failure> {
        self.is_ended().then_some(Failure::UnknownToken)
    }
}

/// What is streamed to the bearer of a token ends with the token.
fn until_ended(bearer: Arc<Bearer>, response: Response) -> Response {
    // One of a known length is there already.
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let (parts, body) = response.into_parts();
    let ended = async move { bearer.ended().await };
    let pieces = body.into_data_stream().take_until(Box::pin(ended));
    Response::from_parts(parts, Body::from_stream(pieces))
}

fn judge(api: &Api, request: &Request, id: Option<&str>) -> Result<Access, Failure> {
    let peer = request.extensions().get::<Peer>().copied();
    let headers = request.headers();
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let need = path.and_then(|path| need(request.method(), path));
    own_name(api, peer, headers)?;
    // A link of another page may lead to what anybody may have.
    if need != Some(Need::Open) {
        own_page(headers)?;
    }
    let access = caller(api, peer, headers)?;
    match (path, need) {
        (_, Some(need)) => met(api, &access, need, request, id).map(|()| access),
        // Nothing is there: said by the router.
        (None, None) => Ok(access),
        (Some(_), None) if access.allow_everywhere(Level::Admin) => Ok(access),
        (Some(_), None) => Err(access.refusal(Level::Admin, EVERYWHERE)),
    }
}

/// A site of somebody else may let a name of its own point to this machine: then its pages ask as if the agent
/// were their own.
fn own_name(api: &Api, peer: Option<Peer>, headers: &HeaderMap) -> Result<(), Failure> {
    let host = text(headers, HOST).unwrap_or_default();
    let one = headers.get_all(HOST).iter().count() == 1;
    // No browser opens a socket; what stands before one may.
    match peer == Some(Peer::Socket) || (one && api.hosts.allow(host)) {
        true => Ok(()),
        false => Err(Failure::OtherHost(host.chars().take(64).collect())),
    }
}

/// A page of somebody else that a browser shows cannot ask.
fn own_page(headers: &HeaderMap) -> Result<(), Failure> {
    let host = text(headers, HOST).unwrap_or_default();
    let own = text(headers, ORIGIN).is_none_or(|origin| hosts::is_of(origin, host));
    let same = text(headers, FETCH_SITE).is_none_or(|site| ["same-origin", "none"].contains(&site));
    if own && same { Ok(()) } else { Err(Failure::OtherOrigin) }
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn caller(api: &Api, peer: Option<Peer>, headers: &HeaderMap) -> Result<Access, Failure> {
    let tokens = &api.tokens;
    let secret = secret(headers);
    match (secret, peer) {
        (Some(secret), _) if tokens.enabled() => {
            let bearer = tokens.bearer(secret).ok_or(Failure::UnknownToken)?;
            Ok(Access { socket: peer == Some(Peer::Socket), ..Access::of(bearer) })
        }
        (_, Some(Peer::Socket)) => Ok(Access { socket: true, ..Access::all() }),
        (_, Some(Peer::Tcp(_))) if !tokens.enabled() => Ok(Access::all()),
        _ => Ok(Access::default()),
    }
}

/// The secret that was sent; none where no header has one. What is no text is one that nobody has.
fn secret(headers: &HeaderMap) -> Option<&str> {
    let own = text(headers, TOKEN).map(str::trim).filter(|secret| !secret.is_empty());
    own.or_else(|| {
        let (scheme, secret) = text(headers, AUTHORIZATION)?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case(BEARER).then(|| secret.trim())
    })
}

/// Is what a request needs given?
fn met(
    api: &Api,
    access: &Access,
    need: Need,
    request: &Request,
    id: Option<&str>,
) -> Result<(), Failure> {
    let (level, scope) = match need {
        Need::Open => return Ok(()),
        Need::Token if access.bearer.is_some() || access.allow_somewhere(Level::Read) => {
            return Ok(());
        }
        Need::Token => return Err(access.refusal(Level::Read, ANYWHERE)),
        // Where nobody needs a token there is no first one to be made: the answer says so.
        Need::Socket if access.socket || !api.tokens.enabled() => return Ok(()),
        Need::Socket => return Err(Failure::SocketOnly),
        Need::Level(level, scope) => (level, scope),
    };
    // What a bearer of everything asks for needs no looking up.
    if access.allow_everywhere(level) {
        return Ok(());
    }
    let everywhere = || Err(access.refusal(level, EVERYWHERE));
    let somewhere = || match access.allow_somewhere(level) {
        true => Ok(()),
        false => Err(access.refusal(level, ANYWHERE)),
    };
    match scope {
        Scope::Node => everywhere(),
        Scope::Shown => somewhere(),
        // A WebSocket of a browser says its token after the upgrade.
        Scope::Session if access.bearer.is_none() && handshakes(request) => Ok(()),
        Scope::Named => {
            let params = Params::parse(request.uri().query().unwrap_or_default());
            let reads = [Method::GET, Method::HEAD].contains(request.method());
            match params.text("namespace").unwrap_or(NAMESPACE) {
                "*" if reads => somewhere(),
                "*" => everywhere(),
                namespace => access.require(level, namespace),
            }
        }
        Scope::Session | Scope::Alloc | Scope::Deployment | Scope::Evaluation => {
            somewhere()?;
            let (namespace, what) = namespace_of(api, scope, id.unwrap_or_default());
            match namespace {
                Some(namespace) => access.require(level, namespace.as_str()),
                None => Err(Failure::NotThere(what)),
            }
        }
    }
}

fn handshakes(request: &Request) -> bool {
    let params = Params::parse(request.uri().query().unwrap_or_default());
    params.flag("ws_handshake").unwrap_or(false)
}

/// The namespace of what a path names by this id, and what that is.
fn namespace_of(api: &Api, scope: Scope, id: &str) -> (Option<Namespace>, &'static str) {
    let named = |name: &str| Namespace::new(name).ok();
    match scope {
        Scope::Deployment => {
            let id = id.to_ascii_lowercase();
            let all = api.agent.deployments();
            let found = all.into_iter().find(|(_, one)| *one.id == *id);
            (found.and_then(|(job, _)| named(job.namespace())), "deployment")
        }
        Scope::Evaluation => {
            let job = evaluations::job_of(api, id);
            (job.and_then(|job| named(job.namespace())), "eval")
        }
        _ => {
            let view = id.parse().ok().and_then(|id| api.agent.alloc(id));
            (view.and_then(|view| named(view.allocation.job.namespace())), "alloc")
        }
    }
}

/// What the bearer of a token that comes late may do; for the first message of a WebSocket.
///
/// # Errors
/// When there is no such token.
pub(super) fn late(api: &Api, access: &Access, secret: &str) -> Result<Access, Failure> {
    // Who was let in as somebody stays that one.
    if access.allow_everywhere(Level::Admin) || access.bearer.is_some() {
        return Ok(access.clone());
    }
    let bearer = api.tokens.bearer(secret.trim()).ok_or(Failure::UnknownToken)?;
    Ok(Access::of(bearer))
}
