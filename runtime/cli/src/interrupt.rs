//! Signals that end the program in order.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::Exit;

/// A signal that asks for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Ctrl-C.
    Int,
    /// From a supervisor.
    Term,
    /// The terminal is gone.
    Hup,
}

impl Interrupt {
    /// How the program ends on it.
    pub(super) const fn exit(self) -> Exit {
        match self {
            Self::Hup => Exit::Signal(1),
            Self::Int => Exit::Signal(2),
            Self::Term => Exit::Signal(15),
        }
    }

    /// For messages and reasons.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hup => "SIGHUP",
            Self::Int => "Ctrl-C",
            Self::Term => "SIGTERM",
        }
    }
}

/// The signals, from the moment this is made: none is lost between two calls of
/// [`Interrupts::next`].
pub(super) struct Interrupts {
    int: Signal,
    term: Signal,
    /// Absent under `nohup`, which asks that the end of the terminal be ignored.
    hup: Option<Signal>,
}

impl Interrupts {
    /// Take the signals over.
    pub(super) fn new() -> io::Result<Self> {
        // Read before anything is taken over. Where it cannot be read, nothing is ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let hup = match ignores(&status, SignalKind::hangup()) {
            true => None,
            false => Some(signal(SignalKind::hangup())?),
        };
        Ok(Self {
            int: signal(SignalKind::interrupt())?,
            term: signal(SignalKind::terminate())?,
            hup,
        })
    }

    /// Wait for the next one. May be dropped and called again.
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
fn ignores(status: &str, kind: SignalKind) -> bool {
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
        assert!(ignores(status, SignalKind::hangup()));
        assert!(!ignores(status, SignalKind::interrupt()));
        assert!(ignores(status, SignalKind::pipe()));
        assert!(!ignores("", SignalKind::hangup()));
    }

    #[test]
    fn each_signal_ends_with_128_and_its_number() {
        let code = |interrupt: Interrupt| interrupt.exit().code();
        assert_eq!(code(Interrupt::Hup), 129);
        assert_eq!(code(Interrupt::Int), 130);
        assert_eq!(code(Interrupt::Term), 143);
    }
}
