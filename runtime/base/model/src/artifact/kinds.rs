//! Kinds of archives, by their names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a download is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveCompression {
    /// The file is not compressed.
    Plain,
    /// The file is compressed with gzip.
    Gz,
    /// The file is compressed with bzip2.
    Bz2,
    /// The file is compressed with xz.
    Xz,
    /// The file is compressed with Zstandard.
    Zst,
}

/// What a download is unpacked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveKind {
    /// A tar archive, which may be compressed.
    Tar(ArchiveCompression),
    /// A zip archive.
    Zip,
    /// A single compressed file.
    File(ArchiveCompression),
}

/// Names of the kinds: the ends of file names, and the values of the option `archive`.
const NAMES: &[(&str, ArchiveKind)] = &[
    ("tar", ArchiveKind::Tar(ArchiveCompression::Plain)),
    ("tar.gz", ArchiveKind::Tar(ArchiveCompression::Gz)),
    ("tgz", ArchiveKind::Tar(ArchiveCompression::Gz)),
    ("tar.bz2", ArchiveKind::Tar(ArchiveCompression::Bz2)),
    ("tbz2", ArchiveKind::Tar(ArchiveCompression::Bz2)),
    ("tar.xz", ArchiveKind::Tar(ArchiveCompression::Xz)),
    ("txz", ArchiveKind::Tar(ArchiveCompression::Xz)),
    ("tar.zst", ArchiveKind::Tar(ArchiveCompression::Zst)),
    ("tzst", ArchiveKind::Tar(ArchiveCompression::Zst)),
    ("zip", ArchiveKind::Zip),
    ("gz", ArchiveKind::File(ArchiveCompression::Gz)),
    ("bz2", ArchiveKind::File(ArchiveCompression::Bz2)),
    ("xz", ArchiveKind::File(ArchiveCompression::Xz)),
    ("zst", ArchiveKind::File(ArchiveCompression::Zst)),
];

impl ArchiveKind {
    /// The kind with this name in the option `archive`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// The kind that the end of a file's name tells.
    #[must_use]
    pub fn from_file_name(name: &str) -> Option<Self> {
        let ends = |(end, _): &&(&str, Self)| {
            name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
        };
        // `x.tar.gz` is no packed `x.tar`.
        NAMES.iter().filter(ends).max_by_key(|(end, _)| end.len()).map(|(_, kind)| *kind)
    }

    /// Whether unpacking makes one file and no directory.
    #[must_use]
    pub const fn is_one_file(self) -> bool {
        matches!(self, Self::File(_))
    }

    /// The names that the option `archive` takes.
    #[must_use]
    pub fn names() -> String {
        NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
    }
}

impl fmt::Display for ArchiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(_, kind)| kind == self).map(|(name, _)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_end_of_a_name_counts() {
        let of = ArchiveKind::from_file_name;
        assert_eq!(of("a.tar.gz"), Some(ArchiveKind::Tar(ArchiveCompression::Gz)));
        assert_eq!(of("/x/a.tgz"), Some(ArchiveKind::Tar(ArchiveCompression::Gz)));
        assert_eq!(of("a.gz"), Some(ArchiveKind::File(ArchiveCompression::Gz)));
        assert_eq!(of("a.tar.zst"), Some(ArchiveKind::Tar(ArchiveCompression::Zst)));
        assert_eq!(of("azip"), None);
        assert_eq!(of("zip"), None);
        assert_eq!(of("a.wasm"), None);
    }

    #[test]
    fn every_name_is_read_and_shown() {
        for (name, kind) in NAMES {
            assert_eq!(ArchiveKind::from_name(name), Some(*kind));
            assert_eq!(ArchiveKind::from_file_name(&format!("x.{name}")), Some(*kind));
            assert_eq!(ArchiveKind::from_name(&kind.to_string()), Some(*kind));
        }
        assert_eq!(ArchiveKind::from_name("true"), None);
    }
}
