//! Reads image manifests: which blob is the component, and which is its signature.
//!
//! An artifact is what `wkg` and `oras` push for a component: a configuration of type
//! `application/vnd.wasm.config.v0+json` (or an empty one) and one layer `application/wasm`. A
//! signature is a second layer of type [`SIGNATURE_TYPE`] that holds the `.minisig` file.

use serde::Deserialize;

use ostler_model::digest::Digest;
use ostler_model::limits::{PLUGIN_FILE_BYTES_MAX, SIGNATURE_FILE_BYTES_MAX};
use ostler_model::printable::printable_line;

/// The media type of the manifests that are understood.
pub(super) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const COMPONENT_TYPE: &str = "application/wasm";
/// The media type of a layer that is a `.minisig` file.
pub const SIGNATURE_TYPE: &str = "application/vnd.ostler.minisign.v1";
const CONFIG_TYPES: [&str; 2] =
    ["application/vnd.wasm.config.v0+json", "application/vnd.oci.empty.v1+json"];
/// The largest number of layers that are read; a plugin has one or two.
const LAYERS_MAX: usize = 16;

/// The longest error text in bytes; the text may repeat parts of the manifest.
const MESSAGE_BYTES: usize = 256;

/// Why a manifest does not describe a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OciManifestError {
    /// It is no JSON of the right shape.
    #[error("its manifest cannot be read: {0}")]
    Malformed(String),
    /// It is a list of manifests.
    #[error("it is an index of several images; name one of them by its digest")]
    Index,
    /// It has another schema or type.
    #[error("its manifest is of the type {0:?}; push it as an OCI image manifest")]
    OtherType(String),
    /// It is another kind of artifact.
    #[error("its configuration is of the type {0:?}, so it is not a WebAssembly artifact")]
    OtherConfig(String),
    /// It has no component, or several.
    #[error("it has {0} layers of the type {COMPONENT_TYPE}; a plugin has exactly one")]
    Components(usize),
    /// It has several signatures.
    #[error("it has {0} signatures; at most one is read")]
    Signatures(usize),
    /// It has more layers than are read.
    #[error("it has {0} layers; at most {LAYERS_MAX} are looked at")]
    Layers(usize),
    /// A blob has more bytes than accepted.
    #[error("its {what} has {size} bytes; at most {max} are read")]
    TooLarge {
        /// Which blob it is: component or signature.
        what: &'static str,
        /// The number of bytes that the manifest names.
        size: u64,
        /// The number of bytes accepted.
        max: u64,
    },
    /// It has a digest of another kind.
    #[error("the digest {0:?} is not a SHA-256 digest")]
    Digest(String),
}

/// The digest and the size of a blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// The digest of the blob, which is also its address.
    pub digest: Digest,
    /// The size of the blob in bytes.
    pub size: u64,
}

/// The parts of a plugin that a manifest names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    /// The blob of the component.
    pub component: Descriptor,
    /// The blob of the component's `.minisig` file.
    pub signature: Option<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct OciManifest {
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
    /// Read a manifest. `content_type` is the type that the registry gave for it.
    ///
    /// # Errors
    /// When it does not describe a plugin.
    pub fn read(bytes: &[u8], content_type: Option<&str>) -> Result<Self, OciManifestError> {
        let manifest: OciManifest = serde_json::from_slice(bytes).map_err(|error| {
            OciManifestError::Malformed(printable_line(error.to_string(), MESSAGE_BYTES))
        })?;
        let content_type = content_type.and_then(|text| text.split(';').next()).map(str::trim);
        let said = manifest.media_type.as_deref().or(content_type);
        if manifest.manifests.is_some() || said == Some(INDEX_TYPE) {
            return Err(OciManifestError::Index);
        }
        if let Some(other) = said.filter(|said| *said != MANIFEST_TYPE) {
            return Err(OciManifestError::OtherType(cut_text(other)));
        }
        if manifest.schema_version != 2 {
            return Err(OciManifestError::OtherType(format!("schema {}", manifest.schema_version)));
        }
        let config = manifest.config.map(|config| config.media_type).unwrap_or_default();
        if !CONFIG_TYPES.contains(&config.as_str()) {
            return Err(OciManifestError::OtherConfig(cut_text(&config)));
        }
        Self::from_layers(&manifest.layers)
    }

    fn from_layers(layers: &[Layer]) -> Result<Self, OciManifestError> {
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
        let digest = digest.ok_or_else(|| OciManifestError::Digest(cut_text(&self.digest)))?;
        Ok(Descriptor { digest, size: self.size })
    }
}

fn cut_text(text: &str) -> String {
    text.chars().take(100).collect()
}
