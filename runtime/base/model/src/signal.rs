//! Names of signals, as job files and people write them.

/// Signals a task may be sent, by their usual numbers.
pub const SIGNALS: [&str; 31] = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGILL",
    "SIGTRAP",
    "SIGABRT",
    "SIGBUS",
    "SIGFPE",
    "SIGKILL",
    "SIGUSR1",
    "SIGSEGV",
    "SIGUSR2",
    "SIGPIPE",
    "SIGALRM",
    "SIGTERM",
    "SIGSTKFLT",
    "SIGCHLD",
    "SIGCONT",
    "SIGSTOP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGXCPU",
    "SIGXFSZ",
    "SIGVTALRM",
    "SIGPROF",
    "SIGWINCH",
    "SIGIO",
    "SIGPWR",
    "SIGSYS",
];

/// A signal name that is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} is not a signal; try SIGTERM, SIGHUP or SIGUSR1", display_name(.name))]
pub struct UnknownSignal {
    /// The name given, at most 64 characters of it.
    pub name: String,
}

impl UnknownSignal {
    /// The error for this name, which is cut to a bounded length.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.chars().take(64).collect() }
    }
}

fn display_name(name: &str) -> String {
    let is_word = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric());
    if is_word { name.to_owned() } else { format!("{name:?}") }
}

/// The full name of the signal called `name`: `SIGTERM` or `TERM`, in any case.
///
/// # Errors
/// When there is none of that name.
pub fn full_name(name: &str) -> Result<&'static str, UnknownSignal> {
    let upper = name.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    let is_it = |known: &&&str| known.strip_prefix("SIG") == Some(bare);
    SIGNALS.iter().find(is_it).copied().ok_or_else(|| UnknownSignal::new(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_known_with_and_without_prefix_and_in_any_case() {
        for name in ["SIGTERM", "TERM", "sigterm", "term", " SigTerm "] {
            assert_eq!(full_name(name), Ok("SIGTERM"), "{name}");
        }
    }

    #[test]
    fn what_is_no_signal_is_told_in_one_plain_line() {
        let text = |name| full_name(name).unwrap_err().to_string();
        assert_eq!(text("FOO"), "FOO is not a signal; try SIGTERM, SIGHUP or SIGUSR1");
        assert_eq!(text("15"), "15 is not a signal; try SIGTERM, SIGHUP or SIGUSR1");
        for odd in ["", "a\nb", "\u{1b}[2J"] {
            let text = text(odd);
            assert!(text.starts_with('"') && !text.contains(['\n', '\u{1b}']), "{text}");
        }
    }
}
