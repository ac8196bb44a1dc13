//! A request of the client: the method, the path with its query, and the types of the body and of the answer.

use std::fmt::Display;
use std::marker::PhantomData;

use hyper::Method;

use crate::routes::QueryKey;

/// A request that can be sent, with a body of type `Input`. Its answer has an `Output`.
pub struct ApiRequest<Input, Output> {
    line: RequestLine,
    types: PhantomData<fn() -> (Input, Output)>,
}

/// What a request says before its headers, whatever the types of its bodies are.
#[derive(Clone)]
pub(crate) struct RequestLine {
    /// The method.
    pub method: Method,
    /// The path with the query.
    pub target: String,
}

impl RequestLine {
    /// Whether the query has the key.
    pub(crate) fn has(&self, key: QueryKey) -> bool {
        let query = self.target.split_once('?').map_or("", |(_, query)| query);
        query
            .split('&')
            .any(|pair| pair.split_once('=').is_some_and(|(name, _)| name == key.text()))
    }

    /// Add a value to the query.
    pub(crate) fn add(&mut self, key: QueryKey, value: &str) {
        let mark = if self.target.contains('?') { '&' } else { '?' };
        let (key, value) = (key.text(), encode_part(value));
        self.target.push_str(&format!("{mark}{key}={value}"));
    }

    /// The line for a path of the table. Each variable part of the path, in braces, is replaced by one
    /// of `parts`, encoded, so that no part can leave its place.
    fn new(method: Method, path: &str, parts: &[&dyn Display]) -> Self {
        let mut target = String::new();
        let (mut rest, mut parts) = (path, parts.iter());
        while let Some((before, after)) = rest.split_once('{') {
            target.push_str(before);
            let part = parts.next().map(ToString::to_string).unwrap_or_default();
            target.push_str(&encode_part(&part));
            rest = after.split_once('}').map_or("", |(_, rest)| rest);
        }
        target.push_str(rest);
        Self { method, target }
    }
}

/// The answer is a stream of log frames, or with `plain=true` their bytes.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub enum FrameBody {}

/// The answer is a stream of lines, each with a value as JSON.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub enum LineBody {}

/// The answer is the bytes of a file or of a text.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub enum ByteBody {}

/// The answer says by its status that the request was carried out, and has no body.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub enum NoBody {}

/// The connection becomes a WebSocket.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub enum WebSocketBody {}

/// The request is always refused.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(test, derive(serde::Deserialize))]
pub enum RefusalOnly {}

impl<Input, Output> ApiRequest<Input, Output> {
    /// A request for a path of the table, with these parts in it ([`RequestLine::new`]).
    pub(crate) fn new(method: Method, path: &str, parts: &[&dyn Display]) -> Self {
        Self { line: RequestLine::new(method, path, parts), types: PhantomData }
    }

    /// The same request with a value in its query.
    #[must_use]
    pub fn with(mut self, key: QueryKey, value: impl Display) -> Self {
        self.line.add(key, &value.to_string());
        self
    }

    /// The same request with a value in its query, if there is one.
    #[must_use]
    pub fn with_some(self, key: QueryKey, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.with(key, value),
            None => self,
        }
    }

    /// The same request for a caller who reads the answer as another type, such as the JSON as it is.
    #[must_use]
    pub fn read_as<Other>(self) -> ApiRequest<Input, Other> {
        ApiRequest { line: self.line, types: PhantomData }
    }

    /// The method of the request line.
    #[must_use]
    pub const fn method(&self) -> &Method {
        &self.line.method
    }

    /// The path with the query, as it stands in the request line.
    #[must_use]
    pub fn target(&self) -> &str {
        &self.line.target
    }

    /// The line of the request.
    pub(crate) const fn line(&self) -> &RequestLine {
        &self.line
    }
}

impl<Input, Output> Clone for ApiRequest<Input, Output> {
    fn clone(&self) -> Self {
        Self { line: self.line.clone(), types: PhantomData }
    }
}

impl<Input, Output> std::fmt::Debug for ApiRequest<Input, Output> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.line.method, self.line.target)
    }
}

/// Encode a text as one part of a path, or as a value in a query.
#[must_use]
pub fn encode_part(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::endpoints::{ListFiles, ReadJob, ReadVariable, StopJob};

    #[test]
    fn a_request_has_the_path_of_its_route_with_its_parts_and_its_query() {
        let request = ListFiles::request([&"0f01"]).with(QueryKey::Path, "a b/c&d");
        assert_eq!(format!("{request:?}"), "GET /v1/client/fs/ls/0f01?path=a%20b%2Fc%26d");
        let request = StopJob::request([&"web"]).with(QueryKey::Purge, true);
        let request = request.with_some(QueryKey::Namespace, Some("prod"));
        let request = request.with_some(QueryKey::NoShutdownDelay, None::<bool>);
        assert_eq!(format!("{request:?}"), "DELETE /v1/job/web?purge=true&namespace=prod");
    }

    #[test]
    fn names_cannot_leave_their_place_in_a_path() {
        assert_eq!(ReadJob::request([&"web-1.a_b~"]).target(), "/v1/job/web-1.a_b~");
        let request = ReadVariable::request([&"../a?b=c&d/é"]);
        assert_eq!(request.target(), "/v1/var/..%2Fa%3Fb%3Dc%26d%2F%C3%A9");
    }
}
