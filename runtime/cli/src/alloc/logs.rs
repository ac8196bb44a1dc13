//! `ostler alloc logs`

use std::io::{self, Write as _};

use super::super::args::alloc::AllocLogsArgs;
use super::super::connect::{self, Stop, until_interrupted};
use super::super::exit::Exit;
use super::super::output;
use super::super::terminal::{Terminal, task_line};
use super::logs_from::{Overlap, Tail};
use ostler_api::client::{ApiClient, Frames, LogFrame, segment};
use ostler_wire::Alloc;

/// What is followed begins this far before the end that was already shown: more may come between
/// two requests only if a task prints this much in that time.
const OVERLAP_BYTES: u64 = 1024 * 1024;
/// Longest unfinished line held back on a terminal, bytes.
const LINE_BYTES_MAX: usize = 16 * 1024;

/// Show what a task printed.
pub(super) async fn logs(args: &AllocLogsArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.agent)?;
    let id = connect::find_alloc(&client, &args.alloc).await?;
    let alloc: Alloc = client.get(&format!("/v1/allocation/{id}")).await?;
    let given = args.task.as_deref().or(args.task_option.as_deref());
    let task = match super::task(&alloc, given)? {
        Some(task) => task.to_owned(),
        None => only_task(&alloc)?,
    };
    let kind = if args.stderr { "stderr" } else { "stdout" };
    let path = format!("/v1/client/fs/logs/{id}?task={}&type={kind}", segment(&task));
    let mut shown = Shown::new(*terminal);
    let show = async {
        match args.lines {
            None => {
                let frames = client.stream(&format!("{path}&follow={}", args.follow)).await?;
                all(frames, None, &mut shown).await?;
            }
            Some(lines) => last(&client, &path, lines, args.follow, &mut shown).await?,
        }
        if args.follow { super::still_there(&client, id).await } else { Ok(()) }
    };
    let hint = "the task goes on";
    let done = if args.follow { until_interrupted(hint, show).await } else { show.await };
    shown.end()?;
    done.map(|()| Exit::Success)
}

/// The task of an allocation that has one.
pub(super) fn only_task(alloc: &Alloc) -> Result<String, Stop> {
    let mut tasks = alloc.task_states.keys();
    match (tasks.next(), tasks.next()) {
        (Some(task), None) => Ok(task.to_string()),
        (None, _) => Err(Stop::Cannot(format!("allocation {} has no task yet", alloc.id.short()))),
        (Some(_), Some(_)) => Err(Stop::Wrong(format!(
            "allocation {} has several tasks, name one: {}",
            alloc.id.short(),
            super::tasks(alloc)
        ))),
    }
}

/// Show a stream to its end, but for what `overlap` says was shown.
async fn all(
    mut frames: Frames,
    mut overlap: Option<Overlap>,
    shown: &mut Shown,
) -> Result<(), Stop> {
    while let Some(frame) = frames.next().await? {
        let frame = match &mut overlap {
            Some(overlap) => overlap.rest_of(frame),
            None => frame,
        };
        shown.frame(&frame)?;
    }
    Ok(())
}

/// Show the last lines, then what comes.
async fn last(
    client: &ApiClient,
    path: &str,
    lines: u32,
    follow: bool,
    shown: &mut Shown,
) -> Result<(), Stop> {
    let place = last_lines(client, path, lines, shown).await?;
    if !follow {
        return Ok(());
    }
    let begin = format!("{path}&follow=true&origin=end&offset={OVERLAP_BYTES}");
    let overlap = place.map(|(file, offset)| Overlap::after(&file, offset));
    all(client.stream(&begin).await?, overlap, shown).await
}

/// Show the last lines of what is streamed at a path. Where they end: the file, and the place in it; none where there
/// is nothing.
pub(super) async fn last_lines(
    client: &ApiClient,
    path: &str,
    lines: u32,
    shown: &mut Shown,
) -> Result<Option<(String, u64)>, Stop> {
    let mut tail = Tail::new(lines);
    loop {
        let bytes = tail.bytes_wanted();
        let path = format!("{path}&follow=false&origin=end&offset={bytes}");
        let mut frames = client.stream(&path).await?;
        let (mut read, mut place) = (Vec::new(), None);
        while let Some(frame) = frames.next().await? {
            read.extend_from_slice(&frame.data);
            place = Some((frame.file, frame.offset));
        }
        if tail.enough(&read) {
            shown.bytes(tail.lines_of(&read))?;
            return Ok(place);
        }
    }
}

/// Standard output. What other programs read are the bytes; on a terminal lines are made harmless.
pub(super) struct Shown {
    terminal: Terminal,
    /// A line that has not ended, on a terminal.
    line: Vec<u8>,
}

impl Shown {
    pub(super) const fn new(terminal: Terminal) -> Self {
        Self { terminal, line: Vec::new() }
    }

    pub(super) fn frame(&mut self, frame: &LogFrame) -> Result<(), Exit> {
        if frame.skipped > 0 {
            let skipped = frame.skipped;
            output::say(&format!("({skipped} bytes were rotated away before they could be shown)"));
        }
        self.bytes(&frame.data)
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Exit> {
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
                harmless(&self.line, &mut out);
                if ended {
                    out.push(b'\n');
                }
                self.line.clear();
            }
        }
        self.write(&out)
    }

    /// What is left of a line, at the end.
    pub(super) fn end(&mut self) -> Result<(), Exit> {
        if self.line.is_empty() {
            return Ok(());
        }
        let mut out = Vec::new();
        harmless(&self.line, &mut out);
        out.push(b'\n');
        self.write(&out)
    }

    fn write(&self, bytes: &[u8]) -> Result<(), Exit> {
        let mut out = io::stdout().lock();
        let written = out.write_all(bytes).and_then(|()| out.flush());
        written.map_err(|error| output::output_failed(&error, &self.terminal))
    }
}

/// A line with its colours, which end with it.
fn harmless(line: &[u8], into: &mut Vec<u8>) {
    if task_line(line, into) {
        into.extend_from_slice(b"\x1b[0m");
    }
}
