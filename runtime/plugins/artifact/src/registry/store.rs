//! Keeps pulled plugins in the data directory: files named by the digest of their manifest, and for
//! each reference a pin that says what it means.
//!
//! ```text
//! <data dir>/oci/pins/<sha256 of the reference>.json     reference, manifest, component
//! <data dir>/oci/plugins/<sha256 of the manifest>.wasm   and .wasm.minisig
//! ```
//! Files are complete before the pin that names them is there. A plugin is checked against its pin
//! each time it is read.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::client::{PulledPlugin, ResolvedReference};
use crate::trust::{self, ReadError, UnverifiedComponent, signature_path};
use ostler_model::digest::Digest;
use ostler_model::limits::{PIN_BYTES_MAX, PINS_MAX};
use ostler_model::oci::OciReference;
use ostler_state::durable;

/// The meaning of a reference when it was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pin {
    /// The whole reference as a text.
    pub reference: String,
    /// The digest of the manifest.
    pub manifest: Digest,
    /// The digest of the component.
    pub component: Digest,
    /// Whether a signature came with it.
    pub signed: bool,
}

/// A pin, and the plugin that it names.
#[derive(Clone, Debug)]
pub struct PinnedPlugin {
    /// The pin of the reference.
    pub pin: Pin,
    /// The path of the component's file.
    pub path: PathBuf,
    /// The bytes and the signature in that file.
    pub content: UnverifiedComponent,
}

/// Why the store could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The system refused an operation.
    #[error("cannot use {}: {source}; check its permissions and the space there", path.display())]
    System {
        /// The path of the file or directory.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A pin cannot be read.
    #[error("{} is damaged: {reason}; remove it and pull again", path.display())]
    Damaged {
        /// The path of the pin's file.
        path: PathBuf,
        /// What is wrong with the pin.
        reason: String,
    },
    /// A pinned plugin is not there or cannot be read.
    #[error(
        "what was pulled cannot be read: {source}; pull it again with `ostler plugin pull {reference}`"
    )]
    Unread {
        /// The reference that was pinned.
        reference: String,
        /// The error of reading it.
        source: ReadError,
    },
    /// A pinned plugin has changed.
    #[error(
        "{} has the digest {}, and {} is pinned; it was changed: remove it and run \
         `ostler plugin pull {reference}`", path.display(), found.to_tagged(), pinned.to_tagged()
    )]
    Changed {
        /// The path of the component's file.
        path: PathBuf,
        /// The reference that was pinned.
        reference: String,
        /// The digest in the pin.
        pinned: Digest,
        /// The digest of the file.
        found: Digest,
    },
    /// The tag means something else now.
    #[error(
        "{reference} was moved in its registry\n  pinned  {}\n  now     {}\nkeep using what is \
         pinned, or accept the new one with\nostler plugin pull --update {reference}",
        pinned.to_tagged(), now.to_tagged()
    )]
    Moved {
        /// The reference that was pinned.
        reference: String,
        /// The manifest that is pinned.
        pinned: Digest,
        /// The manifest that the registry names now.
        now: Digest,
    },
}

/// The store of pulled plugins. Its operations block.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
}

impl Store {
    /// The store of a data directory. Nothing is read or created yet.
    #[must_use]
    pub fn for_data_dir(data_dir: &Path) -> Self {
        Self { root: data_dir.join("oci") }
    }

