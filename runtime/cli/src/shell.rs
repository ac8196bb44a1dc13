//! What shells and `man` read.

use std::path::Path;

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::args::Cli;
use super::connect::Stop;
use super::exit::Exit;
use super::man;
use super::output;
use super::terminal::Terminal;

/// Print a completion script.
pub(super) fn completions(shell: Shell, terminal: &Terminal) -> Result<Exit, Stop> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ostler", &mut script);
    output::print(&String::from_utf8_lossy(&script), terminal)?;
    Ok(Exit::Success)
}

/// Print the manual page, or write the pages of all commands into `dir`.
pub(super) fn manual(dir: Option<&Path>, terminal: &Terminal) -> Result<Exit, Stop> {
    if let Some(dir) = dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| man::write_all(dir));
        let at = dir.display();
        written.map_err(|e| Stop::Cannot(format!("cannot write manual pages into {at}: {e}")))?;
        return Ok(Exit::Success);
    }
    let page = man::page();
    let page = page.map_err(|e| Stop::Cannot(format!("cannot make the manual page: {e}")))?;
    output::print(&String::from_utf8_lossy(&page), terminal)?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let pages = dir.path().join("man1");
        assert_eq!(manual(Some(&pages), &Terminal::default()).unwrap(), Exit::Success);
        for page in ["ostler", "ostler-run", "ostler-job-validate", "ostler-plugin-inspect"] {
            let text = std::fs::read_to_string(pages.join(format!("{page}.1"))).unwrap();
            assert!(text.contains(".TH"), "{page}");
        }
        let wrong = manual(Some(&pages.join("ostler.1")), &Terminal::default());
        assert!(matches!(wrong, Err(Stop::Cannot(_))), "{wrong:?}");
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
