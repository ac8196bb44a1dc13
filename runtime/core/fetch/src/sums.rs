//! Computes checksums of files.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use md5::Md5;
use ostler_model::artifact::{Checksum, ChecksumKind};
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

/// The number of bytes read at once.
const PIECE: usize = 256 * 1_024;

/// Compute the sum of a file, of this kind. Blocking; this ends early when `stop` is set.
pub(crate) fn file_sum(path: &Path, kind: ChecksumKind, stop: &AtomicBool) -> io::Result<Checksum> {
    let mut file = File::open(path)?;
    let value = match kind {
        ChecksumKind::Md5 => hash_file::<Md5>(&mut file, stop)?,
        ChecksumKind::Sha1 => hash_file::<Sha1>(&mut file, stop)?,
        ChecksumKind::Sha256 => hash_file::<Sha256>(&mut file, stop)?,
        ChecksumKind::Sha512 => hash_file::<Sha512>(&mut file, stop)?,
    };
    Ok(Checksum { kind, value })
}

fn hash_file<D: Digest>(file: &mut File, stop: &AtomicBool) -> io::Result<Vec<u8>> {
    let (mut sum, mut piece) = (D::new(), vec![0; PIECE]);
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match file.read(&mut piece)? {
            0 => return Ok(sum.finalize().to_vec()),
            count => sum.update(piece.get(..count).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_kind_of_sum_is_the_one_that_is_known() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abc").unwrap();
        for known in [
            "md5:900150983cd24fb0d6963f7d28e17f72",
            "sha1:a9993e364706816aba3e25717850c26c9cd0d89d",
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ] {
            let known: Checksum = known.parse().unwrap();
            assert_eq!(file_sum(file.path(), known.kind, &AtomicBool::new(false)).unwrap(), known);
        }
        file_sum(file.path(), ChecksumKind::Md5, &AtomicBool::new(true)).unwrap_err();
    }
}
