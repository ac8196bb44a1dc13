//! Running nvidia-smi.

use ostler_sdk::device::prelude::*;
use ostler_sdk::host::command::{CommandError, Output};

use crate::table::{Table, cut};

/// Which card it is; part of every query.
const WHICH: &[&str] = &["index", "uuid", "name", "pci.bus_id"];

/// Columns of a query: those that drivers have known since 2018, newer ones, and those of drivers
/// since about 2024. A driver that does not know one refuses the whole query.
pub struct Columns {
    known: &'static [&'static str],
    newer: &'static [&'static str],
    newest: &'static [&'static str],
}

/// How much of [`Columns`] a query asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ages {
    /// What every driver knows.
    Known,
    /// The newer ones, too.
    Newer,
    /// All.
    All,
}

/// For fingerprints and reservations.
pub const FINGERPRINT: Columns = Columns {
    known: &[
        "driver_version",
        "memory.total",
        "power.limit",
        "clocks.max.sm",
        "clocks.max.memory",
        "pcie.link.gen.max",
        "pcie.link.width.max",
        "ecc.mode.current",
        "ecc.errors.uncorrected.volatile.total",
        "persistence_mode",
        "display_active",
        "temperature.gpu",
    ],
    newer: &["mig.mode.current", "compute_cap"],
    newest: &["remapped_rows.failure", "gpu_recovery_action"],
};

/// For statistics.
pub const STATS: Columns = Columns {
    known: &[
        "utilization.gpu",
        "utilization.memory",
        "memory.used",
        "memory.total",
        "temperature.gpu",
        "power.draw",
        "power.limit",
        "clocks.current.graphics",
        "clocks.current.sm",
        "clocks.current.memory",
        "ecc.errors.corrected.volatile.total",
        "ecc.errors.uncorrected.volatile.total",
        "fan.speed",
        "pstate",
    ],
    newer: &[
        "mig.mode.current",
        "temperature.memory",
        "utilization.encoder",
        "utilization.decoder",
    ],
    newest: &[],
};

impl Columns {
    /// Those to ask a driver for that knows as much.
    pub fn of(&self, ages: Ages) -> Vec<&'static str> {
        let newer = if ages >= Ages::Newer { self.newer } else { &[] };
        let newest = if ages >= Ages::All { self.newest } else { &[] };
        [WHICH, self.known, newer, newest].concat()
    }

    /// From most to least; each is another query.
    fn tries(&self) -> &'static [Ages] {
        match self.newest {
            [] => &[Ages::Newer, Ages::Known],
            _ => &[Ages::All, Ages::Newer, Ages::Known],
        }
    }
}

/// The host ends the program at the limit `call_wall` of the plugin, if that is sooner.
const TIMEOUT: Milliseconds = 60_000;

/// What nvidia-smi printed, and for which columns.
pub struct Answer {
    text: String,
    columns: Vec<&'static str>,
}

impl Answer {
    /// What it says of the cards.
    ///
    /// # Errors
    /// A line that cannot be read.
    pub fn table(&self) -> Result<Table<'_>> {
        let table = Table::read(&self.text, &self.columns)?;
        for warning in &table.warnings {
            log::warn(cut(warning));
        }
        Ok(table)
    }
}

/// Why there is no answer.
pub enum Refused {
    /// There is no program, driver or card, and which of them: nothing to be assigned, no failure.
    Undetected(String),
    /// It could not be asked, or not be understood.
    Failed(Error),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// For who needs a card: that there is none is an error.
impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Undetected(why) => Self::not_found(why),
            Refused::Failed(error) => error,
        }
    }
}

/// Ask for these columns: one run of the program, and others with fewer columns where the driver is
/// too old for the newer ones.
///
/// # Errors
/// [`Refused::Undetected`], and [`Error::PermissionDenied`] when the program is not granted. Anything
/// else may pass.
pub fn run(program: &str, columns: &Columns) -> Result<Answer, Refused> {
    for ages in columns.tries() {
        let asked = columns.of(*ages);
        let output = invoke(program, &asked)?;
        let said = heard(&output.stdout) + &heard(&output.stderr);
        let refused = output.exit_code != Some(0) && said.contains("is not a valid field to query");
        if !refused || *ages == Ages::Known {
            return judge(output, asked);
        }
    }
    Err(Refused::Failed(Error::recoverable("no columns to ask for")))
}

fn invoke(program: &str, columns: &[&str]) -> Result<Output, Refused> {
    let query = format!("--query-gpu={}", columns.join(","));
    let args = [query, "--format=csv,noheader,nounits".to_owned()];
    command::run(program, &args, TIMEOUT).map_err(|error| match error {
        CommandError::NotFound(_) => Refused::Undetected(format!("{program} is missing")),
        CommandError::TimedOut => Refused::Failed(Error::recoverable(format!(
            "{program} did not exit in time; switch on persistence mode, which makes it faster, or give it \
             more time: limits {{ call_wall = \"15s\" }}"
        ))),
        other => Refused::Failed(other.into()),
    })
}

fn heard(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The exit codes are those of the program's manual.
fn judge(output: Output, columns: Vec<&'static str>) -> Result<Answer, Refused> {
    let failed = |why: String| Err(Refused::Failed(Error::recoverable(why)));
    let (text, errors) = (heard(&output.stdout), heard(&output.stderr));
    let said = text.lines().chain(errors.lines()).find(|line| !line.trim().is_empty());
    let said = cut(said.unwrap_or("it printed nothing"));
    let cards = text.contains("GPU-");
    if output.truncated {
        let last = text.lines().count();
        return failed(format!(
            "nvidia-smi printed more than the plugin reads; line {last} is the last one read"
        ));
    }
    match output.exit_code {
        Some(0 | 6) if !cards && (text.trim().is_empty() || said.starts_with("No devices")) => {
            Err(Refused::Undetected(format!("nvidia-smi finds no card: {said}")))
        }
        // Cards that do not answer, a damaged memory of one card: the others are told of.
        Some(0 | 10 | 14 | 15 | 255) if cards || output.exit_code == Some(0) => {
            if !text.is_empty() && !text.ends_with('\n') {
                let last = text.lines().count();
                return failed(format!(
                    "line {last} of nvidia-smi is cut off: {:?}",
                    cut(text.lines().last().unwrap_or_default())
                ));
            }
            // What is said of lost cards may be on either stream.
            Ok(Answer { text: text + &errors_of_cards(&errors), columns })
        }
        Some(9) => Err(Refused::Undetected(format!("the driver is not loaded: {said}"))),
        Some(12) => Err(Refused::Undetected(format!("the driver's library is missing: {said}"))),
        Some(code) => failed(format!("nvidia-smi exited with code {code}: {said}")),
        None => failed(format!("nvidia-smi was killed: {said}")),
    }
}

/// The lines of standard error that tell of cards; the rest is for people.
fn errors_of_cards(errors: &str) -> String {
    let about = |line: &&str| line.trim_start().starts_with("Unable to determine the device");
    errors.lines().filter(about).map(|line| format!("{line}\n")).collect()
}
