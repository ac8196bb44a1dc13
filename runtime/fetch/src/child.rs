//! The child: it hears one order, limits itself, does it, and says how that went.

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
use ostler_model::shown::shown;
use ostler_process::confine::{ConfinedNetwork, Confinement, ProcessBounds, bound, confine};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::order::{DOWNLOAD, Order, TREE, Word, hear, say};
use crate::unpack::{self, What};
use crate::{http, pull};

/// Exit code when the agent is gone.
const ORPHAN: i32 = 3;
/// What resolving names reads, where it is there.
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

/// What the binary runs when its first argument is [`crate::ARGUMENT`].
#[must_use]
pub fn main() -> ExitCode {
    let mut stdin = BufReader::new(io::stdin());
    let order = match hear::<Order>(&mut stdin) {
        Ok(Some(order)) => order,
        Ok(None) | Err(_) => return ExitCode::from(2),
    };
    let word = match done(order, stdin) {
        Ok(word) => word,
        Err(Failure { reason, recoverable }) => {
            Word::Failed { reason: shown(reason, ARTIFACT_REASON_BYTES_MAX), recoverable }
        }
    };
    match say(&mut io::stdout(), &word) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// Why an order was not carried out.
pub(crate) struct Failure {
    pub(crate) reason: String,
    pub(crate) recoverable: bool,
}

impl Failure {
    /// Which may pass.
    pub(crate) fn passing(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: true }
    }

    /// Which trying again does not help.
    pub(crate) fn lasting(reason: impl ToString) -> Self {
        Self { reason: reason.to_string(), recoverable: false }
    }
}

fn cannot(what: &str) -> impl Fn(io::Error) -> Failure + '_ {
    move |error| Failure::passing(format!("cannot {what}: {error}"))
}

fn done(order: Order, stdin: BufReader<io::Stdin>) -> Result<Word, Failure> {
    match order {
        Order::Download { url, headers, bytes_max, wall } => {
            let ask = http::Ask { url, headers, bytes_max, wall };
            let tls = ask.url.is_https().then(http::tls).flatten();
            let mut into = download_file()?;
            limit(stdin, ConfinedNetwork::TcpAndNames, resolver(), Vec::new(), bytes_max)?;
            let mut pace = Pace::new();
            let runtime = runtime()?;
            let mut told = |bytes, of| pace.tell(bytes, of);
            let get = http::download(&ask, tls.as_ref(), &mut into, &mut told);
            let bytes = runtime.block_on(get).map_err(Failure::passing)?;
            into.flush().map_err(cannot("write what came"))?;
            Ok(Word::Done { bytes, signature: None, manifest: None })
        }
        Order::Pull { reference, insecure } => {
            let client = pull::prepare(insecure);
            let mut into = download_file()?;
            limit(
                stdin,
                ConfinedNetwork::TcpAndNames,
                resolver(),
                Vec::new(),
                TASK_FILE_BYTES_MAX,
            )?;
            let pulled = runtime()?.block_on(pull::pull(client, &reference))?;
            into.write_all(&pulled.bytes).map_err(cannot("write what came"))?;
            let bytes = pulled.bytes.len() as u64;
            Ok(Word::Done { bytes, signature: pulled.signature, manifest: Some(pulled.manifest) })
        }
        Order::Copy { root, below, bytes_max } => {
            let from = source_file(&root, &below)?;
            let mut into = download_file()?;
            limit(stdin, ConfinedNetwork::Nothing, Vec::new(), Vec::new(), bytes_max)?;
            let bytes = copy(from, &mut into, bytes_max)?;
            Ok(Word::Done { bytes, signature: None, manifest: None })
        }
        Order::Unpack { archive, kind, part, one_file, bytes_max, of_alloc, entries_max } => {
            let from = File::open(&archive).map_err(cannot("open the archive"))?;
            let tree = open_tree()?;
            limit(
                stdin,
                ConfinedNetwork::Nothing,
                Vec::new(),
                vec![PathBuf::from(TREE)],
                bytes_max,
            )?;
            let bounds = unpack::Bounds { bytes: bytes_max, of_alloc, entries: entries_max };
            let mut pace = Pace::new();
            let what = What { kind, part, one_file };
            let mut told = |bytes| pace.tell(bytes, None);
            let bytes = unpack::unpack(tree, from, &what, bounds, &mut told);
            let bytes = bytes.map_err(|error| match error.passing() {
                true => Failure::passing(error),
                false => Failure::lasting(error),
            })?;
            Ok(Word::Done { bytes, signature: None, manifest: None })
        }
    }
}

