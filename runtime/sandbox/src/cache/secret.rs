//! The secret that seals the entries of one cache: 32 random bytes beside its directory, for this
//! user alone. A file that others could have read or written is replaced; what it sealed is then
//! refused and compiled anew.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use super::own_file;
use crate::error::SandboxError;
use ostler_model::rng::Rng;

const SECRET_BYTES: usize = 32;

/// The secret of the cache at `dir`, made when there is none that can be used.
pub(super) fn of_cache(dir: &Path) -> Result<[u8; SECRET_BYTES], SandboxError> {
    let path = path_of(dir);
    let failed = |source| SandboxError::CacheSecret { path: path.clone(), source };
    match read(&path) {
        Ok(Ok(secret)) => return Ok(secret),
        Ok(Err(reason)) => {
            let path = path.display();
            tracing::warn!(
                "{path} is not safe: {reason}; it is replaced, and cached code made anew"
            );
            std::fs::remove_file(path_of(dir)).map_err(failed)?;
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

/// `code.key` beside `code`.
fn path_of(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_owned();
    name.push(".key");
    dir.with_file_name(name)
}

/// The secret, or why the file is no secret.
fn read(path: &Path) -> io::Result<Result<[u8; SECRET_BYTES], &'static str>> {
    let file = match own_file::open(path)? {
        Ok((file, _)) => file,
        Err(reason) => return Ok(Err(reason)),
    };
    let mut bytes = Vec::with_capacity(SECRET_BYTES);
    file.take(SECRET_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes.try_into().map_err(|_| "it has not the length of a secret"))
}

/// Written whole under another name, so that nobody ever reads half of it.
fn create(path: &Path) -> io::Result<[u8; SECRET_BYTES]> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut secret = [0; SECRET_BYTES];
    Rng::system().fill(&mut secret);
    let mut file = tempfile::Builder::new().prefix("code-key-").tempfile_in(dir)?;
    file.write_all(&secret)?;
    // Not synced: one that a power cut leaves empty is replaced, with the code that it sealed.
    file.persist_noclobber(path).map_err(|error| error.error)?;
    Ok(secret)
}
