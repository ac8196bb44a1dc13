//! Where an artifact comes from, in the forms that Nomad's jobs have. Pure.
//!
//! ```text
//! https://user:password@host/path/x.tar.gz//bin?archive=tar.gz&checksum=sha256:…&other=1
//! └──────────── what is asked for ───────┘ └─┘  └──────── taken out ──────────┘ └ stays
//!                                    part of the archive
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use url::Url;

use super::{ArchiveKind, ArtifactMode, Checksum, ChecksumError};
use crate::limits::{ARTIFACT_TEXT_BYTES_MAX, URL_SHOWN_BYTES_MAX};
use crate::oci::{OciReference, OciReferenceError};
use crate::printable::printable_line;

/// An address of the scheme `http` or `https`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HttpUrl(Url);

impl HttpUrl {
    /// Read an address.
    ///
    /// # Errors
    /// When the text is no address of `http` or `https`.
    pub fn parse(text: &str) -> Result<Self, SourceError> {
        let url = Url::parse(text).map_err(|error| SourceError::Url(error.to_string()))?;
        Self::from_url(url)
    }

    fn from_url(url: Url) -> Result<Self, SourceError> {
        match (url.scheme(), url.host_str()) {
            ("http" | "https", Some(host)) if !host.is_empty() => Ok(Self(url)),
            ("http" | "https", _) => Err(SourceError::Url("it has no host".to_owned())),
            (other, _) => Err(SourceError::Kind(other.to_owned())),
        }
    }

    /// The address that a redirect from this one names.
    ///
    /// # Errors
    /// When that is no address of `http` or `https`.
    pub fn join(&self, location: &str) -> Result<Self, SourceError> {
        let url = self.0.join(location).map_err(|error| SourceError::Url(error.to_string()))?;
        Self::from_url(url)
    }

    /// Whether the scheme is `https`.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Name or IP address of the host, without brackets.
    #[must_use]
    pub fn host(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        host.trim_start_matches('[').trim_end_matches(']').to_owned()
    }

    /// The port, or the usual one of the scheme where the address has none.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or(if self.is_https() { 443 } else { 80 })
    }

    /// The host as a request names it, with the port where that is not the usual one.
    #[must_use]
    pub fn authority(&self) -> String {
        let host = self.0.host_str().unwrap_or_default();
        self.0.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
    }

    /// Path and query.
    #[must_use]
    pub fn target(&self) -> String {
        let path = self.0.path();
        self.0.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}"))
    }

    /// User name and password in the address, where it has them.
    #[must_use]
    pub fn user(&self) -> Option<(String, String)> {
        let decoded = |text: &str| decode_percent(text);
        let name = self.0.username();
        let password = self.0.password().unwrap_or_default();
        (!name.is_empty() || !password.is_empty()).then(|| (decoded(name), decoded(password)))
    }

    /// Whether scheme, host and port are the same, so that secrets for one may be sent to
    /// the other.
    #[must_use]
    pub fn is_same_place(&self, other: &Self) -> bool {
        self.0.origin() == other.0.origin()
    }

    /// A text that may be shown, without the parts that may be secret.
    #[must_use]
    pub fn public_text(&self) -> String {
        public_source(self.0.as_str())
    }

    /// The whole address with its secrets. It is for requests, never for people.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl Serialize for HttpUrl {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.0.as_str())
    }
}

impl<'de> Deserialize<'de> for HttpUrl {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Where an artifact is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourcePlace {
    /// At this address of an HTTP server.
    Http(HttpUrl),
    /// At this path of the node.
    File(PathBuf),
    /// In a registry, under this reference.
    Oci(OciReference),
}

/// The source of an artifact with its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArtifactSource {
    /// Where the artifact is.
    pub place: SourcePlace,
    /// The checksum that the download must have.
    pub checksum: Option<Checksum>,
    /// The kind of archive that the download is unpacked as; absent: it is not unpacked.
    pub archive: Option<ArchiveKind>,
    /// The part of the archive that is wanted, as the names of its path.
    pub part: Option<Vec<String>>,
    /// Name of the file, in place of the one in the address.
    filename: Option<String>,
}

