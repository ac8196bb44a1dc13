//! Is everything in a state file readable?

use std::ops::ControlFlow;
use std::path::PathBuf;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::Serialize;

use super::super::HeldRun;
use super::{InspectError, KindCount, Kinds, Target, open, values};
use ostler_model::causes;
use ostler_node::id;
use ostler_state::Age;
use ostler_state::inspect::Entry;
use ostler_state::keys::Prefix;

/// Records listed one by one; more are only counted.
const LISTED_MAX: usize = 1_000;

/// What was found in a state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// The file.
    pub path: PathBuf,
    /// The engine found the file consistent, every record can be read, and nothing that was
    /// acknowledged is known to be missing.
    pub healthy: bool,
    /// What is wrong with the file as a whole, when its records cannot be read at all.
    pub damage: Option<String>,
    /// Schema of its content.
    pub schema: Option<u16>,
    /// Size of the file, bytes.
    pub file_bytes: u64,
    /// It was not closed in order; the next agent recovers it, as was done here in memory. No
    /// damage.
    pub recovered: bool,
    /// The engine found it inconsistent and repaired it in memory, perhaps to an older commit.
    pub repaired: bool,
    /// The newest commit is not whole: what is shown here, and what the next agent uses, is the one
    /// before. No damage where its directory says that nobody was told of it.
    pub fell_back: bool,
    /// How it compares with what its directory knows; always as new where that knows nothing.
    pub age: Age,
    /// The journal beside it belongs to another state file: what it holds is not in this one.
    pub foreign_journal: bool,
    /// Changes that are in the journal beside it alone, in so many batches; the next agent moves them
    /// into the file. No damage.
    pub in_journal: u64,
    /// Runs that live and that it does not know. The next agent owns them by their notes or holds
    /// them back.
    pub unknown_runs: Vec<HeldRun>,
    /// What else of the data directory keeps an agent from starting with it, as sentences.
    pub hindrances: Vec<String>,
    /// Readable records.
    pub kinds: Vec<KindCount>,
    /// Records that cannot be read: the first thousand.
    pub damaged: Vec<BadRecord>,
    /// All of them.
    pub damaged_total: u64,
    /// Records that an agent put aside earlier: the first thousand. No damage any more.
    pub quarantined: Vec<BadRecord>,
    /// All of them.
    pub quarantined_total: u64,
}

/// A record that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadRecord {
    /// Its key in words or, when it is none, in hexadecimal digits.
    pub key: String,
    /// Bytes of the key and the record.
    pub bytes: u64,
    /// What is wrong with it.
    pub reason: String,
}

/// Read every record of a state file as its type, without changing the file. A file that is damaged
/// as a whole is a report too.
///
/// # Errors
/// When there is no such file, an agent runs, or the file cannot be read.
pub fn check(target: &Target) -> Result<CheckReport, InspectError> {
    let opened = match open(target) {
        Err(InspectError::State(error)) if error.damage().is_some() => {
            let path = target.file();
            let file_bytes = std::fs::metadata(&path).map_or(0, |file| file.len());
            let damage = error.damage().map(ToOwned::to_owned);
            let unknown_runs = match target {
                Target::DataDir(dir) => super::runs::runs(dir)?,
                Target::File(_) => Vec::new(),
            };
            let unknown_runs = unknown_runs.into_iter().map(|found| found.run).collect();
            let (hindrances, report) = (hindrances(target), CheckReport::default());
            return Ok(CheckReport {
                path,
                file_bytes,
                damage,
                unknown_runs,
                hindrances,
                ..report
            });
        }
        opened => opened?,
    };
    let file = &opened.inspection;
    let mut kinds = Kinds::default();
    let (mut damaged, mut quarantined) = (Listed::default(), Listed::default());
    file.scan(&Prefix::All, &mut |entry| {
        match values::value(entry) {
            Ok(_) => kinds.count(values::name_of(entry), entry.bytes()),
            Err(error) => damaged.add(entry, error.to_string()),
        }
        ControlFlow::Continue(())
    })
    .map_err(InspectError::state)?;
    file.quarantine(&mut |entry| {
        let reason = values::value(entry).err().map(|error| error.to_string());
        // Why the record was put aside. An older agent may have done that with one that this agent
        // can read.
        quarantined.add(entry, reason.unwrap_or_else(|| "can be read".to_owned()));
        ControlFlow::Continue(())
    })
    .map_err(InspectError::state)?;
    let unknown_runs = match target {
        Target::DataDir(dir) => super::runs::found(dir, Some(file))?,
        Target::File(_) => Vec::new(),
    };
    let unknown_runs: Vec<_> =
        unknown_runs.into_iter().filter(|found| !found.on_record).map(|found| found.run).collect();
    let hindrances = hindrances(target);
    let lost = file.repaired()
        || file.age().lacks()
        || file.foreign_journal()
        || (file.fell_back() && !file.compared());
    Ok(CheckReport {
        path: file.path().to_owned(),
        healthy: damaged.total == 0 && !lost && unknown_runs.is_empty() && hindrances.is_empty(),
        fell_back: file.fell_back(),
        age: file.age(),
        foreign_journal: file.foreign_journal(),
        in_journal: file.replayed(),
        unknown_runs,
        hindrances,
        damage: None,
        schema: file.schema(),
        file_bytes: file.file_bytes(),
        recovered: file.recovered(),
        repaired: file.repaired(),
        kinds: kinds.0,
        damaged: damaged.records,
        damaged_total: damaged.total,
        quarantined: quarantined.records,
        quarantined_total: quarantined.total,
    })
}

/// What of a data directory an agent cannot start with, besides what is in the state file.
fn hindrances(target: &Target) -> Vec<String> {
    let Target::DataDir(dir) = target else { return Vec::new() };
    let mut found = Vec::new();
    for path in [dir.clone(), target.file()] {
        if let Err(error) = accessat(CWD, &path, Access::WRITE_OK, AtFlags::EACCESS) {
            let what = causes::chain(&std::io::Error::from(error));
            found.push(format!("{} cannot be written by this user: {what}", path.display()));
        }
    }
    if let Err(error) = id::load(dir) {
        found.push(causes::chain(&error));
    }
    found
}

#[derive(Default)]
struct Listed {
    records: Vec<BadRecord>,
    total: u64,
}

impl Listed {
    fn add(&mut self, entry: &Entry<'_>, reason: String) {
        self.total = self.total.saturating_add(1);
        if self.records.len() < LISTED_MAX {
            let (key, bytes) = (entry.shown_key(), entry.bytes());
            self.records.push(BadRecord { key, bytes, reason });
        }
    }
}
