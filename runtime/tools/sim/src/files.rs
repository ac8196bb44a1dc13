//! A jobs directory in memory, and what happens to it.
//!
//! Another directory may be mounted over it, which nobody is told of; what is written then is in that one.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ostler_jobsdir::{Content, DirId, DirWatch, FileStamp, JobFiles};
use ostler_model::ports::BoxFuture;
use ostler_model::rng::Rng;
use tokio::sync::watch;

use crate::checks::JobState;
use crate::plan::{Act, Step, TakesOver};
use crate::play::job;

/// Where the simulated directory is.
pub(crate) const DIR: &str = "/jobs";
/// Names of job files.
const FILES: [&str; 3] = ["a.hcl", "b.hcl", "c.hcl"];
/// Names of jobs that files give. The last one is given by requests too.
pub(crate) const FILE_JOBS: [&str; 3] = ["site", "feed", "cron"];

/// Something happens to the jobs directory. Files and jobs are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAct {
    /// A file is written.
    Write(usize, FileJob),
    /// A file has no job any more: half of it is there, or it is a link that leads nowhere.
    Break {
        /// Which.
        file: usize,
        /// A link.
        link: bool,
    },
    /// A file is removed.
    Remove(usize),
    /// All are removed at once.
    Empty,
    /// The directory can be read from now on, or not.
    Readable(bool),
    /// An empty one is mounted over it, or it is there again.
    Covered(bool),
    /// The kernel tells of changes from now on, or does not.
    Told(bool),
    /// The agent is told to look at it.
    Rescan,
}

/// The job of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileJob {
    /// Which of the names.
    pub job: usize,
    /// Allocations.
    pub count: u32,
    /// In its environment.
    pub version: u32,
}

impl FileAct {
    /// May a job that was kept for a file, or for the directory, change by this?
    fn ends(self, by: Option<usize>) -> bool {
        match self {
            Self::Told(_) | Self::Rescan | Self::Readable(false) => false,
            Self::Empty | Self::Covered(_) => true,
            Self::Readable(true) => by.is_none(),
            Self::Write(file, _) | Self::Break { file, .. } | Self::Remove(file) => {
                by.is_none_or(|by| by == file)
            }
        }
    }
}

fn third(rng: &Rng) -> usize {
    usize::try_from(rng.number_below(3)).unwrap_or(0)
}

fn small(rng: &Rng, below: u64) -> u32 {
    u32::try_from(rng.number_below(below)).unwrap_or(0)
}

fn random(rng: &Rng) -> FileAct {
    match rng.number_below(18) {
        0..=7 => {
            let (count, version) = (small(rng, 3), small(rng, 3));
            FileAct::Write(third(rng), FileJob { job: third(rng), count, version })
        }
        8 | 9 => FileAct::Break { file: third(rng), link: rng.number_below(2) == 0 },
        10..=12 => FileAct::Remove(third(rng)),
        13 => FileAct::Empty,
        14 => FileAct::Readable(rng.number_below(2) == 0),
        15 => FileAct::Covered(rng.number_below(2) == 0),
        16 => FileAct::Told(rng.number_below(2) == 0),
        _ => FileAct::Rescan,
    }
}

/// A third of the plans has a jobs directory. What else is in them stays as it is.
pub(crate) fn mix(seed: u64, steps: &mut Vec<Step>) {
    let rng = Rng::from_seed(seed ^ 0x00f1_1e5d);
    if rng.number_below(3) > 0 {
        return;
    }
    for _ in 0..2 + rng.number_below(12) {
        let most = u64::try_from(steps.len()).unwrap_or(0);
        let at = usize::try_from(rng.number_below(most + 1)).unwrap_or(0);
        let after = Duration::from_millis(match rng.number_below(4) {
            0 => 0,
            1 => rng.number_below(200),
            2 => rng.number_below(8_000),
            _ => rng.number_below(400_000),
        });
        steps.insert(at, Step { after, act: Act::Files(random(&rng)) });
    }
}

#[derive(Clone, Copy)]
enum Text {
    Job(FileJob),
    Bad,
    Nowhere,
}

