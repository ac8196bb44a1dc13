//! `ostler alloc logs`

use std::io::{self, Write as _};

use super::logs_from::{Overlap, TailSearch};
use crate::args::alloc::AllocLogsArgs;
use crate::connect::{self, CliError, run_until_interrupted};
use crate::exit::Exit;
use crate::output;
use crate::terminal::{TerminalInfo, task_line};
use ostler_api::client::{ApiClient, LogFrame, LogFrameStream};
use ostler_api::request::{ApiRequest, FrameBody};
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_wire::Alloc;

/// A followed stream begins this many bytes before its end, to overlap with what was already shown.
/// Output is missed only if a task prints more than this between the two requests.
const OVERLAP_BYTES: u64 = 1024 * 1024;
/// Longest unfinished line held back on a terminal, bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Show what a task printed.
pub(super) async fn logs(args: &AllocLogsArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let id = connect::find_alloc(&client, &args.alloc).await?;
    let alloc = client.send(&routes::ReadAlloc::request([&id])).await?;
    let given = args.task.as_deref().or(args.task_option.as_deref());
    let task = match super::check_task(&alloc, given)? {
        Some(task) => task.to_owned(),
        None => only_task(&alloc)?,
    };
    let kind = if args.stderr { "stderr" } else { "stdout" };
    let request = routes::ReadLogs::request([&id])
        .with(QueryKey::Task, task)
        .with(QueryKey::StreamType, kind);
    let mut shown = LogOutput::new(*terminal);
    let show = async {
        match args.lines {
            None => {
                let request = request.with(QueryKey::Follow, args.follow);
                let frames = client.stream_frames(&request).await?;
                show_stream(frames, None, &mut shown).await?;
            }
            Some(lines) => show_tail(&client, &request, lines, args.follow, &mut shown).await?,
        }
        if args.follow { super::check_alloc_ended(&client, id).await } else { Ok(()) }
    };
    let hint = "the task goes on";
    let done = if args.follow { run_until_interrupted(hint, show).await } else { show.await };
    shown.finish_line()?;
    done.map(|()| Exit::Success)
}

/// The only task of an allocation; an error where it has none or several.
pub(super) fn only_task(alloc: &Alloc) -> Result<String, CliError> {
    let mut tasks = alloc.task_states.keys();
    match (tasks.next(), tasks.next()) {
        (Some(task), None) => Ok(task.to_string()),
        (None, _) => {
            Err(CliError::Cannot(format!("allocation {} has no task yet", alloc.id.short())))
        }
        (Some(_), Some(_)) => Err(CliError::Wrong(format!(
            "allocation {} has several tasks, name one: {}",
            alloc.id.short(),
            super::task_names(alloc)
        ))),
    }
}

/// Show a stream to its end, without the part that `overlap` says was already shown.
async fn show_stream(
    mut frames: LogFrameStream,
    mut overlap: Option<Overlap>,
    shown: &mut LogOutput,
) -> Result<(), CliError> {
    while let Some(frame) = frames.next().await? {
        let frame = match &mut overlap {
            Some(overlap) => overlap.strip_shown(frame),
            None => frame,
        };
        shown.write_frame(&frame)?;
    }
    Ok(())
}

/// Show the last lines and then, with `follow`, what is printed after them.
async fn show_tail(
    client: &ApiClient,
    request: &ApiRequest<(), FrameBody>,
    lines: u32,
    follow: bool,
    shown: &mut LogOutput,
) -> Result<(), CliError> {
    let place = show_last_lines(client, request, lines, shown).await?;
    if !follow {
        return Ok(());
    }
    let request = from_end(request, true, OVERLAP_BYTES);
    let overlap = place.map(|(file, offset)| Overlap::new(&file, offset));
    show_stream(client.stream_frames(&request).await?, overlap, shown).await
}

/// The request for a stream that begins so many bytes before its end.
fn from_end(
    request: &ApiRequest<(), FrameBody>,
    follow: bool,
    bytes: u64,
) -> ApiRequest<(), FrameBody> {
    let request = request.clone().with(QueryKey::Follow, follow);
    request.with(QueryKey::Origin, "end").with(QueryKey::Offset, bytes)
}

/// Show the last lines of a stream. Returns the file and the offset in it where they
/// end; `None` where there is no output.
pub(super) async fn show_last_lines(
    client: &ApiClient,
    request: &ApiRequest<(), FrameBody>,
    lines: u32,
    shown: &mut LogOutput,
) -> Result<Option<(String, u64)>, CliError> {
    let mut tail = TailSearch::new(lines);
    loop {
        let request = from_end(request, false, tail.bytes_wanted());
        let mut frames = client.stream_frames(&request).await?;
        let (mut read, mut place) = (Vec::new(), None);
        while let Some(frame) = frames.next().await? {
            read.extend_from_slice(&frame.data);
            place = Some((frame.file, frame.offset));
        }
        if tail.has_enough(&read) {
            shown.write_bytes(tail.take_lines(&read))?;
            return Ok(place);
        }
    }
}

/// Writes task output to standard output. Other programs get the bytes as they are; for a terminal,
/// control sequences are made harmless.
pub(super) struct LogOutput {
    terminal: TerminalInfo,
    /// On a terminal: the beginning of a line that has not ended yet.
    line: Vec<u8>,
}

impl LogOutput {
    pub(super) const fn new(terminal: TerminalInfo) -> Self {
        Self { terminal, line: Vec::new() }
    }

    pub(super) fn write_frame(&mut self, frame: &LogFrame) -> Result<(), Exit> {
        if frame.skipped > 0 {
            let skipped = frame.skipped;
            output::say(&format!("({skipped} bytes were rotated away before they could be shown)"));
        }
        self.write_bytes(&frame.data)
    }

    pub(super) fn write_bytes(&mut self, bytes: &[u8]) -> Result<(), Exit> {
        if bytes.is_empty() {
            return Ok(());
        }
        if !self.terminal.stdout {
            return self.write(bytes);
        }
        let mut out = Vec::with_capacity(bytes.len());
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            let ended = self.line.pop_if(|byte| *byte == b'\n').is_some();
            if ended || self.line.len() >= LINE_BYTES_MAX {
                push_safe_line(&self.line, &mut out);
                if ended {
                    out.push(b'\n');
                }
                self.line.clear();
            }
        }
        self.write(&out)
    }

    /// Write what is left of an unfinished line, at the end of the output.
    pub(super) fn finish_line(&mut self) -> Result<(), Exit> {
        if self.line.is_empty() {
            return Ok(());
        }
        let mut out = Vec::new();
        push_safe_line(&self.line, &mut out);
        out.push(b'\n');
        self.write(&out)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Exit> {
        let mut out = io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|error| output::report_output_error(&error, &self.terminal))
    }
}

/// Append a line with its colours, which are switched off at its end.
fn push_safe_line(line: &[u8], into: &mut Vec<u8>) {
    if task_line(line, into) {
        into.extend_from_slice(b"\x1b[0m");
    }
}
