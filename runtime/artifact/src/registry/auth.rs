//! What a registry's `WWW-Authenticate` header demands.

/// How to get in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// With name and password in each request.
    Basic,
    /// With a token that another service gives.
    Bearer {
        /// The service's address.
        realm: String,
        /// Who the token is for.
        service: Option<String>,
        /// What it is for.
        scope: Option<String>,
    },
}

/// Longest header that is read, bytes.
const HEADER_BYTES_MAX: usize = 4_096;

impl Challenge {
    /// Read one header. `None` when it demands neither or is malformed.
    pub(super) fn parse(header: &str) -> Option<Self> {
        if header.len() > HEADER_BYTES_MAX {
            return None;
        }
        let header = header.trim();
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest.trim_start();
        while !rest.is_empty() {
            let (name, value, after) = parameter(rest)?;
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
            rest = after;
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// `name="value"` or `name=value` at the beginning, and what follows its comma.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.split_once('=')?;
    let (value, rest) = match rest.strip_prefix('"') {
        Some(quoted) => unquoted(quoted)?,
        None => {
            let end = rest.find([',', ' ']).unwrap_or(rest.len());
            let (value, rest) = rest.split_at_checked(end)?;
            (value.to_owned(), rest)
        }
    };
    let rest = rest.trim_start();
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix(',')?.trim_start() };
    Some((name.trim(), value, rest))
}

/// A quoted text whose first quote is gone, and what follows its last.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => value.push(chars.next()?.1),
            other => value.push(other),
        }
    }
    None
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
            let scheme = any.trim().split(' ').next().unwrap_or_default().to_lowercase();
            if !["basic", "bearer"].contains(&scheme.as_str()) {
                prop_assert_eq!(Challenge::parse(&any), None);
            }
        }
    }
}