    /// The pin of a reference; `None` if it was never pulled.
    ///
    /// # Errors
    /// When the pin cannot be read.
    pub fn read_pin(&self, reference: &OciReference) -> Result<Option<Pin>, StoreError> {
        let path = self.pin_path(reference);
        let failed = |source| StoreError::System { path: path.clone(), source };
        let file = match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed)?,
        };
        let mut text = Vec::new();
        file.take(PIN_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
        let damaged = |reason| StoreError::Damaged { path: path.clone(), reason };
        let pin: Pin = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if pin.reference != reference.to_string() {
            return Err(damaged(format!("it is the pin of {}", pin.reference)));
        }
        Ok(Some(pin))
    }

    /// The plugin that was pulled for a reference; `None` if none was.
    ///
    /// # Errors
    /// When it cannot be read, or is not what was pinned.
    pub fn read_pinned(
        &self,
        reference: &OciReference,
    ) -> Result<Option<PinnedPlugin>, StoreError> {
        let Some(pin) = self.read_pin(reference)? else { return Ok(None) };
        let path = self.plugin_path(&pin.manifest);
        let content = trust::read_component(&path)
            .map_err(|source| StoreError::Unread { reference: reference.to_string(), source })?;
        let found = Digest::compute(&content.bytes);
        if found != pin.component {
            let (reference, pinned) = (reference.to_string(), pin.component);
            return Err(StoreError::Changed { path, reference, pinned, found });
        }
        Ok(Some(PinnedPlugin { pin, path, content }))
    }

    /// Check that a reference that resolves to `now` may be pulled. It may not if it is pinned to
    /// something else, unless the operator accepts that.
    ///
    /// # Errors
    /// When it may not, or its pin cannot be read.
    pub fn check(
        &self,
        reference: &OciReference,
        now: &ResolvedReference,
        accept: bool,
    ) -> Result<(), StoreError> {
        match self.read_pin(reference)? {
            Some(pin) if pin.manifest != now.manifest && !accept => Err(StoreError::Moved {
                reference: reference.to_string(),
                pinned: pin.manifest,
                now: now.manifest,
            }),
            _ => Ok(()),
        }
    }

    /// Keep a pulled plugin, and pin the reference to it.
    ///
    /// # Errors
    /// When it cannot be written; the older pin then still holds.
    pub fn keep_pulled(
        &self,
        reference: &OciReference,
        resolved: &ResolvedReference,
        pulled: &PulledPlugin,
    ) -> Result<PinnedPlugin, StoreError> {
        let before = self.read_pin(reference).ok().flatten();
        let path = self.plugin_path(&resolved.manifest);
        write_component(&path, &pulled.component, pulled.signature.as_deref(), Readers::Us)?;
        let pin = Pin {
            reference: reference.to_string(),
            manifest: resolved.manifest,
            component: resolved.artifact.component.digest,
            signed: pulled.signature.is_some(),
        };
        let at = self.pin_path(reference);
        let text = serde_json::to_vec_pretty(&pin)
            .map_err(|e| StoreError::Damaged { path: at.clone(), reason: e.to_string() })?;
        write(&at, &text, Readers::Us)?;
        if let Some(before) = before.filter(|before| before.manifest != pin.manifest) {
            self.forget(&before.manifest);
        }
        let signature = pulled.signature.as_deref().map(trust::Signature::parse);
        let content = UnverifiedComponent { bytes: pulled.component.clone(), signature };
        Ok(PinnedPlugin { pin, path, content })
    }

    /// Remove the files of a manifest that no pin names any more.
    fn forget(&self, manifest: &Digest) {
        let Ok(pins) = std::fs::read_dir(self.root.join("pins")) else { return };
        for pin in pins.flatten().take(PINS_MAX) {
            let text = std::fs::read(pin.path()).unwrap_or_default();
            // A pin that cannot be read may name the manifest.
            let named = serde_json::from_slice::<Pin>(&text).map(|pin| pin.manifest);
            if named.is_err() || named.is_ok_and(|named| named == *manifest) {
                return;
            }
        }
        let path = self.plugin_path(manifest);
        // A file that stays only takes room.
        let _ = std::fs::remove_file(signature_path(&path));
        let _ = std::fs::remove_file(path);
    }

    fn pin_path(&self, reference: &OciReference) -> PathBuf {
        let name = Digest::compute(reference.to_string().as_bytes());
        self.root.join("pins").join(format!("{name}.json"))
    }

    fn plugin_path(&self, manifest: &Digest) -> PathBuf {
        self.root.join("plugins").join(format!("{manifest}.wasm"))
    }
}

/// Who may read a written file.
#[derive(Clone, Copy)]
enum Readers {
    /// Only this user, as for the data directory.
    Us,
    /// Anybody, because a plugin is no secret and the agent may run as another user.
    All,
}

/// Write a complete file under another name, then give it its own.
fn write(path: &Path, content: &[u8], readers: Readers) -> Result<(), StoreError> {
    let failed = |source| StoreError::System { path: path.to_owned(), source };
    let dir = path.parent().unwrap_or(Path::new("/"));
    let (dir_mode, mode) = match readers {
        Readers::Us => (0o700, 0o600),
        Readers::All => (0o755, 0o644),
    };
    durable::make_dirs(dir, dir_mode).map_err(failed)?;
    let permissions = Permissions::from_mode(mode);
    let file = tempfile::Builder::new().permissions(permissions).tempfile_in(dir);
    let mut file = file.map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)
}

/// Write a component to `path` and the text of its signature beside it.
fn write_component(
    path: &Path,
    component: &[u8],
    signature: Option<&[u8]>,
    readers: Readers,
) -> Result<(), StoreError> {
    let beside = signature_path(path);
    match signature {
        Some(signature) => write(&beside, signature, readers)?,
        None => match std::fs::remove_file(&beside) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::System { path: beside, source });
            }
            _ => {}
        },
    }
    write(path, component, readers)
}

impl PinnedPlugin {
    /// Copy the component to `path`, and its signature beside it. Blocking.
    ///
    /// # Errors
    /// When that fails; each file is whole or as it was.
    pub fn copy_to(&self, path: &Path) -> Result<(), StoreError> {
        let beside = signature_path(&self.path);
        let failed = |source| StoreError::System { path: beside.clone(), source };
        let signature =
            if self.pin.signed { Some(std::fs::read(&beside).map_err(failed)?) } else { None };
        write_component(path, &self.content.bytes, signature.as_deref(), Readers::All)
    }
}
