//! Runs one CNI plugin.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::answer;
use super::conflist::CniPlugin;
use ostler_model::ids::AllocId;
use ostler_model::limits::CNI_PLUGIN_WALL_MAX;
use ostler_process::program::{self, CommandFailure, ProgramStart};

/// Where plugins find the programs that they run.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The interface in the namespace.
const INTERFACE: &str = "eth0";

/// What all plugins of a network are told by their environment.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// Whose network.
    pub alloc: AllocId,
    /// The file that holds the namespace; absent: it is gone.
    pub namespace: Option<PathBuf>,
    /// Directories of plugins.
    pub paths: Vec<PathBuf>,
}

/// What is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
}

impl Surroundings {
    /// Run one. Its result, of one that adds.
    pub(crate) async fn run(
        &self,
        verb: Verb,
        plugin: &CniPlugin,
        input: &Value,
    ) -> Result<Value, String> {
        let name = &plugin.kind;
        let program = find(&self.paths, name).ok_or_else(|| missing(name, &self.paths))?;
        let start = ProgramStart {
            program,
            args: Vec::new(),
            env: self.env(verb),
            input: input.to_string().into_bytes(),
        };
        let output = program::run_with(start, CNI_PLUGIN_WALL_MAX).await.map_err(|failed| {
            let why = match failed {
                CommandFailure::TimedOut => format!("did not end within {CNI_PLUGIN_WALL_MAX:?}"),
                other => other.to_string(),
            };
            format!("CNI plugin {name}: {why}")
        })?;
        if output.exit_code != Some(0) {
            let said = answer::failure(&output.stdout, &output.stderr);
            return Err(format!("CNI plugin {name} failed: {said}"));
        }
        if verb == Verb::Del {
            return Ok(Value::Null);
        }
        answer::result(&output.stdout, output.truncated)
            .map_err(|error| format!("the answer of CNI plugin {name} is broken: {error}"))
    }

    fn env(&self, verb: Verb) -> Vec<(String, String)> {
        let verb = match verb {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
        };
        let paths: Vec<_> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let namespace = self.namespace.as_ref().map(|path| path.display().to_string());
        let all = [
            ("PATH", PATH.to_owned()),
            ("CNI_COMMAND", verb.to_owned()),
            ("CNI_CONTAINERID", self.alloc.to_string()),
            ("CNI_NETNS", namespace.unwrap_or_default()),
            ("CNI_IFNAME", INTERFACE.to_owned()),
            ("CNI_PATH", paths.join(":")),
            ("CNI_ARGS", "IgnoreUnknown=true".to_owned()),
        ];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}

/// The first of this name in the directories.
pub(crate) fn find(paths: &[PathBuf], name: &str) -> Option<PathBuf> {
    paths.iter().map(|dir| dir.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// What is said of a plugin that is not there.
pub(crate) fn missing(name: &str, paths: &[PathBuf]) -> String {
    let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    format!(
        "CNI plugin {name} is not in {}: install {} (Debian), or say in client {{ cni_path = … }} where \
         plugins are",
        paths.join(", "),
        ostler_model::network::CNI_PACKAGE
    )
}
