//! Reading a job file from disk.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Diagnostics, Inputs, Parsed, read_with};
use ostler_model::job::Job;
use ostler_model::limits::JOB_FILE_BYTES_MAX;
use ostler_model::shown::shown_path;
use ostler_model::words::counted;

/// Why a job file could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobFileError {
    /// Not there.
    #[error("there is no job file {}; check the path", shown_path(path))]
    Missing {
        /// The path given.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot read job file {}; check its permissions", shown_path(path))]
    Read {
        /// The path given.
        path: PathBuf,
        /// Its reason.
        #[source]
        source: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("job file {} is a {what}; give a regular file", shown_path(path))]
    NotAFile {
        /// The path given.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// More than [`JOB_FILE_BYTES_MAX`].
    #[error(
        "job file {} is larger than {JOB_FILE_BYTES_MAX} bytes; split the job",
        shown_path(path)
    )]
    TooLarge {
        /// The path given.
        path: PathBuf,
    },
    /// Nothing or blanks.
    #[error("job file {} is empty; write job \"name\" {{ … }}", shown_path(path))]
    Empty {
        /// The path given.
        path: PathBuf,
    },
    /// NUL or not UTF-8.
    #[error("job file {} is no text (byte {offset}); give an HCL or JSON file", shown_path(path))]
    Binary {
        /// The path given.
        path: PathBuf,
        /// The first byte that is not text, from 0.
        offset: usize,
    },
    /// Read, but wrong. Show [`Diagnostics::render`] of `source_text` to a person.
    #[error(
        "job file {} has {}; correct {} and try again",
        shown_path(path), counted(diagnostics.found(), "problem"),
        if diagnostics.found() == 1 { "it" } else { "them" }
    )]
    Invalid {
        /// The path given.
        path: PathBuf,
        /// What was read.
        source_text: String,
        /// What is wrong.
        #[source]
        diagnostics: Diagnostics,
    },
}

/// A job file that was read.
#[derive(Clone, Debug)]
pub struct JobFile {
    /// The job and what goes with it.
    pub parsed: Parsed,
    /// What was read.
    pub text: String,
}

/// As [`read_file`], the job alone.
///
/// # Errors
/// As [`read_file`].
pub fn parse_file(path: &Path) -> Result<Job, JobFileError> {
    read_file(path).map(|file| file.parsed.job)
}

/// Read a job from a regular file of at most [`JOB_FILE_BYTES_MAX`]. The job's source directory is
/// absolute; it has one where something of it refers to that.
///
/// # Errors
/// See [`JobFileError`]; each names the path and the next step.
pub fn read_file(path: &Path) -> Result<JobFile, JobFileError> {
    read_file_with(path, &Inputs::default())
}

/// As [`read_file`], with values of variables.
///
/// # Errors
/// As [`read_file`].
pub fn read_file_with(path: &Path, inputs: &Inputs) -> Result<JobFile, JobFileError> {
    read_opened(open(path)?, path, inputs)
}

/// As [`read_file_with`], of a file that is open already, by the path that it had.
///
/// # Errors
/// As [`read_file`].
pub fn read_opened(file: File, path: &Path, inputs: &Inputs) -> Result<JobFile, JobFileError> {
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

fn failed(path: &Path, source: io::Error) -> JobFileError {
    match source.kind() {
        io::ErrorKind::NotFound => JobFileError::Missing { path: path.to_owned() },
        _ => JobFileError::Read { path: path.to_owned(), source },
    }
}

fn open(path: &Path) -> Result<File, JobFileError> {
    // Opening a pipe nobody writes to waits for ever without this flag; files do not mind it.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(path);
    opened.map_err(|source| failed(path, source))
}

fn bytes_of(file: File, path: &Path) -> Result<Vec<u8>, JobFileError> {
    let failed = |source| failed(path, source);
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
    // One more than allowed: the size in the metadata may be old or, as in /proc, zero.
    let mut bytes = Vec::new();
    file.take(JOB_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if u64::try_from(bytes.len()).is_ok_and(|len| len > JOB_FILE_BYTES_MAX) {
        return Err(JobFileError::TooLarge { path: path.to_owned() });
    }
    Ok(bytes)
}
