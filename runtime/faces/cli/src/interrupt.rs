//! Signals that end the program in order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Exit;

/// A signal that asks the program to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Ctrl-C.
    Int,
    /// SIGTERM, as supervisors send it.
    Term,
    /// SIGHUP: the terminal is gone.
    Hup,
}

impl Interrupt {
    /// The exit code of a program that this signal ends.
    pub(super) const fn exit(self) -> Exit {
        match self {
            Self::Hup => Exit::Signal(1),
            Self::Int => Exit::Signal(2),
            Self::Term => Exit::Signal(15),
        }
    }

    /// The name of the signal, for messages and reasons.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "Ctrl-C",
            Self::Term => "SIGTERM",
        }
    }
}

/// The signals that end the program. None that comes after [`Interrupts::new`] is lost between two
/// calls of [`Interrupts::next`].
pub(super) struct Interrupts {
    int: Signal,
    term: Signal,
    /// SIGHUP; absent under `nohup`, which asks that the end of the terminal be ignored.
    hup: Option<Signal>,
}

impl Interrupts {
    /// Take over the handling of the signals.
    pub(super) fn new() -> io::Result<Self> {
        // This is read before any signal is taken over. If it cannot be read, no signal counts as
        // ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hup = if is_ignored(&status, SignalKind::hangup()) {
            None
        } else {
            Some(signal(SignalKind::hangup())?)
        };
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hup,
        })
    }

    /// Wait for the next signal. The future may be dropped and the call repeated.
    pub(super) async fn next(&mut self) -> Interrupt {
        let hup = async {
            match &mut self.hup {
                Some(hup) => hup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.int.recv() => Interrupt::Int,
            _ = self.term.recv() => Interrupt::Term,
            _ = hup => Interrupt::Hup,
        }
    }
}

/// Was this process started with the signal ignored? `status` is `/proc/self/status`.
fn is_ignored(status: &str, kind: SignalKind) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let bit = u32::try_from(kind.as_raw_value()).ok().and_then(|number| number.checked_sub(1));
    bit.and_then(|bit| mask.checked_shr(bit)).is_some_and(|rest| rest & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_found_in_the_mask() {
        let status = "Name:\tostler\nSigIgn:\t0000000000001001\nSigCgt:\t0000000000000002\n";
        assert!(is_ignored(status, SignalKind::hangup()));
        assert!(!is_ignored(status, SignalKind::interrupt()));
        assert!(is_ignored(status, SignalKind::pipe()));
        assert!(!is_ignored("", SignalKind::hangup()));
    }

    #[test]
    fn each_signal_ends_with_128_and_its_number() {
        let code = |interrupt: Interrupt| interrupt.exit().code();
        assert_eq!(code(Interrupt::Hup), 129);
        assert_eq!(code(Interrupt::Int), 130);
        assert_eq!(code(Interrupt::Term), 143);
    }
}
