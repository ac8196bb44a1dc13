//! Reads what a registry's `WWW-Authenticate` header demands.

use http_auth::{ChallengeParser, ChallengeRef};

/// The authorization that a registry demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// Name and password in each request.
    Basic,
    /// A token from another service.
    Bearer {
        /// The address of that service.
        realm: String,
        /// The registry that the token is for.
        service: Option<String>,
        /// The access that the token is for.
        scope: Option<String>,
    },
}

/// The longest header that is read, in bytes.
const HEADER_BYTES_MAX: usize = 4_096;

impl Challenge {
    /// Read the first challenge in a header that can be met. Returns `None` if there is none, or
    /// the header is malformed before it.
    pub(super) fn parse(header: &str) -> Option<Self> {
        if header.len() > HEADER_BYTES_MAX {
            return None;
        }
        let header = header.trim();
        let read = ChallengeParser::new(header)
            .map_while(Result::ok)
            .find_map(|one| Self::from_challenge(&one));
        // The rest is not needed, and is not always well formed.
        let basic = |scheme: &str| scheme.eq_ignore_ascii_case("basic").then_some(Self::Basic);
        read.or_else(|| header.split_whitespace().next().and_then(basic))
    }

    fn from_challenge(challenge: &ChallengeRef<'_>) -> Option<Self> {
        if challenge.scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !challenge.scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let find =
            |name| challenge.params.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        let value = |name| find(name).map(|(_, value)| value.to_unescaped());
        Some(Self::Bearer {
            realm: value("realm")?,
            service: value("service"),
            scope: value("scope"),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn both_kinds_are_read_and_others_are_not() {
        let header = "Bearer realm=\"https://auth.example/token\",service=\"reg\", \
                      scope=\"repository:a/b:pull,push\"";
        let bearer = Challenge::Bearer {
            realm: "https://auth.example/token".into(),
            service: Some("reg".into()),
            scope: Some("repository:a/b:pull,push".into()),
        };
        assert_eq!(Challenge::parse(header), Some(bearer));
        assert_eq!(Challenge::parse("basic realm=\"x\""), Some(Challenge::Basic));
        assert_eq!(Challenge::parse("BASIC"), Some(Challenge::Basic));
        let escaped = Challenge::parse("bearer realm=\"a\\\"b\"");
        assert!(matches!(escaped, Some(Challenge::Bearer { realm, .. }) if realm == "a\"b"));
        let second = Challenge::parse("Digest realm=\"x\", Basic realm=\"y\"");
        assert_eq!(second, Some(Challenge::Basic));
        for wrong in
            ["", "Digest realm=\"x\"", "Bearer", "Bearer realm=\"x", "Bearer service=\"x\""]
        {
            assert_eq!(Challenge::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Challenge::parse(&format!("Bearer realm=\"{}\"", "x".repeat(5_000))), None);
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(rest in "[ =,\"\\\\a-z]{0,40}", any in "\\PC{0,40}") {
            if let Some(challenge) = Challenge::parse(&format!("Bearer {rest}")) {
                let is_its = matches!(&challenge, Challenge::Bearer { realm, .. } if realm.len() < rest.len());
                prop_assert!(is_its, "{:?} of {}", challenge, rest);
            }
            let lower = any.to_lowercase();
            if !["basic", "bearer"].iter().any(|scheme| lower.contains(scheme)) {
                prop_assert_eq!(Challenge::parse(&any), None);
            }
        }
    }
}
