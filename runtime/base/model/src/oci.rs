//! References to components in registries, as text: `oci://registry.example:5000/team/plugin:1.2`.
//!
//! The reference of `oci-spec` is not used: it completes what is written (`docker.io`, `library/`,
//! `latest`), accepts ports 0 and 99999 and hosts of any length but no IPv6 address, and has one
//! error for all cases.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, PREFIX};

/// The beginning of each reference.
pub const SCHEME: &str = "oci://";
/// Longest name of a repository, bytes, as in the specification of registries.
const REPOSITORY_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;
const HOST_BYTES_MAX: usize = 255;

/// A repository in a registry with a tag, a digest, or both. With both, the digest counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OciReference {
    /// Host, and port where one is given.
    registry: String,
    /// Path of the repository, without a slash at either end.
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Why a text is no reference to a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciReferenceError {
    /// The text does not begin with `oci://`.
    #[error(
        "a place in a registry begins with oci://, as in oci://registry.example/team/plugin:1.2"
    )]
    Scheme,
    /// The host is missing or not valid.
    #[error("{0:?} is not a registry: write its host name and port, as in registry.example:5000")]
    Registry(String),
    /// The repository is missing or not valid.
    #[error(
        "{0:?} is not a repository: give lower-case words of letters and digits, joined by . _ - and /"
    )]
    Repository(String),
    /// There is neither a tag nor a digest.
    #[error("it names no version: add a tag, as in {0}:1.2, or a digest, as in {0}@sha256:…")]
    NoVersion(String),
    /// The tag is not valid.
    #[error("{0:?} is not a tag: give letters, digits, _ . and -, at most {TAG_BYTES_MAX}")]
    Tag(String),
    /// The digest is not valid.
    #[error("{0:?} is not a digest: give sha256: and 64 hexadecimal digits")]
    Digest(String),
}

impl OciReference {
    /// Host and port of the registry.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Path of the repository in the registry.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Digest of the manifest, where the reference has one.
    #[must_use]
    pub const fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// The version to ask the registry for: the digest, or else the tag.
    #[must_use]
    pub fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_tagged(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => String::new(),
        }
    }

    /// The last name of the repository, which is the stem of its file's name.
    #[must_use]
    pub fn file_stem(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for OciReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{}", digest.to_tagged()),
            None => Ok(()),
        }
    }
}

impl FromStr for OciReference {
    type Err = OciReferenceError;

    fn from_str(text: &str) -> Result<Self, OciReferenceError> {
        let rest = text.strip_prefix(SCHEME).ok_or(OciReferenceError::Scheme)?;
        let (registry, path) =
            rest.split_once('/').ok_or_else(|| OciReferenceError::Repository(String::new()))?;
        if !is_registry(registry) {
            return Err(OciReferenceError::Registry(cut(registry)));
        }
        let (path, digest) = match path.split_once('@') {
            None => (path, None),
            Some((path, digest)) => {
                let wrong = || OciReferenceError::Digest(cut(digest));
                let tagged = digest.starts_with(PREFIX).then_some(digest).ok_or_else(wrong)?;
                (path, Some(tagged.parse().map_err(|_| wrong())?))
            }
        };
        let (repository, tag) = match path.split_once(':') {
            None => (path, None),
            Some((repository, tag)) => (repository, Some(tag)),
        };
        if repository.len() > REPOSITORY_BYTES_MAX || !repository.split('/').all(is_component) {
            return Err(OciReferenceError::Repository(cut(repository)));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(OciReferenceError::Tag(cut(tag)));
        }
        if tag.is_none() && digest.is_none() {
            return Err(OciReferenceError::NoVersion(cut(text)));
        }
        let (registry, repository) = (registry.to_ascii_lowercase(), repository.to_owned());
        Ok(Self { registry, repository, tag: tag.map(str::to_owned), digest })
    }
}

/// The beginning of the user's text, for a message.
fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}

