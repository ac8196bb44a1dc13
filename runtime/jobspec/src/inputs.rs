//! What goes into a job file from outside of it.

use std::path::PathBuf;

use ostler_model::limits::{JOB_FILE_BYTES_MAX, JOB_VAR_FILES_MAX};
use ostler_model::wanted::Awaited;

/// Values of variables, and whether functions may look at files. By default there is none of it.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// `-var name=value`: these go before all others, and the later ones before the earlier ones.
    pub vars: Vec<(String, String)>,
    /// `-var-file`: HCL or JSON; the later ones go before the earlier ones.
    pub files: Vec<VarFile>,
    /// `NOMAD_VAR_name=value`, without the prefix. Those of variables that a file does not have are
    /// not meant for it.
    pub env: Vec<(String, String)>,
    /// The directory that paths in `file(…)` and its like are relative to. Without it they are
    /// refused: who sends a text to an agent does not read the agent's files with it.
    pub directory: Option<PathBuf>,
    /// Whether anybody still waits for the job: when nobody does, its expressions are no longer evaluated.
    pub wanted: Awaited,
}

/// A file of values.
#[derive(Clone, Debug)]
pub struct VarFile {
    /// As the user named it, for messages.
    pub name: String,
    /// What is in it.
    pub text: String,
}

/// Prefix of environment variables that are variables of a job file.
pub const VAR_PREFIX: &str = "NOMAD_VAR_";

impl Inputs {
    /// Add a `name=value` of the command line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn add_var(&mut self, text: &str) -> Result<(), String> {
        let Some((name, value)) = text.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(format!("-var takes name=value, not {text:?}"));
        };
        self.vars.push((name.trim().to_owned(), value.to_owned()));
        self.bounded()
    }

    /// Add a file of values.
    ///
    /// # Errors
    /// When there is too much of it.
    pub fn add_file(
        &mut self,
        name: impl Into<String>,
        text: impl Into<String>,
    ) -> Result<(), String> {
        self.files.push(VarFile { name: name.into(), text: text.into() });
        self.bounded()
    }

    /// Take what is meant for job files from the environment.
    pub fn add_env(&mut self, env: impl IntoIterator<Item = (String, String)>) {
        let ours = |(name, value): (String, String)| {
            Some((name.strip_prefix(VAR_PREFIX)?.to_owned(), value))
        };
        self.env.extend(env.into_iter().filter_map(ours));
    }

    fn bounded(&self) -> Result<(), String> {
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
