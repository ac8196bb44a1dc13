//! Files of sysfs and procfs.

use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use ostler_sdk::error::{Error, Result};

/// Longest file that is read, bytes: the kernel shows an attribute in one page.
const PAGE: usize = 4096;

/// The text of an attribute, without space around it. `None` when it cannot be read: the device
/// went away, has no such attribute, or the kernel refuses to measure now.
pub fn read(path: &Path) -> Option<String> {
    let mut page = vec![0; PAGE];
    // One read: the kernel gives an attribute as a whole.
    let length = File::open(path).ok()?.read(&mut page).ok()?;
    page.truncate(length);
    Some(String::from_utf8_lossy(&page).trim().to_owned())
}

/// An attribute that is a decimal number.
pub fn read_number<T: std::str::FromStr>(path: &Path) -> Option<T> {
    read(path)?.parse().ok()
}

/// NUMA node of a device directory; the kernel writes -1 where it does not know.
pub fn numa_node(device: &Path) -> Option<u32> {
    read_number(&device.join("numa_node"))
}

/// The NUMA node of a machine that has one only, where everything is: virtual machines often do not
/// say so of each device. `root`: where sysfs is.
pub fn only_numa_node(root: &Path) -> Option<u32> {
    read_number(&root.join("devices/system/node/online"))
}

/// The `KEY=value` lines of a `uevent` file: all the kernel says of a device, in one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uevent(String);

impl Uevent {
    /// Of a device directory. `None` when the device went away.
    pub fn of(device: &Path) -> Option<Self> {
        read(&device.join("uevent")).map(Self)
    }

    /// A value; `None` where it is absent or empty.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| {
            let value = line.strip_prefix(key)?.strip_prefix('=')?.trim();
            (!value.is_empty()).then_some(value)
        })
    }
}

/// Names in a directory, sorted; those that are no UTF-8 are left out. A directory that is not
/// there has none.
///
/// # Errors
/// The directory is there and cannot be read.
pub fn names(dir: &Path) -> Result<Vec<String>> {
    entries(dir, |_| true)
}

/// Names of the directories in a directory, sorted; links to directories are none: links of sysfs
/// lead in circles.
///
/// # Errors
/// The directory is there and cannot be read.
pub fn directories(dir: &Path) -> Result<Vec<String>> {
    entries(dir, |entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
}

fn entries(dir: &Path, wanted: impl Fn(&fs::DirEntry) -> bool) -> Result<Vec<String>> {
    let cannot_read = |error| Error::recoverable(format!("cannot read {}: {error}", dir.display()));
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(vec![]),
        entries => entries.map_err(cannot_read)?,
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry.map_err(cannot_read)?;
        if wanted(&entry) {
            names.extend(entry.file_name().into_string().ok());
        }
    }
    names.sort();
    Ok(names)
}

/// Where a link points, as its parts, for example `.. .. devices pci0000:00 0000:00:14.0 usb1 1-4`.
pub fn link_parts(link: &Path) -> Vec<String> {
    let Ok(target) = fs::read_link(link) else {
        return vec![];
    };
    target.iter().map(|part| part.to_string_lossy().into_owned()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::testing::Tree;

    #[test]
    fn an_attribute_is_its_trimmed_text_and_what_cannot_be_read_is_absent() {
        let tree = Tree::new("attribute");
        tree.file("numa_node", "1").file("numa/numa_node", "-1").file("empty", "");
        assert_eq!(read(&tree.path("numa_node")).as_deref(), Some("1"));
        assert_eq!(read(&tree.path("empty")).as_deref(), Some(""));
        assert_eq!(read(&tree.path("gone")), None);
        assert_eq!(read(&tree.path("numa")), None, "a directory");
        assert_eq!(numa_node(tree.root()), Some(1));
        assert_eq!(numa_node(&tree.path("numa")), None);
        assert_eq!(numa_node(&tree.path("nowhere")), None);
    }

    #[test]
    fn everything_is_on_the_only_numa_node_there_is() {
        let tree = Tree::new("only-node");
        assert_eq!(only_numa_node(tree.root()), None);
        tree.file("devices/system/node/online", "0\n");
        assert_eq!(only_numa_node(tree.root()), Some(0));
        tree.file("devices/system/node/online", "0-1\n");
        assert_eq!(only_numa_node(tree.root()), None);
    }

    #[test]
    fn a_uevent_is_read_by_whole_keys() {
        let tree = Tree::new("uevent");
        tree.file("uevent", "DRIVER=nvme\nPCI_ID=144D:A80A\nEMPTY=\nrubbish");
        let uevent = Uevent::of(tree.root()).unwrap();
        assert_eq!(uevent.get("PCI_ID"), Some("144D:A80A"));
        assert_eq!(uevent.get("PCI"), None);
        assert_eq!(uevent.get("EMPTY"), None);
        assert_eq!(Uevent::of(&tree.path("gone")), None);
    }

    #[test]
    fn a_directory_that_is_not_there_is_empty_and_a_file_in_its_place_is_an_error() {
        let tree = Tree::new("names");
        tree.file("b", "").file("a", "");
        assert_eq!(names(tree.root()).unwrap(), ["a", "b"]);
        tree.file("d/x", "").link("link", "d");
        assert_eq!(directories(tree.root()).unwrap(), ["d"]);
        assert_eq!(names(&tree.path("gone")).unwrap(), Vec::<String>::new());
        assert!(matches!(names(&tree.path("a")), Err(Error::Recoverable(_))));
    }
}
