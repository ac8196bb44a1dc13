//! What each path needs. A path that is not listed here is for `admin` alone.

use axum::http::Method;

use ostler_model::access::AccessLevel;
use ostler_model::access::AccessLevel::{Admin, Operate, Read, Submit};

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Anybody may send it, also without a token.
    Open,
    /// It needs any token.
    Token,
    /// It must come over the agent's socket.
    Socket,
    /// It needs this level in this scope.
    Level(AccessLevel, AccessScope),
}

/// The place in which a level is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessScope {
    /// In all namespaces, and for the node itself.
    Node,
    /// In the namespace that the query names. With `*`, only what may be seen is shown.
    Named,
    /// In any namespace. The handler shows only what may be seen, or checks again when it knows the
    /// namespace.
    Shown,
    /// In the namespace of the allocation that the path names.
    Alloc,
    /// As `Alloc`, but the token may come after the upgrade to a WebSocket.
    Session,
    /// In the namespace of the deployment that the path names.
    Deployment,
    /// In the namespace of the job of the evaluation that the path names.
    Evaluation,
}

use AccessScope::{Alloc, Deployment, Evaluation, Named, Node, Session, Shown};

/// The beginnings of paths that only Nomad's servers have.
const OF_OTHERS: [&str; 5] =
    ["/v1/plugin/", "/v1/volume/", "/v1/quota", "/v1/sentinel/", "/v1/recommendation"];

