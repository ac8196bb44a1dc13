//! The requests of the client: a type for each route, which makes them.
//!
//! `ReadJob::request([&id])` is a request for a job. The path comes from the table, the number of its variable
//! parts is checked by the compiler, and the answer has the type that the row names.

use std::fmt::Display;

use super::Route;
use crate::request::ApiRequest;
use crate::table::for_each_route;
use crate::table::types::*;

/// The number of variable parts in a path.
const fn count_parts(path: &str) -> usize {
    let (mut rest, mut count) = (path.as_bytes(), 0);
    while let [first, more @ ..] = rest {
        if *first == b'{' {
            count += 1;
        }
        rest = more;
    }
    count
}

/// The type of a body, which is `()` for a route that takes none.
macro_rules! body_type {
    () => {
        ()
    };
    ($input:ty) => {
        $input
    };
}

/// Make a type for each route from the table.
macro_rules! endpoints {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $methods:ident $path:literal [$($key:ident)*] $($input:ty)? => $output:ty,
            $need:expr, $gate:ident, $handler:expr;
    )*) => {$(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl $name {
            /// A request, with the variable parts of the path in their order.
            #[must_use]
            pub fn request(
                parts: [&dyn Display; count_parts($path)],
            ) -> ApiRequest<body_type!($($input)?), $output> {
                ApiRequest::new(Route::$name.methods().usual(), $path, &parts)
            }
        }
    )*};
}

for_each_route!(endpoints);
