//! The inputs of a job file that come from outside of it.

use std::path::PathBuf;

use ostler_model::cancellation::CancelFlag;
use ostler_model::limits::{JOB_FILE_BYTES_MAX, JOB_VAR_FILES_MAX};

/// Values of variables, and whether functions may read files. By default, there are no values, and functions
/// may not.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Values of `-var name=value`. They override all others, and a later one overrides an earlier one.
    pub vars: Vec<(String, String)>,
    /// The files of `-var-file`, in HCL or JSON. A later one overrides an earlier one.
    pub files: Vec<VarFile>,
    /// Values of `NOMAD_VAR_name=value`, without the prefix. A value of a variable that the file does not
    /// declare is ignored.
    pub env: Vec<(String, String)>,
    /// The directory that paths in `file(…)` and similar functions are relative to. Without it, these functions
    /// are refused: a text that is sent to an agent must not read the agent's files.
    pub directory: Option<PathBuf>,
    /// Whether anybody still waits for the job: when nobody does, its expressions are no longer evaluated.
    pub wanted: CancelFlag,
}

/// A file of values for variables.
#[derive(Clone, Debug)]
pub struct VarFile {
    /// The name that the user gave it, for messages.
    pub name: String,
    /// The text of the file.
    pub text: String,
}

/// The prefix of environment variables that set variables of a job file.
pub const VAR_PREFIX: &str = "NOMAD_VAR_";

impl Inputs {
    /// Add a `name=value` of the command line.
    ///
    /// # Errors
    /// A message that says what is wrong with the text.
    pub fn add_var(&mut self, text: &str) -> Result<(), String> {
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(format!("-var takes name=value, not {text:?}"));
        };
        self.vars.push((name.trim().to_owned(), value.to_owned()));
        self.check_bounds()
    }

    /// Add a file of values.
    ///
    /// # Errors
    /// When there are too many files, or too many bytes.
    pub fn add_file(
        &mut self,
        name: impl Into<String>,
        text: impl Into<String>,
    ) -> Result<(), String> {
        self.files.push(VarFile { name: name.into(), text: text.into() });
        self.check_bounds()
    }

    /// Add the variables of an environment that have the prefix.
    pub fn add_env(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        let ours = |(name, value): (String, String)| {
            Some((name.strip_prefix(VAR_PREFIX)?.to_owned(), value))
        };
        self.env.extend(env.into_iter().filter_map(ours));
    }

    fn check_bounds(&self) -> Result<(), String> {
        let vars: usize = self.vars.iter().map(|(name, value)| name.len() + value.len()).sum();
        let files: usize = self.files.iter().map(|file| file.text.len()).sum();
        if u64::try_from(vars + files).is_ok_and(|bytes| bytes > JOB_FILE_BYTES_MAX) {
            return Err(format!("values of variables have at most {JOB_FILE_BYTES_MAX} bytes"));
        }
        if self.files.len() > JOB_VAR_FILES_MAX {
            return Err(format!("at most {JOB_VAR_FILES_MAX} files of variables are read"));
        }
        Ok(())
    }
}
