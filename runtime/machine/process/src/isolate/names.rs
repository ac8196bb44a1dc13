//! A name for a user id that the node has no name for. The lists of users and groups that the task
//! sees get one more line, in which programs that look up their own user find it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::user::name_of_id;
use ostler_model::limits::USER_LIST_BYTES_MAX;

/// The lists of users and groups that programs read.
const LISTS: [&str; 2] = ["/etc/passwd", "/etc/group"];

/// A file that a task sees in place of the one at the same path, where that exists.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReplacementFile {
    pub path: PathBuf,
    pub text: Vec<u8>,
}

/// The lists with a line for this id. A list that is absent or too long is left out. Blocks.
pub(super) fn lists_with_user(id: u32) -> Vec<ReplacementFile> {
    let listed = LISTS.iter().zip(user_lines(id)).filter_map(|(path, line)| {
        let text = with_line(read(Path::new(path)).ok().flatten()?, &line);
        Some(ReplacementFile { path: PathBuf::from(path), text })
    });
    listed.collect()
}

/// The line for each of the lists. The home directory is `/local`, where the task may write.
fn user_lines(id: u32) -> [String; 2] {
    let name = name_of_id(id);
    [format!("{name}:x:{id}:{id}:an allocation:/local:/bin/sh\n"), format!("{name}:x:{id}:\n")]
}

fn with_line(mut list: Vec<u8>, line: &str) -> Vec<u8> {
    if list.last().is_some_and(|last| *last != b'\n') {
        list.push(b'\n');
    }
    list.extend(line.as_bytes());
    list
}

/// Read a list; `None` when it is too long.
fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut list = Vec::new();
    File::open(path)?.take(USER_LIST_BYTES_MAX.saturating_add(1)).read_to_end(&mut list)?;
    let length = u64::try_from(list.len()).unwrap_or(u64::MAX);
    Ok((length <= USER_LIST_BYTES_MAX).then_some(list))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_line_more_whatever_it_ends_with() {
        let [user, group] = user_lines(80_001);
        assert_eq!(user, "alloc-80001:x:80001:80001:an allocation:/local:/bin/sh\n");
        for list in ["root:x:0:\n", "root:x:0:"] {
            let text = with_line(list.into(), &group);
            assert_eq!(String::from_utf8(text).unwrap(), "root:x:0:\nalloc-80001:x:80001:\n");
        }
        assert_eq!(with_line(Vec::new(), &group), group.as_bytes());
    }

    #[test]
    fn a_list_that_is_too_long_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("passwd");
        let longest = usize::try_from(USER_LIST_BYTES_MAX).unwrap();
        std::fs::write(&path, vec![b'x'; longest]).unwrap();
        assert_eq!(read(&path).unwrap().unwrap().len(), longest);
        std::fs::write(&path, vec![b'x'; longest + 1]).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        assert!(read(&dir.path().join("none")).is_err());
    }
}
