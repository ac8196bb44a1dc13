//! The routes of the API, made from the [table](crate::table).
//!
//! ```text
//! table ─► Route ─┬─► server/router.rs: the handler of each, behind its gate
//!                 ├─► server/access.rs: what a request needs
//!                 ├─► endpoints: requests of the client, with the types of bodies and answers
//!                 └─► docs/api.md, docs/openapi.json (tests)
//! ```
//! A route without a need or without a handler does not compile.

pub mod endpoints;
mod query;

use std::collections::HashMap;
use std::sync::LazyLock;

use hyper::Method;

pub use query::{QueryKey, QueryKind};

use crate::table::for_each_route;
use ostler_model::access::AccessLevel;
use ostler_model::access::AccessLevel::{Admin, Operate, Read, Submit};

/// The methods of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteMethods {
    /// `GET` and `HEAD`.
    Get,
    /// `PUT` and `POST`, which mean the same.
    Put,
    /// `DELETE`.
    Delete,
    /// `PUT`, `POST` and `DELETE`.
    PutDelete,
    /// Any method.
    Any,
}

impl RouteMethods {
    /// The method of a request that this crate's client sends.
    pub(crate) const fn usual(self) -> Method {
        match self {
            Self::Get | Self::Any => Method::GET,
            Self::Put | Self::PutDelete => Method::PUT,
            Self::Delete => Method::DELETE,
        }
    }

    /// Is this method one of them?
    #[must_use]
    pub fn contains(self, method: &Method) -> bool {
        let put = *method == Method::PUT || *method == Method::POST;
        let delete = *method == Method::DELETE;
        match self {
            Self::Get => *method == Method::GET || *method == Method::HEAD,
            Self::Put => put,
            Self::Delete => delete,
            Self::PutDelete => put || delete,
            Self::Any => true,
        }
    }
}

/// What a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
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
pub enum AccessScope {
    /// In all namespaces, and for the node itself.
    Node,
    /// In the namespace that the query names. With `*`, only what may be seen is shown.
    Named,
    /// In any namespace. The handler shows only what may be seen, or checks again when it knows the namespace.
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

/// What must be loaded before a request is handled, and what is checked first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteGate {
    /// It is answered from the beginning, while the agent starts.
    Open,
    /// It is answered from the beginning; a change must name a namespace that exists.
    Namespace,
    /// It waits, for a while, until all jobs and allocations are restored; a change must name a namespace
    /// that exists.
    Restored,
    /// It waits, for a while, until all plugins are loaded.
    Loaded,
}

use AccessScope::{Alloc, Deployment, Evaluation, Named, Node, Session, Shown};
use Need::{Level, Open, Socket, Token};

/// Make [`Route`] from the table.
macro_rules! routes {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $methods:ident $path:literal [$($key:ident)*] $($input:ty)? => $output:ty,
            $need:expr, $gate:ident, $handler:expr;
    )*) => {
        /// A route: one path with the methods that do the same there.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Route {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Route {
            /// All routes, in the order of `docs/api.md`.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The path, with the names of its variable parts in braces.
            #[must_use]
            pub const fn path(self) -> &'static str {
                match self { $(Self::$name => $path,)* }
            }

            /// The methods that lead to it.
            #[must_use]
            pub const fn methods(self) -> RouteMethods {
                match self { $(Self::$name => RouteMethods::$methods,)* }
            }

            /// The keys of the query that are read, besides those that every route takes and the namespace.
            #[must_use]
            pub const fn query(self) -> &'static [QueryKey] {
                match self { $(Self::$name => &[$(QueryKey::$key,)*],)* }
            }

            /// What a request with a method of the route needs; see [`Self::need_of`] for others.
            #[must_use]
            pub const fn need(self) -> Need {
                match self { $(Self::$name => $need,)* }
            }

            /// What comes before the handler.
            #[must_use]
            pub const fn gate(self) -> RouteGate {
                match self { $(Self::$name => RouteGate::$gate,)* }
            }

            /// What it is for, as a sentence.
            #[must_use]
            pub const fn description(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

for_each_route!(routes);

/// The routes of each path.
static BY_PATH: LazyLock<HashMap<&'static str, Vec<Route>>> = LazyLock::new(|| {
    let mut by_path: HashMap<&str, Vec<Route>> = HashMap::new();
    for route in Route::ALL {
        by_path.entry(route.path()).or_default().push(*route);
    }
    by_path
});

impl Route {
    /// The route of a request, by the path as the router names it. A method that the path does not have is
    /// judged as the last one that it has. `None` for a path that is not here.
    #[must_use]
    pub fn find(method: &Method, path: &str) -> Option<Self> {
        let here = BY_PATH.get(path)?;
        here.iter().find(|route| route.methods().contains(method)).or(here.last()).copied()
    }

    /// What a request with this method needs. Whoever may only read sends nothing but reads: another method is
    /// for `admin` where the route takes any, or does not have it.
    #[must_use]
    pub fn need_of(self, method: &Method) -> Need {
        let reads = RouteMethods::Get.contains(method);
        match (self.methods(), self.need()) {
            (RouteMethods::Get | RouteMethods::Any, Level(Read, _)) if !reads => Level(Admin, Node),
            (_, need) => need,
        }
    }
}

#[cfg(test)]
mod tests;
