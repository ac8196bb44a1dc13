//! Which file a command means, and the texts a program is given.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, FileType, Mode, OFlags, ResolveFlags, access};
use rustix::io::Errno;

use super::error::ProcessError;

/// Where commands are looked for when the task's environment has no `PATH`.
pub const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// The paths that a command may mean, in the order in which they are tried. First come the
/// directories of `search`, with the command below each. Then an absolute command means itself, one
/// with a slash is relative to `cwd`, and any other is looked for below each directory of `path`.
pub fn candidates(command: &str, search: &[PathBuf], cwd: &Path, path: &str) -> Vec<PathBuf> {
    let name = command.trim_start_matches('/');
    let own = search.iter().map(|dir| dir.join(name));
    let usual: Vec<PathBuf> = if command.contains('/') {
        vec![cwd.join(command)]
    } else {
        path.split(':').map(|dir| cwd.join(dir).join(command)).collect()
    };
    let mut all = Vec::new();
    for candidate in own.chain(usual) {
        if !all.contains(&candidate) {
            all.push(candidate);
        }
    }
    all
}

/// The `PATH` of an environment, or [`PATH_DEFAULT`].
pub fn path_of(env: &[(String, String)]) -> &str {
    let path = env.iter().rev().find(|(name, _)| name == "PATH");
    path.map_or(PATH_DEFAULT, |(_, value)| value.as_str())
}

/// The first file that a command may mean ([`candidates`]) and that can be run. One in a directory of
/// `search` is made executable.
///
/// # Errors
/// [`ProcessError::CommandNotFound`], or [`ProcessError::NotExecutable`] when only files that
/// cannot be run were found.
pub fn resolve(
    command: &str,
    search: &[PathBuf],
    cwd: &Path,
    env: &[(String, String)],
) -> Result<PathBuf, ProcessError> {
    if command.is_empty() {
        return Err(ProcessError::InvalidText { what: "command", reason: "is empty" });
    }
    let candidates = candidates(command, search, cwd, path_of(env));
    let mut refused = None;
    for candidate in &candidates {
        if let Some(dir) = search.iter().find(|dir| candidate.starts_with(dir)) {
            make_executable(dir, candidate);
        }
        match check_runnable(candidate) {
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
            looked_for: join_paths(&candidates),
        },
    })
}

/// Let everybody read and execute a file of the task that its owner may not execute, such as a
/// program that a template wrote. Nothing outside of `dir` is touched. A failure shows when the
/// file is run.
pub fn make_executable(dir: &Path, file: &Path) {
    const RUN: u32 = 0o555;
    const OWNER_RUNS: u32 = 0o100;
    let Ok(rest) = file.strip_prefix(dir) else { return };
    let done = || -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(dir, flags, Mode::empty())?;
        let how = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // Opening something else than a file, such as a pipe of the task, must not block.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = rustix::fs::openat2(dir, rest, flags, Mode::empty(), how)?;
        let found = rustix::fs::fstat(&file)?;
        let plain = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
        // A file with other names may be somebody else's.
        if plain && found.st_nlink == 1 && found.st_mode & OWNER_RUNS == 0 {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(found.st_mode & 0o777 | RUN))?;
        }
        Ok(())
    };
    let _said_when_it_is_run = done();
}

/// A path, made relative for a process in `cwd`: as another user than the agent it may not get
/// there from the root.
pub fn path_from_within(path: PathBuf, cwd: &Path) -> PathBuf {
    match path.strip_prefix(cwd) {
        Ok(rest) if !rest.as_os_str().is_empty() => Path::new(".").join(rest),
        _ => path,
    }
}

/// Paths, the first few, comma separated.
pub(super) fn join_paths(candidates: &[PathBuf]) -> String {
    const SHOWN: usize = 16;
    let mut text: Vec<_> =
        candidates.iter().take(SHOWN).map(|path| path.display().to_string()).collect();
    if candidates.len() > SHOWN {
        text.push(format!("and {} more", candidates.len() - SHOWN));
    }
    text.join(", ")
}

/// Whether this is a file that can be run. `Ok(false)` when there is nothing; an error says why the
/// file cannot be run.
fn check_runnable(path: &Path) -> Result<bool, String> {
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

/// The texts that `execve` and `chdir` take, as C strings.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Texts {
    /// Path of the file to execute.
    pub program: CString,
    /// Arguments. The first is the command as it was given.
    pub argv: Vec<CString>,
    /// The environment, one `NAME=value` each.
    pub env: Vec<CString>,
    /// Path of the working directory.
    pub cwd: CString,
}

