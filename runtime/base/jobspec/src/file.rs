//! Reads a job file from disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Diagnostics, Inputs, ParsedJob, read_with};
use ostler_model::job::Job;
use ostler_model::limits::JOB_FILE_BYTES_MAX;
use ostler_model::printable::printable_path;
use ostler_model::words::count_noun;

/// Why a job file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobFileError {
    /// The file does not exist.
    #[error("there is no job file {}; check the path", printable_path(path))]
    Missing {
        /// The path given.
        path: PathBuf,
    },
    /// The system refused to open or to read the file.
    #[error("cannot read job file {}; check its permissions", printable_path(path))]
    Read {
        /// The path given.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// The path is a directory, a pipe, a socket or a device.
    #[error("job file {} is a {what}; give a regular file", printable_path(path))]
    NotAFile {
        /// The path given.
        path: PathBuf,
        /// The kind of file that it is, as one word.
        what: &'static str,
    },
    /// The file has more than [`JOB_FILE_BYTES_MAX`] bytes.
    #[error(
        "job file {} is larger than {JOB_FILE_BYTES_MAX} bytes; split the job",
        printable_path(path)
    )]
    TooLarge {
        /// The path given.
        path: PathBuf,
    },
    /// The file holds nothing, or blanks alone.
    #[error("job file {} is empty; write job \"name\" {{ … }}", printable_path(path))]
    Empty {
        /// The path given.
        path: PathBuf,
    },
    /// The file holds a NUL character, or is not UTF-8.
    #[error(
        "job file {} is not text (byte {offset}); give an HCL or JSON file",
        printable_path(path)
    )]
    Binary {
        /// The path given.
        path: PathBuf,
        /// The first byte that is not text, from 0.
        offset: usize,
    },
    /// The file was read and has problems. Show [`Diagnostics::render`] of `source_text` to a person.
    #[error(
        "job file {} has {}; correct {} and try again",
        printable_path(path), count_noun(diagnostics.total_count(), "problem"),
        if diagnostics.total_count() == 1 { "it" } else { "them" }
    )]
    Invalid {
        /// The path given.
        path: PathBuf,
        /// The text of the file.
        source_text: String,
        /// The problems of the text.
        #[source]
        diagnostics: Diagnostics,
    },
}

/// A job file that was read.
#[derive(Clone, Debug)]
pub struct JobFile {
    /// The job and what goes with it.
    pub parsed: ParsedJob,
    /// The text of the file.
    pub text: String,
}

/// Read a job as [`read_file`] does, and return the job alone.
///
/// # Errors
/// As [`read_file`].
pub fn parse_file(path: &Path) -> Result<Job, JobFileError> {
    read_file(path).map(|file| file.parsed.job)
}

/// Read a job from a regular file of at most [`JOB_FILE_BYTES_MAX`] bytes. The job has a source directory if a
/// text of it refers to the directory; the path of it is absolute.
///
/// # Errors
/// See [`JobFileError`]; each names the path and the next step.
pub fn read_file(path: &Path) -> Result<JobFile, JobFileError> {
    read_file_with(path, &Inputs::default())
}

/// Read a job as [`read_file`] does, with values for its variables.
///
/// # Errors
/// As [`read_file`].
pub fn read_file_with(path: &Path, inputs: &Inputs) -> Result<JobFile, JobFileError> {
    read_open_file(open(path)?, path, inputs)
}

/// Read a job as [`read_file_with`] does, from a file that is open already; `path` is where it was opened.
///
/// # Errors
/// As [`read_file`].
pub fn read_open_file(file: File, path: &Path, inputs: &Inputs) -> Result<JobFile, JobFileError> {
    let bytes = bytes_of(file, path)?;
    let invalid = |offset| JobFileError::Binary { path: path.to_owned(), offset };
    if let Some(offset) = bytes.iter().position(|byte| *byte == 0) {
        return Err(invalid(offset));
    }
    let text = std::str::from_utf8(&bytes).map_err(|error| invalid(error.valid_up_to()))?;
    if text.trim_start_matches('\u{feff}').trim().is_empty() {
        return Err(JobFileError::Empty { path: path.to_owned() });
    }
    let mut parsed = read_with(&bytes, path, None, inputs).map_err(|diagnostics| {
        JobFileError::Invalid { path: path.to_owned(), source_text: text.to_owned(), diagnostics }
    })?;
    let absolute = std::path::absolute(path)
        .map_err(|source| JobFileError::Read { path: path.to_owned(), source })?;
    if parsed.job.source_dir.is_some() {
        parsed.job.source_dir = absolute.parent().map(Path::to_path_buf);
    }
    Ok(JobFile { parsed, text: text.to_owned() })
}

fn file_error(path: &Path, source: io::Error) -> JobFileError {
    match source.kind() {
        io::ErrorKind::NotFound => JobFileError::Missing { path: path.to_owned() },
        _ => JobFileError::Read { path: path.to_owned(), source },
    }
}

fn open(path: &Path) -> Result<File, JobFileError> {
    // Without this flag, opening a pipe that has no writer waits for ever. The flag does not affect files.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|source| file_error(path, source))
}

fn bytes_of(file: File, path: &Path) -> Result<Vec<u8>, JobFileError> {
    let failed = |source| file_error(path, source);
    let kind = file.metadata().map_err(failed)?.file_type();
    if !kind.is_file() {
        let what = match kind {
            kind if kind.is_dir() => "directory",
            kind if kind.is_fifo() => "pipe",
            kind if kind.is_socket() => "socket",
            _ => "device",
        };
        return Err(JobFileError::NotAFile { path: path.to_owned(), what });
    }
    // Read one byte more than allowed, because the size in the metadata may be old or, as in /proc, zero.
    let mut bytes = Vec::new();
    file.take(JOB_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > JOB_FILE_BYTES_MAX) {
        return Err(JobFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
