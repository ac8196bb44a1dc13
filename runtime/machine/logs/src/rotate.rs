//! Writes one stream into its rotated files.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use rustix::fs::fstat;

use super::files::{INDEX_MAX, LogError, LogFiles};
use super::plan::{RotationPlan, RotationStep};
use ostler_model::clock::Stopwatch;
use ostler_model::limits::LOG_LINE_SEEK_BYTES;

/// A file of the stream, with its place in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileStart {
    /// The index of the file, as in its name.
    pub index: u64,
    /// The position of its first byte in the stream.
    pub start: u64,
}

/// Appends to the newest file, rotates and prunes. When it is opened again, it goes on with the
/// highest index.
#[derive(Debug)]
pub(super) struct RotatingWriter {
    files: LogFiles,
    plan: RotationPlan,
    file: File,
    /// The files, oldest first, at most `files_max`. The last one is written.
    kept: VecDeque<FileStart>,
    files_max: usize,
    /// The number of bytes of the stream so far, counted from the first byte of the oldest file
    /// found at opening.
    position: u64,
    dropped_bytes: u64,
    complained: bool,
    /// Set if others may append to the same files. The files are then scanned, and a new file of
    /// another writer is used too. Positions are not kept then.
    shared: Option<LookInterval>,
}

/// How often files that others write too are scanned.
#[derive(Debug)]
struct LookInterval {
    every: Duration,
    last: Option<Stopwatch>,
}

impl LookInterval {
    /// Whether it is time for a scan.
    fn is_due(&mut self) -> bool {
        let due = self.last.is_none_or(|last| last.elapsed() >= self.every);
        if due {
            self.last = (!self.every.is_zero()).then(Stopwatch::start);
        }
        due
    }
}

impl RotatingWriter {
    /// Open the files of a stream: go on in the one with the highest index, or create the first.
    pub(super) fn open(
        files: LogFiles,
        files_max: u32,
        file_bytes_max: u64,
    ) -> Result<Self, LogError> {
        let mut kept = VecDeque::new();
        let (mut position, mut last) = (0, None);
        let indices = files.indices()?;
        for index in &indices {
            let size = files.read(*index)?.and_then(|file| file.metadata().ok());
            kept.push_back(FileStart { index: *index, start: position });
            last = Some(position);
            position += size.map_or(0, |metadata| metadata.len());
        }
        let mut plan = RotationPlan::new(file_bytes_max, LOG_LINE_SEEK_BYTES as u64);
        let resumed = match indices.last() {
            Some(index) => files.append(*index)?,
            None => None,
        };
        let file = match resumed {
            Some(file) => {
                let size = position - last.unwrap_or(position);
                plan.resume(size, ends_line(&file, size));
                file
            }
            None => {
                let first = indices.last().map_or(0, |index| index + 1);
                let (index, file) = create_next(&files, first)?;
                kept.push_back(FileStart { index, start: position });
                file
            }
        };
        let files_max = usize::try_from(files_max.max(1)).unwrap_or(usize::MAX);
        let mut writer = Self {
            files,
            plan,
            file,
            kept,
            files_max,
            position,
            dropped_bytes: 0,
            complained: false,
            shared: None,
        };
        writer.prune();
        Ok(writer)
    }

    /// The same as [`RotatingWriter::open`], for files that others may write at the same time. They
    /// are scanned before a write if the last scan is older than `every`.
    pub(super) fn open_shared(
        files: LogFiles,
        files_max: u32,
        file_bytes_max: u64,
        every: Duration,
    ) -> Result<Self, LogError> {
        let shared = Some(LookInterval { every, last: None });
        Ok(Self { shared, ..Self::open(files, files_max, file_bytes_max)? })
    }

