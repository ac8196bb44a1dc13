//! Tokens and policies: Nomad's paths below `/v1/acl/`.
//!
//! Policies are no records. Their names say what they allow, so `nomad acl token create -policy
//! submit@web` works without writing a policy first.

use std::time::Duration;

use axum::extract::State;
use axum::response::Response;

use super::body::{self, Body};
use super::error::RequestFailure;
use super::json;
use super::params::Params;
use super::reply;
use super::state::{Api, ApiState, NamedRequest};
use ostler_access::{NewToken, ShownToken, TokenChange, TokenError};
use ostler_model::access::{AccessLevel, AccessPolicy, Rights, TokenRecord};
use ostler_text::duration::parse_duration;
use ostler_wire::{AclPolicy, AclToken, AclTokenRequest};

const MANAGEMENT: &str = "management";
const CLIENT: &str = "client";
/// The shortest lifetime of a token. A token should not expire before its secret is read.
const TTL_MIN: Duration = Duration::from_secs(1);

/// Refuse a request if the agent does not use tokens. Handlers call it before anything else.
fn require_enabled(api: &Api) -> Result<(), RequestFailure> {
    if api.tokens.enabled() { Ok(()) } else { Err(RequestFailure::NoAcl) }
}

pub(super) async fn refuse_other_path(State(api): ApiState) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    Err(RequestFailure::OfClusters)
}

/// `POST /v1/acl/bootstrap`: create the first token. Only possible over the socket.
pub(super) async fn bootstrap(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let made = api.tokens.bootstrap().await?;
    answer(&params, &made.token, false, &made.secret)
}

/// `GET /v1/acl/tokens`
pub(super) async fn list(State(api): ApiState, params: Params) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let mut all = api.tokens.list();
    all.retain(|one| one.token.accessor.to_string().starts_with(params.prefix()));
    all.sort_by_key(|one| one.token.accessor);
    let shown: Vec<_> = all.iter().map(|one| token_json(&one.token, one.configured, "")).collect();
    Ok(reply::with_read_index(api.tokens.index(), reply::json(&params, &shown)?))
}

/// `POST /v1/acl/token`
pub(super) async fn create(
    State(api): ApiState,
    params: Params,
    body: Body,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let asked: AclTokenRequest = body::read(&params, body)?;
    if !asked.accessor_id.is_empty() {
        return bad_request(
            "AccessorID is given to a new token by the agent: leave it out".to_owned(),
        );
    }
    let policies = policies_of(&asked)?;
    let expires = match asked.expiration_ttl.as_str() {
        "" => None,
        text => {
            let ttl = parse_duration(text).ok().filter(|ttl| *ttl >= TTL_MIN);
            let Some(ttl) = ttl else {
                return bad_request(
                    "ExpirationTTL must be a duration of at least a second, such as 8h".to_owned(),
                );
            };
            Some(api.clock.now().plus(ttl))
        }
    };
    let made = api.tokens.create(NewToken { name: asked.name, policies, expires }).await?;
    answer(&params, &made.token, false, &made.secret)
}

/// `GET /v1/acl/token/self`
pub(super) async fn own_token(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let bearer = params.access().bearer().ok_or(RequestFailure::NeedsToken)?;
    let found = find(&api, &bearer.token.accessor.to_string())?;
    answer(&params, &found.token, found.configured, "")
}

/// `GET /v1/acl/token/ID`
pub(super) async fn read(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let found = find(&api, &id)?;
    answer(&params, &found.token, found.configured, "")
}

/// `POST /v1/acl/token/ID`
pub(super) async fn update(
    NamedRequest { api, id, params }: NamedRequest,
    body: Body,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let asked: AclTokenRequest = body::read_shown::<_, AclToken<'_>>(&params, body)?;
    if !matches!(&asked.accessor_id, own if own.is_empty() || *own == id) {
        return bad_request("AccessorID in the body differs from that in the path".to_owned());
    }
    if !asked.expiration_ttl.is_empty() {
        return bad_request(
            "the expiry of a token is set when it is made: leave ExpirationTTL out".to_owned(),
        );
    }
    let policies = policies_of(&asked)?;
    let token = api.tokens.update(&id, TokenChange { name: asked.name, policies }).await?;
    answer(&params, &token, false, "")
}