/// Whether a text is a host that cannot be taken for a directory: it has a dot or a port, or is
/// `localhost`.
fn is_registry(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        // An address with colons of its own.
        Some(rest) => match rest.split_once(']') {
            Some((host, rest)) if host.parse::<std::net::Ipv6Addr>().is_ok() => {
                match rest.strip_prefix(':') {
                    Some(port) => ("localhost", Some(port)),
                    None if rest.is_empty() => ("localhost", None),
                    None => return false,
                }
            }
            _ => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let label = |label: &str| {
        !label.is_empty()
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    let is_port = |port: &str| {
        port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|p| p > 0)
    };
    text.len() <= HOST_BYTES_MAX
        && host.split('.').all(label)
        && (host.contains('.') || host == "localhost" || port.is_some())
        && port.is_none_or(is_port)
}

/// Whether a text is one name of a repository: letters and digits, and between them `.`, `_`, `__`
/// or dashes.
fn is_component(text: &str) -> bool {
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [text.as_bytes().first(), text.as_bytes().last()];
    let joint = |joint: &str| {
        matches!(joint, "" | "." | "_" | "__") || joint.bytes().all(|byte| byte == b'-')
    };
    ends.iter().all(|end| end.is_some_and(alphanumeric))
        && text.split(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit()).all(joint)
}

fn is_tag(text: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let rest = |byte: u8| word(byte) || byte == b'.' || byte == b'-';
    text.len() <= TAG_BYTES_MAX && text.bytes().next().is_some_and(word) && text.bytes().all(rest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> OciReference {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_reference_has_a_registry_a_repository_and_a_version() {
        let found = parsed("oci://registry.example:5000/team/sub/plug-in:1.2");
        assert_eq!(found.registry(), "registry.example:5000");
        assert_eq!(found.repository(), "team/sub/plug-in");
        assert_eq!((found.version().as_str(), found.digest()), ("1.2", None));
        assert_eq!(found.file_stem(), "plug-in");
        let digest = Digest::compute(b"x");
        let found = parsed(&format!("oci://localhost/a__b:1@{}", digest.to_tagged()));
        assert_eq!((found.version(), found.digest()), (digest.to_tagged(), Some(digest)));
        for text in ["oci://[::1]:5000/a:1", "oci://127.0.0.1:1/a.b_c:v", "oci://h:1/0:_"] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_the_reason() {
        let long = "a".repeat(300);
        for (text, reason) in [
            ("registry.example/a:1", "begins with oci://"),
            ("oci://", "is not a repository"),
            ("oci://plain/a:1", "is not a registry"),
            ("oci://user@registry.example/a:1", "is not a registry"),
            ("oci://registry.example:0/a:1", "is not a registry"),
            ("oci://registry.example:99999/a:1", "is not a registry"),
            ("oci://registry..example/a:1", "is not a registry"),
            ("oci://[::1/a:1", "is not a registry"),
            ("oci://registry.example/A:1", "is not a repository"),
            ("oci://registry.example/../a:1", "is not a repository"),
            ("oci://registry.example/a//b:1", "is not a repository"),
            ("oci://registry.example/a?b:1", "is not a repository"),
            ("oci://registry.example/a%2e:1", "is not a repository"),
            (&format!("oci://registry.example/{long}:1"), "is not a repository"),
            ("oci://registry.example/a", "names no version"),
            ("oci://registry.example/a:", "is not a tag"),
            ("oci://registry.example/a:.1", "is not a tag"),
            ("oci://registry.example/a:1/2", "is not a tag"),
            ("oci://registry.example/a:1\r\nX: y", "is not a tag"),
            ("oci://registry.example/a@sha256:12", "is not a digest"),
            ("oci://registry.example/a@md5:12", "is not a digest"),
        ] {
            let error = text.parse::<OciReference>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_reference_that_writes_itself_or_an_error(text in "oci://\\PC{0,60}") {
            if let Ok(found) = text.parse::<OciReference>() {
                prop_assert_eq!(parsed(&found.to_string()), found);
            }
        }

        /// What goes into a request line must not be able to end it or to leave its path.
        #[test]
        fn a_reference_has_only_harmless_characters(
            text in "oci://[a-z.]{1,6}/[a-z/.%?# \\r\\n:@_-]{1,12}",
        ) {
            if let Ok(found) = text.parse::<OciReference>() {
                let fine = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
                prop_assert!(found.repository().chars().all(fine));
                prop_assert!(!found.repository().contains(".."));
            }
        }
    }
}
