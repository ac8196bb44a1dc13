//! The query of a request, parsed once and bounded.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::access::Access;
use super::error::RequestFailure;
use ostler_model::access::AccessLevel;
use ostler_model::ids::{JobId, NAMESPACE, Namespace};
use ostler_model::limits::{API_WAIT_DEFAULT, API_WAIT_MAX};
use ostler_text::duration::parse_duration;

/// The most keys that are read; Nomad's command line sends up to seven.
const KEYS_MAX: usize = 64;

/// The error about a list that is to be filtered.
const FILTERED: &str = "left out: a list is narrowed by prefix and namespace";

/// The query of a request. As in Nomad, unknown keys are ignored, and the first one of a repeated
/// key counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Params {
    texts: BTreeMap<String, String>,
    access: Access,
}

impl Params {
    /// Parse a query, for a sender that may see nothing.
    pub(super) fn parse(query: &str) -> Self {
        let mut texts = BTreeMap::new();
        for (key, value) in form_urlencoded::parse(query.as_bytes()).take(KEYS_MAX) {
            texts.entry(key.into_owned()).or_insert_with(|| value.into_owned());
        }
        Self { texts, access: Access::default() }
    }

    /// The query of a request, with the access of its sender.
    pub(super) fn from_parts(parts: &Parts) -> Self {
        let access = parts.extensions.get::<Access>().cloned().unwrap_or_default();
        Self { access, ..Self::parse(parts.uri.query().unwrap_or_default()) }
    }

    /// The access of the sender.
    pub(super) const fn access(&self) -> &Access {
        &self.access
    }

    /// The value of `key`; none if it is absent or empty.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.texts.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The value of `key`, which must be there.
    pub(super) fn required(&self, key: &'static str) -> Result<&str, RequestFailure> {
        self.text(key).ok_or(RequestFailure::MissingParam { key })
    }

    /// The truth value of `key`, in any form that Go accepts, such as `true` or `1`. An absent key
    /// is false.
    pub(super) fn flag(&self, key: &'static str) -> Result<bool, RequestFailure> {
        match self.text(key) {
            None | Some("false" | "False" | "FALSE" | "f" | "F" | "0") => Ok(false),
            Some("true" | "True" | "TRUE" | "t" | "T" | "1") => Ok(true),
            Some(value) => Err(RequestFailure::bad_param(key, value, "true or false")),
        }
    }

    /// The first key that begins with `prefix`.
    pub(super) fn key_with_prefix(&self, prefix: &str) -> Option<&str> {
        self.texts.keys().map(String::as_str).find(|key| key.starts_with(prefix))
    }