    /// The same as [`RotatingWriter::open`], for a stream of which no file exists yet: none is looked
    /// for. If there is one after all, this goes on with it.
    pub(super) fn begin(
        files: LogFiles,
        files_max: u32,
        file_bytes_max: u64,
    ) -> Result<Self, LogError> {
        let Some(file) = files.create_new(0)? else {
            return Self::open(files, files_max, file_bytes_max);
        };
        Ok(Self {
            files,
            plan: RotationPlan::new(file_bytes_max, LOG_LINE_SEEK_BYTES as u64),
            file,
            kept: VecDeque::from([FileStart { index: 0, start: 0 }]),
            files_max: usize::try_from(files_max.max(1)).unwrap_or(usize::MAX),
            position: 0,
            dropped_bytes: 0,
            complained: false,
            shared: None,
        })
    }

    /// The same as [`RotatingWriter::open_shared`], for a stream as in [`RotatingWriter::begin`].
    pub(super) fn begin_shared(
        files: LogFiles,
        files_max: u32,
        file_bytes_max: u64,
        every: Duration,
    ) -> Result<Self, LogError> {
        // The files were looked for a moment ago.
        let last = (!every.is_zero()).then(Stopwatch::start);
        let shared = Some(LookInterval { every, last });
        Ok(Self { shared, ..Self::begin(files, files_max, file_bytes_max)? })
    }

    /// Append bytes. This never fails: what cannot be written is counted, and reported once in the
    /// agent's log.
    pub(super) fn write(&mut self, mut bytes: &[u8]) {
        if !bytes.is_empty()
            && self.shared.as_mut().is_some_and(LookInterval::is_due)
            && let Err(error) = self.catch_up()
        {
            self.drop_bytes(bytes, &io::Error::other(error));
            return;
        }
        while let Some(step) = self.plan.next_step(bytes) {
            let done = match step {
                RotationStep::Write(count) => {
                    let (now, later) = bytes.split_at_checked(count).unwrap_or((bytes, &[]));
                    match self.append(now) {
                        Ok(()) => {
                            bytes = later;
                            Ok(())
                        }
                        Err((written, error)) => {
                            bytes = bytes.get(written..).unwrap_or_default();
                            Err(error)
                        }
                    }
                }
                RotationStep::Rotate => self.rotate().map_err(io::Error::other),
            };
            if let Err(error) = done {
                self.drop_bytes(bytes, &error);
                return;
            }
        }
    }

    fn drop_bytes(&mut self, bytes: &[u8], error: &io::Error) {
        self.dropped_bytes = self.dropped_bytes.saturating_add(bytes.len() as u64);
        self.complain(error);
    }

    /// Find out what others did to the current file: written to it, or removed it.
    fn catch_up(&mut self) -> Result<(), LogError> {
        let Ok(stat) = fstat(self.file.as_fd()) else {
            return Ok(());
        };
        if stat.st_nlink == 0 {
            return self.rotate();
        }
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        if size != self.plan.size() {
            self.plan.resume(size, ends_line(&self.file, size));
        }
        Ok(())
    }

    /// The number of bytes that could not be written since opening.
    pub(super) const fn dropped_bytes(&self) -> u64 {
        self.dropped_bytes
    }

    /// The number of bytes of the stream so far, including those found at opening.
    pub(super) const fn position(&self) -> u64 {
        self.position
    }

    /// The oldest file and the one that is written.
    pub(super) fn bounds(&self) -> (FileStart, FileStart) {
        let none = FileStart { index: 0, start: 0 };
        (self.kept.front().copied().unwrap_or(none), self.kept.back().copied().unwrap_or(none))
    }

