//! What an entry of an archive may be called. Pure.

use ostler_model::limits::ARTIFACT_DEPTH_MAX;

/// Longest name of a file, bytes; the kernel's.
const NAME_BYTES_MAX: usize = 255;

/// Why a name is none that is unpacked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BadName {
    /// It begins at the root.
    #[error("is an absolute path")]
    Absolute,
    /// It leads up.
    #[error("has .. in it")]
    Up,
    /// It cannot be one.
    #[error("is no path")]
    NoPath,
    /// Deeper or longer than is taken.
    #[error("is too deep or too long")]
    TooLong,
}

/// The names of a path that leads down, one below the other; none for the top itself.
pub(crate) fn names(path: &[u8]) -> Result<Vec<Vec<u8>>, BadName> {
    if path.first() == Some(&b'/') {
        return Err(BadName::Absolute);
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(BadName::Up),
            name if name.contains(&0) => return Err(BadName::NoPath),
            name if name.len() > NAME_BYTES_MAX || names.len() >= ARTIFACT_DEPTH_MAX => {
                return Err(BadName::TooLong);
            }
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

/// What is left of the names of an entry when only a part of the archive is meant; `None`: it is not of it.
pub(crate) fn of_part(names: Vec<Vec<u8>>, part: &[String]) -> Option<Vec<Vec<u8>>> {
    let is_of =
        names.len() >= part.len() && part.iter().zip(&names).all(|(a, b)| a.as_bytes() == b);
    if !is_of {
        return None;
    }
    Some(names.into_iter().skip(part.len()).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn names_lead_down_only() {
        let joined = |path: &[u8]| names(path).map(|names| names.join(&b'/'));
        assert_eq!(joined(b"./a//b/").unwrap(), b"a/b");
        assert_eq!(joined(b"./").unwrap(), b"");
        assert_eq!(joined(b"/etc/passwd"), Err(BadName::Absolute));
        assert_eq!(joined(b"a/../../b"), Err(BadName::Up));
        assert_eq!(joined(b"a\0b"), Err(BadName::NoPath));
        assert_eq!(joined("a/".repeat(100).as_bytes()), Err(BadName::TooLong));
        assert_eq!(joined("x".repeat(256).as_bytes()), Err(BadName::TooLong));
    }
}
