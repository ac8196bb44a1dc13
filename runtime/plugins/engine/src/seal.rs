//! Seals of compiled code. A seal proves that the code was made by an owner of the secret, and what
//! it was made from. A cache seals its entries.
//!
//! ```text
//! entry:  artefact │ "OSTLERC2" │ length of the artefact, 8 bytes │ HMAC-SHA256, 32 bytes
//!                                                                       ▲
//! secret of the cache ─ over ─ wasm digest, engine, kind, format, length, artefact
//! ```
//! So the check finds a file that somebody else put there, the code of one plugin under the name of
//! another, code for another engine, and a damaged or shortened file (whose mapping would end in
//! SIGBUS).

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};

use ring::{digest, hmac};

use crate::config::{EngineKind, WasmFormat};
use ostler_model::digest::Digest;

const MAGIC: &[u8; 8] = b"OSTLERC2";
/// Length of the seal that follows the artefact, bytes.
pub const SEAL_BYTES: usize = 48;
/// Distinguishes these seals from anything else that is ever made with the secret.
const PURPOSE: &[u8] = b"ostler code cache 2\0";

/// Identifies what some code was compiled from, and the engine it is for.
#[derive(Clone, Debug)]
pub struct CodeIdentity {
    /// Digest of the wasm.
    pub digest: Digest,
    /// Kind of the engine that runs the code.
    pub kind: EngineKind,
    /// Binary format of the wasm.
    pub format: WasmFormat,
    /// The engine's version and configuration, as [`crate::compatibility`] gives it.
    pub engine: String,
}

/// Makes and checks seals. Clones share the key.
#[derive(Clone)]
pub struct Sealer(hmac::Key);

impl Sealer {
    /// A sealer with this secret.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Append the seal to a finished artefact.
    ///
    /// # Errors
    /// The file's.
    pub fn seal(&self, mut file: &File, meant: &CodeIdentity) -> io::Result<()> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(0))?;
        let seal = self.compute_seal(file, length, meant)?;
        // The reading ended at the end of the artefact, unless the file grew meanwhile.
        file.seek(SeekFrom::Start(length))?;
        file.write_all(&seal)
    }

    /// Do the first `bytes` bytes of a reader end with the seal of the bytes before it?
    ///
    /// # Errors
    /// The reader's.
    pub fn is_sealed(
        &self,
        mut sealed: impl Read,
        bytes: u64,
        meant: &CodeIdentity,
    ) -> io::Result<bool> {
        let Some(length) = bytes.checked_sub(SEAL_BYTES as u64) else {
            return Ok(false);
        };
        let wanted = self.compute_seal(&mut sealed, length, meant)?;
        let mut found = [0; SEAL_BYTES];
        sealed.read_exact(&mut found)?;
        // The digests of the two seals are compared, so that the time of the comparison says
        // nothing about the right seal.
        let hash = |seal: &[u8]| digest::digest(&digest::SHA256, seal);
        Ok(hash(&found).as_ref() == hash(&wanted).as_ref())
    }

    /// Compute the seal of the next `length` bytes.
    pub(crate) fn compute_seal(
        &self,
        artefact: impl Read,
        length: u64,
        meant: &CodeIdentity,
    ) -> io::Result<[u8; SEAL_BYTES]> {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(PURPOSE);
        context.update(meant.digest.as_bytes());
        // Every field but the last has a fixed length or ends with a byte that none contains.
        for word in [meant.kind.as_str(), meant.format.as_str(), &meant.engine] {
            context.update(word.as_bytes());
            context.update(b"\0");
        }
        context.update(&length.to_le_bytes());
        let mut artefact = artefact.take(length);
        let mut chunk = vec![0; 64 * 1024];
        loop {
            let count = artefact.read(&mut chunk)?;
            if count == 0 {
                break;
            }
            context.update(chunk.get(..count).unwrap_or_default());
        }
        let tag = context.sign();
        let mut seal = [0; SEAL_BYTES];
        let fields = MAGIC.iter().copied().chain(length.to_le_bytes());
        let fields = fields.chain(tag.as_ref().iter().copied());
        seal.iter_mut().zip(fields).for_each(|(to, from)| *to = from);
        Ok(seal)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    fn meant() -> CodeIdentity {
        CodeIdentity {
            digest: Digest::compute(b"wasm"),
            kind: EngineKind::Plugin,
            format: WasmFormat::Component,
            engine: "0123456789abcdef".to_owned(),
        }
    }

    fn sealed(secret: [u8; 32], meant: &CodeIdentity) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        Sealer::new(&secret).seal(&file, meant).unwrap();
        file
    }

    fn holds(mut file: &File, secret: [u8; 32], meant: &CodeIdentity) -> bool {
        file.seek(SeekFrom::Start(0)).unwrap();
        let bytes = file.metadata().unwrap().len();
        Sealer::new(&secret).is_sealed(file, bytes, meant).unwrap()
    }

    #[test]
    fn a_seal_holds_for_one_secret_one_wasm_and_one_engine() {
        let secret = [1; 32];
        let file = sealed(secret, &meant());
        assert!(holds(&file, secret, &meant()));
        assert!(!holds(&file, [2; 32], &meant()), "another secret");
        for other in [
            CodeIdentity { digest: Digest::compute(b"other"), ..meant() },
            CodeIdentity { kind: EngineKind::Task, ..meant() },
            CodeIdentity { format: WasmFormat::Module, ..meant() },
            CodeIdentity { engine: "0123456789abcdee".to_owned(), ..meant() },
        ] {
            assert!(!holds(&file, secret, &other), "{other:?}");
        }
    }

    #[test]
    fn a_file_that_was_cut_lengthened_or_changed_anywhere_has_no_seal() {
        use std::os::unix::fs::FileExt as _;
        let secret = [1; 32];
        let length = 100_000 + SEAL_BYTES as u64;
        for at in [0, 65_536, 99_999, 100_000, 100_008, 100_016, length - 1] {
            let file = sealed(secret, &meant());
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 1], at).unwrap();
            assert!(!holds(&file, secret, &meant()), "changed at {at}");
        }
        for cut in [0, 1, SEAL_BYTES as u64 - 1, SEAL_BYTES as u64, 99_999, length - 1, length + 1]
        {
            let file = sealed(secret, &meant());
            file.set_len(cut).unwrap();
            assert!(!holds(&file, secret, &meant()), "of length {cut}");
        }
    }
}