    /// Append all bytes. An error has the number of bytes that were written before it.
    fn append(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match self.file.write(rest) {
                Ok(0) => return Err((written, io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.plan.note_written(rest.get(..count).unwrap_or(rest));
                    self.position += count as u64;
                    written += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }

    fn rotate(&mut self) -> Result<(), LogError> {
        let next = self.kept.back().map_or(0, |current| current.index + 1);
        if self.shared.is_some() {
            return self.rotate_shared(next);
        }
        let (index, file) = create_next(&self.files, next)?;
        self.file = file;
        self.kept.push_back(FileStart { index, start: self.position });
        self.plan.note_rotation();
        self.prune();
        Ok(())
    }

    /// Go on in the newest file that another writer has begun, or begin the next.
    fn rotate_shared(&mut self, next: u64) -> Result<(), LogError> {
        let near = next..next.saturating_add(SKIPPED_MAX);
        let begun = self.files.indices()?.into_iter().rev().find(|index| near.contains(index));
        let (index, file) = join_next(&self.files, begun.unwrap_or(next))?;
        let size = file.metadata().map_or(0, |metadata| metadata.len());
        self.plan.resume(size, ends_line(&file, size));
        self.file = file;
        self.kept = VecDeque::from([FileStart { index, start: self.position }]);
        let older = self.files.indices()?.into_iter().rev().skip_while(|other| *other > index);
        for oldest in older.skip(self.files_max) {
            self.files.remove(oldest);
        }
        Ok(())
    }

    /// Remove all but the newest `files_max` files.
    fn prune(&mut self) {
        while self.kept.len() > self.files_max {
            if let Some(oldest) = self.kept.pop_front() {
                self.files.remove(oldest.index);
            }
        }
    }

    fn complain(&mut self, error: &io::Error) {
        if !self.complained {
            self.complained = true;
            let name = self.files.name(self.bounds().1.index);
            tracing::warn!(file = name, %error, "output of a task is dropped: its log cannot be written");
        }
    }
}

/// The number of unavailable names that are skipped for the next file.
const SKIPPED_MAX: u64 = 16;

/// Create the file `first`, or the next one whose name is available.
fn create_next(files: &LogFiles, first: u64) -> Result<(u64, File), LogError> {
    for index in (first..=INDEX_MAX).take(SKIPPED_MAX as usize) {
        if let Some(file) = files.create(index)? {
            return Ok((index, file));
        }
    }
    Err(files.exhausted_error())
}

/// The same as [`create_next`], but a plain file of our own is appended to instead of replaced.
fn join_next(files: &LogFiles, first: u64) -> Result<(u64, File), LogError> {
    for index in (first..=INDEX_MAX).take(SKIPPED_MAX as usize) {
        let file = match files.create_new(index)? {
            Some(file) => Some(file),
            None => match files.append(index)? {
                Some(file) => Some(file),
                None => files.create(index)?,
            },
        };
        if let Some(file) = file {
            return Ok((index, file));
        }
    }
    Err(files.exhausted_error())
}

fn ends_line(file: &File, size: u64) -> bool {
    let mut last = [0];
    size == 0 || (file.read_exact_at(&mut last, size - 1).is_ok() && last == *b"\n")
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]
mod tests {
    use std::fs;
    use std::path::Path;

    use cap_std::ambient_authority;
    use cap_std::fs::Dir;

    use super::super::files::StreamKind;
    use super::*;
    use ostler_model::ids::TaskName;

    fn files(dir: &Path) -> LogFiles {
        let dir = Dir::open_ambient_dir(dir, ambient_authority()).unwrap();
        LogFiles::new(&dir, &TaskName::new("web").unwrap(), StreamKind::Stdout).unwrap()
    }

    fn open(dir: &Path, files_max: u32, limit: u64) -> RotatingWriter {
        RotatingWriter::open(files(dir), files_max, limit).unwrap()
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_stream_that_is_said_to_be_new_goes_on_with_a_file_that_is_there_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for line in ["a\n", "b\n"] {
            let mut writer = RotatingWriter::begin(files(dir.path()), 2, 100).unwrap();
            writer.write(line.as_bytes());
        }
        assert_eq!(names(dir.path()), ["web.stdout.0"]);
        assert_eq!(fs::read(dir.path().join("web.stdout.0")).unwrap(), b"a\nb\n");
    }

    #[test]
    fn exactly_the_newest_files_are_kept() {
        // nomad L18: the oldest index was set to the deleted one, so one file too many or few
        // stayed.
        for files_max in [1, 2, 3] {
            let dir = tempfile::tempdir().unwrap();
            let mut writer = open(dir.path(), files_max, 4);
            for line in 0..10 {
                writer.write(format!("{line}ab\n").as_bytes());
                let expected = (line + 1).min(u64::from(files_max));
                assert_eq!(names(dir.path()).len() as u64, expected);
            }
            let first = 10 - u64::from(files_max);
            let expected: Vec<_> = (first..10).map(|index| format!("web.stdout.{index}")).collect();
            assert_eq!(names(dir.path()), expected);
            let newest = fs::read_to_string(dir.path().join("web.stdout.9")).unwrap();
            assert_eq!(newest, "9ab\n");
        }
    }

    #[test]
    fn opened_again_it_goes_on_at_the_highest_index_and_prunes() {
        let dir = tempfile::tempdir().unwrap();
        for index in [8, 9, 10] {
            fs::write(dir.path().join(format!("web.stdout.{index}")), "old\n").unwrap();
        }
        fs::write(dir.path().join("web.stderr.99"), "another stream").unwrap();
        fs::write(dir.path().join("web.stdout.007"), "not ours").unwrap();
        let mut writer = open(dir.path(), 2, 10);
        assert_eq!(writer.position(), 12);
        writer.write(b"new\n");
        writer.write(b"abcdef\nghi\n");
        drop(writer);
        assert_eq!(
            names(dir.path()),
            ["web.stderr.99", "web.stdout.007", "web.stdout.10", "web.stdout.11"]
        );
        let text = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        assert_eq!(text("web.stdout.10"), "old\nnew\nabcdef\n");
        assert_eq!(text("web.stdout.11"), "ghi\n");
    }

    #[test]
    fn a_link_planted_at_the_next_name_is_replaced_and_its_target_untouched() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (target, absent) = (other.path().join("target"), other.path().join("absent"));
        fs::write(&target, "precious").unwrap();
        let mut writer = open(dir.path(), 10, 4);
        writer.write(b"abc\n");
        std::os::unix::fs::symlink(&target, dir.path().join("web.stdout.1")).unwrap();
        std::os::unix::fs::symlink(&absent, dir.path().join("web.stdout.2")).unwrap();
        fs::hard_link(&target, dir.path().join("web.stdout.3")).unwrap();
        fs::create_dir(dir.path().join("web.stdout.4")).unwrap();
        for line in ["1bc\n", "2bc\n", "3bc\n", "4bc\n"] {
            writer.write(line.as_bytes());
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        assert!(!absent.exists());
        let text =
            |index| fs::read_to_string(dir.path().join(format!("web.stdout.{index}"))).unwrap();
        assert_eq!(
            [text(0), text(1), text(2), text(3), text(5)].concat(),
            "abc\n1bc\n2bc\n3bc\n4bc\n"
        );
        assert_eq!(writer.dropped_bytes(), 0);
    }

    #[test]
    fn a_link_planted_at_the_name_to_go_on_with_is_not_gone_on_with() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let target = other.path().join("target");
        fs::write(&target, "precious").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join("web.stdout.5")).unwrap();
        open(dir.path(), 10, 100).write(b"mine\n");
        fs::hard_link(&target, dir.path().join("web.stdout.7")).unwrap();
        open(dir.path(), 10, 100).write(b"mine\n");
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        for index in [6, 8] {
            let path = dir.path().join(format!("web.stdout.{index}"));
            assert_eq!(fs::read_to_string(path).unwrap(), "mine\n");
        }
    }

    #[test]
    fn a_full_disk_drops_and_counts_and_goes_on_when_there_is_room_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = open(dir.path(), 3, 100);
        writer.write(b"before\n");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let real = std::mem::replace(&mut writer.file, full);
        writer.write(b"lost\n");
        writer.write(b"lost too\n");
        assert_eq!((writer.dropped_bytes(), writer.position()), (14, 7));
        writer.file = real;
        writer.write(b"after\n");
        let text = fs::read_to_string(dir.path().join("web.stdout.0")).unwrap();
        assert_eq!(text, "before\nafter\n");
    }