/// What a fetched source becomes at its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArtifactOutcome {
    /// A file at the destination itself.
    Named,
    /// A file of this name below the destination.
    Below(String),
    /// The entries of an archive, below the destination.
    Tree,
}

/// Why nothing can be fetched from a source.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The source is of a kind that Ostler does not fetch.
    #[error(
        "{0} is not fetched by this agent; it fetches http://, https://, file:// and, for WASM modules, oci://"
    )]
    Kind(String),
    /// The source has no scheme.
    #[error("{0:?} does not begin with http://, https://, file:// or oci://")]
    NoScheme(String),
    /// The source is no valid address.
    #[error("it is not an address: {0}")]
    Url(String),
    /// The source is no valid reference to a registry.
    #[error("{0}")]
    Oci(#[from] OciReferenceError),
    /// The option `checksum` is no valid checksum.
    #[error("{0}")]
    Checksum(#[from] ChecksumError),
    /// The option `archive` has an unknown value.
    #[error("archive = {0:?} is not known; write false or one of: {names}", names = ArchiveKind::names())]
    Archive(String),
    /// The part of the archive leads out of the archive.
    #[error("what follows // must be a path inside the archive, without ..")]
    Part,
    /// A part is named of a source that is no archive.
    #[error("a part can be named with // only for an archive")]
    NoParts,
    /// The option `filename` is no valid name of a file.
    #[error("filename = {0:?} must be the name of a file")]
    Filename(String),
    /// The source has no name for the file.
    #[error(
        "its path ends with a slash: a directory cannot be fetched; name a file, or give mode = \"file\" and a destination"
    )]
    NoName,
    /// A directory is asked for, and the source is one file.
    #[error("mode = \"dir\" needs an archive; this is one file")]
    NoDirectory,
    /// A directory or archive is asked for, and the source is one compressed file.
    #[error(
        "{0} is one packed file: write mode = \"file\" and the file as destination, or archive = \"false\""
    )]
    OneFile(ArchiveKind),
    /// An option has no meaning for a source of this kind.
    #[error("{0} has no effect on a source of this kind")]
    Option(String),
    /// The source and its options are too long.
    #[error("it is longer than {ARTIFACT_TEXT_BYTES_MAX} bytes")]
    TooLong,
}

impl ArtifactSource {
    /// Read a source with its options.
    ///
    /// # Errors
    /// See [`SourceError`].
    pub fn parse(text: &str, options: &BTreeMap<String, String>) -> Result<Self, SourceError> {
        let length: usize = options.iter().map(|(name, value)| name.len() + value.len()).sum();
        if text.len().saturating_add(length) > ARTIFACT_TEXT_BYTES_MAX {
            return Err(SourceError::TooLong);
        }
        let (scheme, text) = split_scheme(text.trim())?;
        if scheme == "oci" {
            return Self::parse_registry(&text, options);
        }
        let (text, part) = split_part(&text)?;
        let url = Url::parse(&text).map_err(|error| SourceError::Url(error.to_string()))?;
        let (mut url, mut taken) = split_options(url);
        for (name, value) in options {
            match name.as_str() {
                "checksum" | "archive" | "filename" => {
                    taken.insert(name.clone(), value.clone());
                }
                _ if scheme == "file" => return Err(SourceError::Option(name.clone())),
                _ => {
                    url.query_pairs_mut().append_pair(name, value);
                }
            }
        }
        let name = url.path().rsplit('/').next().unwrap_or_default().to_owned();
        let place = match scheme.as_str() {
            "file" => {
                let path = PathBuf::from(decode_percent(url.path()));
                if url.host_str().is_some_and(|host| !host.is_empty() && host != "localhost") {
                    return Err(SourceError::Url(
                        "file:// names a path of this node, as in file:///srv/x".to_owned(),
                    ));
                }
                SourcePlace::File(path)
            }
            _ => SourcePlace::Http(HttpUrl::from_url(url)?),
        };
        let archive = match taken.get("archive").map(String::as_str) {
            None | Some("") => ArchiveKind::from_file_name(&name),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => None,
            Some(other) => {
                let kind = ArchiveKind::from_name(other);
                Some(kind.ok_or_else(|| SourceError::Archive(other.to_owned()))?)
            }
        };
        let checksum = taken.get("checksum").map(|text| text.parse()).transpose()?;
        let filename = match taken.remove("filename").filter(|name| !name.is_empty()) {
            Some(name) if !is_name(&name) => return Err(SourceError::Filename(name)),
            other => other,
        };
        Ok(Self { place, checksum, archive, part, filename })
    }

