//! Kinds of archives, by their names.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a download is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Packing {
    /// Not at all.
    Plain,
    /// gzip.
    Gz,
    /// bzip2.
    Bz2,
    /// xz.
    Xz,
    /// Zstandard.
    Zst,
}

/// What a download is unpacked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ArchiveKind {
    /// Files and directories in a row, perhaps packed.
    Tar(Packing),
    /// A zip file.
    Zip,
    /// One packed file.
    File(Packing),
}

/// Names as they end files and stand at the option `archive`.
const NAMES: &[(&str, ArchiveKind)] = &[
    ("tar", ArchiveKind::Tar(Packing::Plain)),
    ("tar.gz", ArchiveKind::Tar(Packing::Gz)),
    ("tgz", ArchiveKind::Tar(Packing::Gz)),
    ("tar.bz2", ArchiveKind::Tar(Packing::Bz2)),
    ("tbz2", ArchiveKind::Tar(Packing::Bz2)),
    ("tar.xz", ArchiveKind::Tar(Packing::Xz)),
    ("txz", ArchiveKind::Tar(Packing::Xz)),
    ("tar.zst", ArchiveKind::Tar(Packing::Zst)),
    ("tzst", ArchiveKind::Tar(Packing::Zst)),
    ("zip", ArchiveKind::Zip),
    ("gz", ArchiveKind::File(Packing::Gz)),
    ("bz2", ArchiveKind::File(Packing::Bz2)),
    ("xz", ArchiveKind::File(Packing::Xz)),
    ("zst", ArchiveKind::File(Packing::Zst)),
];

impl ArchiveKind {
    /// What the option `archive` calls so.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind)
    }

    /// What the end of a file's name says.
    #[must_use]
    pub fn of_file(name: &str) -> Option<Self> {
        let ends = |(end, _): &&(&str, Self)| {
            name.strip_suffix(end).is_some_and(|rest| rest.ends_with('.'))
        };
        // `x.tar.gz` is no packed `x.tar`.
        NAMES.iter().filter(ends).max_by_key(|(end, _)| end.len()).map(|(_, kind)| *kind)
    }

    /// One file, and no directory, comes of it.
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
        let of = ArchiveKind::of_file;
        assert_eq!(of("a.tar.gz"), Some(ArchiveKind::Tar(Packing::Gz)));
        assert_eq!(of("/x/a.tgz"), Some(ArchiveKind::Tar(Packing::Gz)));
        assert_eq!(of("a.gz"), Some(ArchiveKind::File(Packing::Gz)));
        assert_eq!(of("a.tar.zst"), Some(ArchiveKind::Tar(Packing::Zst)));
        assert_eq!(of("azip"), None);
        assert_eq!(of("zip"), None);
        assert_eq!(of("a.wasm"), None);
    }

    #[test]
    fn every_name_is_read_and_shown() {
        for (name, kind) in NAMES {
            assert_eq!(ArchiveKind::named(name), Some(*kind));
            assert_eq!(ArchiveKind::of_file(&format!("x.{name}")), Some(*kind));
            assert_eq!(ArchiveKind::named(&kind.to_string()), Some(*kind));
        }
        assert_eq!(ArchiveKind::named("true"), None);
    }
}
