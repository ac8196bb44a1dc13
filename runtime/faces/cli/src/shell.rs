//! Completion scripts for shells, and manual pages.

use std::path::Path;

use clap_complete::Shell;
use clap_complete::env::Shells;

use super::connect::CliError;
use super::exit::Exit;
use super::man;
use super::output;
use super::terminal::TerminalInfo;

/// Print a completion script.
pub(super) fn completions(shell: Shell, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    output::print(&script(shell)?, terminal)?;
    Ok(Exit::Success)
}

/// Make a completion script. It runs this program at each completion, which asks the
/// agent for names.
fn script(shell: Shell) -> Result<String, CliError> {
    let failed =
        |why: String| CliError::Cannot(format!("cannot make the script of {shell}: {why}"));
    let shells = Shells::builtins();
    let name = shell.to_string();
    let completer = shells.completer(&name).ok_or_else(|| failed("it is not known".to_owned()))?;
    let mut script = Vec::new();
    let written =
        completer.write_registration("COMPLETE", "ostler", "ostler", "ostler", &mut script);
    written.map_err(|error| failed(error.to_string()))?;
    Ok(String::from_utf8_lossy(&script).into_owned())
}

/// Print the manual page, or write the pages of all commands into `dir`.
pub(super) fn manual(dir: Option<&Path>, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    if let Some(dir) = dir {
        let written = std::fs::create_dir_all(dir).and_then(|()| man::write_all(dir));
        let at = dir.display();
        written
            .map_err(|e| CliError::Cannot(format!("cannot write manual pages into {at}: {e}")))?;
        return Ok(Exit::Success);
    }
    let page = man::page();
    let page = page.map_err(|e| CliError::Cannot(format!("cannot make the manual page: {e}")))?;
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
        assert_eq!(manual(Some(&pages), &TerminalInfo::default()).unwrap(), Exit::Success);
        for page in ["ostler", "ostler-run", "ostler-job-validate", "ostler-plugin-inspect"] {
            let text = std::fs::read_to_string(pages.join(format!("{page}.1"))).unwrap();
            assert!(text.contains(".TH"), "{page}");
        }
        let wrong = manual(Some(&pages.join("ostler.1")), &TerminalInfo::default());
        assert!(matches!(wrong, Err(CliError::Cannot(_))), "{wrong:?}");
    }

    #[test]
    fn every_shell_has_a_script_that_asks_this_program() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = script(shell).unwrap();
            assert!(script.contains("COMPLETE") && script.contains("ostler"), "{shell}: {script}");
        }
    }
}
