//! The description of the API for generators of clients, `docs/openapi.json`, which is made from the table of
//! routes and from the types that it names.

use std::any::TypeId;
use std::path::Path;

use serde_json::{Map, json};

use crate::routes::{AccessScope, Need, QueryKey, QueryKind, Route, RouteMethods};
use crate::shapes_tests::Shapes;
use crate::table::for_each_route;
use crate::table::types::*;

const ABOUT: &str = "\
The HTTP API of an Ostler agent. Paths and bodies are Nomad's, but for those below `/v1/ostler/`. `POST` means the \
same as `PUT` everywhere. Objects may have more members than are named here, and a member may be absent. Types \
without members are of a free form. docs/api.md says what each request needs.";

/// The schemas of the body and of the answer of a route.
macro_rules! route_schemas {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $methods:ident $path:literal [$($key:ident)*] $($input:ty)? => $output:ty,
            $need:expr, $gate:ident, $handler:expr;
    )*) => {
        fn route_schemas(route: Route, shapes: &Shapes) -> (Option<Value>, Answer) {
            match route {$(
                Route::$name => {
                    let body: [Value; _] = [$(shapes.schema_of::<$input>())?];
                    (body.into_iter().next(), Answer::of::<$output>(shapes))
                }
            )*}
        }
    };
}

for_each_route!(route_schemas);

/// What a route answers with.
enum Answer {
    Json(Value),
    Bytes(&'static str),
    Lines,
    Socket,
    Nothing,
    Refusal,
}

impl Answer {
    fn of<T: serde::de::DeserializeOwned + 'static>(shapes: &Shapes) -> Self {
        let is = |other| TypeId::of::<T>() == other;
        if is(TypeId::of::<ByteBody>()) {
            Self::Bytes("The bytes.")
        } else if is(TypeId::of::<FrameBody>()) {
            Self::Bytes("A stream of JSON frames with `Data` in base64; with `plain`, the bytes.")
        } else if is(TypeId::of::<LineBody>()) {
            Self::Lines
        } else if is(TypeId::of::<WebSocketBody>()) {
            Self::Socket
        } else if is(TypeId::of::<NoBody>()) {
            Self::Nothing
        } else if is(TypeId::of::<RefusalOnly>()) {
            Self::Refusal
        } else {
            Self::Json(shapes.schema_of::<T>())
        }
    }

    fn responses(self) -> Value {
        let content = |kind: &str, schema: Value| json!({ kind: { "schema": schema } });
        let bytes = json!({ "type": "string", "format": "binary" });
        let mut responses = json!({ "default": { "$ref": "#/components/responses/Refusal" } });
        let (status, description, content) = match self {
            Self::Json(schema) => ("200", "The answer.", content("application/json", schema)),
            Self::Bytes(what) => ("200", what, content("application/octet-stream", bytes)),
            Self::Lines => {
                let what = "A stream of lines, each with a value as JSON.";
                ("200", what, content("application/x-ndjson", bytes))
            }
            Self::Socket => ("101", "The connection is a WebSocket now.", json!({})),
            Self::Nothing => ("2XX", "It was carried out.", json!({})),
            Self::Refusal => return responses,
        };
        let mut answer = json!({ "description": description });
        if content != json!({}) {
            answer["content"] = content;
        }
        responses[status] = answer;
        responses
    }
}

/// `ListJobs` as `list_jobs`.
fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}

fn parameter(key: QueryKey) -> Value {
    let schema = match key.kind() {
        QueryKind::Text => json!({ "type": "string" }),
        QueryKind::Number => json!({ "type": "integer", "format": "int64", "minimum": 0 }),
        QueryKind::Flag => json!({ "type": "boolean" }),
    };
    let (name, description) = (key.text(), key.description());
    json!({ "name": name, "in": "query", "description": description, "schema": schema })
}

/// The path as OpenAPI has it, and the names of its parts.
fn path_parts(path: &str) -> (String, Vec<&str>) {
    let parts = path.split('{').skip(1).filter_map(|after| after.split_once('}'));
    let names = parts.map(|(name, _)| name.trim_start_matches('*')).collect();
    (path.replace("{*", "{"), names)
}

fn operation(route: Route, shapes: &Shapes) -> Value {
    let (_, parts) = path_parts(route.path());
    let of_path = parts.iter().map(|name| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let named = matches!(route.need(), Need::Level(_, AccessScope::Named));
    let namespace =
        (named && !route.query().contains(&QueryKey::Namespace)).then_some(QueryKey::Namespace);
    let common = [QueryKey::Region, QueryKey::Pretty];
    let keys = namespace.into_iter().chain(route.query().iter().copied()).chain(common);
    let parameters: Vec<Value> = of_path.chain(keys.map(parameter)).collect();
    let (body, answer) = route_schemas(route, shapes);
    let tag = route.path().trim_start_matches("/v1/").split('/').next().unwrap_or_default();
    let mut operation = json!({
        "operationId": snake_case(&format!("{route:?}")),
        "summary": route.description(),
        "tags": [if tag.is_empty() { "ui" } else { tag }],
        "parameters": parameters,
        "responses": answer.responses(),
    });
    if let Some(schema) = body {
        let content = json!({ "application/json": { "schema": schema } });
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    if route.need() == Need::Open {
        operation["security"] = json!([]);
    }
    operation
}

fn document() -> Value {
    let shapes = Shapes::default();
    let mut paths: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for route in Route::ALL {
        let method = match route.methods() {
            RouteMethods::Get | RouteMethods::Any => "get",
            RouteMethods::Put | RouteMethods::PutDelete => "put",
            RouteMethods::Delete => "delete",
        };
        let path = paths.entry(path_parts(route.path()).0).or_default();
        path.insert(method.to_owned(), operation(*route, &shapes));
    }
    let refusal = json!({
        "description": "It was refused, and why.",
        "content": { "text/plain": { "schema": { "type": "string" } } },
    });
    let token = json!({ "type": "apiKey", "in": "header", "name": "X-Nomad-Token" });
    json!({
        "openapi": "3.0.3",
        "info": { "title": "Ostler", "description": ABOUT, "version": env!("CARGO_PKG_VERSION") },
        "servers": [{ "url": "http://127.0.0.1:4646" }],
        "security": [{}, { "token": [] }],
        "paths": paths,
        "components": {
            "schemas": shapes.schemas(),
            "responses": { "Refusal": refusal },
            "securitySchemes": { "token": token },
        },
    })
}

#[test]
fn the_description_for_generators_is_what_the_table_and_the_types_say() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/openapi.json");
    let text = serde_json::to_string_pretty(&document()).unwrap() + "\n";
    if std::env::var_os("OSTLER_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == text, "docs/openapi.json is old; OSTLER_BLESS=1 writes it anew");
}
