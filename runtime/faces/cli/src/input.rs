//! Reading the files that the user names on the command line.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use super::args::job::JobFileArgs;
use super::traces;
use ostler_agent::TaskConfigProblem;
use ostler_jobspec::{ConfigFault, Diagnostics, Inputs, JobFile, JobFileError};
use ostler_model::causes::chain;
use ostler_model::config::AgentConfig;
use ostler_model::job::Job;
use ostler_model::limits::CONFIG_FILE_BYTES_MAX;
use ostler_model::limits::JOB_FILE_BYTES_MAX;
use ostler_model::words::count_noun;

/// Why a file could not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum InputError {
    /// The system could not read it.
    #[error("cannot read {}: {source}; check the path", path.display())]
    Read {
        /// The path, as the user gave it.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// It is a directory, a pipe or a device.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The path, as the user gave it.
        path: PathBuf,
    },
    /// It is larger than such a file may be.
    #[error("{} is larger than {max} bytes", path.display())]
    TooLarge {
        /// The path, as the user gave it.
        path: PathBuf,
        /// Bytes read at most.
        max: u64,
    },
    /// A job file that could not be read as text.
    #[error("{}", chain(.0))]
    JobFile(JobFileError),
    /// Values of job variables that cannot be used.
    #[error("{0}")]
    Variables(String),
    /// It asks for something that this program was built without.
    #[error("{}: {why}", path.display())]
    NotBuilt {
        /// The path, as the user gave it.
        path: PathBuf,
        /// What to build, or to leave out.
        why: &'static str,
    },
    /// It was read and has problems.
    #[error("{} has {}", path.display(), count_noun(diagnostics.total_count(), "problem"))]
    Invalid {
        /// The path, as the user gave it.
        path: PathBuf,
        /// The text of the file.
        text: String,
        /// The problems, with their places.
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
    /// The job that the file describes.
    pub(super) fn job(&self) -> &Job {
        &self.file.parsed.job
    }

    /// The text of the file.
    pub(super) fn text(&self) -> &str {
        &self.file.text
    }

    /// Warnings about what the file asks for and the agent does not do.
    pub(super) fn warnings(&self) -> &Diagnostics {
        &self.file.parsed.warnings
    }

    /// The problems that drivers find, at their places in the file.
    pub(super) fn locate_problems(&self, problems: &[TaskConfigProblem]) -> Diagnostics {
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

    /// The error of a file that has these problems.
    pub(super) fn problem_error(&self, problems: &[TaskConfigProblem]) -> InputError {
        InputError::Invalid {
            path: self.path.clone(),
            text: self.text().to_owned(),
            diagnostics: self.locate_problems(problems),
        }
    }
}

/// Read a job file, with the values of its variables; `-` is standard input.
pub(super) fn read_job(source: &JobFileArgs) -> Result<JobInput, InputError> {
    let path = source.file.as_path();
    let inputs = read_variables(source)?;
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
    let bytes = read_stdin(JOB_FILE_BYTES_MAX)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    match ostler_jobspec::read_with(&bytes, path, None, &inputs) {
        Ok(parsed) => Ok(read(JobFile { parsed, text })),
        Err(diagnostics) => Err(InputError::Invalid { path: path.to_owned(), text, diagnostics }),
    }
}

/// The values of job variables, from the environment, files and the command line.
fn read_variables(source: &JobFileArgs) -> Result<Inputs, InputError> {
    let mut inputs = Inputs { directory: std::env::current_dir().ok(), ..Inputs::default() };
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    inputs.add_env(std::env::vars_os().filter_map(text));
    for path in &source.var_file {
        let bytes = read_file(path, JOB_FILE_BYTES_MAX)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| InputError::Variables(format!("{} is not text", path.display())))?;
        let name = path.display().to_string();
        inputs.add_file(name, text).map_err(InputError::Variables)?;
    }
    for var in &source.var {
        inputs.add_var(var).map_err(InputError::Variables)?;
    }
    Ok(inputs)
}

/// Read the configuration of an agent; without a file it is the default.
pub(super) fn read_config(path: Option<&Path>) -> Result<AgentConfig, InputError> {
    let Some(path) = path else {
        return Ok(AgentConfig::default());
    };
    let bytes = read_file(path, CONFIG_FILE_BYTES_MAX)?;
    let read = ostler_jobspec::parse_agent_config(&bytes, path);
    let config = read.map_err(|diagnostics| InputError::Invalid {
        path: path.to_owned(),
        text: String::from_utf8_lossy(&bytes).into_owned(),
        diagnostics,
    })?;
    match traces::refusal(&config.telemetry, ostler_trace::BUILT) {
        Some(why) => Err(InputError::NotBuilt { path: path.to_owned(), why }),
        None => Ok(config),
    }
}

/// Read a regular file of at most `max` bytes.
pub(super) fn read_file(path: &Path, max: u64) -> Result<Vec<u8>, InputError> {
    let failed = |source| InputError::Read { path: path.to_owned(), source };
    // Without this flag, opening a pipe that nobody writes to waits for ever. Files ignore the
    // flag.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        return Err(InputError::NotAFile { path: path.to_owned() });
    }
    read_bounded(file, path, max)
}

/// Read standard input, at most `max` bytes.
pub(super) fn read_stdin(max: u64) -> Result<Vec<u8>, InputError> {
    read_bounded(io::stdin().lock(), Path::new("-"), max)
}

fn read_bounded(reader: impl io::Read, path: &Path, max: u64) -> Result<Vec<u8>, InputError> {
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
        assert_eq!(read_config(None).unwrap(), AgentConfig::default());
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let large = dir.path().join("large");
        std::fs::write(&large, [0; 11]).unwrap();
        let text = |path: &Path| read_file(path, 10).unwrap_err().to_string();
        assert!(text(&large).ends_with("large is larger than 10 bytes"));
        assert!(text(dir.path()).ends_with("is not a regular file"));
        assert!(text(&dir.path().join("gone")).contains("gone: No such file"));
        std::fs::write(&large, [0; 10]).unwrap();
        assert_eq!(read_file(&large, 10).unwrap().len(), 10);
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