#[derive(Default)]
struct SimDir {
    files: BTreeMap<PathBuf, (u64, Text)>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Dirs {
    /// The one that is mounted over the other comes last.
    dirs: [SimDir; 2],
    covered: bool,
    /// How often.
    covers: u64,
    unreadable: bool,
    untold: bool,
    /// Writes so far.
    writes: u64,
    /// Every job that a file ever gave.
    gave: Vec<(PathBuf, FileJob)>,
    kept: Vec<Kept>,
}

/// A job of a file that is to run on as it is.
#[derive(Clone)]
pub(crate) struct Kept {
    pub(crate) name: &'static str,
    pub(crate) is: JobState,
    /// Until something happens to this file; to the directory.
    pub(crate) by: Option<usize>,
    pub(crate) until: Duration,
}

impl Dirs {
    fn now(&mut self) -> &mut SimDir {
        let [own, over] = &mut self.dirs;
        if self.covered { over } else { own }
    }
}

/// The jobs directory. Clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct SimFiles(Arc<Mutex<Dirs>>);

pub(crate) fn path(file: usize) -> PathBuf {
    Path::new(DIR).join(FILES.get(file).copied().unwrap_or_default())
}

impl SimFiles {
    fn lock(&self) -> MutexGuard<'_, Dirs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All but [`FileAct::Rescan`], which happens to the agent.
    pub(crate) fn happen(&self, act: FileAct) {
        let mut dirs = self.lock();
        dirs.kept.retain(|kept| !act.ends(kept.by));
        let text = match act {
            FileAct::Write(file, job) => {
                dirs.gave.push((path(file), job));
                Some((file, Text::Job(job)))
            }
            FileAct::Break { file, link: true } => Some((file, Text::Nowhere)),
            FileAct::Break { file, link: false } => Some((file, Text::Bad)),
            _ => None,
        };
        if let Some((file, text)) = text {
            dirs.writes += 1;
            let stamp = dirs.writes;
            dirs.now().files.insert(path(file), (stamp, text));
        }
        match act {
            FileAct::Remove(file) => drop(dirs.now().files.remove(&path(file))),
            FileAct::Empty => dirs.now().files.clear(),
            FileAct::Readable(readable) => dirs.unreadable = !readable,
            FileAct::Told(told) => dirs.untold = !told,
            FileAct::Covered(covered) if covered != dirs.covered => {
                let [_, over] = &mut dirs.dirs;
                over.files.clear();
                dirs.covered = covered;
                dirs.covers += 1;
                // Who watches the directory beneath is not told.
                return;
            }
            _ => {}
        }
        if !dirs.untold {
            dirs.now().changed.send_modify(|n| *n = n.saturating_add(1));
        }
    }

    /// These jobs are to run on as they are.
    pub(crate) fn keep(&self, jobs: Vec<Kept>) {
        self.lock().kept.extend(jobs);
    }

    /// The jobs that are to run as they are, at this time.
    pub(crate) fn kept(&self, now: Duration) -> Vec<Kept> {
        self.lock().kept.iter().filter(|kept| now < kept.until).cloned().collect()
    }

    pub(crate) fn readable(&self) -> bool {
        !self.lock().unreadable
    }

    pub(crate) fn covered(&self) -> bool {
        self.lock().covered
    }

    /// No file is there.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().now().files.is_empty()
    }

    /// The files that give a job now.
    pub(crate) fn givers(&self, job: usize) -> Vec<(PathBuf, FileJob)> {
        let mut dirs = self.lock();
        let givers = dirs.now().files.iter().filter_map(|(path, (_, text))| match text {
            Text::Job(of) if of.job == job => Some((path.clone(), *of)),
            _ => None,
        });
        givers.collect()
    }

    /// The files that are there and give none.
    pub(crate) fn bad(&self) -> BTreeSet<PathBuf> {
        let mut dirs = self.lock();
        let bad = dirs.now().files.iter().filter(|(_, (_, text))| !matches!(text, Text::Job(_)));
        bad.map(|(path, _)| path.clone()).collect()
    }

    /// Did the file ever have this job?
    pub(crate) fn gave(&self, path: &Path, job: FileJob) -> bool {
        self.lock().gave.iter().any(|(of, gave)| of == path && *gave == job)
    }
}

impl JobFiles for SimFiles {
    fn id(&self) -> io::Result<DirId> {
        let dirs = self.lock();
        if dirs.unreadable {
            Err(io::ErrorKind::PermissionDenied.into())
        } else {
            Ok(DirId { device: if dirs.covered { dirs.covers } else { 0 }, inode: 2 })
        }
    }

    fn entries(&self, most: usize) -> io::Result<Vec<PathBuf>> {
        Ok(self.lock().now().files.keys().take(most).cloned().collect())
    }

    fn stamp(&self, path: &Path) -> io::Result<Option<FileStamp>> {
        match self.lock().now().files.get(path) {
            None => Ok(None),
            Some((_, Text::Nowhere)) => Err(io::ErrorKind::NotFound.into()),
            Some((stamp, _)) => Ok(Some(FileStamp([*stamp; 4], [0; 4]))),
        }
    }

    fn read(&self, path: &Path) -> Content {
        let bad = || "half of it is there".to_owned();
        let Some((_, Text::Job(of))) = self.lock().now().files.get(path).copied() else {
            return Err(bad());
        };
        let name = FILE_JOBS.get(of.job).copied().unwrap_or_default();
        let (count, version) = (of.count, of.version);
        let takes_over = TakesOver::AtOnce;
        let act = Act::Register {
            batch: false,
            job: of.job,
            count,
            version,
            device: false,
            prepares: false,
            takes_over,
        };
        job(name, &act).map(Arc::new).ok_or_else(bad)
    }

    fn watch(&self) -> io::Result<Box<dyn DirWatch>> {
        self.id()?;
        Ok(Box::new(SimWatch(Mutex::new(self.lock().now().changed.subscribe()))))
    }
}

struct SimWatch(Mutex<watch::Receiver<u64>>);

impl DirWatch for SimWatch {
    fn wait_changed(&self) -> BoxFuture<'_, io::Result<()>> {
        // Who gives up waiting hears of it the next time.
        let known = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Box::pin(async move {
            let mut changes = known().clone();
            let told = changes.changed().await;
            *known() = changes;
            told.map_err(io::Error::other)
        })
    }
}
