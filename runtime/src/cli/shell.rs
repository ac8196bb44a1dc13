//! What shells and `man` read.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::args::Cli;
use super::exit::Exit;
use super::man;
use super::output;
use super::terminal::Terminal;

/// Print a completion script.
pub(super) fn completions(shell: Shell, terminal: &Terminal) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ostler", &mut script);
    printed(&script, terminal)
}

/// Print the manual page, or write the pages of all commands into `dir`.
pub(super) fn manual(dir: Option<&Path>, terminal: &Terminal) -> Exit {
    let done = match dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| man::write_all(dir))
            .map_err(|error| format!("cannot write manual pages into {}: {error}", dir.display())),
        None => match man::page() {
            Ok(page) => return printed(&page, terminal),
            Err(error) => Err(format!("cannot make the manual page: {error}")),
        },
    };
    match done {
        Ok(()) => Exit::Success,
        Err(message) => {
            output::error(terminal, &message);
            Exit::Agent
        }
    }
}

fn printed(bytes: &[u8], terminal: &Terminal) -> Exit {
    match output::print(&String::from_utf8_lossy(bytes), terminal) {
        Ok(()) => Exit::Success,
        Err(exit) => exit,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let pages = dir.path().join("man1");
        assert_eq!(manual(Some(&pages), &Terminal::default()), Exit::Success);
        for page in ["ostler", "ostler-run", "ostler-job-validate", "ostler-plugin-inspect"] {
            let text = std::fs::read_to_string(pages.join(format!("{page}.1"))).unwrap();
            assert!(text.contains(".TH"), "{page}");
        }
        assert_eq!(manual(Some(&pages.join("ostler.1")), &Terminal::default()), Exit::Agent);
    }

    #[test]
    fn completion_scripts_know_the_commands() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "ostler", &mut script);
            let script = String::from_utf8(script).unwrap();
            assert!(script.contains("validate") && script.contains("syntax-only"), "{shell}");
        }
    }
}
