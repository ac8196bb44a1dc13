//! What native programs find in their environment.

use std::path::Path;

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, batch, isolated_shell, shell};

const PRINT: &str = "echo \"$USER $LOGNAME $HOME $LANG\"; test -n \"$PATH\" && id -un";

#[tokio::test(flavor = "multi_thread")]
async fn native_programs_find_a_path_a_home_a_language_and_who_they_run_as() {
    let agent = TestAgent::start().await;
    let own = "env {\n HOME = \"/srv\"\n LANG = \"de_DE.UTF-8\"\n }";
    let tasks = shell("raw", PRINT, "")
        + &shell("own", PRINT, own)
        + &isolated_shell("isolated", PRINT, "");
    let result = agent.run(&batch(&tasks)).await;
    assert_successful(&result);
    let users = std::fs::read_to_string("/etc/passwd").unwrap();
    let uid = rustix::process::geteuid().as_raw().to_string();
    let mut users = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let me = users.find(|user| user[2] == uid).unwrap();
    let (name, home) = (me[0], me[5]);
    assert_eq!(agent.stdout(&result, "raw"), format!("{name} {name} {home} C.UTF-8\n{name}\n"));
    assert_eq!(agent.stdout(&result, "own"), format!("{name} {name} /srv de_DE.UTF-8\n{name}\n"));
    let said = agent.stdout(&result, "isolated");
    let (variables, runs_as) = said.trim_end().split_once('\n').unwrap();
    assert!(variables.starts_with(&format!("{runs_as} {runs_as} ")), "{said}");
    let home = variables.split(' ').nth(2).unwrap();
    assert!(Path::new(home).ends_with("local"), "{said}");
    agent.stop().await;
}