    #[test]
    fn two_writers_of_the_same_files_lose_nothing_and_keep_the_newest_files() {
        let dir = tempfile::tempdir().unwrap();
        let open =
            || RotatingWriter::open_shared(files(dir.path()), 100, 10, Duration::ZERO).unwrap();
        let mut writers = [open(), open()];
        for line in 0..40 {
            writers[line % 2].write(format!("{line:03}\n").as_bytes());
        }
        assert_eq!(writers.each_ref().map(RotatingWriter::dropped_bytes), [0, 0]);
        let mut files: Vec<_> =
            names(dir.path()).iter().map(|name| name[11..].parse().unwrap()).collect();
        files.sort_unstable();
        let all: String = files
            .iter()
            .map(|index: &u64| {
                fs::read_to_string(dir.path().join(format!("web.stdout.{index}"))).unwrap()
            })
            .collect();
        let expected: String = (0..40).map(|line| format!("{line:03}\n")).collect();
        assert_eq!(all, expected, "in order, each line once");
        assert_eq!(files.len(), 14, "the sizes count what the other wrote");

        let few = super::tests::files(dir.path());
        let mut few = RotatingWriter::open_shared(few, 2, 10, Duration::ZERO).unwrap();
        few.write(b"a long line\n");
        few.write(b"and another\n");
        few.write(b"last\n");
        assert_eq!(names(dir.path()).len(), 2);
    }

