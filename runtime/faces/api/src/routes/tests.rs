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
allow. [openapi.json](openapi.json) has the types of bodies and answers for generators of clients. Both are made
from `runtime/faces/api/src/table.rs` (`OSTLER_BLESS=1 cargo test -p ostler-api`).

Every route takes the keys `region` and `pretty` in its query, and one that needs a level in the namespace of the
query takes `namespace`.

| methods | path | what it is for | query | body | answer | needs | answered |
|---|---|---|---|---|---|---|---|
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

/// The types of the body and of the answer of a route, as the table has them.
macro_rules! type_names {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $methods:ident $path:literal [$($key:ident)*] $($input:ty)? => $output:ty,
            $need:expr, $gate:ident, $handler:expr;
    )*) => {
        const fn type_names(route: Route) -> (&'static str, &'static str) {
            match route { $(Route::$name => (stringify!($($input)?), stringify!($output)),)* }
        }
    };
}

for_each_route!(type_names);

/// The name of a type, for people.
fn type_text(name: &str) -> String {
    let name = name.replace("<'static>", "").replace("<'static, Vec<Value>>", "");
    match &*name {
        "" => String::new(),
        "NoBody" => "nothing".to_owned(),
        "RefusalOnly" => "a refusal".to_owned(),
        "ByteBody" => "bytes".to_owned(),
        "FrameBody" => "frames, or bytes".to_owned(),
        "LineBody" => "lines of JSON".to_owned(),
        "WebSocketBody" => "a WebSocket".to_owned(),
        "Value" => "JSON".to_owned(),
        _ => format!("`{name}`"),
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
        let keys: Vec<_> = route.query().iter().map(|key| format!("`{}`", key.text())).collect();
        let (keys, (body, answer)) = (keys.join(", "), type_names(*route));
        let (body, answer) = (type_text(body), type_text(answer));
        let _ = writeln!(
            page,
            "| {methods} | `{path}` | {said} | {keys} | {body} | {answer} | {need} | {} |",
            answered(route.gate())
        );
    }
    page
}

#[test]
fn the_page_of_routes_is_what_the_table_says() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/api.md");
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
