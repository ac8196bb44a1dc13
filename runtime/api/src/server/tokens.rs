//! Tokens and policies: Nomad's paths below `/v1/acl/`.
//!
//! Policies are no records: their names say what they allow, so `nomad acl token create -policy submit@web`
//! works without one being written first.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use axum::routing::{any, get, post};

use super::body;
use super::error::Failure;
use super::jobs::Body;
use super::json;
use super::params::{Asked, Params};
use super::reply;
use super::router::{Api, Shared};
use ostler_access::{NewToken, ShownToken, TokenChange, TokenError};
use ostler_jobspec::units::parse_duration;
use ostler_model::access::{AccessPolicy, KeptToken, Level, Rights};
use ostler_wire::{AclPolicy, AclToken, AclTokenRequest};

const MANAGEMENT: &str = "management";
const CLIENT: &str = "client";
/// No token is made that has ended before its secret is read.
const TTL_MIN: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Router<Arc<Api>> {
    Router::new()
        .route("/v1/acl/bootstrap", post(bootstrap).put(bootstrap))
        .route("/v1/acl/tokens", get(list))
        .route("/v1/acl/token", post(create).put(create))
        .route("/v1/acl/token/self", get(own))
        .route("/v1/acl/token/{id}", get(read).post(update).put(update).delete(delete))
        .route("/v1/acl/policies", get(policies))
        .route("/v1/acl/policy/{id}", get(policy).post(fixed).put(fixed).delete(fixed))
        .route("/v1/acl/{*what}", any(other))
}

/// Before anything else: an agent that asks for no tokens says so.
fn enabled(api: &Api) -> Result<(), Failure> {
    match api.tokens.enabled() {
        true => Ok(()),
        false => Err(Failure::NoAcl),
    }
}

async fn other(State(api): Shared) -> Result<Response, Failure> {
    enabled(&api)?;
    Err(Failure::OfClusters)
}

/// `POST /v1/acl/bootstrap`: the first token, over the socket alone.
async fn bootstrap(State(api): Shared, params: Params) -> Result<Response, Failure> {
    enabled(&api)?;
    let made = api.tokens.bootstrap().await?;
    answer(&params, &made.token, false, &made.secret)
}

/// `GET /v1/acl/tokens`
async fn list(State(api): Shared, params: Params) -> Result<Response, Failure> {
    enabled(&api)?;
    let mut all = api.tokens.list();
    all.retain(|one| one.token.accessor.to_string().starts_with(params.prefix()));
    all.sort_by_key(|one| one.token.accessor);
    let shown: Vec<_> = all.iter().map(|one| shown(&one.token, one.configured, "")).collect();
    Ok(reply::read_at(api.tokens.index(), reply::json(&params, &shown)?))
}

/// `POST /v1/acl/token`
async fn create(State(api): Shared, params: Params, body: Body) -> Result<Response, Failure> {
    enabled(&api)?;
    let asked: AclTokenRequest = body::read(&params, body)?;
    if !asked.accessor_id.is_empty() {
        return wrong("AccessorID is given to a new token by the agent: leave it out".to_owned());
    }
    let policies = policies_of(&asked)?;
    let expires = match asked.expiration_ttl.as_str() {
        "" => None,
        text => {
            let ttl = parse_duration(text).ok().filter(|ttl| *ttl >= TTL_MIN);
            let Some(ttl) = ttl else {
                return wrong(
                    "ExpirationTTL must be a duration of at least a second, like 8h".to_owned(),
                );
            };
            Some(api.clock.now().plus(ttl))
        }
    };
    let made = api.tokens.create(NewToken { name: asked.name, policies, expires }).await?;
    answer(&params, &made.token, false, &made.secret)
}

/// `GET /v1/acl/token/self`
async fn own(State(api): Shared, params: Params) -> Result<Response, Failure> {
    enabled(&api)?;
    let bearer = params.access().bearer().ok_or(Failure::NeedsToken)?;
    let found = find(&api, &bearer.token.accessor.to_string())?;
    answer(&params, &found.token, found.configured, "")
}

/// `GET /v1/acl/token/ID`
async fn read(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    enabled(&api)?;
    let found = find(&api, &id)?;
    answer(&params, &found.token, found.configured, "")
}

