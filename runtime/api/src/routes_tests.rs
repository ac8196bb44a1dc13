//! What holds for the whole table, and the page of the documents that is made of it.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::path::Path;

use super::*;
use ostler_testing::golden::has_text;

/// What the page says before its table.
const HEAD: &str = "\
# Routes of the API

The agent answers HTTP on its socket, and over TCP where the configuration says so. Paths and bodies are Nomad's,
but for those below `/v1/ostler/`. `PUT` and `POST` mean the same. [access.md](access.md) says what the levels
allow. This page is made from `runtime/api/src/routes.rs` (`OSTLER_BLESS=1 cargo test -p ostler-api`).

| methods | path | needs | answered | what it is for |
|---|---|---|---|---|
";

fn methods(of: RouteMethods) -> &'static str {
    match of {
        RouteMethods::Get => "GET",
        RouteMethods::Put => "PUT, POST",
        RouteMethods::Delete => "DELETE",
        RouteMethods::PutDelete => "PUT, POST, DELETE",
        RouteMethods::Any => "any",
    }
}

fn need(of: Need) -> String {
    let (level, scope) = match of {
        Open => return "nothing".to_owned(),
        Token => return "any token".to_owned(),
        Socket => return "the agent's socket".to_owned(),
        Level(level, scope) => (level, scope),
    };
    let scope = match scope {
        Node => "everywhere",
        Named => "in the namespace of the query",
        Shown => "in any namespace; the answer has what may be seen",
        Alloc => "in the allocation's namespace",
        Session => "in the allocation's namespace; the token may come after the upgrade",
        Deployment => "in the deployment's namespace",
        Evaluation => "in the namespace of the evaluation's job",
    };
    format!("`{level}` {scope}")
}

const fn answered(of: RouteGate) -> &'static str {
    match of {
        RouteGate::Open | RouteGate::Namespace => "from the beginning",
        RouteGate::Restored => "when all is restored",
        RouteGate::Loaded => "when all plugins are loaded",
    }
}

fn page() -> String {
    let mut page = HEAD.to_owned();
    for route in Route::ALL {
        let (path, said) = (route.path(), route.description());
        let methods = methods(route.methods());
        let (mut need, change) = (need(route.need()), route.need_of(&Method::PUT));
        if route.methods() == RouteMethods::Any && change != route.need() {
            need += &format!("; a change: {}", self::need(change));
        }
        let _ = writeln!(
            page,
            "| {methods} | `{path}` | {need} | {} | {said} |",
            answered(route.gate())
        );
    }
    page
}

#[test]
fn the_page_of_routes_is_what_the_table_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/api.md");
    let page = page();
    assert!(has_text(&file, &page).unwrap(), "docs/api.md is old; OSTLER_BLESS=1 writes it anew");
}

#[test]
fn each_path_and_method_has_one_route_and_each_a_sentence() {
    let mut known = HashSet::new();
    for route in Route::ALL {
        assert!(known.insert((route.path(), methods(route.methods()))), "{route:?}");
        assert!(route.description().ends_with('.'), "{route:?}");
        for method in [Method::GET, Method::PUT, Method::POST, Method::DELETE] {
            if route.methods().contains(&method) {
                assert_eq!(Route::find(&method, route.path()), Some(*route));
            }
        }
    }
    assert_eq!(Route::find(&Method::GET, "/v1/later"), None);
    assert_eq!(Route::find(&Method::HEAD, "/v1/jobs"), Some(Route::ListJobs));
}

/// These only compute, or search, and answer.
const COMPUTES: [Route; 3] = [Route::ParseJob, Route::ValidateJob, Route::Search];

#[test]
fn who_may_only_read_changes_nothing_and_sees_no_secrets() {
    let for_readers = |need| matches!(need, Level(Read, _) | Open | Token);
    for route in Route::ALL.iter().filter(|route| !COMPUTES.contains(route)) {
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::PATCH] {
            let need = route.need_of(&method);
            assert!(!matches!(need, Level(Read, _)), "{method} {route:?}");
            let has = route.methods().contains(&method);
            assert!(!(has && for_readers(need)), "{method} {route:?}");
        }
    }
    for route in [
        Route::ReadLogs,
        Route::ReadFile,
        Route::ReadVariable,
        Route::ListVariables,
        Route::CollectAlloc,
        Route::CollectNodeAllocs,
        Route::StreamAgentLog,
        Route::ExecInAlloc,
        Route::ListTokens,
    ] {
        assert!(!for_readers(route.need()), "{route:?}");
    }
}
