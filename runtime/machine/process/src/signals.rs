//! Names of signals and their numbers on this machine.
//!
//! Job files write `SIGTERM`; `TERM` and any case are taken too, as Nomad does.

use rustix::process::Signal;

use ostler_model::signal::UnknownSignal;

/// The signals a task can be sent, by name without the `SIG` prefix.
const NAMES: [(&str, Signal); 31] = [
    ("ABRT", Signal::ABORT),
    ("ALRM", Signal::ALARM),
    ("BUS", Signal::BUS),
    ("CHLD", Signal::CHILD),
    ("CONT", Signal::CONT),
    ("FPE", Signal::FPE),
    ("HUP", Signal::HUP),
    ("ILL", Signal::ILL),
    ("INT", Signal::INT),
    ("IO", Signal::IO),
    ("KILL", Signal::KILL),
    ("PIPE", Signal::PIPE),
    ("PROF", Signal::PROF),
    ("QUIT", Signal::QUIT),
    ("SEGV", Signal::SEGV),
    ("STKFLT", Signal::STKFLT),
    ("STOP", Signal::STOP),
    ("SYS", Signal::SYS),
    ("TERM", Signal::TERM),
    ("TRAP", Signal::TRAP),
    ("TSTP", Signal::TSTP),
    ("TTIN", Signal::TTIN),
    ("TTOU", Signal::TTOU),
    ("URG", Signal::URG),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("VTALRM", Signal::VTALARM),
    ("WINCH", Signal::WINCH),
    ("XCPU", Signal::XCPU),
    ("XFSZ", Signal::XFSZ),
    ("PWR", Signal::POWER),
];

/// The signal called `name`: `SIGTERM` or `TERM`, in any case.
///
/// # Errors
/// When there is none of that name.
pub fn parse(name: &str) -> Result<Signal, UnknownSignal> {
    let upper = name.trim().to_ascii_uppercase();
    let bare = upper.strip_prefix("SIG").unwrap_or(&upper);
    NAMES
        .iter()
        .find(|(known, _)| *known == bare)
        .map(|(_, signal)| *signal)
        .ok_or_else(|| UnknownSignal::new(name))
}

/// Name of a signal number without the `SIG` prefix; `None` for numbers without a name, such as
/// real-time signals.
#[must_use]
pub fn name(number: u32) -> Option<&'static str> {
    NAMES
        .iter()
        .find(|(_, signal)| u32::try_from(signal.as_raw()) == Ok(number))
        .map(|(name, _)| *name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_known_with_and_without_prefix_and_in_any_case() {
        for name in ["SIGTERM", "TERM", "sigterm", "term", " SigTerm "] {
            assert_eq!(parse(name), Ok(Signal::TERM), "{name}");
        }
    }

    #[test]
    fn every_name_goes_to_its_number_and_back() {
        for (known, signal) in NAMES {
            assert_eq!(parse(known), Ok(signal));
            assert_eq!(name(u32::try_from(signal.as_raw()).unwrap()), Some(known));
        }
    }

    #[test]
    fn what_is_no_signal_is_refused_with_its_name() {
        for bad in ["", "SIG", "SIGNOPE", "15", "SIGSIGTERM"] {
            assert_eq!(parse(bad), Err(UnknownSignal::new(bad)));
        }
        assert_eq!(name(0), None);
        assert_eq!(name(4_000), None);
    }

    #[test]
    fn the_names_are_those_that_job_files_may_write() {
        for (known, _) in NAMES {
            assert!(ostler_model::signal::full_name(known).is_ok(), "{known}");
        }
        for known in ostler_model::signal::SIGNALS {
            assert!(parse(known).is_ok(), "{known}");
        }
    }
}