    fn parse_registry(text: &str, options: &BTreeMap<String, String>) -> Result<Self, SourceError> {
        let reference: OciReference = text.parse()?;
        if let Some(name) = options
            .keys()
            .find(|name| !matches!(name.as_str(), "checksum" | "filename" | "archive"))
        {
            return Err(SourceError::Option(name.clone()));
        }
        let checksum = options.get("checksum").map(|text| text.parse()).transpose()?;
        let filename = options.get("filename").filter(|name| !name.is_empty()).cloned();
        if let Some(name) = filename.as_ref().filter(|name| !is_name(name)) {
            return Err(SourceError::Filename(name.clone()));
        }
        Ok(Self {
            place: SourcePlace::Oci(reference),
            checksum,
            archive: None,
            part: None,
            filename,
        })
    }

    /// What the source becomes at its destination.
    ///
    /// # Errors
    /// When the source does not fit the mode.
    pub fn outcome(&self, mode: ArtifactMode) -> Result<ArtifactOutcome, SourceError> {
        let (tree, one) = match self.archive {
            None => (false, None),
            Some(kind) if kind.is_one_file() => (false, Some(kind)),
            Some(_) => (true, None),
        };
        if self.part.is_some() && (!tree || mode == ArtifactMode::File) {
            return Err(SourceError::NoParts);
        }
        match (mode, tree, one) {
            (ArtifactMode::File, _, _) => Ok(ArtifactOutcome::Named),
            (_, true, _) => Ok(ArtifactOutcome::Tree),
            (_, false, Some(kind)) => Err(SourceError::OneFile(kind)),
            (ArtifactMode::Dir, false, None) => Err(SourceError::NoDirectory),
            (ArtifactMode::Any, false, None) => {
                self.name().map(ArtifactOutcome::Below).ok_or(SourceError::NoName)
            }
        }
    }

    /// Name of the fetched file; `None` where the source has none.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        if let Some(name) = &self.filename {
            return Some(name.clone());
        }
        let name = match &self.place {
            SourcePlace::Http(url) => decode_percent(url.0.path().rsplit('/').next()?),
            SourcePlace::File(path) => path.file_name()?.to_str()?.to_owned(),
            SourcePlace::Oci(reference) => {
                format!("{}.wasm", reference.repository().rsplit('/').next()?)
            }
        };
        is_name(&name).then_some(name)
    }

    /// A text that may be shown, without the parts that may be secret.
    #[must_use]
    pub fn public_text(&self) -> String {
        match &self.place {
            SourcePlace::Http(url) => url.public_text(),
            SourcePlace::File(path) => {
                printable_line(format!("file://{}", path.display()), URL_SHOWN_BYTES_MAX)
            }
            SourcePlace::Oci(reference) => {
                printable_line(reference.to_string(), URL_SHOWN_BYTES_MAX)
            }
        }
    }
}

/// A source as it may be shown in events and logs: without user name, password and query.
#[must_use]
pub fn public_source(text: &str) -> String {
    let (text, query) = match text.split_once('?') {
        Some((text, _)) => (text, "?…"),
        None => (text, ""),
    };
    let text = text.split('#').next().unwrap_or_default();
    let text = match text.split_once("://") {
        Some((scheme, rest)) => {
            let (authority, path) = match rest.find('/') {
                Some(at) => rest.split_at(at),
                None => (rest, ""),
            };
            let host = authority.rsplit('@').next().unwrap_or_default();
            format!("{scheme}://{host}{path}")
        }
        None => text.to_owned(),
    };
    printable_line(format!("{text}{query}"), URL_SHOWN_BYTES_MAX)
}

