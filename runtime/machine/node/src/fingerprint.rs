//! What this machine is, found by reading files.
//!
//! Each fingerprinter reads below a root directory (`/`; a made-up tree in tests) and adds facts
//! under Nomad's names. A fact that Nomad has no name for is marked as ours where it is made. None
//! of the fingerprinters fails: what cannot be read is absent. Every read is bounded.
//!
//! Values that change all the time are reported coarsely ([`dampen`]): a view of the node that
//! changes with every written byte would be of no use.

mod cgroup;
mod cpu;
mod dampen;
mod host;
mod kernel;
mod memory;
mod network;
mod numa;
mod storage;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use ostler_model::attribute::Attribute;
use ostler_model::config::ClientConfig;
use ostler_model::limits::MIB;

pub use dampen::dampen;

/// Facts by name.
pub type Facts = BTreeMap<String, Attribute>;

/// Most bytes read of one file: `/proc/cpuinfo` of a thousand processors has 1.5 MB.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// Longest text taken as a fact, bytes.
const TEXT_BYTES_MAX: usize = 256;

/// Run every fingerprinter. It reads files for a few milliseconds, so it must not run on a thread
/// with timers.
///
/// `root` is `/`; `data_dir` is where allocations will live, for the storage facts. Values that the
/// configuration (`client`) states replace those that were found.
#[must_use]
pub fn collect_facts(root: &Path, data_dir: &Path, client: &ClientConfig) -> Facts {
    let mut facts = Facts::new();
    cgroup::fingerprint(root, &mut facts);
    cpu::fingerprint(root, &mut facts);
    host::fingerprint(root, &mut facts);
    kernel::fingerprint(root, &mut facts);
    memory::fingerprint(root, &mut facts);
    network::fingerprint(root, &mut facts);
    numa::fingerprint(root, &mut facts);
    storage::fingerprint(root, data_dir, &mut facts);
    add_configured(client, &mut facts);
    facts
}

fn add_configured(client: &ClientConfig, facts: &mut Facts) {
    let compute = client.cpu_total_compute.map(u64::from);
    add_number(facts, "cpu.totalcompute", compute);
    add_number(facts, "cpu.usablecompute", compute);
    let bytes = client.memory_total_mb.map(|mb| u64::from(mb).saturating_mul(MIB));
    add_number(facts, "memory.totalbytes", bytes);
}

/// The file as text, at most [`FILE_BYTES_MAX`] of it; `None` when it cannot be read.
pub(super) fn read(root: &Path, path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(root.join(path)).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The file's text without the space around it; `None` when it is empty or cannot be read.
fn read_line(root: &Path, path: &str) -> Option<String> {
    let text = read(root, path)?;
    let line = text.trim();
    (!line.is_empty()).then(|| line.to_owned())
}

/// Add a text fact, cut to a bounded length. An empty or absent text adds nothing.
fn add_text(facts: &mut Facts, name: &str, text: Option<impl AsRef<str>>) {
    let Some(text) = text else { return };
    let text = text.as_ref();
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    if let Some(kept) = text.get(..end).filter(|kept| !kept.is_empty()) {
        facts.insert(name.to_owned(), Attribute::from(kept));
    }
}

/// Add a number. A number that is absent or does not fit adds nothing.
fn add_number(facts: &mut Facts, name: &str, number: Option<u64>) {
    if let Some(number) = number.and_then(|number| i64::try_from(number).ok()) {
        facts.insert(name.to_owned(), Attribute::from(number));
    }
}

#[cfg(test)]
mod tests;
