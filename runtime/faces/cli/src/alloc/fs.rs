//! `ostler alloc fs`: what lies in the directory of an allocation.
//!
//! ```text
//! stat ─ a directory ─► its entries, a row each
//!   └─── a file ─ all of it, or from its last lines on ─► followed? ─► what is appended, until it is removed
//! ```

use super::logs::{LogOutput, show_last_lines};
use crate::answer;
use crate::args::alloc::AllocFsArgs;
use crate::connect::{self, CliError, run_until_interrupted};
use crate::exit::Exit;
use crate::output::{self, say, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::{ApiClient, ClientError, ClientTrouble};
use ostler_api::request::{ApiRequest, FrameBody};
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::ids::AllocId;
use ostler_model::words::{format_bytes, shell_word};
use ostler_wire::FileInfo;

/// Show a directory, or a file.
pub(super) async fn fs(args: &AllocFsArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let id = connect::find_alloc(&client, &args.alloc).await?;
    let path = args.path.as_deref().unwrap_or("/");
    let stat = routes::StatFile::request([&id]).with(QueryKey::Path, path);
    let file = match client.send(&stat).await {
        Ok(file) => file,
        Err(error) if is_missing(&error) => {
            let above = nearest_dir(&client, id, path).await;
            return Err(missing_error(&id.short(), path, above));
        }
        Err(error) => return Err(file_error(error)),
    };
    let reads = args.follow || args.lines.is_some();
    if args.stat {
        return answer::show(&file, || facts(&file), terminal);
    }
    if file.is_dir {
        if reads {
            let what = "a directory; -f and -n are for files";
            return Err(CliError::Wrong(format!("{} is {what}", one_line(path))));
        }
        let request = routes::ListFiles::request([&id]).with(QueryKey::Path, path);
        let files = client.send(&request).await?;
        return answer::show(&files, || listing(&files, terminal), terminal);
    }
    if terminal.json {
        let message = format!("{} is a file; --json is for directories and --stat", one_line(path));
        return Err(CliError::Wrong(message));
    }
    let mut shown = LogOutput::new(*terminal);
    let request = routes::StreamFile::request([&id]).with(QueryKey::Path, path);
    let source = FileSource { client: &client, id, request, name: path };
    let done = if args.follow {
        run_until_interrupted("the file stays", source.follow(args.lines, &mut shown)).await
    } else {
        source.read(args.lines, &mut shown).await.map(|_| ())
    };
    shown.finish_line()?;
    done.map(|()| Exit::Success)
}

/// Most directories above a path that are looked up, the nearest first.
const ABOVE_MAX: usize = 16;

/// Whether an error says that a path does not exist: as in Nomad, that is an error of the server.
fn is_missing(error: &ClientError) -> bool {
    matches!(
        error,
        ClientError::Failed { trouble: ClientTrouble::Refused { status: 500, text }, .. }
            if text.contains("No such file")
    )
}

/// The directories above a path, the nearest first, without the root.
fn parent_dirs(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(parent_dir(path.trim_matches('/')), |path| parent_dir(path))
        .take(ABOVE_MAX)
}

fn parent_dir(path: &str) -> Option<&str> {
    let (above, _) = path.rsplit_once('/')?;
    Some(above.trim_end_matches('/')).filter(|above| !above.is_empty())
}

/// The nearest existing directory above a path; `None` where that is the root.
async fn nearest_dir<'a>(client: &ApiClient, id: AllocId, path: &'a str) -> Option<&'a str> {
    for above in parent_dirs(path) {
        let found =
            client.send(&routes::StatFile::request([&id]).with(QueryKey::Path, above)).await;
        if found.is_ok_and(|file| file.is_dir) {
            return Some(above);
        }
    }
    None
}

/// The error for a path that does not exist.
fn missing_error(alloc: &str, path: &str, above: Option<&str>) -> CliError {
    let shown = one_line(path.trim_start_matches('/'));
    let above = above.map(|above| format!(" {}", shell_word(&one_line(above)))).unwrap_or_default();
    CliError::Wrong(format!(
        "allocation {alloc} has no {shown}; `ostler alloc fs {alloc}{above}` shows what is there"
    ))
}