    pub(super) fn number<T: std::str::FromStr>(
        &self,
        key: &'static str,
    ) -> Result<Option<T>, RequestFailure> {
        let Some(value) = self.text(key) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| RequestFailure::bad_param(key, value, "a number"))
    }

    /// Whether the key is present without a value.
    pub(super) fn is_empty(&self, key: &str) -> bool {
        self.texts.get(key).is_some_and(|value| value.is_empty())
    }

    /// Whether the client wants indented JSON. As in Nomad, the key alone says so.
    pub(super) fn pretty(&self) -> bool {
        self.texts.contains_key("pretty")
    }

    /// The requested page of `items`, and the name of the first item of the next page. Without
    /// `per_page` the page has all items. `items` are in the order of their names, so that a page
    /// whose first item is gone begins with the item after it.
    pub(super) fn page<T>(
        &self,
        mut items: Vec<T>,
        name: impl Fn(&T) -> String,
    ) -> Result<(Vec<T>, Option<String>), RequestFailure> {
        if let Some(first) = self.text("next_token") {
            let before = items.partition_point(|item| name(item).as_str() < first);
            items.drain(..before);
        }
        let most: usize = self.number("per_page")?.unwrap_or(0);
        let next = items.get(most).filter(|_| most > 0).map(name);
        if next.is_some() {
            items.truncate(most);
        }
        Ok((items, next))
    }

    /// The prefix that the entries of a list must have; empty for all.
    pub(super) fn prefix(&self) -> &str {
        self.text("prefix").unwrap_or_default()
    }

    /// Whether the request includes `namespace`, and the sender may see it. The query names a
    /// namespace or `*`; the default is `default`.
    pub(super) fn includes_namespace(&self, namespace: &str) -> bool {
        let meant = match self.text("namespace") {
            None => namespace == NAMESPACE,
            Some("*") => true,
            Some(named) => named == namespace,
        };
        meant && self.access.allow(AccessLevel::Read, namespace)
    }

    /// The job with this id in the namespace of the query, which is `default` if the query names
    /// none. A text that cannot be an id or a namespace counts as an unknown job.
    pub(super) fn job_id(&self, id: &str) -> Result<JobId, RequestFailure> {
        let namespace = Namespace::new(self.text("namespace").unwrap_or(NAMESPACE));
        let id = namespace.ok().and_then(|namespace| JobId::in_namespace(&namespace, id).ok());
        id.ok_or(RequestFailure::NotThere("job"))
    }

    /// Whether the request includes all namespaces.
    pub(super) fn includes_all_namespaces(&self) -> bool {
        self.text("namespace") == Some("*")
    }

    /// The name of a job in the requested list. If the list has all namespaces, the id alone is not enough.
    pub(super) fn name_of(&self, id: &JobId) -> String {
        if self.includes_all_namespaces() {
            format!("{}.{id}", id.namespace())
        } else {
            id.to_string()
        }
    }

    /// How long to wait for a change, and beyond which index; none if the client wants the answer
    /// at once.
    pub(super) fn wait(&self) -> Result<Option<WaitQuery>, RequestFailure> {
        let index = self.number("index")?.unwrap_or(0);
        let wait = match self.text("wait") {
            None => Duration::ZERO,
            Some(text) => parse_duration(text)
                .map_err(|_| RequestFailure::bad_param("wait", text, "a duration such as 30s"))?,
        };
        // As in Nomad, zero means the default.
        let wait = if wait.is_zero() { API_WAIT_DEFAULT } else { wait.min(API_WAIT_MAX) };
        Ok((index > 0).then_some(WaitQuery { index, wait }))
    }

    /// As [`Params::wait`], for a list with an index of its own, which is at `now`. A client with a
    /// higher index has it from an earlier agent, and is answered at once.
    pub(super) fn wait_from(&self, now: u64) -> Result<Option<WaitQuery>, RequestFailure> {
        Ok(self.wait()?.filter(|wait| wait.index <= now))
    }
}

/// A query that waits for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WaitQuery {
    /// The index that the client has seen.
    pub index: u64,
    /// The longest time to wait, before jitter.
    pub wait: Duration,
}

impl WaitQuery {
    /// The time to wait with up to a sixteenth more, so that clients that came together do not come
    /// back together. `draw` is random.
    pub(super) fn with_jitter(self, draw: u64) -> Duration {
        let most = u64::try_from(self.wait.as_nanos()).unwrap_or(u64::MAX) / 16;
        self.wait + Duration::from_nanos(draw % most.saturating_add(1))
    }
}

