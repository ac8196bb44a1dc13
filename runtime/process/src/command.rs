//! Which file a command means, and the texts a program is given.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::error::ProcessError;

/// Where commands are looked for when the task's environment has no `PATH`.
pub const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// The file `command` means: itself when absolute, relative to `cwd` when it contains a slash,
/// otherwise the first executable of this name in the `PATH` of `env`.
///
/// # Errors
/// [`ProcessError::CommandNotFound`], or [`ProcessError::NotExecutable`] when only files that
/// cannot be run were found.
pub fn resolve(
    command: &str,
    cwd: &Path,
    env: &[(String, String)],
) -> Result<PathBuf, ProcessError> {
    if command.is_empty() {
        return Err(ProcessError::InvalidText { what: "command", reason: "is empty" });
    }
    let candidates: Vec<PathBuf> = if command.contains('/') {
        vec![cwd.join(command)]
    } else {
        let path = env.iter().rev().find(|(name, _)| name == "PATH");
        let path = path.map_or(PATH_DEFAULT, |(_, value)| value.as_str());
        path.split(':').map(|dir| cwd.join(dir).join(command)).collect()
    };
    let mut refused = None;
    for candidate in &candidates {
        match usable(candidate) {
            Ok(true) => return Ok(candidate.clone()),
            Ok(false) => {}
            Err(reason) => {
                refused.get_or_insert((candidate.clone(), reason));
            }
        }
    }
    Err(match refused {
        Some((path, reason)) => ProcessError::NotExecutable { path, reason },
        None => ProcessError::CommandNotFound {
            command: command.to_owned(),
            looked_for: listed(&candidates),
        },
    })
}

/// Paths, the first few, comma separated.
pub(super) fn listed(candidates: &[PathBuf]) -> String {
    const SHOWN: usize = 16;
    let mut text: Vec<_> =
        candidates.iter().take(SHOWN).map(|path| path.display().to_string()).collect();
    if candidates.len() > SHOWN {
        text.push(format!("and {} more", candidates.len() - SHOWN));
    }
    text.join(", ")
}

/// Is this a file that can be run? `Ok(false)` when there is nothing.
fn usable(path: &Path) -> Result<bool, String> {
    let Ok(metadata) = fs::metadata(path) else {
        return Ok(false);
    };
    if metadata.is_dir() {
        return Err("it is a directory".to_owned());
    }
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    match access(path, Access::EXEC_OK) {
        Ok(()) => Ok(true),
        Err(_) => Err("it has no execute permission (chmod +x)".to_owned()),
    }
}

/// The texts of `execve`, terminated as the kernel wants them.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Texts {
    /// The file.
    pub program: CString,
    /// Arguments, the first is the command as given.
    pub argv: Vec<CString>,
    /// `NAME=value`.
    pub env: Vec<CString>,
    /// Working directory.
    pub cwd: CString,
}

impl Texts {
    /// Check and terminate.
    ///
    /// # Errors
    /// [`ProcessError::InvalidText`] for a NUL byte or a variable name that is empty or has `=`.
    pub fn new(
        program: &Path,
        command: &str,
        args: &[String],
        env: &[(String, String)],
        cwd: &Path,
    ) -> Result<Self, ProcessError> {
        let mut argv = vec![terminated("command", command.as_ref())?];
        for arg in args {
            argv.push(terminated("argument", arg.as_ref())?);
        }
        let mut variables = Vec::with_capacity(env.len());
        for (name, value) in env {
            if name.is_empty() || name.contains('=') {
                return Err(ProcessError::InvalidText {
                    what: "environment variable",
                    reason: "has a name that is empty or contains '='",
                });
            }
            variables.push(terminated("environment variable", format!("{name}={value}").as_ref())?);
        }
        Ok(Self {
            program: terminated("command", program.as_os_str())?,
            argv,
            env: variables,
            cwd: terminated("working directory", cwd.as_os_str())?,
        })
    }
}

fn terminated(what: &'static str, text: &OsStr) -> Result<CString, ProcessError> {
    CString::new(text.as_bytes())
        .map_err(|_| ProcessError::InvalidText { what, reason: "contains a NUL byte" })
}

/// The working directory as it must be.
///
/// # Errors
/// [`ProcessError::WorkingDirectory`] when it is relative or no directory.
pub fn check_cwd(cwd: &Path) -> Result<(), ProcessError> {
    let refused = |reason: String| ProcessError::WorkingDirectory { path: cwd.to_owned(), reason };
    if !cwd.is_absolute() {
        return Err(refused("it is not absolute".to_owned()));
    }
    match fs::metadata(cwd) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(refused("it is not a directory".to_owned())),
        Err(error) => Err(refused(error.to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn env(path: &str) -> Vec<(String, String)> {
        vec![("PATH".to_owned(), path.to_owned())]
    }

    fn program(path: &Path, mode: u32) {
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_bare_name_is_looked_up_in_the_path_of_the_task_and_only_there() {
        let dir = tempfile::tempdir().unwrap();
        program(&dir.path().join("tool"), 0o755);
        let path = format!("/nowhere:{}", dir.path().display());
        assert_eq!(resolve("tool", Path::new("/"), &env(&path)).unwrap(), dir.path().join("tool"));
        let error = resolve("tool", Path::new("/"), &env("/nowhere:/else")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "command \"tool\" was not found; looked for: /nowhere/tool, /else/tool"
        );
    }

    #[test]
    fn a_name_with_a_slash_is_relative_to_the_working_directory() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("local")).unwrap();
        program(&dir.path().join("local/tool"), 0o755);
        assert_eq!(resolve("local/tool", dir.path(), &[]).unwrap(), dir.path().join("local/tool"));
    }

    #[test]
    fn without_a_path_the_default_one_is_searched() {
        assert!(resolve("sh", Path::new("/"), &[]).unwrap().ends_with("sh"));
    }

    #[test]
    fn a_file_without_execute_permission_is_passed_over_for_a_later_one() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        program(&first.path().join("tool"), 0o644);
        let path = format!("{}:{}", first.path().display(), second.path().display());
        let error = resolve("tool", Path::new("/"), &env(&path)).unwrap_err();
        assert!(matches!(error, ProcessError::NotExecutable { .. }), "{error}");
        program(&second.path().join("tool"), 0o755);
        assert_eq!(
            resolve("tool", Path::new("/"), &env(&path)).unwrap(),
            second.path().join("tool")
        );
        let error = resolve("/tmp", Path::new("/"), &[]).unwrap_err();
        assert!(error.to_string().contains("it is a directory"), "{error}");
    }

    #[test]
    fn texts_with_nul_bytes_and_broken_variable_names_are_refused() {
        let texts = |args: &[String], env: &[(String, String)]| {
            Texts::new(Path::new("/bin/sh"), "sh", args, env, Path::new("/"))
        };
        assert!(texts(&["a\0b".to_owned()], &[]).is_err());
        assert!(texts(&[], &[("A=B".to_owned(), String::new())]).is_err());
        assert!(texts(&[], &[(String::new(), "x".to_owned())]).is_err());
        assert_eq!(texts(&[], &[("A".to_owned(), "b=c".to_owned())]).unwrap().env.len(), 1);
    }
}
