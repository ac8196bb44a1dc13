//! Checks the names of entries in an archive. Pure.

use ostler_model::limits::ARTIFACT_DEPTH_MAX;

/// The longest name of a file in bytes, which is the kernel's limit.
const NAME_BYTES_MAX: usize = 255;

/// Why the name of an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryNameError {
    /// The name begins at the root.
    #[error("is an absolute path")]
    Absolute,
    /// The name leads up.
    #[error("has .. in it")]
    Up,
    /// The name cannot be a path.
    #[error("is not a path")]
    NoPath,
    /// The name is deeper or longer than is allowed.
    #[error("is too deep or too long")]
    TooLong,
}

/// The parts of a path that leads down, in order; empty for the top itself.
pub(crate) fn split_path(path: &[u8]) -> Result<Vec<Vec<u8>>, EntryNameError> {
    if path.first() == Some(&b'/') {
        return Err(EntryNameError::Absolute);
    }
    let mut names = Vec::new();
    for name in path.split(|byte| *byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => return Err(EntryNameError::Up),
            name if name.contains(&0) => return Err(EntryNameError::NoPath),
            name if name.len() > NAME_BYTES_MAX || names.len() >= ARTIFACT_DEPTH_MAX => {
                return Err(EntryNameError::TooLong);
            }
            name => names.push(name.to_vec()),
        }
    }
    Ok(names)
}

/// The rest of an entry's names below the wanted part of the archive; `None` if the entry is not in
/// that part.
pub(crate) fn strip_part(names: Vec<Vec<u8>>, part: &[String]) -> Option<Vec<Vec<u8>>> {
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
        let joined = |path: &[u8]| split_path(path).map(|names| names.join(&b'/'));
        assert_eq!(joined(b"./a//b/").unwrap(), b"a/b");
        assert_eq!(joined(b"./").unwrap(), b"");
        assert_eq!(joined(b"/etc/passwd"), Err(EntryNameError::Absolute));
        assert_eq!(joined(b"a/../../b"), Err(EntryNameError::Up));
        assert_eq!(joined(b"a\0b"), Err(EntryNameError::NoPath));
        assert_eq!(joined("a/".repeat(100).as_bytes()), Err(EntryNameError::TooLong));
        assert_eq!(joined("x".repeat(256).as_bytes()), Err(EntryNameError::TooLong));
    }
}