/// `DELETE /v1/acl/token/ID`
pub(super) async fn delete(
    NamedRequest { api, id, .. }: NamedRequest,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    api.tokens.delete(&id).await?;
    Ok(reply::empty_answer())
}

fn find(api: &Api, accessor: &str) -> Result<ShownToken, RequestFailure> {
    let mut all = api.tokens.list().into_iter();
    let found = all.find(|one| one.token.accessor.to_string() == accessor);
    found.ok_or(RequestFailure::Token(TokenError::Unknown))
}

fn bad_request<T>(what: String) -> Result<T, RequestFailure> {
    Err(RequestFailure::BadRequest(what))
}

/// The policies in a request for a token.
fn policies_of(asked: &AclTokenRequest) -> Result<Vec<AccessPolicy>, RequestFailure> {
    if !asked.expiration_time.is_null() {
        return bad_request(
            "ExpirationTime is not supported: give ExpirationTTL, a duration such as 8h".to_owned(),
        );
    }
    if asked.roles.as_array().map_or(!asked.roles.is_null(), |roles| !roles.is_empty()) {
        return bad_request("this agent has no roles: give Policies".to_owned());
    }
    match asked.kind.as_str() {
        MANAGEMENT if asked.policies.is_empty() => {
            Ok(vec![AccessPolicy { level: AccessLevel::Admin, namespace: None }])
        }
        MANAGEMENT => {
            bad_request("a management token may do everything: leave Policies out".to_owned())
        }
        "" | CLIENT => asked.policies.iter().map(|text| Ok(text.parse()?)).collect(),
        other => {
            let shown: String = other.chars().take(64).collect();
            bad_request(format!("Type is {shown:?}; it must be client or management"))
        }
    }
}

fn answer(
    params: &Params,
    token: &TokenRecord,
    configured: bool,
    secret: &str,
) -> Result<Response, RequestFailure> {
    let shown = token_json(token, configured, secret);
    Ok(reply::with_read_index(token.modify_index, reply::json(params, &shown)?))
}

fn token_json<'a>(token: &'a TokenRecord, configured: bool, secret: &'a str) -> AclToken<'a> {
    let manages = Rights::from_policies(&token.policies).allow_everywhere(AccessLevel::Admin);
    AclToken {
        accessor_id: token.accessor.to_string().into(),
        secret_id: secret.into(),
        name: (&token.name).into(),
        kind: if manages { MANAGEMENT } else { CLIENT }.into(),
        policies: if manages {
            Vec::new()
        } else {
            token.policies.iter().map(ToString::to_string).collect()
        },
        global: true,
        create_time: json::moment(token.created),
        expiration_time: token.expires.map(|end| json::moment(end).into_owned()),
        configured,
        create_index: token.create_index,
        modify_index: token.modify_index,
        ..AclToken::default()
    }
}

/// `GET /v1/acl/policies`
pub(super) async fn policies(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let all = AccessLevel::ALL.map(|level| policy_json(AccessPolicy { level, namespace: None }));
    let found: Vec<_> = all.iter().filter(|one| one.name.starts_with(params.prefix())).collect();
    reply::json(&params, &found)
}

/// `GET /v1/acl/policy/NAME`
pub(super) async fn policy(
    NamedRequest { api, id, params }: NamedRequest,
) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    let policy = id.parse().map_err(|_| RequestFailure::NotThere("ACL policy"))?;
    reply::json(&params, &policy_json(policy))
}

pub(super) async fn refuse_policy_change(State(api): ApiState) -> Result<Response, RequestFailure> {
    require_enabled(&api)?;
    Err(RequestFailure::FixedPolicies)
}

fn policy_json(policy: AccessPolicy) -> AclPolicy {
    let what = match policy.level {
        AccessLevel::Read => "see jobs, allocations and events",
        AccessLevel::Submit => "the same, and change jobs, see logs, files and variables",
        AccessLevel::Operate => "the same, and run commands inside tasks",
        AccessLevel::Admin => "everything",
    };
    let place = match &policy.namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None if policy.level == AccessLevel::Admin => "everywhere, the node included".to_owned(),
        None => {
            format!("everywhere, the node included; for one namespace as in {}@web", policy.level)
        }
    };
    AclPolicy {
        description: format!("{what}: {place}"),
        name: policy.to_string(),
        create_index: 1,
        modify_index: 1,
        ..AclPolicy::default()
    }
}