    #[test]
    fn a_shared_file_that_was_removed_is_begun_anew_and_a_lost_directory_counts() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let mut writer = RotatingWriter::open_shared(files, 3, 100, Duration::ZERO).unwrap();
        writer.write(b"one\n");
        fs::remove_file(dir.path().join("web.stdout.0")).unwrap();
        writer.write(b"two\n");
        assert_eq!(fs::read_to_string(dir.path().join("web.stdout.1")).unwrap(), "two\n");
        fs::remove_dir_all(dir.path()).unwrap();
        writer.write(b"three\n");
        writer.write(b"four\n");
        assert_eq!(writer.dropped_bytes(), 11);
    }

    #[test]
    fn one_that_looks_seldom_loses_nothing_of_its_own_or_of_the_other_over_rotations() {
        let dir = tempfile::tempdir().unwrap();
        let open = |every| RotatingWriter::open_shared(files(dir.path()), 100, 10, every).unwrap();
        let mut writers = [open(Duration::from_secs(3_600)), open(Duration::ZERO)];
        for line in 0..40 {
            writers[line % 2].write(format!("{line:03}\n").as_bytes());
        }
        let mut lines: Vec<String> = names(dir.path())
            .iter()
            .flat_map(|name| {
                let text = fs::read_to_string(dir.path().join(name)).unwrap();
                text.lines().map(str::to_owned).collect::<Vec<_>>()
            })
            .collect();
        lines.sort();
        let expected: Vec<String> = (0..40).map(|line| format!("{line:03}")).collect();
        assert_eq!(lines, expected, "each line once");
    }

    #[test]
    fn a_line_cut_in_two_before_a_restart_is_finished_in_its_file() {
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), 3, 4).write(b"abcdef");
        open(dir.path(), 3, 4).write(b"gh\nij\n");
        let text =
            |index| fs::read_to_string(dir.path().join(format!("web.stdout.{index}"))).unwrap();
        assert_eq!([text(0), text(1)], ["abcdefgh\n", "ij\n"]);
    }
}
