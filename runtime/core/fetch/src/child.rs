//! The child process: it reads one order, limits itself, carries the order out, and reports
//! the result.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ostler_model::clock::Stopwatch;
use ostler_model::limits::{
    ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX, ARTIFACT_CHILD_CPU_SECONDS_MAX,
    ARTIFACT_CHILD_OPEN_FILES_MAX, ARTIFACT_PROGRESS_INTERVAL, ARTIFACT_REASON_BYTES_MAX,
    ARTIFACT_SIGN_INTERVAL, TASK_FILE_BYTES_MAX,
};
use ostler_model::printable::printable_line;
use ostler_process::confine::{ConfinedNetwork, Confinement, ProcessBounds, confine, set_bounds};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::order::{ChildMessage, DOWNLOAD, FetchOrder, TREE, read_line, write_line};
use crate::unpack::{self, UnpackOptions};
use crate::{http, pull};

/// The exit code when the agent is gone.
const ORPHAN: i32 = 3;
/// The files that resolving names reads, if they are there.
const RESOLVER: [&str; 12] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/services",
    "/etc/ld.so.cache",
    "/run/systemd/resolve",
    "/lib",
    "/lib64",
    "/usr/lib",
    "/usr/lib64",
];

/// The program of the binary when its first argument is [`crate::ARGUMENT`].
#[must_use]
pub fn main() -> ExitCode {
    let mut stdin = BufReader::new(io::stdin());
    let order = match read_line::<FetchOrder>(&mut stdin) {
        Ok(Some(order)) => order,
        Ok(None) | Err(_) => return ExitCode::from(2),
    };
    let word = match carry_out_order(order, stdin) {
        Ok(word) => word,
        Err(FetchFailure { reason, recoverable }) => ChildMessage::Failed {
            reason: printable_line(reason, ARTIFACT_REASON_BYTES_MAX),
            recoverable,
        },
    };
    match write_line(&mut io::stdout(), &word) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Why an order was not carried out.
pub(crate) struct FetchFailure {
    pub(crate) reason: String,
    pub(crate) recoverable: bool,
}

impl FetchFailure {
    /// A failure that may pass.
    pub(crate) fn passing(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: true }
    }

    /// A failure that another try does not help.
    pub(crate) fn lasting(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: false }
    }
}

fn io_failure(what: &str) -> impl Fn(io::Error) -> FetchFailure + '_ {
    move |error| FetchFailure::passing(format!("cannot {what}: {error}"))
}

fn carry_out_order(
    order: FetchOrder,
    stdin: BufReader<io::Stdin>,
) -> Result<ChildMessage, FetchFailure> {
    match order {
        FetchOrder::Download { url, headers, bytes_max, wall } => {
            let ask = http::DownloadRequest { url, headers, bytes_max, wall };
            // The process may not read them once it is confined.
            let tls = ask.url.is_https().then(ostler_net::machine_connector).flatten();
            let mut into = download_file()?;
            confine_process(
                stdin,
                ConfinedNetwork::TcpAndNames,
                resolver(),
                Vec::new(),
                bytes_max,
            )?;
            let mut pace = ProgressPace::new();
            let runtime = runtime()?;
            let mut told = |bytes, of| pace.tell_progress(bytes, of);
            let get = http::download(&ask, tls.as_ref(), &mut into, &mut told);
            let bytes = runtime.block_on(get).map_err(FetchFailure::passing)?;
            into.flush().map_err(io_failure("write what came"))?;
            Ok(ChildMessage::Done { bytes, signature: None, manifest: None })
        }
        FetchOrder::Pull { reference, insecure } => {
            let client = pull::new_client(insecure);
            let mut into = download_file()?;
            confine_process(
                stdin,
                ConfinedNetwork::TcpAndNames,
                resolver(),
                Vec::new(),
                TASK_FILE_BYTES_MAX,
            )?;
            let pulled = runtime()?.block_on(pull::pull_module(client, &reference))?;
            into.write_all(&pulled.bytes).map_err(io_failure("write what came"))?;
            let bytes = pulled.bytes.len() as u64;
            Ok(ChildMessage::Done {
                bytes,
                signature: pulled.signature,
                manifest: Some(pulled.manifest),
            })
        }
        FetchOrder::Copy { root, below, bytes_max } => {
            let from = source_file(&root, &below)?;
            let mut into = download_file()?;
            confine_process(stdin, ConfinedNetwork::Nothing, Vec::new(), Vec::new(), bytes_max)?;
            let bytes = copy(from, &mut into, bytes_max)?;
            Ok(ChildMessage::Done { bytes, signature: None, manifest: None })
        }
        FetchOrder::Unpack { archive, kind, part, one_file, bytes_max, of_alloc, entries_max } => {
            let from = File::open(&archive).map_err(io_failure("open the archive"))?;
            let tree = open_tree()?;
            confine_process(
                stdin,
                ConfinedNetwork::Nothing,
                Vec::new(),
                vec![PathBuf::from(TREE)],
                bytes_max,
            )?;
            let bounds = unpack::UnpackLimits { bytes: bytes_max, of_alloc, entries: entries_max };
            let mut pace = ProgressPace::new();
            let what = UnpackOptions { kind, part, one_file };
            let mut told = |bytes| pace.tell_progress(bytes, None);
            let bytes = unpack::unpack(tree, from, &what, bounds, &mut told);
            let bytes = bytes.map_err(|error| {
                if error.is_passing() {
                    FetchFailure::passing(error)
                } else {
                    FetchFailure::lasting(error)
                }
            })?;
            Ok(ChildMessage::Done { bytes, signature: None, manifest: None })
        }
    }
}

