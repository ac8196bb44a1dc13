//! Who sends a request, and what the sender may do.
//!
//! ```text
//! connection: Peer ─┐
//! X-Nomad-Token ────┼─► request_access ─► Access ─┬─► needs: this path, this namespace or object? ─► handler
//! Host, Origin ─────┘ 403                         └─► Params: lists have what may be seen of them
//! ```
//! Over the agent's socket, which only its user can open, everything is allowed; with a token, only
//! what the token allows. Over TCP everything is allowed if the configuration asks for no tokens,
//! otherwise only what the token allows. A path that the table does not have is for `admin` alone.

use std::sync::Arc;

use axum::body::{Body, HttpBody as _};
use axum::extract::rejection::RawPathParamsRejection;
use axum::extract::{MatchedPath, RawPathParams, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderName, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::StreamExt as _;

use super::access::{Access, Peer};
use super::error::RequestFailure;
use super::evaluations;
use super::guarded_body::{BodyGuard, GuardedBody};
use super::hosts;
use super::params::Params;
use super::state::{Api, ApiState};
use crate::routes::{AccessScope, Need, Route};
use ostler_access::Bearer;
use ostler_model::access::AccessLevel;
use ostler_model::ids::{NAMESPACE, Namespace};

/// The header that has the secret of a token.
const TOKEN: HeaderName = HeaderName::from_static("x-nomad-token");
/// The header by which browsers say whose page sends the request.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const BEARER: &str = "bearer";
const EVERYWHERE: &str = "everywhere";
const ANYWHERE: &str = "in any namespace";

/// Middleware: let in a request that is allowed, together with the access of its sender.
pub(super) async fn admit(
    State(api): ApiState,
    named: Result<RawPathParams, RawPathParamsRejection>,
    mut request: Request,
    next: Next,
) -> Response {
    // The id as handlers read it, with percent signs decoded.
    let id = named.ok().and_then(|named| {
        let id = named.iter().find(|(name, _)| *name == "id");
        id.map(|(_, id)| id.to_owned())
    });
    let access = match judge_request(&api, &request, id.as_deref()) {
        Ok(access) => access,
        Err(failure) => return failure.into_response(),
    };
    let bearer = access.bearer().cloned();
    request.extensions_mut().insert(access);
    let Some(bearer) = bearer else { return next.run(request).await };
    let response = if request.method() == Method::GET {
        // A query that waits for a change ends with its token.
        tokio::select! {
            biased;
            () = bearer.wait_until_ended() => return RequestFailure::UnknownToken.into_response(),
            response = next.run(request) => response,
        }
    } else {
        let held = Arc::clone(&bearer);
        next.run(request.map(|body| Body::new(GuardedBody { body, guard: held }))).await
    };
    if response.body().is_end_stream() { response } else { end_with_token(bearer, response) }
}

/// A body is read only while the token of its sender counts, because the request is carried out
/// after it.
impl BodyGuard for Arc<Bearer> {
    fn refusal(&self) -> Option<RequestFailure> {
        self.is_ended().then_some(RequestFailure::UnknownToken)
    }
}

/// Make a stream to the bearer of a token end with the token.
fn end_with_token(bearer: Arc<Bearer>, response: Response) -> Response {
    // A body of known length is complete already.
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let (parts, body) = response.into_parts();
    let ended = async move { bearer.wait_until_ended().await };
    let pieces = body.into_data_stream().take_until(Box::pin(ended));
    Response::from_parts(parts, Body::from_stream(pieces))
}

fn judge_request(api: &Api, request: &Request, id: Option<&str>) -> Result<Access, RequestFailure> {
    let peer = request.extensions().get::<Peer>().copied();
    let headers = request.headers();
    let path = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let route = path.and_then(|path| Route::find(request.method(), path));
    let need = route.map(|route| route.need_of(request.method()));
    check_host(api, peer, headers)?;
    // A link on another site's page may lead to what anybody may read.
    if need != Some(Need::Open) {
        check_page(headers)?;
    }
    let access = request_access(api, peer, headers)?;
    match (path, need) {
        (_, Some(need)) => check_need(api, &access, need, request, id).map(|()| access),
        // There is no such path: the router reports it.
        (None, None) => Ok(access),
        (Some(_), None) if access.allow_everywhere(AccessLevel::Admin) => Ok(access),
        (Some(_), None) => Err(access.refusal(AccessLevel::Admin, EVERYWHERE)),
    }
}

/// Refuse a request by a foreign name. Another site may let a name of its own point to this
/// machine, and its pages could then send requests as if the agent were their own site.
fn check_host(api: &Api, peer: Option<Peer>, headers: &HeaderMap) -> Result<(), RequestFailure> {
    let host = header_text(headers, HOST).unwrap_or_default();
    let one = headers.get_all(HOST).iter().count() == 1;
    // No browser opens a socket, but a proxy in front of the agent may.
    if peer == Some(Peer::Socket) || (one && api.hosts.allow(host)) {
        Ok(())
    } else {
        Err(RequestFailure::OtherHost(host.chars().take(64).collect()))
    }
}

/// Refuse a request that a page of another site sends from a browser.
fn check_page(headers: &HeaderMap) -> Result<(), RequestFailure> {
    let host = header_text(headers, HOST).unwrap_or_default();
    let own = header_text(headers, ORIGIN).is_none_or(|origin| hosts::is_of(origin, host));
    let same =
        header_text(headers, FETCH_SITE).is_none_or(|site| ["same-origin", "none"].contains(&site));
    if own && same { Ok(()) } else { Err(RequestFailure::OtherOrigin) }
}

fn header_text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn request_access(
    api: &Api,
    peer: Option<Peer>,
    headers: &HeaderMap,
) -> Result<Access, RequestFailure> {
    let tokens = &api.tokens;
    let secret = sent_secret(headers);
    match (secret, peer) {
        (Some(secret), _) if tokens.enabled() => {
            let bearer = tokens.bearer(secret).ok_or(RequestFailure::UnknownToken)?;
            Ok(Access::from_bearer(bearer).with_socket(peer == Some(Peer::Socket)))
        }
        (_, Some(Peer::Socket)) => Ok(Access::all().with_socket(true)),
        (_, Some(Peer::Tcp(_))) if !tokens.enabled() => Ok(Access::all()),
        _ => Ok(Access::default()),
    }
}

/// The secret that was sent; none if no header has one. A header that is no text counts as a secret
/// that nobody has.
fn sent_secret(headers: &HeaderMap) -> Option<&str> {
    let own = header_text(headers, TOKEN).map(str::trim).filter(|secret| !secret.is_empty());
    own.or_else(|| {
        let (scheme, secret) = header_text(headers, AUTHORIZATION)?.trim().split_once(' ')?;
        scheme.eq_ignore_ascii_case(BEARER).then(|| secret.trim())
    })
}

/// Check that the access meets what the request needs.
fn check_need(
    api: &Api,
    access: &Access,
    need: Need,
    request: &Request,
    id: Option<&str>,
) -> Result<(), RequestFailure> {
    let (level, scope) = match need {
        Need::Open => return Ok(()),
        Need::Token if access.bearer().is_some() || access.allow_somewhere(AccessLevel::Read) => {
            return Ok(());
        }
        Need::Token => return Err(access.refusal(AccessLevel::Read, ANYWHERE)),
        // If nobody needs a token, there is no first one to create: the handler reports that.
        Need::Socket if access.socket || !api.tokens.enabled() => return Ok(()),
        Need::Socket => return Err(RequestFailure::SocketOnly),
        Need::Level(level, scope) => (level, scope),
    };
    // If the level is allowed everywhere, the object need not be looked up.
    if access.allow_everywhere(level) {
        return Ok(());
    }
    let everywhere = || Err(access.refusal(level, EVERYWHERE));
    let somewhere = || {
        if access.allow_somewhere(level) { Ok(()) } else { Err(access.refusal(level, ANYWHERE)) }
    };
    match scope {
        AccessScope::Node => everywhere(),
        AccessScope::Shown => somewhere(),
        // A browser sends the token of a WebSocket after the upgrade.
        AccessScope::Session if access.bearer().is_none() && has_handshake(request) => Ok(()),
        AccessScope::Named => {
            let params = Params::parse(request.uri().query().unwrap_or_default());
            let reads = [Method::GET, Method::HEAD].contains(request.method());
            match params.text("namespace").unwrap_or(NAMESPACE) {
                "*" if reads => somewhere(),
                "*" => everywhere(),
                namespace => access.require(level, namespace),
            }
        }
        AccessScope::Session
        | AccessScope::Alloc
        | AccessScope::Deployment
        | AccessScope::Evaluation => {
            somewhere()?;
            let (namespace, what) = namespace_of(api, scope, id.unwrap_or_default());
            match namespace {
                Some(namespace) => access.require(level, namespace.as_str()),
                None => Err(RequestFailure::NotThere(what)),
            }
        }
    }
}

fn has_handshake(request: &Request) -> bool {
    let params = Params::parse(request.uri().query().unwrap_or_default());
    params.flag("ws_handshake").unwrap_or(false)
}

/// The namespace of the object that a path names by this id, and the kind of the object.
fn namespace_of(api: &Api, scope: AccessScope, id: &str) -> (Option<Namespace>, &'static str) {
    let named = |name: &str| Namespace::new(name).ok();
    match scope {
        AccessScope::Deployment => {
            let id = id.to_ascii_lowercase();
            let all = api.agent.control().deployments();
            let found = all.into_iter().find(|(_, one)| *one.id == *id);
            (found.and_then(|(job, _)| named(job.namespace())), "deployment")
        }
        AccessScope::Evaluation => {
            let job = evaluations::job_of(api, id);
            (job.and_then(|job| named(job.namespace())), "eval")
        }
        _ => {
            let view = id.parse().ok().and_then(|id| api.agent.control().alloc(id));
            (view.and_then(|view| named(view.allocation.job.namespace())), "alloc")
        }
    }
}

/// The access of a sender whose token comes in the first message of a WebSocket.
///
/// # Errors
/// When there is no token with this secret.
pub(super) fn access_from_secret(
    api: &Api,
    access: &Access,
    secret: &str,
) -> Result<Access, RequestFailure> {
    // A sender that was let in with a token keeps that access.
    if access.allow_everywhere(AccessLevel::Admin) || access.bearer().is_some() {
        return Ok(access.clone());
    }
    let bearer = api.tokens.bearer(secret.trim()).ok_or(RequestFailure::UnknownToken)?;
    Ok(Access::from_bearer(bearer))
}
