//! Code that is compiled when the agent is built, for any processor of its architecture, so that no
//! node has to compile the guests that every agent contains.
//!
//! ```text
//! artefact │ seal, under a key that everybody knows │ digest of the wasm, 32 bytes
//! └─────────── compressed by zlib ────────────────┘
//! ```
//! Compressed, because the program contains it, and only the first agent on a data directory reads it.
//! The seal is only a checksum here: it binds code to the wasm it was compiled from and to the
//! engine it is for. Whoever can change the seal can change the program as well.

use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use wasmtime::Engine;

use super::config::{EngineKind, WasmFormat, base_config, compatibility, precompile};
use super::seal::{CodeIdentity, SEAL_BYTES, Sealer};
use ostler_model::digest::Digest;

const KEY: &[u8; 32] = b"ostler: made when it was built\0\0";
const DIGEST_BYTES: usize = 32;
/// Most bytes of an artefact with its seal. The largest of this program's has less than 1 MB.
const SEALED_BYTES_MAX: u64 = 32 << 20;

/// Compile trusted bytes for any processor of this machine's architecture.
///
/// # Errors
/// Wasmtime's.
pub fn make(wasm: &[u8], kind: EngineKind, format: WasmFormat) -> wasmtime::Result<Vec<u8>> {
    let engine = engine(kind)?;
    let meant = code_identity(&engine, Digest::compute(wasm), kind, format);
    let code = precompile(&engine, wasm, format)?;
    let seal = Sealer::new(KEY).compute_seal(&*code, code.len() as u64, &meant)?;
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&code)?;
    packed.write_all(&seal)?;
    let mut packed = packed.finish()?;
    packed.extend(meant.digest.as_bytes());
    Ok(packed)
}

/// Digest of the wasm that some code was compiled from, as the code itself says it.
#[must_use]
pub fn digest(code: &[u8]) -> Option<Digest> {
    code.last_chunk::<DIGEST_BYTES>().map(|bytes| Digest::from_bytes(*bytes))
}

/// The artefact, when it is whole and was compiled from this wasm for this program's engine.
/// Whether the processor can run it is decided by wasmtime.
#[must_use]
pub fn artefact(
    code: &[u8],
    wasm: Digest,
    kind: EngineKind,
    format: WasmFormat,
) -> Option<Vec<u8>> {
    let packed = code.get(..code.len().checked_sub(DIGEST_BYTES)?)?;
    let mut sealed = Vec::new();
    ZlibDecoder::new(packed).take(SEALED_BYTES_MAX).read_to_end(&mut sealed).ok()?;
    let meant = code_identity(&engine(kind).ok()?, wasm, kind, format);
    if !Sealer::new(KEY).is_sealed(&*sealed, sealed.len() as u64, &meant).ok()? {
        return None;
    }
    sealed.truncate(sealed.len().checked_sub(SEAL_BYTES)?);
    Some(sealed)
}

fn code_identity(
    engine: &Engine,
    digest: Digest,
    kind: EngineKind,
    format: WasmFormat,
) -> CodeIdentity {
    CodeIdentity { digest, kind, format, engine: compatibility(engine) }
}

/// An engine that only compiles, and only uses what every processor of the architecture has: where
/// a target is named, the features of this machine do not count.
fn engine(kind: EngineKind) -> wasmtime::Result<Engine> {
    let mut config = base_config(kind);
    config.target(match std::env::consts::ARCH {
        "riscv64" => "riscv64gc-unknown-linux-gnu",
        "aarch64" => "aarch64-unknown-linux-gnu",
        "s390x" => "s390x-unknown-linux-gnu",
        _ => "x86_64-unknown-linux-gnu",
    })?;
    Engine::new(&config)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    /// An empty component.
    const WASM: &[u8] = b"\0asm\x0d\0\x01\0";
    const KIND: EngineKind = EngineKind::Plugin;
    const FORMAT: WasmFormat = WasmFormat::Component;

    #[test]
    fn code_is_for_one_wasm_one_engine_and_whole() {
        let code = make(WASM, KIND, FORMAT).unwrap();
        let wasm = Digest::compute(WASM);
        assert_eq!(digest(&code), Some(wasm));
        let found = artefact(&code, wasm, KIND, FORMAT).unwrap();
        assert!(found.len() > code.len(), "{} of {}", code.len(), found.len());
        assert_eq!(artefact(&code, Digest::compute(b"other"), KIND, FORMAT), None);
        assert_eq!(artefact(&code, wasm, EngineKind::Task, FORMAT), None);
        for cut in [0, 1, DIGEST_BYTES, code.len() - SEAL_BYTES, code.len() - 1] {
            assert_eq!(artefact(&code[..cut], wasm, KIND, FORMAT), None, "of length {cut}");
        }
        for at in (0..code.len() - DIGEST_BYTES).step_by(97) {
            let mut damaged = code.clone();
            damaged[at] ^= 1;
            // A bit that fills the last byte up says nothing.
            let same = artefact(&damaged, wasm, KIND, FORMAT).is_none_or(|read| read == found);
            assert!(same, "changed at {at}");
        }
    }

    #[test]
    fn this_machine_runs_what_is_made_for_the_least_of_its_kind() {
        let code = make(WASM, KIND, FORMAT).unwrap();
        let artefact = artefact(&code, Digest::compute(WASM), KIND, FORMAT).unwrap();
        let engine = crate::compiler_engine(KIND).unwrap();
        // SAFETY: compiled by wasmtime, above.
        let component = unsafe { wasmtime::component::Component::deserialize(&engine, &artefact) };
        component.unwrap();
    }
}