/// From here on this process can do next to nothing but its work, and ends with the agent.
fn limit(
    mut stdin: BufReader<io::Stdin>,
    network: ConfinedNetwork,
    read: Vec<PathBuf>,
    write: Vec<PathBuf>,
    file_bytes: u64,
) -> Result<(), Failure> {
    let failed = |error: &dyn std::error::Error| {
        Failure::passing(format!(
            "the process cannot be limited: {}",
            ostler_model::causes::chain(error)
        ))
    };
    bound(&ProcessBounds {
        address_space_bytes: ARTIFACT_CHILD_ADDRESS_SPACE_BYTES_MAX,
        cpu_seconds: ARTIFACT_CHILD_CPU_SECONDS_MAX,
        open_files: ARTIFACT_CHILD_OPEN_FILES_MAX,
        // What is too long is refused by its own name before.
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
                // An agent that is gone is noticed by the other end.
                Ok(0) => say(&mut io::stdout(), &Word::Alive).is_err(),
                Ok(_) => matches!(stdin.read(&mut rest), Ok(0) | Err(_)),
                Err(errno) => errno != Errno::INTR,
            };
            if over {
                std::process::exit(ORPHAN);
            }
        }
    };
    let watch = std::thread::Builder::new().name("agent".to_owned()).spawn(orphan);
    watch.map(drop).map_err(cannot("watch the agent"))
}

fn resolver() -> Vec<PathBuf> {
    RESOLVER.iter().map(PathBuf::from).filter(|path| path.exists()).collect()
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(cannot("start threads"))
}

fn download_file() -> Result<File, Failure> {
    let mode = Mode::from_raw_mode(0o600);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::open(DOWNLOAD, flags, mode).map_err(io::Error::from);
    file.map(File::from).map_err(cannot("make the file"))
}

fn open_tree() -> Result<OwnedFd, Failure> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let tree = rustix::fs::open(TREE, flags, Mode::empty()).map_err(io::Error::from);
    tree.map_err(cannot("open the directory"))
}

/// A file below the directory that the operator allows, whatever links there are.
fn source_file(root: &Path, below: &Path) -> Result<File, Failure> {
    let named = root.join(below);
    let wrong = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Failure::passing(format!("{} is not there", named.display())),
        _ => Failure::passing(format!("cannot open {}: {error}", named.display())),
    };
    let root = cap_std::fs::Dir::open_ambient_dir(root, cap_std::ambient_authority());
    let file = root.and_then(|root| root.open(below)).map_err(wrong)?.into_std();
    let meta = file.metadata().map_err(wrong)?;
    match meta.is_file() {
        true => Ok(file),
        false => Err(Failure::lasting(format!("{} is no file", named.display()))),
    }
}

fn copy(from: File, into: &mut File, bytes_max: u64) -> Result<u64, Failure> {
    let (mut pace, mut bytes) = (Pace::new(), 0_u64);
    let of = from.metadata().ok().map(|meta| meta.len());
    let mut from = from.take(bytes_max.saturating_add(1));
    let mut piece = vec![0; 256 * 1_024];
    loop {
        let count = from.read(&mut piece).map_err(cannot("read the file"))?;
        if count == 0 {
            return Ok(bytes);
        }
        bytes = bytes.saturating_add(count as u64);
        if bytes > bytes_max {
            return Err(Failure::lasting(format!("the file has more than {bytes_max} bytes")));
        }
        into.write_all(piece.get(..count).unwrap_or_default()).map_err(cannot("write the file"))?;
        pace.tell(bytes, of);
    }
}

/// Says how far it is, not too often.
struct Pace {
    watch: Stopwatch,
    last: Duration,
}

impl Pace {
    fn new() -> Self {
        Self { watch: Stopwatch::start(), last: Duration::ZERO }
    }

    fn tell(&mut self, bytes: u64, of: Option<u64>) {
        let now = self.watch.elapsed();
        if now.saturating_sub(self.last) < ARTIFACT_PROGRESS_INTERVAL {
            return;
        }
        self.last = now;
        // An agent that is gone is noticed by the other end.
        let _ = say(&mut io::stdout(), &Word::Progress { bytes, of });
    }
}
