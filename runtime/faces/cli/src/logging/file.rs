//! The log in a file: how much goes into one file, and how many files are kept.
//!
//! ```text
//! line ─► rotation due? (pure) ── no ─────────────────────► ostler.log
//!           └ yes ─► ostler.log becomes ostler-TIME.log ─► oldest beyond the bound removed ─► a new ostler.log
//! ```
//! The names are those of Nomad's agent: TIME is in nanoseconds since 1970.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_model::clock::{Clock, Timestamp};
use ostler_model::log_config::LogFileConfig;

/// The log file that lines are written to, from one thread.
pub(super) struct LogFile {
    config: LogFileConfig,
    path: PathBuf,
    clock: Clock,
    /// The open file; `None` when a new one could not be opened.
    file: Option<File>,
    bytes: u64,
    begun: Timestamp,
    /// Whether the last error was already reported.
    told: bool,
}

impl LogFile {
    /// Open the file. What is in it stays.
    ///
    /// # Errors
    /// When the file cannot be opened; the text is for the operator.
    pub(super) fn open(config: LogFileConfig) -> Result<Self, String> {
        Self::open_at(config, Clock::system())
    }

    fn open_at(config: LogFileConfig, clock: Clock) -> Result<Self, String> {
        let path = log_path(&config.path);
        let begun = clock.now();
        let mut log = Self { config, path, clock, file: None, bytes: 0, begun, told: false };
        log.open_file().map_err(|error| {
            let path = log.path.display();
            format!("the log file {path} (log_file) cannot be written: {error}")
        })?;
        Ok(log)
    }

    fn open_file(&mut self) -> io::Result<()> {
        if let Some(dir) = self.path.parent() {
            fs::create_dir_all(dir)?;
        }
        // For the agent's user and group: a log may say what jobs are called.
        let file = OpenOptions::new().append(true).create(true).mode(0o640).open(&self.path)?;
        self.bytes = file.metadata()?.len();
        self.begun = self.clock.now();
        self.file = Some(file);
        Ok(())
    }

    /// Write a line. Returns a line about what went wrong, at the first of several errors in a row.
    pub(super) fn write_line(&mut self, line: &[u8]) -> Option<String> {
        let line = strip_colours(line);
        let mut written = Ok(());
        let age = self.clock.now().since(self.begun);
        if self.file.is_none() || is_rotation_due(&self.config, self.bytes, age, line.len()) {
            written = self.rotate();
        }
        if let Some(file) = &mut self.file {
            written = written.and(file.write_all(&line));
            self.bytes = self.bytes.saturating_add(u64::try_from(line.len()).unwrap_or(u64::MAX));
        }
        let told = std::mem::replace(&mut self.told, written.is_err());
        let error = written.err().filter(|_| !told)?;
        Some(format!("the log file {} is incomplete: {error}\n", self.path.display()))
    }

    /// Rename the file and begin a new one. If that fails, the old file goes on.
    fn rotate(&mut self) -> io::Result<()> {
        if self.file.is_some() {
            fs::rename(&self.path, self.rotated_path(self.clock.now()))?;
        }
        self.open_file()?;
        self.prune()
    }

    /// The name that the present file gets when it is rotated.
    fn rotated_path(&self, at: Timestamp) -> PathBuf {
        let (stem, extension) = name_parts(&self.path);
        self.path.with_file_name(format!("{stem}-{}{extension}", at.nanos()))
    }

    fn prune(&self) -> io::Result<()> {
        let most = usize::try_from(self.config.files_max).unwrap_or(usize::MAX);
        let Some(dir) = self.path.parent().filter(|_| most > 0) else { return Ok(()) };
        let mut earlier = Vec::new();
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            if let Some(at) = entry.file_name().to_str().and_then(|name| self.rotation_time(name)) {
                earlier.push((at, entry.path()));
            }
        }
        earlier.sort();
        let beyond = earlier.len().saturating_sub(most);
        earlier.into_iter().take(beyond).try_for_each(|(_, path)| fs::remove_file(path))
    }

    /// When an earlier file ended, by its name; `None` for other files.
    fn rotation_time(&self, name: &str) -> Option<u64> {
        let (stem, extension) = name_parts(&self.path);
        let digits = name.strip_prefix(&stem)?.strip_prefix('-')?.strip_suffix(&extension)?;
        let all = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        digits.parse().ok().filter(|_| all)
    }
}

