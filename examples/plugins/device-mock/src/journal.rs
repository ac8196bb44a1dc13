//! What was asked of the mock, one line a call, in a file of a granted directory: calls share no
//! memory.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use ostler_sdk::device::prelude::*;

const FILE: &str = "journal";

/// Write a call down and say how many of the same function were before it.
pub fn record(dir: &Path, function: &str, about: &str) -> Result<u64> {
    let path = dir.join(FILE);
    let cannot = |error| Error::fatal(format!("cannot write {}: {error}", path.display()));
    let text = fs::read_to_string(&path).unwrap_or_default();
    let same = |line: &&str| line.split(' ').next() == Some(function);
    let before = text.lines().filter(same).count();
    let mut file = fs::OpenOptions::new().create(true).append(true).open(&path).map_err(cannot)?;
    let line = [function, about].join(" ");
    file.write_all(format!("{}\n", line.trim_end()).as_bytes()).map_err(cannot)?;
    Ok(u64::try_from(before).unwrap_or(u64::MAX))
}
