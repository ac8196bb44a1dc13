//! Checks whether everything in a state file is readable.

use std::ops::ControlFlow;
use std::path::PathBuf;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::Serialize;

use super::super::HeldRun;
use super::{InspectError, KindCount, KindCounts, Target, open, values};
use ostler_model::causes;
use ostler_node::id;
use ostler_state::Age;
use ostler_state::inspect::InspectedRecord;
use ostler_state::keys::KeyPrefix;

/// The number of records that are listed one by one; more are only counted.
const LISTED_MAX: usize = 1_000;

/// The findings about a state file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// The path of the state file.
    pub path: PathBuf,
    /// Whether the engine found the file consistent, every record can be read, and no acknowledged
    /// change is known to be missing.
    pub healthy: bool,
    /// What is wrong with the file as a whole, if its records cannot be read at all.
    pub damage: Option<String>,
    /// The schema of the file's content.
    pub schema: Option<u16>,
    /// Size of the file, bytes.
    pub file_bytes: u64,
    /// Whether the file was not closed in order. The next agent recovers it, as was done here in
    /// memory. This is no damage.
    pub recovered: bool,
    /// Whether the engine found the file inconsistent and repaired it in memory, perhaps to an
    /// older commit.
    pub repaired: bool,
    /// Whether the newest commit is not whole. What is shown here, and what the next agent uses, is
    /// the commit before it. This is no damage if the directory says that the newest commit was
    /// never acknowledged.
    pub fell_back: bool,
    /// How the file compares with what its directory knows. It always counts as newest if the
    /// directory knows nothing.
    pub age: Age,
    /// Whether the journal beside the file belongs to another state file. The changes in that
    /// journal are not in this file.
    pub foreign_journal: bool,
    /// The number of batches whose changes are only in the journal. The next agent moves them into
    /// the file. This is no damage.
    pub in_journal: u64,
    /// Runs that are alive but not known to the file. The next agent owns them by their notes or
    /// holds them back.
    pub unknown_runs: Vec<HeldRun>,
    /// What else in the data directory keeps an agent from starting with it, as sentences.
    pub hindrances: Vec<String>,
    /// The readable records, by kind.
    pub kinds: Vec<KindCount>,
    /// The first thousand records that cannot be read.
    pub damaged: Vec<BadRecord>,
    /// The number of all records that cannot be read.
    pub damaged_total: u64,
    /// The first thousand records that an agent put aside earlier. They are no damage any more.
    pub quarantined: Vec<BadRecord>,
    /// The number of all records that were put aside.
    pub quarantined_total: u64,
}

/// A record that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadRecord {
    /// The key in words, or in hexadecimal digits if it is no key.
    pub key: String,
    /// Bytes of the key and the record.
    pub bytes: u64,
    /// What is wrong with the record.
    pub reason: String,
}

/// Read every record of a state file as its type, without changing the file. A file that is damaged
/// as a whole gives a report too.
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
    let mut kinds = KindCounts::default();
    let (mut damaged, mut quarantined) = (BadRecordList::default(), BadRecordList::default());
    file.scan(&KeyPrefix::All, &mut |entry| {
        match values::value(entry) {
            Ok(_) => kinds.count(values::name_of(entry), entry.bytes()),
            Err(error) => damaged.add(entry, error.to_string()),
        }
        ControlFlow::Continue(())
    })
    .map_err(InspectError::from_state_error)?;
    file.quarantine(&mut |entry| {
        let reason = values::value(entry).err().map(|error| error.to_string());
        // This is the reason why the record was put aside. An older agent may have put aside a
        // record that this agent can read.
        quarantined.add(entry, reason.unwrap_or_else(|| "can be read".to_owned()));
        ControlFlow::Continue(())
    })
    .map_err(InspectError::from_state_error)?;
    let unknown_runs = match target {
        Target::DataDir(dir) => super::runs::find_runs(dir, Some(file))?,
        Target::File(_) => Vec::new(),
    };
    let unknown_runs: Vec<_> =
        unknown_runs.into_iter().filter(|found| !found.on_record).map(|found| found.run).collect();
    let hindrances = hindrances(target);
    let lost = file.was_repaired()
        || file.age().is_behind()
        || file.has_foreign_journal()
        || (file.has_fallen_back() && !file.was_compared());
    Ok(CheckReport {
        path: file.path().to_owned(),
        healthy: damaged.total == 0 && !lost && unknown_runs.is_empty() && hindrances.is_empty(),
        fell_back: file.has_fallen_back(),
        age: file.age(),
        foreign_journal: file.has_foreign_journal(),
        in_journal: file.replayed_batches(),
        unknown_runs,
        hindrances,
        damage: None,
        schema: file.schema(),
        file_bytes: file.file_bytes(),
        recovered: file.was_recovered(),
        repaired: file.was_repaired(),
        kinds: kinds.0,
        damaged: damaged.records,
        damaged_total: damaged.total,
        quarantined: quarantined.records,
        quarantined_total: quarantined.total,
    })
}

/// The problems of a data directory, beside those in the state file, that keep an agent
/// from starting.
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
struct BadRecordList {
    records: Vec<BadRecord>,
    total: u64,
}

impl BadRecordList {
    fn add(&mut self, entry: &InspectedRecord<'_>, reason: String) {
        self.total = self.total.saturating_add(1);
        if self.records.len() < LISTED_MAX {
            let (key, bytes) = (entry.shown_key(), entry.bytes());
            self.records.push(BadRecord { key, bytes, reason });
        }
    }
}