/// Is a new file to be begun before `more` bytes are written?
fn is_rotation_due(config: &LogFileConfig, bytes: u64, age: Duration, more: usize) -> bool {
    let more = u64::try_from(more).unwrap_or(u64::MAX);
    let full = config.rotate_bytes > 0 && bytes.saturating_add(more) > config.rotate_bytes;
    // An empty file is never rotated.
    bytes > 0 && (full || age >= config.rotate_after)
}

/// The path of the log file: the given file, or a file in the given directory.
fn log_path(path: &Path) -> PathBuf {
    let ends_with_slash = path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if ends_with_slash || path.is_dir() {
        return path.join(LogFileConfig::NAME);
    }
    path.to_owned()
}

/// The name of a file before its extension, and the extension with its dot.
fn name_parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| {
        part.map(|part| part.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let extension = match text(path.extension()) {
        extension if extension.is_empty() => extension,
        extension => format!(".{extension}"),
    };
    (text(path.file_stem()), extension)
}

/// A line without the codes by which a terminal shows colours.
fn strip_colours(line: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        let code = after.strip_prefix(b"[").filter(|_| *byte == 0x1b);
        let end = code.and_then(|code| code.iter().position(u8::is_ascii_alphabetic));
        match code.zip(end) {
            Some((code, end)) => rest = code.get(end + 1..).unwrap_or_default(),
            None => plain.push(*byte),
        }
    }
    plain
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn config(path: PathBuf) -> LogFileConfig {
        let rotate_after = Duration::from_secs(3_600);
        LogFileConfig { path, rotate_bytes: 10, rotate_after, files_max: 2 }
    }

    #[test]
    fn another_file_is_begun_by_size_and_by_time_and_only_so_many_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::fixed(Timestamp::from_nanos(1_000));
        fs::write(dir.path().join("ostler-notes.log"), "somebody's").unwrap();
        let mut log = LogFile::open_at(config(dir.path().to_owned()), clock.clone()).unwrap();
        assert_eq!(log.write_line(b"one\n"), None);
        assert_eq!(log.write_line(b"two\n"), None);
        clock.advance(Duration::from_nanos(1));
        assert_eq!(log.write_line(b"three\n"), None, "eight bytes and six are more than ten");
        assert_eq!(names(dir.path()), ["ostler-1001.log", "ostler-notes.log", "ostler.log"]);
        assert_eq!(fs::read_to_string(dir.path().join("ostler-1001.log")).unwrap(), "one\ntwo\n");
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(log.write_line(b"four\n"), None);
        clock.advance(Duration::from_secs(3_600));
        assert_eq!(log.write_line(b"five\n"), None);
        let left = names(dir.path());
        assert_eq!(left.len(), 4, "two earlier ones, the present one, and somebody's: {left:?}");
        assert!(!left.contains(&"ostler-1001.log".to_owned()), "the oldest went: {left:?}");
        assert_eq!(fs::read_to_string(dir.path().join("ostler.log")).unwrap(), "five\n");
    }

    #[test]
    fn an_agent_that_starts_again_goes_on_in_the_file_and_counts_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sub/agent.txt");
        LogFile::open(config(path.clone())).unwrap().write_line(b"before\n");
        let mut log = LogFile::open(config(path.clone())).unwrap();
        assert_eq!(log.write_line(b"xy\n"), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "before\nxy\n");
        assert_eq!(log.write_line(b"z\n"), None);
        assert_eq!(fs::read_to_string(&path).unwrap(), "z\n");
    }

    #[test]
    fn trouble_is_told_once_and_a_file_that_cannot_be_opened_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let inner = dir.path().join("inner");
        let mut log = LogFile::open(config(inner.join("a.log"))).unwrap();
        log.write_line(b"12345678\n");
        fs::remove_dir_all(&inner).unwrap();
        let said = log.write_line(b"more\n").unwrap();
        assert!(said.contains("is incomplete") && said.ends_with('\n'), "{said}");
        assert_eq!(log.write_line(b"more\n"), None);
        let wrong = LogFile::open(config("/proc/none/a.log".into()));
        let Err(said) = wrong else { panic!("opened") };
        assert!(said.contains("/proc/none/a.log (log_file)"), "{said}");
    }

    #[test]
    fn a_file_has_no_colours() {
        assert_eq!(strip_colours(b"\x1b[32m INFO\x1b[0m it \xc3\xa4\n"), b" INFO it \xc3\xa4\n");
        assert_eq!(strip_colours(b"\x1b"), b"\x1b");
        assert_eq!(strip_colours(b"\x1b[12"), b"\x1b[12");
    }
}
