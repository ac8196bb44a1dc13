//! `ostler state dump`: written as it is read, so that a large state needs no memory.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use serde::Serialize;

use super::super::args::state::DumpArgs;
use super::super::connect::Stop;
use super::super::exit::Exit;
use super::super::output;
use super::super::terminal::{Terminal, one_line};
use ostler_agent::inspect::{Dump, DumpRecord, InspectError};
use ostler_model::words::counted;

/// Show a state file's records.
pub(super) fn dump(args: &DumpArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let dump = Dump::open(&super::target(&args.which)?)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let written = match args.json {
        true => json(&dump, &args.prefix, &mut out),
        false => human(&dump, &args.prefix, &mut out),
    };
    let written = written.and_then(|shown| {
        out.flush()?;
        Ok(shown)
    });
    match written {
        Ok(Shown { records: 0, .. }) if !args.prefix.is_empty() => {
            let message = format!("no record's key starts with {:?}", args.prefix);
            output::warning(terminal, &message);
            Ok(Exit::Success)
        }
        Ok(Shown { damaged: 0, .. }) => Ok(Exit::Success),
        Ok(Shown { damaged, .. }) => {
            output::warning(terminal, &format!("{} cannot be read", counted(damaged, "record")));
            Ok(Exit::Damaged)
        }
        Err(Failure::Output(error)) => Err(output::output_failed(&error, terminal).into()),
        Err(Failure::File(error)) => {
            // What was printed is not the whole: the exit code says so.
            let _ = out.flush();
            Err(error.into())
        }
    }
}

/// Records that were shown, and those of them that cannot be read; quarantine left out of the
/// latter.
#[derive(Debug, Default, PartialEq, Eq)]
struct Shown {
    records: u64,
    damaged: u64,
}

enum Failure {
    Output(io::Error),
    File(InspectError),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Hand every record on until one cannot be written. The flag says whether it is in quarantine.
fn each(
    dump: &Dump,
    prefix: &str,
    quarantined: bool,
    shown: &mut Shown,
    mut write: impl FnMut(&DumpRecord) -> io::Result<()>,
) -> Result<(), Failure> {
    let mut written = Ok(());
    let show = &mut |record: DumpRecord| {
        shown.records = shown.records.saturating_add(1);
        if record.error.is_some() && !quarantined {
            shown.damaged = shown.damaged.saturating_add(1);
        }
        written = write(&record);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let read = match quarantined {
        true => dump.quarantined(prefix, show),
        false => dump.records(prefix, show),
    };
    written?;
    read.map_err(Failure::File)
}

fn human(dump: &Dump, prefix: &str, out: &mut impl Write) -> Result<Shown, Failure> {
    let mut shown = Shown::default();
    each(dump, prefix, false, &mut shown, |record| line(record, "", out))?;
    each(dump, prefix, true, &mut shown, |record| line(record, "quarantined: ", out))?;
    Ok(shown)
}

fn line(record: &DumpRecord, mark: &str, out: &mut impl Write) -> io::Result<()> {
    let value = match (&record.value, &record.error, &record.first_bytes) {
        (Some(value), ..) => value.to_string(),
        (None, Some(error), Some(bytes)) => {
            format!("cannot be read: {error} ({} bytes, the first {bytes})", record.bytes)
        }
        _ => String::new(),
    };
    writeln!(out, "{mark}{}  {}", one_line(&record.key), one_line(&value))
}

fn json(dump: &Dump, prefix: &str, out: &mut impl Write) -> Result<Shown, Failure> {
    let mut shown = Shown::default();
    out.write_all(b"{\"path\":")?;
    serial(&dump.path(), out)?;
    out.write_all(b",\"schema\":")?;
    serial(&dump.schema(), out)?;
    for (name, quarantined) in [("records", false), ("quarantined", true)] {
        write!(out, ",\n\"{name}\":[")?;
        let mut separator = "\n";
        each(dump, prefix, quarantined, &mut shown, |record| {
            out.write_all(separator.as_bytes())?;
            separator = ",\n";
            serial(record, out)
        })?;
        out.write_all(b"]")?;
    }
    out.write_all(b"}\n")?;
    Ok(shown)
}

fn serial(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}
