//! What may happen to a state file while no agent runs.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use ostler_model::rng::Rng;
use ostler_state::RecordKey;
use ostler_state::backend::{Backend as _, Op};
use ostler_state::disk_store::DiskBackend;

use super::scene::Copies;

const PAGE: usize = 4096;
/// The byte of the header that says which of the two commits is the newest, and the two commits.
const GOD_BYTE: usize = 9;
const COMMITS: [usize; 2] = [64, 192];
const COMMIT_BYTES: usize = 128;

/// What the agent, or a command, is to say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// Nothing is lost.
    Nothing,
    /// That the file is damaged, or older than what was acknowledged, or something of the kind.
    Something,
}

/// A kind of damage.
#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub said: Said,
    /// Does it to the file; the copies are those made before.
    pub damage: fn(&Path, &Copies, &Rng),
}

fn change(file: &Path, with: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(file).unwrap();
    with(&mut bytes);
    fs::write(file, bytes).unwrap();
}

fn newest(bytes: &[u8]) -> usize {
    COMMITS[usize::from(bytes[GOD_BYTE] & 1)]
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Where the root page of the newest commit begins and ends: of records, or of the engine's own.
fn root(bytes: &[u8], system: bool) -> std::ops::Range<usize> {
    let page = number(bytes, newest(bytes) + if system { 40 } else { 8 });
    let (order, index) = (page >> 59, page & (0xf_ffff >> (page >> 59)));
    let regions = u32::from_le_bytes(bytes[16..20].try_into().unwrap());
    let size = PAGE << order;
    let begin =
        PAGE * (1 + usize::try_from(regions).unwrap()) + usize::try_from(index).unwrap() * size;
    begin..begin + size
}

/// Pages that differ from an older copy: those of the newest commits.
fn changed(old: &[u8], new: &[u8]) -> Vec<usize> {
    let pages = new.chunks(PAGE).enumerate().skip(1);
    pages
        .filter(|(n, page)| old.chunks(PAGE).nth(*n) != Some(*page))
        .map(|(n, _)| n * PAGE)
        .collect()
}

fn zero(bytes: &mut [u8], range: std::ops::Range<usize>) {
    let end = range.end.min(bytes.len());
    bytes[range.start.min(end)..end].fill(0);
}

fn zero_changed(file: &Path, copies: &Copies, which: fn(&[usize]) -> usize) {
    // What the journal held when the agent was killed is not in it.
    let olds = [&copies.before_restart, &copies.empty].map(|copy| fs::read(copy).unwrap());
    change(file, |bytes| {
        let all = olds.map(|old| changed(&old, bytes));
        // All that was written since may be in it.
        let any = (PAGE..bytes.len()).step_by(PAGE).collect();
        let pages = all.into_iter().find(|pages| !pages.is_empty()).unwrap_or(any);
        let at = pages[which(&pages)];
        zero(bytes, at..at + PAGE);
    });
}

fn flip(file: &Path, rng: &Rng, bits: u32) {
    change(file, |bytes| {
        for _ in 0..bits {
            let len = u64::try_from(bytes.len() - PAGE).unwrap();
            let at = PAGE + usize::try_from(rng.number_below(len)).unwrap();
            bytes[at] ^= 1 << rng.number_below(8);
        }
    });
}

/// Every record is handed over; what comes back is written.
fn records(file: &Path, mut with: impl FnMut(&RecordKey, &[u8]) -> Option<Vec<u8>>) {
    let backend = DiskBackend::open(file).unwrap();
    let mut ops = Vec::new();
    let visit = &mut |bytes: &[u8], record: &[u8]| {
        if let Ok(key) = RecordKey::parse(bytes) {
            match with(&key, record) {
                None => ops.push(Op::Delete { key: bytes.into() }),
                Some(value) if value != record => {
                    ops.push(Op::Put { key: bytes.into(), value: value.into() });
                }
                Some(_) => {}
            }
        }
        std::ops::ControlFlow::Continue(())
    };
    backend.scan(&[], visit).unwrap();
    assert!(!ops.is_empty(), "nothing is changed");
    backend.commit(&ops).unwrap();
}

fn without(file: &Path, gone: impl Fn(&RecordKey) -> bool) {
    records(file, |key, record| (!gone(key)).then(|| record.to_vec()));
}

fn garbage(file: &Path, bad: impl Fn(&RecordKey) -> bool) {
    records(file, |key, record| {
        let mut record = record.to_vec();
        if bad(key) {
            record[10] ^= 1;
        }
        Some(record)
    });
}

/// Both files.
fn replaced(file: &Path, by: &Path) {
    super::scene::copy_both(by, file);
}

/// The journal of a state file.
pub fn journal(file: &Path) -> PathBuf {
    file.with_extension("redb.journal")
}

/// All kinds. Those from before events come first.
pub const KINDS: &[Kind] = &[
    Kind {
        name: "a copy from before a job",
        said: Said::Something,
        damage: |f, c, _| replaced(f, &c.before_late),
    },
    Kind {
        name: "a copy from while a batch task ran",
        said: Said::Something,
        damage: |f, c, _| replaced(f, &c.while_batch),
    },
    Kind {
        name: "a copy from before an update",
        said: Said::Something,
        damage: |f, c, _| replaced(f, &c.before_update),
    },
    Kind {
        name: "a copy from before a restart of a task",
        said: Said::Something,
        damage: |f, c, _| replaced(f, &c.before_restart),
    },
    Kind {
        name: "a copy from before anything",
        said: Said::Something,
        damage: |f, c, _| replaced(f, &c.empty),
    },
    Kind {
        name: "the newest commit's root page zeroed",
        said: Said::Something,
        damage: |f, _, _| {
            change(f, |b| {
                let r = root(b, false);
                zero(b, r);
            })
        },
    },
    Kind {
        name: "the newest commit's own tables zeroed",
        said: Said::Something,
        damage: |f, _, _| {
            change(f, |b| {
                let r = root(b, true);
                zero(b, r);
            })
        },
    },
    Kind {
        name: "the first new page zeroed",
        said: Said::Something,
        damage: |f, c, _| zero_changed(f, c, |_| 0),
    },
    Kind {
        name: "the last new page zeroed",
        said: Said::Something,
        damage: |f, c, _| zero_changed(f, c, |p| p.len() - 1),
    },
    Kind {
        name: "a new page in the middle zeroed",
        said: Said::Something,
        damage: |f, c, _| zero_changed(f, c, |p| p.len() / 2),
    },
    Kind {
        name: "the header page zeroed",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| zero(b, 0..PAGE)),
    },
    Kind {
        name: "the newest commit's slot zeroed",
        said: Said::Something,
        damage: |f, _, _| {
            change(f, |b| {
                let at = newest(b);
                zero(b, at..at + COMMIT_BYTES);
            })
        },
    },
    Kind {
        name: "both commits' slots zeroed",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| zero(b, 64..320)),
    },
    Kind {
        name: "a bit of the newest commit's checksum flipped",
        said: Said::Something,
        damage: |f, _, _| {
            change(f, |b| {
                let at = newest(b);
                b[at + COMMIT_BYTES - 1] ^= 4;
            })
        },
    },
    Kind {
        name: "the header names the other commit",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| b[GOD_BYTE] ^= 1),
    },
    Kind {
        name: "a byte of the magic number flipped",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| b[0] ^= 0xff),
    },
    Kind {
        name: "the page size flipped",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| b[13] ^= 0x40),
    },
    Kind { name: "empty", said: Said::Something, damage: |f, _, _| change(f, Vec::clear) },
    Kind {
        name: "cut to 100 bytes",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| b.truncate(100)),
    },
    Kind {
        name: "cut in half",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| b.truncate(b.len() / 2)),
    },
    Kind {
        name: "the last page cut",
        said: Said::Something,
        damage: |f, _, _| change(f, |b| b.truncate(b.len() - PAGE)),
    },
    Kind {
        name: "zeros behind it",
        said: Said::Nothing,
        damage: |f, _, _| change(f, |b| b.extend([0; PAGE])),
    },
    Kind {
        name: "garbage behind it",
        said: Said::Nothing,
        damage: |f, _, rng| {
            change(f, |b| {
                let mut more = vec![0; 1 << 20];
                rng.fill(&mut more);
                b.extend(more);
            })
        },
    },
    Kind { name: "gone", said: Said::Something, damage: |f, _, _| fs::remove_file(f).unwrap() },
    Kind {
        name: "a directory",
        said: Said::Something,
        damage: |f, _, _| {
            fs::remove_file(f).unwrap();
            fs::create_dir(f).unwrap();
        },
    },
    Kind {
        name: "a symbolic link to itself elsewhere",
        said: Said::Nothing,
        damage: |f, _, _| {
            let there = f.with_extension("moved");
            fs::rename(f, &there).unwrap();
            symlink(there, f).unwrap();
        },
    },
    Kind {
        name: "a symbolic link to nothing",
        said: Said::Something,
        damage: |f, _, _| {
            fs::remove_file(f).unwrap();
            symlink("nowhere/state.redb", f).unwrap();
        },
    },
    Kind {
        name: "a symbolic link to an older copy",
        said: Said::Something,
        damage: |f, c, _| {
            fs::remove_file(f).unwrap();
            symlink(&c.before_update, f).unwrap();
        },
    },
    Kind { name: "one bit flipped", said: Said::Nothing, damage: |f, _, rng| flip(f, rng, 1) },
    Kind {
        name: "a thousand bits flipped",
        said: Said::Something,
        damage: |f, _, rng| flip(f, rng, 1_000),
    },
    Kind {
        name: "half of it older",
        said: Said::Something,
        damage: |f, c, _| {
            let old = fs::read(&c.before_update).unwrap();
            change(f, |b| {
                let half = b.len() / 2;
                let end = old.len().min(b.len());
                if half < end {
                    b[half..end].copy_from_slice(&old[half..end]);
                }
            });
        },
    },
    Kind {
        name: "no record of an allocation",
        said: Said::Something,
        damage: |f, _, _| without(f, |k| matches!(k, RecordKey::Alloc(_))),
    },
    Kind {
        name: "no record of what a task runs",
        said: Said::Something,
        damage: |f, _, _| without(f, |k| matches!(k, RecordKey::TaskLocal(..))),
    },
    Kind {
        name: "no public state of a task",
        said: Said::Nothing,
        damage: |f, _, _| without(f, |k| matches!(k, RecordKey::TaskState(..))),
    },
    Kind {
        name: "no record of a job",
        said: Said::Something,
        damage: |f, _, _| without(f, |k| matches!(k, RecordKey::Job(_))),
    },
    Kind {
        name: "no record of the node",
        said: Said::Nothing,
        damage: |f, _, _| without(f, |k| matches!(k, RecordKey::NodeRegistration)),
    },
    Kind {
        name: "nothing of allocations",
        said: Said::Something,
        damage: |f, _, _| without(f, |k| k.alloc().is_some()),
    },
    Kind {
        name: "unreadable records of allocations",
        said: Said::Something,
        damage: |f, _, _| garbage(f, |k| matches!(k, RecordKey::Alloc(_))),
    },
    Kind {
        name: "unreadable records of what tasks run",
        said: Said::Something,
        damage: |f, _, _| garbage(f, |k| matches!(k, RecordKey::TaskLocal(..))),
    },
    Kind {
        name: "unreadable records of jobs",
        said: Said::Something,
        damage: |f, _, _| garbage(f, |k| matches!(k, RecordKey::Job(_))),
    },
    Kind {
        name: "of a newer agent",
        said: Said::Something,
        damage: |f, _, _| {
            records(f, |k, r| {
                let mut record = r.to_vec();
                if matches!(k, RecordKey::Meta) {
                    ostler_state::codec::encode(k.kind(), &999_u16, &mut record).unwrap();
                }
                Some(record)
            })
        },
    },
    Kind {
        name: "of another node",
        said: Said::Something,
        damage: |f, c, _| replaced(f, &c.other_node),
    },
    Kind {
        name: "not to be read by anybody",
        said: Said::Nothing,
        damage: |f, _, _| fs::set_permissions(f, fs::Permissions::from_mode(0o0)).unwrap(),
    },
    Kind {
        name: "text",
        said: Said::Something,
        damage: |f, _, _| fs::write(f, "not a state file\n".repeat(1_000)).unwrap(),
    },
    Kind {
        name: "an older state file under a newer journal",
        said: Said::Something,
        damage: |f, c, _| {
            fs::copy(&c.before_update, f).unwrap();
        },
    },
    Kind {
        name: "an older journal",
        said: Said::Something,
        damage: |f, c, _| {
            fs::copy(journal(&c.before_update), journal(f)).unwrap();
        },
    },
    Kind {
        name: "the journal of another node",
        said: Said::Something,
        damage: |f, c, _| {
            fs::copy(journal(&c.other_node), journal(f)).unwrap();
        },
    },
    Kind {
        name: "the journal gone",
        said: Said::Something,
        damage: |f, _, _| fs::remove_file(journal(f)).unwrap(),
    },
    Kind {
        name: "the journal's first record zeroed",
        said: Said::Something,
        damage: |f, _, _| change(&journal(f), |b| zero(b, 0..PAGE)),
    },
    Kind {
        name: "the journal cut after two records",
        said: Said::Something,
        damage: |f, _, _| change(&journal(f), |b| b.truncate(2 * PAGE)),
    },
    Kind {
        name: "a thousand bits of the journal flipped",
        said: Said::Something,
        damage: |f, _, rng| flip(&journal(f), rng, 1_000),
    },
    Kind {
        name: "text for a journal",
        said: Said::Something,
        damage: |f, _, _| fs::write(journal(f), "not a journal\n".repeat(1_000)).unwrap(),
    },
    Kind {
        name: "a directory for a journal",
        said: Said::Something,
        damage: |f, _, _| {
            fs::remove_file(journal(f)).unwrap();
            fs::create_dir(journal(f)).unwrap();
        },
    },
    Kind {
        name: "a page of it is another one",
        said: Said::Something,
        damage: |f, _, _| {
            change(f, |b| {
                let r = root(b, false);
                let from = b.len() - PAGE;
                b.copy_within(from.., r.start);
            })
        },
    },
];
