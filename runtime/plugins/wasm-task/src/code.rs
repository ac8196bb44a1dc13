//! The way from the file of a task to its compiled code.
//!
//! ```text
//! stamp ─► it is known, and the code is at hand ─► the file is not opened
//!           └─ not ─► opened, read ─► code cache (compile child when new) ─► stamp remembered
//! ```
//! The stamp of a file that was read from a disk of this node is asked for on the caller's thread. All
//! else that may wait for a disk is done on threads for such work.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io::Read as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_util::task::AbortOnDropHandle;

use super::WasmTaskError;
use crate::guest_files::places::{FileSystemKind, kind_of_file};
use ostler_model::clock::{self, Clock};
use ostler_model::limits::{CompileLimits, TASK_CODE_KEPT_MAX, TASK_FILE_BYTES_MAX};
use ostler_model::ports::TaskContext;
use ostler_model::time::Timestamp;
use ostler_sandbox::{
    CodeAsk, CodeCache, CodeFile, Digest, EngineKind, LoadError, LoadedCode, Sandbox, WasmFormat,
    detect_format, missing_entry,
};

/// A file that changed less than this before it was read may change again and keep its stamp,
/// because file systems tell times in steps of up to two seconds.
const SETTLED: Duration = Duration::from_secs(3);

/// Loads the code of tasks, and remembers which content their files have.
#[derive(Clone)]
pub struct TaskCode {
    sandbox: Arc<Sandbox>,
    control: tokio::runtime::Handle,
    clock: Clock,
    seen: Arc<Mutex<VecDeque<KnownFile>>>,
}

/// A file whose content is known.
#[derive(Clone, PartialEq, Eq)]
struct KnownFile {
    stamp: CodeStamp,
    digest: Digest,
    format: WasmFormat,
    /// The path that led to it, where that is on a disk of this node.
    local: Option<Arc<Path>>,
}

/// Tells whether a file is the same as before: where it is, and when it was changed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct CodeStamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl CodeStamp {
    fn from_metadata(meta: &Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.size(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        }
    }

    /// Did the file change so long before `now` that another change would give another stamp?
    fn is_settled(&self, now: Timestamp) -> bool {
        let (seconds, nanos) = self.changed;
        let changed = i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        i128::from(now.nanos()) - changed > i128::try_from(SETTLED.as_nanos()).unwrap_or(0)
    }
}

/// The form in which code is loaded: mapped in this process, or as a file for another one.
pub trait CodeForm: Clone + Send + 'static {
    /// The code with this digest, if the cache has it at hand.
    fn find_known(cache: &CodeCache, digest: Digest, format: WasmFormat) -> Option<Self>;
    /// Load the code of the bytes of a file.
    fn load(
        cache: &CodeCache,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> impl Future<Output = Result<Self, LoadError>> + Send;
    /// Digest of the wasm that the code was compiled from.
    fn digest(&self) -> Digest;
}

/// Code that is mapped in this process.
impl CodeForm for Arc<LoadedCode> {
    fn find_known(cache: &CodeCache, digest: Digest, format: WasmFormat) -> Option<Self> {
        cache.find_mapped(digest, EngineKind::Task, format)
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

/// Code that another process maps.
impl CodeForm for CodeFile {
    fn find_known(cache: &CodeCache, digest: Digest, format: WasmFormat) -> Option<Self> {
        cache.find_file(digest, EngineKind::Task, format)
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
    /// A loader that uses this sandbox's cache. Loads run on `control`, and not on the stack of the
    /// guest that asks, which has little room for host functions.
    #[must_use]
    pub fn new(sandbox: Arc<Sandbox>, control: tokio::runtime::Handle, clock: Clock) -> Self {
        Self { sandbox, control, clock, seen: Arc::default() }
    }

    /// Load the code of a task's file. It is compiled when its job's turn comes. The task's events
    /// tell when that takes long.
    ///
    /// # Errors
    /// When the file cannot be read, is no program for a task, or cannot be compiled.
    pub async fn load_task<W: CodeForm>(
        &self,
        context: &Arc<TaskContext>,
        path: &Path,
    ) -> Result<W, WasmTaskError> {
        if let Some(code) = self.find_task(path) {
            return Ok(code);
        }
        let read = {
            let (this, path) = (self.clone(), path.to_owned());
            clock::run_blocking(move || this.read_unless_known::<W>(&path))
        };
        let read = read.await.map_err(|_| WasmTaskError::RunEnded)??;
        let FileContent { stamp, local, bytes } = match read {
            TaskFile::Known(code) => return Ok(code),
            TaskFile::New(content) => content,
        };
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
        self.remember(KnownFile { stamp, digest: code.digest(), format, local });
        Ok(code)
    }

    /// Open a file, and read it unless its code is at hand.
    fn read_unless_known<W: CodeForm>(&self, path: &Path) -> Result<TaskFile<W>, WasmTaskError> {
        let (file, meta) = open(path)?;
        let stamp = CodeStamp::from_metadata(&meta);
        let find =
            |known: KnownFile| W::find_known(self.sandbox.code(), known.digest, known.format);
        if let Some(code) = self.known_file(stamp).and_then(find) {
            return Ok(TaskFile::Known(code));
        }
        let returns = kind_of_file(&file) == FileSystemKind::Returns;
        let local = returns.then(|| Arc::from(path));
        let bytes = read(path, file, &meta)?;
        Ok(TaskFile::New(FileContent { stamp, local, bytes }))
    }

    /// The code of a task's file, if the file is known, lies on a disk of this node, and its code is
    /// at hand. The file is not opened.
    #[must_use]
    pub fn find_task<W: CodeForm>(&self, path: &Path) -> Option<W> {
        let local = |known: &KnownFile| known.local.as_deref() == Some(path);
        if !self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().any(local) {
            return None;
        }
        let meta = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
        let known = self.known_file(CodeStamp::from_metadata(&meta))?;
        W::find_known(self.sandbox.code(), known.digest, known.format)
    }

    async fn load<W: CodeForm>(
        &self,
        context: &TaskContext,
        path: &Path,
        bytes: Arc<[u8]>,
        format: WasmFormat,
    ) -> Result<W, LoadError> {
        let within = CompileLimits::for_file_size(TASK_FILE_BYTES_MAX);
        let say = |text: &str| (context.events)(format!("{} {text}", path.display()), Vec::new());
        let (kind, owner) = (EngineKind::Task, context.job_id.qualified_id());
        let ask = CodeAsk { kind, format, within, owner, say: Some(&say) };
        W::load(self.sandbox.code(), bytes, &ask).await
    }

    fn known_file(&self, stamp: CodeStamp) -> Option<KnownFile> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().find(|seen| seen.stamp == stamp).cloned()
    }

    fn remember(&self, file: KnownFile) {
        if !file.stamp.is_settled(self.clock.now()) {
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

/// What a file has: code that is at hand, or content to be compiled.
enum TaskFile<W> {
    Known(W),
    New(FileContent),
}

/// The content of a file.
struct FileContent {
    stamp: CodeStamp,
    /// Path of the file, where it is on a disk of this node.
    local: Option<Arc<Path>>,
    bytes: Arc<[u8]>,
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
            if meta.file_type().is_fifo() { "it is a pipe" } else { "it is not a regular file" };
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
