//! Reads imports and exports of a component from its bytes, before it is compiled or run.
//!
//! The imports are the plugin's whole authority, because a component can do nothing that it does
//! not import. [`PluginManifest::asks`] groups them by what they let the plugin do.

use wasmparser::{ComponentExternalKind, Encoding, Parser, Payload};

use ostler_model::limits::{
    ANSWER_DIAGNOSTIC_BYTES_MAX, NAMES_TOLD_MAX, PLUGIN_FILE_BYTES_MAX, PLUGIN_ITEM_NAME_BYTES_MAX,
};
use ostler_model::printable::{has_hidden, join_some, printable_line, truncate_text};
use ostler_sandbox::what_else;

pub use ostler_model::plugin::{PluginKind, PluginManifest};

/// Most imports and exports of a plugin. A plugin has about twenty.
const ITEMS_MAX: usize = 1_000;
/// How many bytes of a refused name are shown.
const NAME_SHOWN_BYTES: usize = 64;
/// Prefix of the interfaces of this package.
const PACKAGE: &str = "ostler:plugin/";

/// Why a file is not a plugin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The file does not begin with the magic bytes of WebAssembly.
    #[error("not WebAssembly: {hint}; a plugin is a component built for wasm32-wasip2")]
    NotWasm {
        /// What the file looks like. Nothing of its text is shown, because the file may be a link
        /// to one that only the agent may read.
        hint: &'static str,
    },
    /// The file is a core module.
    #[error(
        "a core module, and a plugin must be a component; build it with --target wasm32-wasip2"
    )]
    CoreModule,
    /// The bytes are damaged.
    #[error("damaged WebAssembly at byte {offset}: {message}")]
    Damaged {
        /// Where the damage is, as an offset in bytes.
        offset: usize,
        /// What is damaged, for people.
        message: String,
    },
    /// The file has more bytes than a plugin may have.
    #[error("{size} bytes; a plugin has at most {PLUGIN_FILE_BYTES_MAX}")]
    TooLarge {
        /// Size of the file, bytes.
        size: u64,
    },
    /// The name of an import or export cannot be shown to people.
    #[error(
        "the name of an import or export is not usable: {name:?}; at most \
         {PLUGIN_ITEM_NAME_BYTES_MAX} bytes, all of them visible"
    )]
    ItemName {
        /// The name, cut to a few bytes.
        name: String,
    },
    /// The component has more imports or exports than any plugin.
    #[error("more than {ITEMS_MAX} imports and exports")]
    TooManyItems,
    /// The component exports nothing of the plugin contract.
    #[error(
        "a component of another world: it exports {exports}; a plugin exports \
         ostler:plugin/driver or ostler:plugin/device"
    )]
    OtherWorld {
        /// The interfaces that it exports, for people.
        exports: String,
    },
    /// The component exports both driver and device.
    #[error("exports both driver and device; one component is one plugin")]
    Both,
    /// The component needs a version of the contract that this agent does not have.
    #[error("speaks {found}; this agent speaks ostler:plugin@{spoken}")]
    Version {
        /// The export with its version.
        found: String,
        /// The versions that this agent has.
        spoken: &'static str,
    },
}

/// The interface versions that this agent has.
pub const VERSIONS_SPOKEN: &str = "0.1.0";

/// Read a component's imports and exports without compiling it.
///
/// # Errors
/// When the bytes are no component of the plugin contract.
pub fn read(bytes: &[u8]) -> Result<PluginManifest, ManifestError> {
    let size_bytes = bytes.len() as u64;
    if size_bytes > PLUGIN_FILE_BYTES_MAX {
        return Err(ManifestError::TooLarge { size: size_bytes });
    }
    let (imports, exports) = top_level(bytes)?;
    let (kind, interface_version) = contract(&exports)?;
    Ok(PluginManifest {
        kind,
        interface_version,
        exports,
        imports,
        size_bytes,
        digest: digest(bytes),
    })
}

/// SHA-256 of some bytes, in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    ostler_model::digest::Digest::compute(bytes).to_string()
}

