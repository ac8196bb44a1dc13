//! Names and passwords, from the environment or else from Docker's configuration file. Each is for
//! one registry and is shown to no other.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

use ostler_model::limits::CREDENTIALS_FILE_BYTES_MAX;

/// The registry that the other two variables are for.
const REGISTRY: &str = "OSTLER_REGISTRY";
const USERNAME: &str = "OSTLER_REGISTRY_USERNAME";
const PASSWORD: &str = "OSTLER_REGISTRY_PASSWORD";

/// Names and passwords by registry.
#[derive(Clone, Default)]
pub struct RegistryCredentials(BTreeMap<String, (String, String)>);

impl RegistryCredentials {
    /// The credentials in this process's environment, and in `$DOCKER_CONFIG/config.json` or
    /// `~/.docker/config.json` if there is such a file. A file that cannot be read causes a warning
    /// and is left out.
    #[must_use]
    pub fn from_environment() -> Self {
        let mut found = match docker_file(|name| std::env::var_os(name)) {
            Some(path) => Self::from_docker_file(&path),
            None => Self::default(),
        };
        let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
        if let (Some(registry), Some(name), Some(password)) =
            (text(REGISTRY), text(USERNAME), text(PASSWORD))
        {
            found.add(&registry, name, password);
        }
        found
    }

    /// Add credentials for one registry, host and port.
    pub fn add(&mut self, registry: &str, name: String, password: String) {
        self.0.insert(registry.to_ascii_lowercase(), (name, password));
    }

    /// The value of the `Authorization` header for a registry.
    pub(super) fn basic(&self, registry: &str) -> Option<String> {
        let (name, password) = self.0.get(registry)?;
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }

    fn from_docker_file(path: &Path) -> Self {
        use std::io::Read as _;
        let mut text = Vec::new();
        let read = std::fs::File::open(path)
            .and_then(|file| file.take(CREDENTIALS_FILE_BYTES_MAX).read_to_end(&mut text));
        if let Err(error) = read {
            if error.kind() != std::io::ErrorKind::NotFound {
                tracing::warn!(file = %path.display(), %error, "cannot read the credentials");
            }
            return Self::default();
        }
        Self::from_docker(&text).unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error, "the credentials are not JSON");
            Self::default()
        })
    }

    /// The credentials in the text of Docker's configuration. Helpers that keep passwords elsewhere
    /// are not asked, because they are programs.
    fn from_docker(text: &[u8]) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            auths: BTreeMap<String, Auth>,
        }
        #[derive(Deserialize)]
        struct Auth {
            auth: Option<String>,
            username: Option<String>,
            password: Option<String>,
        }
        let config: Config = serde_json::from_slice(text)?;
        let mut found = Self::default();
        for (place, auth) in config.auths {
            let place = place.trim_start_matches("https://").trim_start_matches("http://");
            let registry = place.split('/').next().unwrap_or_default();
            let decoded = auth.auth.and_then(|text| STANDARD.decode(text).ok());
            let decoded = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
            let pair = decoded.as_deref().and_then(|text| text.split_once(':'));
            let pair = pair.map(|(name, password)| (name.to_owned(), password.to_owned()));
            if let Some((name, password)) = pair.or(auth.username.zip(auth.password)) {
                found.add(registry, name, password);
            }
        }
        Ok(found)
    }
}

fn docker_file(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let dir = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let dir = dir("DOCKER_CONFIG").or_else(|| Some(dir("HOME")?.join(".docker")))?;
    Some(dir.join("config.json"))
}

impl fmt::Debug for RegistryCredentials {
    /// This leaves the passwords out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn dockers_file_is_read_by_registry_and_shown_without_passwords() {
        let text = br#"{
            "auths": {
                "registry.example": { "auth": "bWU6c2VjOnJldA==" },
                "https://other.example:5000/v2/": { "username": "you", "password": "pw" },
                "helper.example": {},
                "broken.example": { "auth": "!" }
            },
            "credsStore": "desktop"
        }"#;
        let found = RegistryCredentials::from_docker(text).unwrap();
        assert_eq!(found.basic("registry.example").unwrap(), "Basic bWU6c2VjOnJldA==");
        assert_eq!(found.basic("other.example:5000").unwrap(), "Basic eW91OnB3");
        for none in ["other.example", "helper.example", "broken.example", "evil.example"] {
            assert_eq!(found.basic(none), None, "{none}");
        }
        assert!(!format!("{found:?}").contains("sec"), "{found:?}");
        assert!(RegistryCredentials::from_docker(b"[").is_err());
        assert!(RegistryCredentials::from_docker_file(Path::new("/nowhere")).0.is_empty());
    }

    #[test]
    fn the_file_is_where_docker_has_it() {
        let with = |pairs: &'static [(&str, &str)]| {
            docker_file(move |name| {
                pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value))
            })
        };
        assert_eq!(with(&[("HOME", "/h")]), Some("/h/.docker/config.json".into()));
        assert_eq!(with(&[("HOME", "/h"), ("DOCKER_CONFIG", "/d")]), Some("/d/config.json".into()));
        assert_eq!(with(&[("HOME", "relative")]), None);
    }
}
