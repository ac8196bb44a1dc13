//! From the file of a task to its compiled code.
//!
//! ```text
//! open ─► its stamp is known, and the code is at hand ─► no byte of it is read
//!           └─ not ─► read ─► code cache (compile child when new) ─► stamp remembered
//! ```

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::WasmTaskError;
use ostler_model::clock::Clock;
use ostler_model::limits::{CompileLimits, TASK_CODE_KEPT_MAX, TASK_FILE_BYTES_MAX};
use ostler_model::ports::TaskContext;
use ostler_model::time::Timestamp;
use ostler_sandbox::{
    CodeAsk, CodeCache, CodeFile, Digest, EngineKind, Format, LoadError, LoadedCode, Sandbox,
    detect_format, missing_entry,
};

/// A file that changed so short before it was read may change again without another stamp: file
/// systems tell times in steps, of two seconds at most.
const SETTLED: Duration = Duration::from_secs(3);

/// Where the code of tasks comes from.
#[derive(Clone)]
pub struct TaskCode {
    sandbox: Arc<Sandbox>,
    control: tokio::runtime::Handle,
    clock: Clock,
    seen: Arc<Mutex<VecDeque<Seen>>>,
}

/// A file whose content is known.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Seen {
    stamp: Stamp,
    digest: Digest,
    format: Format,
}

/// What tells that a file is the same as before: where it is, and when it was changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Did it change long enough before `now` to be told from the next change?
    fn settled(&self, now: Timestamp) -> bool {
        let (seconds, nanos) = self.changed;
        let changed = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        i128::from(now.nanos()) - changed > i128::try_from(SETTLED.as_nanos()).unwrap_or(0)
    }
}

/// What code is wanted as.
pub trait Wanted: Clone + Send + 'static {
    /// At hand, whatever file it is of.
    fn known(cache: &CodeCache, digest: Digest, format: Format) -> Option<Self>;
    /// From the bytes of the file.
    fn load(
        cache: &CodeCache,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> impl Future<Output = Result<Self, LoadError>> + Send;
    /// Of the wasm.
    fn digest(&self) -> Digest;
}

/// Mapped in this process.
impl Wanted for Arc<LoadedCode> {
    fn known(cache: &CodeCache, digest: Digest, format: Format) -> Option<Self> {
        cache.known(digest, EngineKind::Task, format)
    }

    async fn load(
        cache: &CodeCache,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> Result<Self, LoadError> {
        cache.load_for(bytes, ask).await
    }

    fn digest(&self) -> Digest {
        *LoadedCode::digest(self)
    }
}

/// To be mapped by another process.
impl Wanted for CodeFile {
    fn known(cache: &CodeCache, digest: Digest, format: Format) -> Option<Self> {
        cache.known_file(digest, EngineKind::Task, format)
    }

    async fn load(
        cache: &CodeCache,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> Result<Self, LoadError> {
        cache.file_for(bytes, ask).await
    }

    fn digest(&self) -> Digest {
        self.digest
    }
}

impl TaskCode {
    /// Of this cache. Loads go on on `control`, not on the stack of the guest that asks, which has
    /// little room for host functions.
    #[must_use]
    pub fn new(sandbox: Arc<Sandbox>, control: tokio::runtime::Handle, clock: Clock) -> Self {
        Self { sandbox, control, clock, seen: Arc::default() }
    }

    /// The code of a task's file, compiled when its job's turn comes; what takes long is told in its
    /// events.
    ///
    /// # Errors
    /// When the file cannot be read, is no task, or cannot be compiled.
    pub async fn of<W: Wanted>(
        &self,
        context: &Arc<TaskContext>,
        path: &Path,
    ) -> Result<W, WasmTaskError> {
        let (file, meta) = open(path)?;
        let stamp = Stamp::of(&meta);
        if let Some(Seen { digest, format, .. }) = self.seen(stamp)
            && let Some(code) = W::known(self.sandbox.code(), digest, format)
        {
            return Ok(code);
        }
        let bytes = read(path, file, &meta)?;
        let coded = |source| WasmTaskError::Code { path: path.to_owned(), source };
        let format = detect_format(&bytes).map_err(|e| coded(LoadError::Compile(e)))?;
        if let Some(name) = missing_entry(&bytes, format) {
            let reason = format!("it does not export {name}");
            return Err(WasmTaskError::OtherWorld { path: path.to_owned(), reason });
        }
        let (this, about, at) = (self.clone(), Arc::clone(context), path.to_owned());
        let load = async move { this.load::<W>(&about, &at, bytes, format).await };
        let loading = AbortOnDropHandle::new(self.control.spawn(load)).await;
        let code = loading.unwrap_or(Err(LoadError::Interrupted)).map_err(coded)?;
        self.remember(Seen { stamp, digest: code.digest(), format });
        Ok(code)
    }

    async fn load<W: Wanted>(
        &self,
        context: &TaskContext,
        path: &Path,
        bytes: Arc<[u8]>,
        format: Format,
    ) -> Result<W, LoadError> {
        let within = CompileLimits::of_file(TASK_FILE_BYTES_MAX);
        let say = |text: &str| (context.events)(format!("{} {text}", path.display()), Vec::new());
        let (kind, owner) = (EngineKind::Task, context.job_id.qualified());
        let ask = CodeAsk { kind, format, within, owner, say: Some(&say) };
        W::load(self.sandbox.code(), bytes, &ask).await
    }

    fn seen(&self, stamp: Stamp) -> Option<Seen> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().find(|seen| seen.stamp == stamp).copied()
    }

    fn remember(&self, file: Seen) {
        if !file.stamp.settled(self.clock.now()) {
            return;
        }
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|other| other.stamp != file.stamp);
        seen.push_back(file);
        if seen.len() > TASK_CODE_KEPT_MAX {
            seen.pop_front();
        }
    }
}

/// Open a regular file of bounded size. A pipe or device is refused instead of waited for.
fn open(path: &Path) -> Result<(File, Metadata), WasmTaskError> {
    let refused = |reason: String| WasmTaskError::File { path: path.to_owned(), reason };
    let file = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => WasmTaskError::NotFound { path: path.to_owned() },
            _ => refused(error.to_string()),
        })?;
    let meta = file.metadata().map_err(|e| refused(e.to_string()))?;
    if !meta.is_file() {
        let what =
            if meta.file_type().is_fifo() { "it is a pipe" } else { "it is no regular file" };
        return Err(refused(what.to_owned()));
    }
    if meta.len() > TASK_FILE_BYTES_MAX {
        return Err(refused(format!(
            "it has {} bytes; a WASM task has at most {TASK_FILE_BYTES_MAX}",
            meta.len()
        )));
    }
    Ok((file, meta))
}

fn read(path: &Path, file: File, meta: &Metadata) -> Result<Arc<[u8]>, WasmTaskError> {
    let refused =
        |e: std::io::Error| WasmTaskError::File { path: path.to_owned(), reason: e.to_string() };
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or(0));
    file.take(TASK_FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(refused)?;
    Ok(bytes.into())
}
