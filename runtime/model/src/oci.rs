//! Places in registries, as text: `oci://registry.example:5000/team/plugin:1.2`.
//!
//! Not the reference of `oci-spec`, which completes what is written (`docker.io`, `library/`, `latest`),
//! takes ports 0 and 99999 and hosts of any length, no IPv6 address, and has one error for all.

use std::fmt;
use std::str::FromStr;

use super::digest::{Digest, PREFIX};

/// How a reference begins.
pub const SCHEME: &str = "oci://";
/// Longest name of a repository, of the registries' own specification.
const REPOSITORY_BYTES_MAX: usize = 255;
const TAG_BYTES_MAX: usize = 128;
const HOST_BYTES_MAX: usize = 255;

/// A tag, a digest, or both: then the digest counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reference {
    /// Host, and port where one is given.
    registry: String,
    /// What is kept there, without a slash at either end.
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

/// Text that names nothing in a registry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoReference {
    /// Something else.
    #[error(
        "a place in a registry begins with oci://, as in oci://registry.example/team/plugin:1.2"
    )]
    Scheme,
    /// No host, or none that can be one.
    #[error("{0:?} is no registry: write its host name and port, as in registry.example:5000")]
    Registry(String),
    /// No repository, or none that can be one.
    #[error(
        "{0:?} is no repository: lower-case words of letters and digits, joined by . _ - and /"
    )]
    Repository(String),
    /// Neither tag nor digest.
    #[error("it names no version: add a tag, as in {0}:1.2, or a digest, as in {0}@sha256:…")]
    NoVersion(String),
    /// No tag.
    #[error("{0:?} is no tag: letters, digits, _ . and -, at most {TAG_BYTES_MAX}")]
    Tag(String),
    /// No digest.
    #[error("{0:?} is no digest: sha256: and 64 hexadecimal digits")]
    Digest(String),
}

impl Reference {
    /// Host and port.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// What is kept there.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The manifest that is meant, when its digest is said.
    #[must_use]
    pub const fn digest(&self) -> Option<Digest> {
        self.digest
    }

    /// What a registry is asked for: the digest, else the tag.
    #[must_use]
    pub fn version(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.tagged(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => String::new(),
        }
    }

    /// The last word of the repository, which is what a file of it is called.
    #[must_use]
    pub fn file_stem(&self) -> &str {
        self.repository.rsplit('/').next().unwrap_or_default()
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(f, "@{}", digest.tagged()),
            None => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = NoReference;

    fn from_str(text: &str) -> Result<Self, NoReference> {
        let rest = text.strip_prefix(SCHEME).ok_or(NoReference::Scheme)?;
        let (registry, path) =
            rest.split_once('/').ok_or_else(|| NoReference::Repository(String::new()))?;
        if !is_registry(registry) {
            return Err(NoReference::Registry(cut(registry)));
        }
        let (path, digest) = match path.split_once('@') {
            None => (path, None),
            Some((path, digest)) => {
                let wrong = || NoReference::Digest(cut(digest));
                let tagged = digest.starts_with(PREFIX).then_some(digest).ok_or_else(wrong)?;
                (path, Some(tagged.parse().map_err(|_| wrong())?))
            }
        };
        let (repository, tag) = match path.split_once(':') {
            None => (path, None),
            Some((repository, tag)) => (repository, Some(tag)),
        };
        if repository.len() > REPOSITORY_BYTES_MAX || !repository.split('/').all(is_component) {
            return Err(NoReference::Repository(cut(repository)));
        }
        if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
            return Err(NoReference::Tag(cut(tag)));
        }
        if tag.is_none() && digest.is_none() {
            return Err(NoReference::NoVersion(cut(text)));
        }
        let (registry, repository) = (registry.to_ascii_lowercase(), repository.to_owned());
        Ok(Self { registry, repository, tag: tag.map(str::to_owned), digest })
    }
}

/// Of the user's own text as much as a message needs.
fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}

/// A host that cannot be taken for a directory: with a dot, a port, or `localhost`.
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

/// One word of a repository: letters and digits, and between them `.`, `_`, `__` or dashes.
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

    fn parsed(text: &str) -> Reference {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_reference_has_a_registry_a_repository_and_a_version() {
        let found = parsed("oci://registry.example:5000/team/sub/plug-in:1.2");
        assert_eq!(found.registry(), "registry.example:5000");
        assert_eq!(found.repository(), "team/sub/plug-in");
        assert_eq!((found.version().as_str(), found.digest()), ("1.2", None));
        assert_eq!(found.file_stem(), "plug-in");
        let digest = Digest::of(b"x");
        let found = parsed(&format!("oci://localhost/a__b:1@{}", digest.tagged()));
        assert_eq!((found.version(), found.digest()), (digest.tagged(), Some(digest)));
        for text in ["oci://[::1]:5000/a:1", "oci://127.0.0.1:1/a.b_c:v", "oci://h:1/0:_"] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[test]
    fn what_names_nothing_is_refused_with_the_reason() {
        let long = "a".repeat(300);
        for (text, reason) in [
            ("registry.example/a:1", "begins with oci://"),
            ("oci://", "is no repository"),
            ("oci://plain/a:1", "is no registry"),
            ("oci://user@registry.example/a:1", "is no registry"),
            ("oci://registry.example:0/a:1", "is no registry"),
            ("oci://registry.example:99999/a:1", "is no registry"),
            ("oci://registry..example/a:1", "is no registry"),
            ("oci://[::1/a:1", "is no registry"),
            ("oci://registry.example/A:1", "is no repository"),
            ("oci://registry.example/../a:1", "is no repository"),
            ("oci://registry.example/a//b:1", "is no repository"),
            ("oci://registry.example/a?b:1", "is no repository"),
            ("oci://registry.example/a%2e:1", "is no repository"),
            (&format!("oci://registry.example/{long}:1"), "is no repository"),
            ("oci://registry.example/a", "names no version"),
            ("oci://registry.example/a:", "is no tag"),
            ("oci://registry.example/a:.1", "is no tag"),
            ("oci://registry.example/a:1/2", "is no tag"),
            ("oci://registry.example/a:1\r\nX: y", "is no tag"),
            ("oci://registry.example/a@sha256:12", "is no digest"),
            ("oci://registry.example/a@md5:12", "is no digest"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_reference_that_writes_itself_or_an_error(text in "oci://\\PC{0,60}") {
            if let Ok(found) = text.parse::<Reference>() {
                prop_assert_eq!(parsed(&found.to_string()), found);
            }
        }

        /// What goes into a request line must not be able to end it or to leave its path.
        #[test]
        fn a_reference_has_only_harmless_characters(
            text in "oci://[a-z.]{1,6}/[a-z/.%?# \\r\\n:@_-]{1,12}",
        ) {
            if let Ok(found) = text.parse::<Reference>() {
                let fine = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
                prop_assert!(found.repository().chars().all(fine));
                prop_assert!(!found.repository().contains(".."));
            }
        }
    }
}