impl Texts {
    /// Check the texts and make C strings of them.
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
        let mut argv = vec![to_c_string("command", command.as_ref())?];
        for arg in args {
            argv.push(to_c_string("argument", arg.as_ref())?);
        }
        let mut variables = Vec::with_capacity(env.len());
        for (name, value) in env {
            if name.is_empty() || name.contains('=') {
                return Err(ProcessError::InvalidText {
                    what: "environment variable",
                    reason: "has a name that is empty or contains '='",
                });
            }
            variables
                .push(to_c_string("environment variable", format!("{name}={value}").as_ref())?);
        }
        Ok(Self {
            program: to_c_string("command", program.as_os_str())?,
            argv,
            env: variables,
            cwd: to_c_string("working directory", cwd.as_os_str())?,
        })
    }
}

fn to_c_string(what: &'static str, text: &OsStr) -> Result<CString, ProcessError> {
    CString::new(text.as_bytes())
        .map_err(|_| ProcessError::InvalidText { what, reason: "contains a NUL byte" })
}

/// Check that a working directory can be used.
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
        assert_eq!(
            resolve("tool", &[], Path::new("/"), &env(&path)).unwrap(),
            dir.path().join("tool")
        );
        let error = resolve("tool", &[], Path::new("/"), &env("/nowhere:/else")).unwrap_err();
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
        assert_eq!(
            resolve("local/tool", &[], dir.path(), &[]).unwrap(),
            dir.path().join("local/tool")
        );
    }

    #[test]
    fn a_command_is_looked_for_in_the_own_directories_first_and_made_executable_there() {
        let dir = tempfile::tempdir().unwrap();
        let (local, root) = (dir.path().join("local"), dir.path().to_owned());
        fs::create_dir_all(local.join("bin")).unwrap();
        let search = [local.clone(), root.clone()];
        let found = |command: &str| resolve(command, &search, &root, &[]);
        assert!(
            found("sh").unwrap().starts_with("/usr") || found("sh").unwrap().starts_with("/bin")
        );
        program(&root.join("sh"), 0o644);
        assert_eq!(found("sh").unwrap(), root.join("sh"));
        program(&local.join("sh"), 0o600);
        assert_eq!(found("sh").unwrap(), local.join("sh"));
        assert_eq!(fs::metadata(local.join("sh")).unwrap().permissions().mode() & 0o7777, 0o755);
        program(&local.join("bin/tool"), 0o644);
        for command in ["bin/tool", "/bin/tool", "local/bin/tool", "/local/bin/tool", "./bin/tool"]
        {
            assert!(found(command).unwrap().ends_with("bin/tool"), "{command}");
        }
        // A directory of this name is no program, and what a link leads to outside is not touched.
        assert!(found("bin").is_err());
        let outside = tempfile::tempdir().unwrap();
        program(&outside.path().join("kept"), 0o644);
        std::os::unix::fs::symlink(outside.path().join("kept"), local.join("linked-tool")).unwrap();
        assert!(matches!(found("linked-tool").unwrap_err(), ProcessError::NotExecutable { .. }));
        let mode = fs::metadata(outside.path().join("kept")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        let error = found("nothing").unwrap_err().to_string();
        for place in [local.join("nothing"), root.join("nothing"), "/usr/bin/nothing".into()] {
            assert!(error.contains(&place.display().to_string()), "{error}");
        }
    }

    #[test]
    fn without_a_path_the_default_one_is_searched() {
        assert!(resolve("sh", &[], Path::new("/"), &[]).unwrap().ends_with("sh"));
    }

    #[test]
    fn a_file_without_execute_permission_is_passed_over_for_a_later_one() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        program(&first.path().join("tool"), 0o644);
        let path = format!("{}:{}", first.path().display(), second.path().display());
        let error = resolve("tool", &[], Path::new("/"), &env(&path)).unwrap_err();
        assert!(matches!(error, ProcessError::NotExecutable { .. }), "{error}");
        program(&second.path().join("tool"), 0o755);
        assert_eq!(
            resolve("tool", &[], Path::new("/"), &env(&path)).unwrap(),
            second.path().join("tool")
        );
        let error = resolve("/tmp", &[], Path::new("/"), &[]).unwrap_err();
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