impl<S: Sync> FromRequestParts<S> for Params {
    type Rejection = RequestFailure;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, RequestFailure> {
        let params = Self::from_parts(parts);
        // Later versions of Nomad have filters. A client that got the whole list would take it for
        // the filtered one.
        match params.text("filter") {
            Some(filter) => Err(RequestFailure::bad_param("filter", filter, FILTERED)),
            None => Ok(params),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    #[tokio::test]
    async fn a_list_that_is_to_be_filtered_is_refused() {
        let asked = async |uri: &str| {
            let request = axum::http::Request::builder().uri(uri).body(()).unwrap();
            Params::from_request_parts(&mut request.into_parts().0, &()).await
        };
        assert!(asked("/v1/jobs?prefix=web&unknown=1").await.is_ok());
        let refused = asked("/v1/jobs?filter=ID+matches+web").await.unwrap_err().to_string();
        assert!(refused.contains("filter=\"ID matches web\""), "{refused}");
    }

    #[test]
    fn a_query_waits_only_with_an_index_and_never_longer_than_allowed() {
        let wait = |query: &str| Params::parse(query).wait().unwrap();
        assert_eq!(wait(""), None);
        assert_eq!(wait("index=0&wait=2s"), None);
        let five = Duration::from_secs(300);
        assert_eq!(wait("index=7"), Some(WaitQuery { index: 7, wait: five }));
        assert_eq!(wait("index=7&wait=0"), Some(WaitQuery { index: 7, wait: five }));
        assert_eq!(wait("index=7&wait=2s").unwrap().wait, Duration::from_secs(2));
        assert_eq!(wait("index=7&wait=24h").unwrap().wait, API_WAIT_MAX);
        for bad in ["index=-1", "index=x", "index=1&wait=5", "wait=1y"] {
            assert!(Params::parse(bad).wait().is_err(), "{bad}");
        }
    }

    #[test]
    fn pages_follow_one_another_and_lose_nothing_when_the_next_first_item_goes() {
        let page = |query: &str, items: &[&str]| {
            let page = Params::parse(query).page(items.to_vec(), |item| (*item).to_owned());
            page.map(|(items, next)| (items.concat(), next.unwrap_or_default())).unwrap()
        };
        let all = ["a", "b", "c", "d", "e"];
        assert_eq!(page("", &all), ("abcde".to_owned(), String::new()));
        assert_eq!(page("per_page=2", &all), ("ab".to_owned(), "c".to_owned()));
        assert_eq!(page("per_page=2&next_token=c", &all), ("cd".to_owned(), "e".to_owned()));
        assert_eq!(page("per_page=2&next_token=c", &["a", "b", "d", "e"]).0, "de");
        assert_eq!(page("per_page=5", &all).1, "", "there is no page after the last item");
        assert_eq!(page("per_page=0", &all).0, "abcde", "as in Nomad");
        assert!(Params::parse("per_page=-1").page(vec![1], |_| String::new()).is_err());
    }

    #[test]
    fn namespaces_are_the_default_one_unless_named() {
        let all = |query| Params { access: Access::all(), ..Params::parse(query) };
        assert!(all("").includes_namespace("default"));
        assert!(!all("").includes_namespace("other"));
        assert!(all("namespace=*").includes_namespace("other"));
        assert!(all("namespace=other").includes_namespace("other"));
        assert!(!all("namespace=other").includes_namespace("default"));
        assert!(!Params::parse("").includes_namespace("default"), "nobody let this one in");
        let id =
            |query: &str| Params::parse(query).job_id("web").map(|id| id.qualified_id().to_owned());
        for own in ["", "namespace=", "namespace=default"] {
            assert_eq!(id(own).unwrap(), "web", "{own}");
        }
        assert_eq!(id("namespace=other").unwrap(), "other web");
        assert!(id("namespace=*").is_err() && id("namespace=a/b").is_err());
    }

    #[test]
    fn encoded_repeated_and_unknown_keys_are_read_as_nomad_does() {
        let params = Params::parse("path=a%2Fb+c&path=second&zzz=1&pretty&empty=");
        assert_eq!(params.text("path"), Some("a/b c"));
        assert_eq!(params.text("empty"), None);
        assert!(params.pretty());
        assert!(params.required("task").is_err());
        assert!(Params::parse("follow=yes").flag("follow").is_err());
    }

    proptest! {
        #[test]
        fn jitter_adds_at_most_a_sixteenth(seconds in 1_u64..600, draw: u64) {
            let wait = WaitQuery { index: 1, wait: Duration::from_secs(seconds) };
            let jittered = wait.with_jitter(draw);
            prop_assert!(jittered >= wait.wait && jittered <= wait.wait + wait.wait / 16);
        }

        #[test]
        fn any_query_waits_no_longer_than_allowed_and_is_read_again_as_it_is_written(
            query in "(index|wait|[a-z]{1,2}|[=&%+;]|%[0-9a-f]{2}|[0-9]{1,3}[smhd]?|.){0,60}",
        ) {
            let params = Params::parse(&query);
            if let Ok(Some(wait)) = params.wait() {
                prop_assert!(wait.index > 0 && !wait.wait.is_zero() && wait.wait <= API_WAIT_MAX);
            }
            let mut written = form_urlencoded::Serializer::new(String::new());
            written.extend_pairs(&params.texts);
            prop_assert_eq!(Params::parse(&written.finish()).texts, params.texts);
        }

        #[test]
        fn of_many_keys_the_first_are_looked_at(count in 0..2 * KEYS_MAX) {
            let query: Vec<_> = (0..count).map(|key| format!("k{key}=v")).collect();
            let params = Params::parse(&query.join("&"));
            prop_assert_eq!(params.texts.len(), count.min(KEYS_MAX));
            prop_assert_eq!(params.text("k0").is_some(), count > 0);
        }
    }
}
