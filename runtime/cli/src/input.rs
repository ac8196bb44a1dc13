//! Reading what the user names on the command line.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::args::job::JobFileArgs;
use super::traces;
use ostler_agent::ConfigProblem;
use ostler_jobspec::{ConfigFault, Diagnostics, Inputs, JobFile, JobFileError};
use ostler_model::causes::chain;
use ostler_model::config::AgentConfig;
use ostler_model::job::Job;
use ostler_model::limits::CONFIG_FILE_BYTES_MAX;
use ostler_model::limits::JOB_FILE_BYTES_MAX;
use ostler_model::words::counted;

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    /// The system refused.
    #[error("cannot read {}: {source}; check the path", path.display())]
    Read {
        /// The path given.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// A directory, a pipe, a device.
    #[error("{} is no regular file", path.display())]
    NotAFile {
        /// The path given.
        path: PathBuf,
    },
    /// More than is ever read of such a file.
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge {
        /// The path given.
        path: PathBuf,
        /// Bytes read at most.
        max: u64,
    },
    /// A job file that could not be read as text.
    #[error("{}", chain(.0))]
    JobFile(JobFileError),
    /// Values of variables that cannot be used.
    #[error("{0}")]
    Variables(String),
    /// What it asks for is not built in.
    #[error("{}: {why}", path.display())]
    NotBuilt {
        /// The path given.
        path: PathBuf,
        /// What to build, or to leave out.
        why: &'static str,
    },
    /// Read, and wrong in places.
    #[error("{} has {}", path.display(), counted(diagnostics.found(), "problem"))]
    Invalid {
        /// The path given.
        path: PathBuf,
        /// What was read.
        text: String,
        /// What is wrong.
        diagnostics: Diagnostics,
    },
}

/// A job file that was read.
#[derive(Clone, Debug)]
pub(super) struct JobInput {
    path: PathBuf,
    file: JobFile,
}

impl JobInput {
    /// The job.
    pub(super) fn job(&self) -> &Job {
        &self.file.parsed.job
    }

    /// What was read.
    pub(super) fn text(&self) -> &str {
        &self.file.text
    }

    /// What is accepted and not done.
    pub(super) fn warnings(&self) -> &Diagnostics {
        &self.file.parsed.warnings
    }

    /// What drivers find wrong, at the places in the file.
    pub(super) fn located(&self, problems: &[ConfigProblem]) -> Diagnostics {
        let faults = problems.iter().map(|problem| ConfigFault {
            group: &problem.group,
            task: &problem.task,
            path: &problem.path,
            message: &problem.message,
            suggestion: problem.suggestion.as_deref(),
            of_driver: problem.of_driver,
        });
        let file = self.path.display().to_string();
        self.file.parsed.places.diagnostics(faults, self.text(), &file)
    }

    /// The same as the error that a file is with such problems in it.
    pub(super) fn refused(&self, problems: &[ConfigProblem]) -> InputError {
        InputError::Invalid {
            path: self.path.clone(),
            text: self.text().to_owned(),
            diagnostics: self.located(problems),
        }
    }
}

/// Read a job file, with the values of its variables; `-` is the standard input.
pub(super) fn job(source: &JobFileArgs) -> Result<JobInput, InputError> {
    let path = source.file.as_path();
    let inputs = inputs(source)?;
    let read = |file| JobInput { path: path.to_owned(), file };
    if path != Path::new("-") {
        return ostler_jobspec::read_file_with(path, &inputs).map(read).map_err(
            |error| match error {
                JobFileError::Invalid { path, source_text, diagnostics } => {
                    InputError::Invalid { path, text: source_text, diagnostics }
                }
                other => InputError::JobFile(other),
            },
        );
    }
    let bytes = standard_input(JOB_FILE_BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match ostler_jobspec::read_with(&bytes, path, None, &inputs) {
        Ok(parsed) => Ok(read(JobFile { parsed, text })),
        Err(diagnostics) => Err(InputError::Invalid { path: path.to_owned(), text, diagnostics }),
    }
}

/// The values of variables, from the environment, files and the command line.
fn inputs(source: &JobFileArgs) -> Result<Inputs, InputError> {
    let mut inputs = Inputs { directory: std::env::current_dir().ok(), ..Inputs::default() };
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    inputs.add_env(std::env::vars_os().filter_map(text));
    for path in &source.var_file {
        let bytes = file(path, JOB_FILE_BYTES_MAX)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| InputError::Variables(format!("{} is no text", path.display())))?;
        let name = path.display().to_string();
        inputs.add_file(name, text).map_err(InputError::Variables)?;
    }
    for var in &source.var {
        inputs.add_var(var).map_err(InputError::Variables)?;
    }
    Ok(inputs)
}

/// Read the agent's configuration; without a file it is the default.
pub(super) fn config(path: Option<&Path>) -> Result<AgentConfig, InputError> {
    let Some(path) = path else {
        return Ok(AgentConfig::default());
    };
    let bytes = file(path, CONFIG_FILE_BYTES_MAX)?;
    let read = ostler_jobspec::parse_agent_config(&bytes, path);
    let config = read.map_err(|diagnostics| InputError::Invalid {
        path: path.to_owned(),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        diagnostics,
    })?;
    match traces::refused(&config.telemetry, ostler_trace::BUILT) {
        Some(why) => Err(InputError::NotBuilt { path: path.to_owned(), why }),
        None => Ok(config),
    }
}

/// Read a regular file of at most `max` bytes.
pub(super) fn file(path: &Path, max: u64) -> Result<Vec<u8>, InputError> {
    let failed = |source| InputError::Read { path: path.to_owned(), source };
    // Opening a pipe nobody writes to waits for ever without this flag; files do not mind it.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(InputError::NotAFile { path: path.to_owned() });
    }
    bounded(file, path, max)
}

/// Read the standard input, at most `max` bytes.
pub(super) fn standard_input(max: u64) -> Result<Vec<u8>, InputError> {
    bounded(io::stdin().lock(), Path::new("-"), max)
}

fn bounded(reader: impl io::Read, path: &Path, max: u64) -> Result<Vec<u8>, InputError> {
    let mut bytes = Vec::new();
    let read = reader.take(max.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| InputError::Read { path: path.to_owned(), source })?;
    if u64::try_from(bytes.len()).is_ok_and(|length| length > max) {
        return Err(InputError::TooLarge { path: path.to_owned(), max });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn no_configuration_file_is_the_default() {
        assert_eq!(config(None).unwrap(), AgentConfig::default());
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        std::fs::write(&large, [0; 11]).unwrap();
        let text = |path: &Path| file(path, 10).unwrap_err().to_string();
        assert!(text(&large).ends_with("large is larger than 10 bytes"));
        assert!(text(dir.path()).ends_with("is no regular file"));
        assert!(text(&dir.path().join("gone")).contains("gone: No such file"));
        std::fs::write(&large, [0; 10]).unwrap();
        assert_eq!(file(&large, 10).unwrap().len(), 10);
    }

    #[test]
    fn a_cause_is_told_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer: {0}")]
        struct Telling(#[source] io::Error);
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Silent(#[source] io::Error);
        assert_eq!(chain(&Telling(io::Error::other("inner"))), "outer: inner");
        assert_eq!(chain(&Silent(io::Error::other("inner"))), "outer: inner");
    }
}