/// `POST /v1/acl/token/ID`
async fn update(Asked { api, id, params }: Asked, body: Body) -> Result<Response, Failure> {
    enabled(&api)?;
    let asked: AclTokenRequest = body::read_shown::<_, AclToken<'_>>(&params, body)?;
    if !matches!(&asked.accessor_id, own if own.is_empty() || *own == id) {
        return wrong("AccessorID in the body is another than that of the path".to_owned());
    }
    if !asked.expiration_ttl.is_empty() {
        return wrong(
            "when a token ends is said when it is made: leave ExpirationTTL out".to_owned(),
        );
    }
    let policies = policies_of(&asked)?;
    let token = api.tokens.update(&id, TokenChange { name: asked.name, policies }).await?;
    answer(&params, &token, false, "")
}

/// `DELETE /v1/acl/token/ID`
async fn delete(Asked { api, id, .. }: Asked) -> Result<Response, Failure> {
    enabled(&api)?;
    api.tokens.delete(&id).await?;
    Ok(reply::done())
}

fn find(api: &Api, accessor: &str) -> Result<ShownToken, Failure> {
    let mut all = api.tokens.list().into_iter();
    let found = all.find(|one| one.token.accessor.to_string() == accessor);
    found.ok_or(Failure::Token(TokenError::Unknown))
}

fn wrong<T>(what: String) -> Result<T, Failure> {
    Err(Failure::BadRequest(what))
}

/// What is asked for a token.
fn policies_of(asked: &AclTokenRequest) -> Result<Vec<AccessPolicy>, Failure> {
    if !asked.expiration_time.is_null() {
        return wrong(
            "ExpirationTime is not taken: give ExpirationTTL, a duration like 8h".to_owned(),
        );
    }
    if asked.roles.as_array().map_or(!asked.roles.is_null(), |roles| !roles.is_empty()) {
        return wrong("there are no roles here: give Policies".to_owned());
    }
    match asked.kind.as_str() {
        MANAGEMENT if asked.policies.is_empty() => {
            Ok(vec![AccessPolicy { level: Level::Admin, namespace: None }])
        }
        MANAGEMENT => wrong("a management token may do everything: leave Policies out".to_owned()),
        "" | CLIENT => asked.policies.iter().map(|text| Ok(text.parse()?)).collect(),
        other => {
            let shown: String = other.chars().take(64).collect();
            wrong(format!("Type is {shown:?}; it must be client or management"))
        }
    }
}

fn answer(
    params: &Params,
    token: &KeptToken,
    configured: bool,
    secret: &str,
) -> Result<Response, Failure> {
    let shown = shown(token, configured, secret);
    Ok(reply::read_at(token.modify_index, reply::json(params, &shown)?))
}

fn shown<'a>(token: &'a KeptToken, configured: bool, secret: &'a str) -> AclToken<'a> {
    let manages = Rights::of(&token.policies).allow_everywhere(Level::Admin);
    AclToken {
        accessor_id: token.accessor.to_string().into(),
        secret_id: secret.into(),
        name: (&token.name).into(),
        kind: if manages { MANAGEMENT } else { CLIENT }.into(),
        policies: match manages {
            true => Vec::new(),
            false => token.policies.iter().map(ToString::to_string).collect(),
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
async fn policies(State(api): Shared, params: Params) -> Result<Response, Failure> {
    enabled(&api)?;
    let all = Level::ALL.map(|level| of_level(AccessPolicy { level, namespace: None }));
    let found: Vec<_> = all.iter().filter(|one| one.name.starts_with(params.prefix())).collect();
    reply::json(&params, &found)
}

/// `GET /v1/acl/policy/NAME`
async fn policy(Asked { api, id, params }: Asked) -> Result<Response, Failure> {
    enabled(&api)?;
    let policy = id.parse().map_err(|_| Failure::NotThere("ACL policy"))?;
    reply::json(&params, &of_level(policy))
}

async fn fixed(State(api): Shared) -> Result<Response, Failure> {
    enabled(&api)?;
    Err(Failure::FixedPolicies)
}

fn of_level(policy: AccessPolicy) -> AclPolicy {
    let what = match policy.level {
        Level::Read => "see jobs, allocations and events",
        Level::Submit => "the same, and change jobs, see logs, files and variables",
        Level::Operate => "the same, and run commands inside tasks",
        Level::Admin => "everything",
    };
    let place = match &policy.namespace {
        Some(namespace) => format!("in namespace {namespace}"),
        None if policy.level == Level::Admin => "everywhere, the node included".to_owned(),
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
