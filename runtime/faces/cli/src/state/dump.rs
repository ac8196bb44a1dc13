//! `ostler state dump`: records are written while they are read, so that a large state needs little
//! memory.

use std::io::{self, BufWriter, Write};
use std::ops::ControlFlow;

use serde::Serialize;

use crate::args::state::DumpArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::output;
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::inspect::{Dump, DumpRecord, InspectError};
use ostler_model::words::count_noun;

/// Show a state file's records.
pub(super) fn dump(args: &DumpArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let dump = Dump::open(&super::target(&args.which)?)?;
    let mut out = BufWriter::new(io::stdout().lock());
    let written = if terminal.json {
        write_json(&dump, &args.prefix, &mut out)
    } else {
        write_human(&dump, &args.prefix, &mut out)
    };
    let written = written.and_then(|shown| {
        out.flush()?;
        Ok(shown)
    });
    match written {
        Ok(DumpCounts { records: 0, .. }) if !args.prefix.is_empty() => {
            let message = format!("no record's key starts with {:?}", args.prefix);
            output::warning(terminal, &message);
            Ok(Exit::Success)
        }
        Ok(DumpCounts { damaged: 0, .. }) => Ok(Exit::Success),
        Ok(DumpCounts { damaged, .. }) => {
            output::warning(terminal, &format!("{} cannot be read", count_noun(damaged, "record")));
            Ok(Exit::Damaged)
        }
        Err(DumpError::Output(error)) => Err(output::report_output_error(&error, terminal).into()),
        Err(DumpError::File(error)) => {
            // The printed text is not complete, which the exit code says.
            let _ = out.flush();
            Err(error.into())
        }
    }
}

/// The number of records that were shown, and the number of damaged ones among them, which leaves
/// out the quarantine.
#[derive(Debug, Default, PartialEq, Eq)]
struct DumpCounts {
    records: u64,
    damaged: u64,
}

enum DumpError {
    Output(io::Error),
    File(InspectError),
}

impl From<io::Error> for DumpError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Write every record until one cannot be written. `quarantined` selects those in quarantine.
fn for_each_record(
    dump: &Dump,
    prefix: &str,
    quarantined: bool,
    shown: &mut DumpCounts,
    mut write: impl FnMut(&DumpRecord) -> io::Result<()>,
) -> Result<(), DumpError> {
    let mut written = Ok(());
    let show = &mut |record: DumpRecord| {
        shown.records = shown.records.saturating_add(1);
        if record.error.is_some() && !quarantined {
            shown.damaged = shown.damaged.saturating_add(1);
        }
        written = write(&record);
        if written.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let read = if quarantined {
        dump.show_quarantined(prefix, show)
    } else {
        dump.show_records(prefix, show)
    };
    written?;
    read.map_err(DumpError::File)
}

fn write_human(dump: &Dump, prefix: &str, out: &mut impl Write) -> Result<DumpCounts, DumpError> {
    let mut shown = DumpCounts::default();
    for_each_record(dump, prefix, false, &mut shown, |record| write_line(record, "", out))?;
    for_each_record(dump, prefix, true, &mut shown, |record| {
        write_line(record, "quarantined: ", out)
    })?;
    Ok(shown)
}

fn write_line(record: &DumpRecord, mark: &str, out: &mut impl Write) -> io::Result<()> {
    let value = match (&record.value, &record.error, &record.first_bytes) {
        (Some(value), ..) => value.to_string(),
        (None, Some(error), Some(bytes)) => {
            format!("cannot be read: {error} ({} bytes, the first {bytes})", record.bytes)
        }
        _ => String::new(),
    };
    writeln!(out, "{mark}{}  {}", one_line(&record.key), one_line(&value))
}

fn write_json(dump: &Dump, prefix: &str, out: &mut impl Write) -> Result<DumpCounts, DumpError> {
    let mut shown = DumpCounts::default();
    out.write_all(b"{\"path\":")?;
    write_value(&dump.path(), out)?;
    out.write_all(b",\"schema\":")?;
    write_value(&dump.schema(), out)?;
    for (name, quarantined) in [("records", false), ("quarantined", true)] {
        write!(out, ",\n\"{name}\":[")?;
        let mut separator = "\n";
        for_each_record(dump, prefix, quarantined, &mut shown, |record| {
            out.write_all(separator.as_bytes())?;
            separator = ",\n";
            write_value(record, out)
        })?;
        out.write_all(b"]")?;
    }
    out.write_all(b"}\n")?;
    Ok(shown)
}

fn write_value(value: &impl Serialize, out: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer(out, value).map_err(io::Error::from)
}