/// What a request needs, by its method and the path as the router names it. None for a path that is
/// not listed.
pub(super) fn need(method: &Method, path: &str) -> Option<Need> {
    let reads = method == Method::GET || method == Method::HEAD;
    let by = |read, write, scope| Need::Level(if reads { read } else { write }, scope);
    Some(match path {
        "/" | "/ui" | "/ui/" | "/ui/{*path}" | "/v1/agent/health" => Need::Open,
        "/v1/acl/bootstrap" => Need::Socket,
        "/v1/acl/token/self" | "/v1/status/leader" | "/v1/status/peers" | "/v1/regions"
        | "/v1/agent/members" => Need::Token,
        "/v1/jobs" if reads => Need::Level(Read, Named),
        "/v1/jobs" => Need::Level(Submit, Shown),
        "/v1/jobs/parse" | "/v1/validate/job" | "/v1/search" | "/v1/event/stream"
        | "/v1/ostler/events" => Need::Level(Read, Shown),
        "/v1/namespaces" if reads => Need::Level(Read, Shown),
        "/v1/namespace/{name}" if reads => Need::Level(Read, Shown),
        // The job's namespace may stand in the body.
        "/v1/job/{id}" | "/v1/job/{id}/plan" if method == Method::PUT || method == Method::POST => {
            Need::Level(Submit, Shown)
        }
        _ if path.starts_with("/v1/job/") => by(Read, Submit, Named),
        "/v1/scaling/policies"
        | "/v1/evaluations"
        | "/v1/allocations"
        | "/v1/deployments"
        | "/v1/services"
        | "/v1/service/{name}" => by(Read, Admin, Named),
        "/v1/scaling/policy/{id}" => by(Read, Admin, Node),
        "/v1/vars" | "/v1/var/{*path}" => Need::Level(Submit, Named),
        _ if path.starts_with("/v1/evaluation/") => by(Read, Admin, Evaluation),
        _ if path.starts_with("/v1/deployment/") => by(Read, Submit, Deployment),
        _ if path.starts_with("/v1/allocation/") => by(Read, Submit, Alloc),
        "/v1/client/allocation/{id}/exec" => Need::Level(Operate, Session),
        // Nomad uses GET for this.
        "/v1/client/allocation/{id}/gc" => Need::Level(Submit, Alloc),
        "/v1/client/allocation/{id}/stats" | "/v1/client/allocation/{id}/checks" => {
            by(Read, Admin, Alloc)
        }
        _ if path.starts_with("/v1/client/allocation/") => Need::Level(Submit, Alloc),
        _ if path.starts_with("/v1/client/fs/") => Need::Level(Submit, Alloc),
        "/v1/client/gc" | "/v1/system/gc" | "/v1/agent/monitor" | "/v1/ostler/log" => {
            Need::Level(Operate, Node)
        }
        _ if path.starts_with("/v1/node/") => by(Read, Operate, Node),
        "/v1/nodes" | "/v1/client/stats" | "/v1/metrics" | "/v1/agent/self" | "/v1/plugins"
        | "/v1/volumes" => by(Read, Admin, Node),
        _ if path.starts_with("/v1/ostler/job/") => by(Read, Submit, Named),
        _ if path.starts_with("/v1/ostler/") => by(Read, Operate, Node),
        _ if path.starts_with("/v1/operator/") => by(Read, Admin, Node),
        "/v1/namespaces" | "/v1/namespace" | "/v1/namespace/{name}" => Need::Level(Admin, Node),
        _ if path.starts_with("/v1/acl/") => Need::Level(Admin, Node),
        _ if path.starts_with("/v1/system/") => Need::Level(Operate, Node),
        // The answer says that there is no such thing, or that only a cluster has it.
        _ if OF_OTHERS.iter().any(|of| path.starts_with(of)) => by(Read, Admin, Node),
        // Everything else of the agent itself: servers to join, keys, profiles.
        _ if path.starts_with("/v1/agent/") => Need::Level(Admin, Node),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn level(method: &Method, path: &str) -> Need {
        need(method, path).unwrap()
    }

    #[test]
    fn who_may_only_read_changes_nothing_and_sees_no_secrets() {
        let reads_only = |method: &Method, path| {
            matches!(need(method, path), Some(Need::Level(Read, _) | Need::Open | Need::Token))
        };
        for path in [
            "/v1/jobs",
            "/v1/job/{id}",
            "/v1/job/{id}/scale",
            "/v1/allocation/{id}/stop",
            "/v1/deployment/promote/{id}",
            "/v1/client/allocation/{id}/restart",
            "/v1/vars",
            "/v1/var/{*path}",
            "/v1/node/{id}/drain",
            "/v1/ostler/plugin/{name}/lift",
            "/v1/system/gc",
            "/v1/namespace",
            "/v1/namespace/{name}",
            "/v1/operator/scheduler/configuration",
            "/v1/acl/token",
            "/v1/acl/bootstrap",
        ] {
            assert!(
                !reads_only(&Method::PUT, path) && !reads_only(&Method::DELETE, path),
                "{path}"
            );
        }
        for path in [
            "/v1/client/fs/logs/{id}",
            "/v1/client/fs/cat/{id}",
            "/v1/var/{*path}",
            "/v1/vars",
            "/v1/client/allocation/{id}/gc",
            "/v1/client/gc",
            "/v1/agent/monitor",
            "/v1/client/allocation/{id}/exec",
            "/v1/acl/tokens",
        ] {
            assert!(!reads_only(&Method::GET, path), "{path}");
        }
    }

    #[test]
    fn every_route_is_decided() {
        let sources = [
            include_str!("../router.rs"),
            include_str!("../servers.rs"),
            include_str!("../tokens.rs"),
            include_str!("../nodes.rs"),
            include_str!("../namespaces.rs"),
            include_str!("../debug.rs"),
            include_str!("../ui.rs"),
        ];
        let routes = sources.iter().flat_map(|source| source.split(".route(").skip(1));
        let routes: Vec<&str> = routes.filter_map(|route| route.split('"').nth(1)).collect();
        assert!(routes.len() > 80, "they are read: {routes:?}");
        for route in routes {
            for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE] {
                assert!(need(&method, route).is_some(), "{method} {route}");
            }
        }
    }

    #[test]
    fn a_path_that_nobody_thought_of_is_not_decided() {
        assert_eq!(need(&Method::GET, "/v1/later"), None);
        assert_eq!(level(&Method::GET, "/v1/nodes"), Need::Level(Read, Node));
        assert_eq!(level(&Method::POST, "/v1/search"), Need::Level(Read, Shown));
    }
}