/// Confine this process: from here on it can do almost nothing but its work, and it ends with
/// the agent.
fn confine_process(
    mut stdin: BufReader<io::Stdin>,
    network: ConfinedNetwork,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    file_bytes: u64,
) -> Result<(), FetchFailure> {
    let failed = |error: &dyn std::error::Error| {
        FetchFailure::passing(format!(
            "the process cannot be limited: {}",
            ostler_model::causes::chain(error)
        ))
    };
    set_bounds(&ProcessBounds {
        address_space_bytes: ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX,
        cpu_seconds: ARTIFACT_CHILD_CPU_SECONDS_MAX,
        open_files: ARTIFACT_CHILD_OPEN_FILES_MAX,
        // A file that is too long was refused before, with an error of its own.
        file_bytes: file_bytes.saturating_add(ostler_model::limits::MIB),
    })
    .map_err(|error| failed(&error))?;
    let to = Confinement { write, read, network, nobody: true };
    confine(&to).map_err(|error| failed(&error))?;
    let orphan = move || {
        let every = Timespec::try_from(ARTIFACT_SIGN_INTERVAL).ok();
        let mut rest = [0; 64];
        loop {
            let agent = io::stdin();
            let mut asked = [PollFd::new(&agent, PollFlags::IN)];
            let over = match poll(&mut asked, every.as_ref()) {
                // If the agent is gone, the other end of the pipe shows it.
                Ok(0) => write_line(&mut io::stdout(), &ChildMessage::Alive).is_err(),
                Ok(_) => matches!(stdin.read(&mut rest), Ok(0) | Err(_)),
                Err(errno) => errno != Errno::INTR,
            };
            if over {
                std::process::exit(ORPHAN);
            }
        }
    };
    let watch = std::thread::Builder::new().name("agent".to_owned()).spawn(orphan);
    watch.map(drop).map_err(io_failure("watch the agent"))
}

fn resolver() -> Vec<PathBuf> {
    RESOLVER.iter().map(PathBuf::from).filter(|path| path.exists()).collect()
}

fn runtime() -> Result<tokio::runtime::Runtime, FetchFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(io_failure("start threads"))
}

fn download_file() -> Result<File, FetchFailure> {
    let mode = Mode::from_raw_mode(0o600);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(DOWNLOAD, flags, mode).map_err(io::Error::from);
    file.map(File::from).map_err(io_failure("make the file"))
}

fn open_tree() -> Result<OwnedFd, FetchFailure> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let tree = rustix::fs::open(TREE, flags, Mode::empty()).map_err(io::Error::from);
    tree.map_err(io_failure("open the directory"))
}

/// A file below the directory that the operator allows, whatever links there are.
fn source_file(root: &Path, below: &Path) -> Result<File, FetchFailure> {
    let named = root.join(below);
    let wrong = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            FetchFailure::passing(format!("{} is not there", named.display()))
        }
        _ => FetchFailure::passing(format!("cannot open {}: {error}", named.display())),
    };
    let root = cap_std::fs::Dir::open_ambient_dir(root, cap_std::ambient_authority());
    let file = root.and_then(|root| root.open(below)).map_err(wrong)?.into_std();
    let meta = file.metadata().map_err(wrong)?;
    if meta.is_file() {
        Ok(file)
    } else {
        Err(FetchFailure::lasting(format!("{} is not a file", named.display())))
    }
}

fn copy(from: File, into: &mut File, bytes_max: u64) -> Result<u64, FetchFailure> {
    let (mut pace, mut bytes) = (ProgressPace::new(), 0_u64);
    let of = from.metadata().ok().map(|meta| meta.len());
    let mut from = from.take(bytes_max.saturating_add(1));
    let mut piece = vec![0; 256 * 1_024];
    loop {
        let count = from.read(&mut piece).map_err(io_failure("read the file"))?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes = bytes.saturating_add(count as u64);
        if bytes > bytes_max {
            return Err(FetchFailure::lasting(format!("the file has more than {bytes_max} bytes")));
        }
        into.write_all(piece.get(..count).unwrap_or_default())
            .map_err(io_failure("write the file"))?;
        pace.tell_progress(bytes, of);
    }
}

/// Reports progress, but not too often.
struct ProgressPace {
    watch: Stopwatch,
    last: Duration,
}

impl ProgressPace {
    fn new() -> Self {
        Self { watch: Stopwatch::start(), last: Duration::ZERO }
    }

    fn tell_progress(&mut self, bytes: u64, of: Option<u64>) {
        let now = self.watch.elapsed();
        if now.saturating_sub(self.last) < ARTIFACT_PROGRESS_INTERVAL {
            return;
        }
        self.last = now;
        // If the agent is gone, the other end of the pipe shows it.
        let _ = write_line(&mut io::stdout(), &ChildMessage::Progress { bytes, of });
    }
}
