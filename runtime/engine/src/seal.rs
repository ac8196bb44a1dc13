//! What proves that whoever has a secret made some code, and of what: a cache its entries.
//!
//! ```text
//! entry:  artefact │ "OSTLERC2" │ length of the artefact, 8 bytes │ HMAC-SHA256, 32 bytes
//!                                                                       ▲
//! secret of the cache ─ over ─ wasm digest, engine, kind, format, length, artefact
//! ```
//! So a file that somebody else put there, the code of one plugin under the name of another, that of
//! another engine, and a damaged or shortened file (mapping which ends in SIGBUS) are all found.

use std::fs::File;
use std::io::{self, Read, Seek as _, SeekFrom, Write as _};

use ring::{digest, hmac};

use crate::config::{EngineKind, Format};
use ostler_model::digest::Digest;

const MAGIC: &[u8; 8] = b"OSTLERC2";
/// Bytes that follow the artefact.
pub const SEAL_BYTES: usize = 48;
/// Tells these seals from anything else that is ever made with the secret.
const PURPOSE: &[u8] = b"ostler code cache 2\0";

/// What an entry is the code of.
#[derive(Clone, Debug)]
pub struct Meant {
    /// Digest of the wasm.
    pub digest: Digest,
    /// The engine it is for.
    pub kind: EngineKind,
    /// What the wasm is.
    pub format: Format,
    /// What identifies the engine's version and configuration.
    pub engine: String,
}

/// Makes and checks seals; clones share the key.
#[derive(Clone)]
pub struct Sealer(hmac::Key);

impl Sealer {
    /// With this secret.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Append the seal to a finished artefact.
    ///
    /// # Errors
    /// The file's.
    pub fn seal(&self, mut file: &File, meant: &Meant) -> io::Result<()> {
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(0))?;
        let seal = self.of(file, length, meant)?;
        // Reading ended where the artefact does, unless the file grew meanwhile.
        file.seek(SeekFrom::Start(length))?;
        file.write_all(&seal)
    }

    /// Whether so many bytes end with the seal of what they hold before.
    ///
    /// # Errors
    /// The reader's.
    pub fn is_sealed(&self, mut sealed: impl Read, bytes: u64, meant: &Meant) -> io::Result<bool> {
        let Some(length) = bytes.checked_sub(SEAL_BYTES as u64) else {
            return Ok(false);
        };
        let wanted = self.of(&mut sealed, length, meant)?;
        let mut found = [0; SEAL_BYTES];
        sealed.read_exact(&mut found)?;
        // Compared as digests of them: how long it takes says nothing about the right one.
        let hash = |seal: &[u8]| digest::digest(&digest::SHA256, seal);
        Ok(hash(&found).as_ref() == hash(&wanted).as_ref())
    }

    /// The seal of the next `length` bytes.
    pub(crate) fn of(
        &self,
        artefact: impl Read,
        length: u64,
        meant: &Meant,
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

    fn meant() -> Meant {
        Meant {
            digest: Digest::of(b"wasm"),
            kind: EngineKind::Plugin,
            format: Format::Component,
            engine: "0123456789abcdef".to_owned(),
        }
    }

    fn sealed(secret: [u8; 32], meant: &Meant) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        Sealer::new(&secret).seal(&file, meant).unwrap();
        file
    }

    fn holds(mut file: &File, secret: [u8; 32], meant: &Meant) -> bool {
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
            Meant { digest: Digest::of(b"other"), ..meant() },
            Meant { kind: EngineKind::Task, ..meant() },
            Meant { format: Format::Module, ..meant() },
            Meant { engine: "0123456789abcdee".to_owned(), ..meant() },
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
