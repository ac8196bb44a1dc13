//! Image manifests: which blob is the component, which its signature.
//!
//! An artifact is what `wkg` and `oras` push for a component: a configuration of type
//! `application/vnd.wasm.config.v0+json` (or an empty one) and one layer `application/wasm`. A
//! signature is a second layer of type [`SIGNATURE_TYPE`] that holds the `.minisig` file.

use serde::Deserialize;

use ostler_model::digest::Digest;
use ostler_model::limits::{PLUGIN_FILE_BYTES_MAX, SIGNATURE_FILE_BYTES_MAX};
use ostler_model::shown::shown;

/// The manifests that are understood.
pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const COMPONENT_TYPE: &str = "application/wasm";
/// Media type of a layer that is a `.minisig` file.
pub const SIGNATURE_TYPE: &str = "application/vnd.ostler.minisign.v1";
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.wasm.config.v0+json", "application/vnd.oci.empty.v1+json"];
/// Most layers looked at: a plugin has one or two.
const LAYERS_MAX: usize = 16;

/// Bytes told of what is wrong with it: the words may repeat what it says.
const MESSAGE_BYTES: usize = 256;

/// Why a manifest is not one of a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciManifestError {
    /// No JSON of the right shape.
    #[error("its manifest cannot be read: {0}")]
    Malformed(String),
    /// A list of manifests.
    #[error("it is an index of several images; name one of them by its digest")]
    Index,
    /// Another schema or type.
    #[error("its manifest is of the type {0:?}; push it as an OCI image manifest")]
    OtherType(String),
    /// Another kind of artifact.
    #[error("its configuration is of the type {0:?}, so it is no WebAssembly artifact")]
    OtherConfig(String),
    /// No component, or several.
    #[error("it has {0} layers of the type {COMPONENT_TYPE}; a plugin is one")]
    Components(usize),
    /// Several signatures.
    #[error("it has {0} signatures; at most one is read")]
    Signatures(usize),
    /// More layers than are looked at.
    #[error("it has {0} layers; at most {LAYERS_MAX} are looked at")]
    Layers(usize),
    /// More bytes than accepted.
    #[error("its {what} has {size} bytes; at most {max} are read")]
    TooLarge {
        /// Component or signature.
        what: &'static str,
        /// Bytes said.
        size: u64,
        /// Bytes accepted.
        max: u64,
    },
    /// A digest of another kind.
    #[error("the digest {0:?} is no SHA-256")]
    Digest(String),
}

/// A blob: where and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// Its digest, which is also its address.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
}

/// What a manifest says of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The component.
    pub component: Descriptor,
    /// The `.minisig` file of it.
    pub signature: Option<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    schema_version: u32,
    media_type: Option<String>,
    config: Option<Layer>,
    #[serde(default)]
    layers: Vec<Layer>,
    manifests: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
}

impl Artifact {
    /// Read a manifest. `content_type` is what its registry calls it.
    ///
    /// # Errors
    /// When it is not one of a plugin.
    pub fn read(bytes: &[u8], content_type: Option<&str>) -> Result<Self, OciManifestError> {
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| {
            OciManifestError::Malformed(shown(error.to_string(), MESSAGE_BYTES))
        })?;
        let content_type = content_type.and_then(|text| text.split(';').next()).map(str::trim);
        let said = manifest.media_type.as_deref().or(content_type);
        if manifest.manifests.is_some() || said == Some(INDEX_TYPE) {
            return Err(OciManifestError::Index);
        }
        if let Some(other) = said.filter(|said| *said != MANIFEST_TYPE) {
            return Err(OciManifestError::OtherType(cut(other)));
        }
        if manifest.schema_version != 2 {
            return Err(OciManifestError::OtherType(format!("schema {}", manifest.schema_version)));
        }
        let config = manifest.config.map(|config| config.media_type).unwrap_or_default();
        if !CONFIG_TYPES.contains(&config.as_str()) {
            return Err(OciManifestError::OtherConfig(cut(&config)));
        }
        Self::of_layers(&manifest.layers)
    }

    fn of_layers(layers: &[Layer]) -> Result<Self, OciManifestError> {
        if layers.len() > LAYERS_MAX {
            return Err(OciManifestError::Layers(layers.len()));
        }
        let of_type = |wanted: &str| -> Vec<&Layer> {
            layers.iter().filter(|layer| layer.media_type == wanted).collect()
        };
        let components = of_type(COMPONENT_TYPE);
        let [component] = components.as_slice() else {
            return Err(OciManifestError::Components(components.len()));
        };
        let signature = match of_type(SIGNATURE_TYPE).as_slice() {
            [] => None,
            [one] => Some(one.descriptor("signature", SIGNATURE_FILE_BYTES_MAX)?),
            several => return Err(OciManifestError::Signatures(several.len())),
        };
        let component = component.descriptor("component", PLUGIN_FILE_BYTES_MAX)?;
        Ok(Self { component, signature })
    }
}

impl Layer {
    fn descriptor(&self, what: &'static str, max: u64) -> Result<Descriptor, OciManifestError> {
        if self.size > max {
            return Err(OciManifestError::TooLarge { what, size: self.size, max });
        }
        let tagged = self.digest.starts_with(ostler_model::digest::PREFIX);
        let digest = self.digest.parse().ok().filter(|_| tagged);
        let digest = digest.ok_or_else(|| OciManifestError::Digest(cut(&self.digest)))?;
        Ok(Descriptor { digest, size: self.size })
    }
}

fn cut(text: &str) -> String {
    text.chars().take(100).collect()
}