fn top_level(bytes: &[u8]) -> Result<(Vec<String>, Vec<String>), ManifestError> {
    if !bytes.starts_with(b"\0asm") {
        return Err(ManifestError::NotWasm { hint: what_else(bytes) });
    }
    let damaged = |e: wasmparser::BinaryReaderError| ManifestError::Damaged {
        offset: e.offset(),
        message: printable_line(e.message(), ANSWER_DIAGNOSTIC_BYTES_MAX),
    };
    let (mut imports, mut exports) = (Vec::new(), Vec::new());
    let mut depth = 0_u32;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(damaged)? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                return Err(ManifestError::CoreModule);
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(reader) if depth == 0 => {
                for import in reader {
                    imports.push(item_name(import.map_err(damaged)?.name.name)?);
                }
            }
            Payload::ComponentExportSection(reader) if depth == 0 => {
                for export in reader {
                    let export = export.map_err(damaged)?;
                    if export.kind == ComponentExternalKind::Instance {
                        exports.push(item_name(export.name.name)?);
                    }
                }
            }
            _ => {}
        }
        if imports.len() + exports.len() > ITEMS_MAX {
            return Err(ManifestError::TooManyItems);
        }
    }
    Ok((imports, exports))
}

/// A name that messages and lists can show.
fn item_name(name: &str) -> Result<String, ManifestError> {
    if name.len() > PLUGIN_ITEM_NAME_BYTES_MAX || has_hidden(name) {
        return Err(ManifestError::ItemName {
            name: truncate_text(name.to_owned(), NAME_SHOWN_BYTES),
        });
    }
    Ok(name.to_owned())
}

fn contract(exports: &[String]) -> Result<(PluginKind, String), ManifestError> {
    let version_of = |interface: &str| {
        exports.iter().find_map(|export| {
            let rest = export.strip_prefix(PACKAGE)?;
            let (name, version) = rest.split_once('@').unwrap_or((rest, ""));
            (name == interface).then(|| version.to_owned())
        })
    };
    let (kind, version) = match (version_of("driver"), version_of("device")) {
        (Some(version), None) => (PluginKind::Driver, version),
        (None, Some(version)) => (PluginKind::Device, version),
        (Some(_), Some(_)) => return Err(ManifestError::Both),
        (None, None) => {
            let names = exports.iter().map(String::as_str);
            let exports = if exports.is_empty() {
                "no interface".to_owned()
            } else {
                join_some(names, NAMES_TOLD_MAX)
            };
            return Err(ManifestError::OtherWorld { exports });
        }
    };
    if version != VERSIONS_SPOKEN {
        let found = format!("{PACKAGE}{kind}@{version}");
        return Err(ManifestError::Version { found, spoken: VERSIONS_SPOKEN });
    }
    Ok((kind, version))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn wat(text: &str) -> Vec<u8> {
        wat::parse_str(text).unwrap()
    }

    const DEVICE: &str = r#"(component
        (import "ostler:plugin/log@0.1.0" (instance))
        (import "wasi:filesystem/types@0.2.6" (instance))
        (component $nested (import "wasi:sockets/tcp@0.2.6" (instance)))
        (instance $i)
        (export "ostler:plugin/device@0.1.0" (instance $i)))"#;

    #[test]
    fn a_component_says_what_it_imports_and_exports_without_being_compiled() {
        let manifest = read(&wat(DEVICE)).unwrap();
        assert_eq!(manifest.kind, PluginKind::Device);
        assert_eq!(manifest.interface_version, "0.1.0");
        assert_eq!(
            manifest.imports,
            ["ostler:plugin/log@0.1.0", "wasi:filesystem/types@0.2.6"],
            "imports of nested components are not the plugin's"
        );
        assert_eq!(manifest.digest.len(), 64);
    }

    #[test]
    fn what_is_not_a_plugin_is_refused_with_the_reason() {
        let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(error(b"").contains("it is empty"));
        assert!(error(b"#!/bin/sh\n").contains("not WebAssembly"));
        assert!(error(&wat("(module)")).contains("core module"));
        assert!(error(&wat("(component)")).contains("another world"));
        let version = DEVICE.replace("device@0.1.0", "device@9.9.9");
        assert!(error(&wat(&version)).contains("9.9.9"));
        let hidden = DEVICE.replace("ostler:plugin/log", "ostler:plugin/\\u{202e}log");
        assert!(read(&wat(&hidden)).is_err());
        let mut cut = wat(DEVICE);
        cut.truncate(cut.len() - 3);
        assert!(error(&cut).contains("damaged"));
    }
}