/// The scheme, and the text without the prefix that Nomad's jobs may put before it (`http::`).
fn split_scheme(text: &str) -> Result<(String, String), SourceError> {
    let forced = text.split_once("::").filter(|(kind, _)| {
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
    });
    if let Some((kind, rest)) = forced {
        return match kind {
            "http" | "https" | "file" => split_scheme(rest),
            other => Err(SourceError::Kind(format!("{other}::"))),
        };
    }
    if text.starts_with("git@") {
        return Err(SourceError::Kind("git".to_owned()));
    }
    if let Some((scheme, _)) = text.split_once("://") {
        let scheme = scheme.to_ascii_lowercase();
        return match scheme.as_str() {
            "http" | "https" | "file" | "oci" => Ok((scheme, text.to_owned())),
            _ => Err(SourceError::Kind(format!("{}://", printable_line(scheme, 32)))),
        };
    }
    if text.starts_with('/') {
        return Ok(("file".to_owned(), format!("file://{text}")));
    }
    // Hosts for which go-getter, as Nomad uses it, chooses another kind.
    let host = text.split('/').next().unwrap_or_default();
    for (end, kind) in [
        ("github.com", "git"),
        ("gitlab.com", "git"),
        ("bitbucket.org", "git"),
        ("amazonaws.com", "s3"),
        ("googleapis.com", "gcs"),
    ] {
        if host.ends_with(end) {
            return Err(SourceError::Kind(format!("{kind} ({host})")));
        }
    }
    Err(SourceError::NoScheme(public_source(text)))
}

/// The text without the part of the archive that stands behind `//`, and that part.
fn split_part(text: &str) -> Result<(String, Option<Vec<String>>), SourceError> {
    let (before, query) = match text.find('?') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let from = before.find("://").map_or(0, |at| at.saturating_add(3));
    // `file:///srv/x` begins with a slash of its own.
    let rest = before.get(from..).unwrap_or_default();
    let Some(at) = rest.find("//") else { return Ok((text.to_owned(), None)) };
    let (kept, part) = rest.split_at(at);
    let mut names = Vec::new();
    for name in part.split('/').filter(|name| !name.is_empty() && *name != ".") {
        let name = decode_percent(name);
        if name == ".." || !is_name(&name) {
            return Err(SourceError::Part);
        }
        names.push(name);
    }
    let scheme = before.get(..from).unwrap_or_default();
    Ok((format!("{scheme}{kept}{query}"), (!names.is_empty()).then_some(names)))
}

/// The address without the parameters of its query that say how it is fetched, and
/// those parameters.
fn split_options(mut url: Url) -> (Url, BTreeMap<String, String>) {
    let mut taken = BTreeMap::new();
    let Some(query) = url.query().map(str::to_owned) else { return (url, taken) };
    let mut kept = Vec::new();
    for pair in query.split('&') {
        let read = url::form_urlencoded::parse(pair.as_bytes()).next();
        match read {
            Some((name, value)) if matches!(&*name, "checksum" | "archive" | "filename") => {
                taken.insert(name.into_owned(), value.into_owned());
            }
            // Kept as it is written, because it may be part of a signature.
            _ => kept.push(pair),
        }
    }
    let kept = kept.join("&");
    url.set_query(Some(kept.as_str()).filter(|kept| !kept.is_empty()));
    url.set_fragment(None);
    (url, taken)
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name != "."
        && name != ".."
        && name.len() <= 255
        && !name.contains(['/', '\0'])
}

/// The text with its percent escapes decoded, such as `%20` to a space. A result that is no UTF-8
/// leaves the text as it is written.
fn decode_percent(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let byte = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;
