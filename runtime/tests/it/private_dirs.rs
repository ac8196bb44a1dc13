//! Nobody else's eyes: what is made for tasks lies below directories that other users of the node cannot enter.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use ostler_model::clock;

use crate::support::DataDir;
use crate::support::PATIENCE;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::binary::{command, ostler};
use crate::support::jobs::{batch, shell};
use crate::support::needs::{Need, skipped};
use crate::support::system::eventually;

const SETPRIV: &str = "/usr/bin/setpriv";

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

/// What another user of the node gets from a shell; `None` where none can be tried.
fn as_nobody(script: &str, path: &Path) -> Option<bool> {
    if !rustix::process::geteuid().is_root() || !Path::new(SETPRIV).exists() {
        skipped(Need::Root, "only root can look as another user, with setpriv");
        return None;
    }
    let mut command = Command::new(SETPRIV);
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", "/bin/sh", "-c"]);
    command.args([script, "sh"]).arg(path).current_dir("/").stdin(Stdio::null());
    Some(command.stderr(Stdio::null()).stdout(Stdio::null()).status().unwrap().success())
}

fn below(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![];
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.symlink_metadata().is_ok_and(|found| found.is_dir()) {
                left.push(path.clone());
            }
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn nobody_else_reads_or_changes_what_a_run_without_a_data_directory_makes() {
    // As `/tmp` is.
    let tmp = tempfile::tempdir().unwrap();
    std::fs::set_permissions(tmp.path(), Permissions::from_mode(0o1777)).unwrap();
    let (go, file) = (tmp.path().join("go"), tmp.path().join("job.hcl"));
    let script = format!(
        "umask 0; echo secret; echo secret > $NOMAD_ALLOC_DIR/data/open; \
         until [ -e {} ]; do sleep 0.05; done",
        go.display()
    );
    std::fs::write(&file, batch(&shell("t", &script, ""))).unwrap();
    let mut run = command(["run".as_ref(), "--raw-exec".as_ref(), file.as_os_str()]);
    let mut run = run.env("TMPDIR", tmp.path()).stdout(Stdio::null()).spawn().unwrap();
    let made = || below(tmp.path()).into_iter().find(|path| path.ends_with("alloc/data/open"));
    eventually("the task writes", || made().is_some()).await;

    let made = made().unwrap();
    let top = made.strip_prefix(tmp.path()).unwrap().components().next().unwrap();
    let top = tmp.path().join(top);
    assert_eq!(mode(&top), 0o700, "{}", top.display());
    let tried = |script, path: &Path| {
        let got = as_nobody(script, path);
        assert_ne!(got, Some(true), "{script} {}", path.display());
    };
    tried("ls \"$1\"", &top);
    tried("cat \"$1\"", &made);
    tried("cat \"$1\"", &made.with_file_name("../logs/t.stdout.0"));
    tried("echo x > \"$1\"", &made);
    tried("echo x > \"$1\"", &made.with_file_name("planted"));

    std::fs::write(&go, "").unwrap();
    assert!(clock::timeout(PATIENCE, run.wait()).await.expect("it ends").unwrap().success());
}

#[tokio::test]
async fn a_data_directory_that_others_may_enter_is_closed_and_that_is_said() {
    let home = Home::new();
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::write(home.path().join("agent.lock"), "").unwrap();
    let mut agent = AgentProcess::spawn(home, &[], |_| {});
    let said = agent.hears("was open to other users of the node (mode 0755)").await;
    assert!(said.contains("it is closed now"), "{said}");
    agent.hears("ready: the agent").await;
    assert_eq!(mode(agent.data.path()), 0o700);
}

#[tokio::test]
async fn one_with_other_things_in_it_is_refused_with_the_command_that_closes_it() {
    let dir = DataDir::new();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::write(dir.path().join("letter"), "").unwrap();
    let file = dir.path().join("job.hcl");
    std::fs::write(&file, batch(&shell("t", "exit 0", ""))).unwrap();
    let path = dir.path().to_str().unwrap();
    let run = ["run", "--raw-exec", "--data-dir", path, file.to_str().unwrap()];
    let refused = ostler(run).await;
    let command = format!("`chmod 700 {path}`");
    refused.said(3, &["is open to other users of the node (mode 0755)", &command]);
    assert_eq!(mode(dir.path()), 0o755, "nothing of it was changed");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
    ostler(run).await.said(0, &["job j is complete"]);
}
