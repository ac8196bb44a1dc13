//! The secret that seals the entries of one cache: 32 random bytes in a file beside its directory,
//! for this user alone. A file that others could have read or written is replaced. The entries that
//! it sealed are then refused and compiled anew.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::own_file;
use crate::error::SandboxError;
use ostler_model::rng::Rng;

const SECRET_BYTES: usize = 32;

/// The secret of the cache at `dir`. It is made where there is none that can be used.
pub(super) fn load_secret(dir: &Path) -> Result<[u8; SECRET_BYTES], SandboxError> {
    let path = secret_path(dir);
    let failed = |source| SandboxError::CacheSecret { path: path.clone(), source };
    match read(&path) {
        Ok(Ok(secret)) => return Ok(secret),
        Ok(Err(reason)) => {
            let path = path.display();
            tracing::warn!(
                "{path} is not safe: {reason}; it is replaced, and cached code made anew"
            );
            std::fs::remove_file(secret_path(dir)).map_err(failed)?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    match create(&path) {
        // Another agent of this user was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => match read(&path) {
            Ok(Ok(secret)) => Ok(secret),
            Ok(Err(reason)) => Err(failed(io::Error::other(reason))),
            Err(error) => Err(failed(error)),
        },
        made => made.map_err(failed),
    }
}

/// Path of the secret: `code.key` beside the directory `code`.
fn secret_path(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".key");
    dir.with_file_name(name)
}

/// Read the secret, or say why the file cannot be one.
fn read(path: &Path) -> io::Result<Result<[u8; SECRET_BYTES], &'static str>> {
    let file = match own_file::open(path)? {
        Ok((file, _)) => file,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut bytes = Vec::with_capacity(SECRET_BYTES);
    file.take(SECRET_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes.try_into().map_err(|_| "it does not have the length of a secret"))
}

/// Make a secret. It is written whole under another name first, so that nobody reads half of it.
fn create(path: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut secret = [0; SECRET_BYTES];
    Rng::system().fill(&mut secret);
    let mut file = tempfile::Builder::new().prefix("code-key-").tempfile_in(dir)?;
    file.write_all(&secret)?;
    // The file is not synced: a secret that a power cut leaves empty is replaced, and the code that
    // it sealed is made anew.
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(secret)
}