/// The error for a path that cannot be shown, without the URL of the request.
fn file_error(error: ClientError) -> CliError {
    match error {
        ClientError::Failed { trouble: ClientTrouble::Refused { text, status: 500 }, .. }
            if !text.is_empty() =>
        {
            CliError::Cannot(text)
        }
        other => other.into(),
    }
}

fn facts(file: &FileInfo<'_>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 9, name, &one_line(value));
    line("name", &file.name);
    line("mode", &file.file_mode);
    line("size", &format!("{} ({} bytes)", format_bytes(file.size), file.size));
    line("modified", &file.mod_time);
    line("content", &file.content_type);
    text
}

fn listing(files: &[FileInfo<'_>], terminal: &TerminalInfo) -> String {
    if files.is_empty() {
        return "the directory is empty\n".to_owned();
    }
    let row = |file: &FileInfo<'_>| {
        let name = if file.is_dir { format!("{}/", file.name) } else { file.name.to_string() };
        [file.file_mode.to_string(), format_bytes(file.size), file.mod_time.to_string(), name]
    };
    table(["MODE", "SIZE", "MODIFIED", "NAME"], files.iter().map(row), terminal)
}

/// A file to read.
struct FileSource<'a> {
    client: &'a ApiClient,
    id: AllocId,
    /// The request for the file's stream.
    request: ApiRequest<(), FrameBody>,
    name: &'a str,
}

impl FileSource<'_> {
    /// Show the whole file, or its last lines. Returns the offset of its end.
    async fn read(&self, lines: Option<u32>, shown: &mut LogOutput) -> Result<u64, CliError> {
        if let Some(lines) = lines {
            let place = show_last_lines(self.client, &self.request, lines, shown).await?;
            return Ok(place.map_or(0, |(_, end)| end));
        }
        let mut end = 0;
        let request = self.request.clone().with(QueryKey::Follow, false);
        let mut frames = self.client.stream_frames(&request).await?;
        while let Some(frame) = frames.next().await? {
            end = end.max(frame.offset);
            shown.write_frame(&frame)?;
        }
        Ok(end)
    }

    /// Show the file or its last lines, and then what is appended to it.
    async fn follow(&self, lines: Option<u32>, shown: &mut LogOutput) -> Result<(), CliError> {
        let end = self.read(lines, shown).await?;
        let request = self.request.clone().with(QueryKey::Follow, true);
        let request = request.with(QueryKey::Offset, end);
        let mut frames = self.client.stream_frames(&request).await?;
        while let Some(frame) = frames.next().await? {
            shown.write_frame(&frame)?;
            let name = one_line(self.name);
            match frame.event.as_str() {
                "" => {}
                "file truncated" => {
                    say(&format!("({name} was truncated; continuing from its start)"))
                }
                "file deleted" => {
                    say(&format!("({name} was removed)"));
                    return Ok(());
                }
                other => say(&format!("({name}: {})", one_line(other))),
            }
        }
        super::check_alloc_ended(self.client, self.id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_a_path_is_looked_for_from_the_nearest_on() {
        let of = |path| parent_dirs(path).collect::<Vec<_>>();
        assert_eq!(of("/t/nosuch/x/"), ["t/nosuch", "t"]);
        assert_eq!(of("t//x"), ["t"]);
        assert_eq!(of("nosuch"), [""; 0]);
        assert_eq!(of(&"a/".repeat(100)).len(), ABOVE_MAX);
        let said = |above| missing_error("0f01c0de", "/t/a b/x", above).to_string();
        let begin = "allocation 0f01c0de has no t/a b/x; `ostler alloc fs 0f01c0de";
        assert_eq!(said(None), format!("{begin}` shows what is there"));
        assert_eq!(said(Some("t/a b")), format!("{begin} 't/a b'` shows what is there"));
    }
}
