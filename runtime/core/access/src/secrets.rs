//! The secrets of configured tokens.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ostler_model::access::SecretSource;
use ostler_model::digest::Digest;
use ostler_model::limits::{TOKEN_SECRET_BYTES_MIN, TOKEN_TEXT_BYTES_MAX};

/// Why the secret of a configured token cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error("cannot read the secret in {}", file.display())]
    Read {
        /// The path of the file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Other users may read the file.
    #[error(
        "{} can be read by other users (mode {mode:03o}); run `chmod 600` on it, and make the agent's user its owner",
        file.display()
    )]
    Open {
        /// The path of the file.
        file: PathBuf,
        /// The permission bits of the file.
        mode: u32,
    },
    /// The file belongs to another user, who could put another secret there.
    #[error(
        "{} belongs to user {owner}; make the agent's user, {user}, or root its owner", file.display()
    )]
    Owner {
        /// The path of the file.
        file: PathBuf,
        /// The id of the user whom the file belongs to.
        owner: u32,
        /// The id of the agent's own user.
        user: u32,
    },
    /// The content of the file cannot be a secret.
    #[error(
        "{} must hold one line of {TOKEN_SECRET_BYTES_MIN} to {TOKEN_TEXT_BYTES_MAX} visible characters of ASCII",
        file.display()
    )]
    Text {
        /// The path of the file.
        file: PathBuf,
    },
}

/// The SHA-256 of a secret.
pub(super) fn digest(source: &SecretSource) -> Result<[u8; 32], SecretError> {
    match source {
        SecretSource::Digest(digest) => Ok(*digest.as_bytes()),
        SecretSource::File(file) => {
            read(file).map(|secret| *Digest::compute(secret.as_bytes()).as_bytes())
        }
    }
}

fn read(file: &Path) -> Result<String, SecretError> {
    let failed = |source| SecretError::Read { file: file.to_owned(), source };
    // Opening a pipe must not block the agent.
    let opened =
        File::options().read(true).custom_flags(libc_nonblock()).open(file).map_err(failed)?;
    let found = opened.metadata().map_err(failed)?;
    let mode = found.mode() & 0o777;
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user && found.uid() != 0 {
        return Err(SecretError::Owner { file: file.to_owned(), owner: found.uid(), user });
    }
    if mode & 0o077 != 0 {
        return Err(SecretError::Open { file: file.to_owned(), mode });
    }
    let mut text = String::new();
    let most = u64::try_from(TOKEN_TEXT_BYTES_MAX).unwrap_or(u64::MAX) + 2;
    opened.take(most).read_to_string(&mut text).map_err(failed)?;
    let secret = text.trim_end_matches(['\n', '\r']);
    let fits = (TOKEN_SECRET_BYTES_MIN..=TOKEN_TEXT_BYTES_MAX).contains(&secret.len());
    if !fits || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(SecretError::Text { file: file.to_owned() });
    }
    Ok(secret.to_owned())
}

fn libc_nonblock() -> i32 {
    i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_secret_is_one_line_of_a_file_that_nobody_else_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let read = |text: &str, mode| {
            std::fs::write(&file, text).unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
            digest(&SecretSource::File(file.clone())).map_err(|error| error.to_string())
        };
        let secret = "0123456789abcdef";
        let expected = *Digest::compute(secret.as_bytes()).as_bytes();
        assert_eq!(read(&format!("{secret}\n"), 0o600), Ok(expected));
        assert!(read(secret, 0o640).unwrap_err().contains("chmod 600"));
        for wrong in
            ["short", "", "0123456789 abcdef", "0123456789abcdef\nsecond", &"x".repeat(300)]
        {
            assert!(read(wrong, 0o600).unwrap_err().contains("one line"), "{wrong}");
        }
        std::fs::remove_file(&file).unwrap();
        let error = digest(&SecretSource::File(file.clone())).unwrap_err().to_string();
        assert!(error.contains("cannot read the secret"), "{error}");
    }
}
