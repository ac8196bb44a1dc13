//! Compiled code: each guest is compiled once per content and engine, then only mapped.
//!
//! ```text
//!  load(bytes) ─► digest ─► in memory? ─► pre-scan ─► on disk and sound? ─► compile child
//!                              │                          │  no: remove it        │
//!                              ▼                          ▼   └─► made ahead? ─────▼
//!                            share                       map ◄── seal, rename ── temporary file
//! ```
//!
//! Requests for the same code wait for one another, so that it is compiled once. Requests for
//! different code wait for a compile child, in an order that is fair to their owners (`queue`).
//! What cannot be compiled within its limits is remembered (`failed_compiles`). Whoever drops a
//! load gives up its place. Mapping finished code is as good as running it. So an entry is trusted
//! only when nobody but this user can have written it, and when it carries a seal made with the
//! secret of this cache for just this wasm and this engine (`seal`, `secret`). Entries are never
//! changed in place, because a mapped file must not change.

mod compile_slots;
mod disk;
mod failed_compiles;
mod find;
mod own_file;
mod queue;
mod secret;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tokio_util::sync::CancellationToken;
use wasmtime::component::Component;
use wasmtime::{Engine, Module};

use super::compile::{CompileError, Compiler, artefact_bytes_max};
use super::error::SandboxError;
use compile_slots::CompileSlots;
use failed_compiles::FailedCompiles;
use ostler_engine::{CodeIdentity, EngineKind, Sealer, WasmFormat, ahead, compatibility};
use ostler_model::limits::{self, COMPILE_FAILED_KEPT, CompileLimits};

pub use ostler_model::digest::Digest;

/// Why a guest could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The bytes did not become code.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The bytes did not compile a short while ago, with the same limits.
    #[error(
        "{text} (this was so when it was tried last; with the same limits it is not tried again \
         within {} minutes)",
        COMPILE_FAILED_KEPT.as_secs() / 60
    )]
    Known {
        /// The error of that time.
        text: String,
    },
    /// Too many guests of one owner wait already.
    #[error("{owner} has {limit} guests that wait to be compiled; try again later")]
    OwnerBusy {
        /// The job or plugin whose guests wait.
        owner: String,
        /// How many guests of one owner may wait.
        limit: usize,
    },
    /// The cache could not be read or written.
    #[error("cannot use the code cache entry {}: {source}", path.display())]
    Cache {
        /// Path of the cache entry.
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// Valid code that needs more than a guest may have (memory, memories, tables, instances).
    #[error("the guest needs more than a guest may have: {message}")]
    DoesNotFit {
        /// What the guest needs too much of, in Wasmtime's words.
        message: String,
    },
    /// Freshly compiled code was not accepted: this is a defect, or somebody changes the cache.
    #[error("freshly compiled code at {} is not usable: {reason}", path.display())]
    BadArtefact {
        /// Path of the cache entry.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Too many loads wait already.
    #[error("{limit} guests wait to be compiled already; try again later")]
    Busy {
        /// How many loads may wait.
        limit: usize,
    },
    /// This process has no cache: it only maps the code that it is handed.
    #[error("this process has no code cache: it does not compile")]
    NoCache,
    /// The runtime is shutting down.
    #[error("loading was interrupted by the shutdown")]
    Interrupted,
}

impl LoadError {
    /// May the same bytes load if they are tried again a little later?
    #[must_use]
    pub const fn is_temporary(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::OwnerBusy { .. } | Self::Interrupted)
    }
}

/// For whom code is loaded, for which engine, and within which limits.
#[derive(Clone, Copy)]
pub struct CodeAsk<'a> {
    /// The engine that the code is for.
    pub kind: EngineKind,
    /// Whether the bytes are a component or a core module.
    pub format: WasmFormat,
    /// Limits of the file and of the compile child.
    pub within: CompileLimits,
    /// Who waits for the code: a job or a plugin.
    pub owner: &'a str,
    /// Called with the progress of a load that takes long, in words that follow the name
    /// of the guest.
    pub say: Option<&'a (dyn Fn(&str) + Send + Sync)>,
}

/// A guest's code, ready to be instantiated; all its instances share it. It is unmapped when the
/// last of them is dropped. The code of a few tasks is kept ([`limits::TASK_CODE_KEPT_MAX`]).
#[derive(Clone)]
pub struct LoadedCode {
    digest: Digest,
    kind: EngineKind,
    code: MappedCode,
}

#[derive(Clone)]
enum MappedCode {
    Component(Component),
    Module(Module),
}

impl LoadedCode {
    /// Digest of the wasm it was compiled from.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// How many slots of a pool one guest takes: one for each memory, or more where its
    /// tables need more.
    pub(super) fn slots(&self) -> u32 {
        let needs = match &self.code {
            MappedCode::Component(component) => component.resources_required(),
            MappedCode::Module(module) => Some(module.resources_required()),
        };
        // It is not known for a component whose parts are imported; no such component runs here.
        let parts = needs.map(|needs| (needs.num_memories, needs.num_tables));
        let (memories, tables) =
            parts.unwrap_or((limits::GUEST_MEMORIES_MAX, limits::GUEST_TABLES_MAX));
        memories.max(tables.div_ceil(limits::POOL_TABLES_PER_SLOT)).max(1)
    }

    /// The engine that the code belongs to.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        self.kind
    }

    /// The component, when the code was loaded as one.
    #[must_use]
    pub const fn component(&self) -> Option<&Component> {
        match &self.code {
            MappedCode::Component(component) => Some(component),
            MappedCode::Module(_) => None,
        }
    }

    /// The core module, when the code was loaded as one.
    #[must_use]
    pub const fn module(&self) -> Option<&Module> {
        match &self.code {
            MappedCode::Module(module) => Some(module),
            MappedCode::Component(_) => None,
        }
    }
}

impl fmt::Debug for LoadedCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedCode({} {})", self.kind, self.digest)
    }
}

/// A file with compiled code whose seal was checked, for a process that maps it and has no cache.
#[derive(Clone, Debug)]
pub struct CodeFile {
    /// Digest of the wasm that the code was compiled from.
    pub digest: Digest,
    /// The engine that the code was compiled for.
    pub kind: EngineKind,
    /// Whether the code is a component or a core module.
    pub format: WasmFormat,
    /// The file, open for reading. Its content never changes.
    pub file: Arc<File>,
}

/// Counts of what the cache did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// How many compile children succeeded.
    pub compiled: u64,
    /// How many loads were served from code that came with the program.
    pub ahead: u64,
    /// How many loads were served from disk.
    pub disk_hits: u64,
    /// How many loads were served from memory.
    pub memory_hits: u64,
    /// How many entries were removed because they were damaged or not safe.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct CacheCounters {
    compiled: AtomicU64,
    ahead: AtomicU64,
    disk_hits: AtomicU64,
    memory_hits: AtomicU64,
    refused: AtomicU64,
}

/// What identifies an entry, and with the directory its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct CodeKey {
    digest: Digest,
    kind: EngineKind,
    format: WasmFormat,
}

/// The code cache of one agent.
pub struct CodeCache {
    /// Directory of the cache; empty without one.
    dir: PathBuf,
    /// Seals entries. `None` without a directory: then nothing is compiled, and the code to map
    /// comes from other processes.
    sealer: Option<Sealer>,
    compiler: Compiler,
    plugin: (Engine, String),
    task: (Engine, String),
    /// The engine that code of tasks is compiled for.
    task_code: EngineKind,
    slots: CompileSlots,
    failed: FailedCompiles,
    /// Code that came with the program, by the digest of the wasm that it says it was made of.
    ahead: HashMap<Digest, &'static [u8]>,
    /// Cancelled when nothing is compiled any more.
    closed: CancellationToken,
    loaded: Mutex<HashMap<CodeKey, Weak<LoadedCode>>>,
    /// Code of tasks that is kept, the one used last at the end. Code of plugins is kept
    /// by its owners.
    kept: Mutex<VecDeque<Arc<LoadedCode>>>,
    /// Files of code that were handed to other processes, the one used last at the end.
    files: Mutex<VecDeque<CodeFile>>,
    flights: Mutex<HashMap<CodeKey, Arc<tokio::sync::Mutex<()>>>>,
    counters: CacheCounters,
}

impl CodeCache {
    /// Open the cache at `dir`: create it, check that nobody else can write there, and
    /// remove the entries beyond the limit. Without a directory the cache only maps the code
    /// that it is handed.
    pub(super) fn open(
        dir: Option<PathBuf>,
        compiler: Compiler,
        ahead: &[&'static [u8]],
        plugin: Engine,
        (task_code, task): (EngineKind, Engine),
    ) -> Result<Self, SandboxError> {
        let sealer = match &dir {
            Some(dir) => {
                disk::prepare_dir(dir)?;
                Some(Sealer::new(&secret::load_secret(dir)?))
            }
            None => None,
        };
        let with_hash = |engine: Engine| {
            let hash = compatibility(&engine);
            (engine, hash)
        };
        Ok(Self {
            dir: dir.unwrap_or_default(),
            sealer,
            compiler,
            plugin: with_hash(plugin),
            task: with_hash(task),
            task_code,
            slots: CompileSlots::new(limits::COMPILE_CHILDREN_MAX),
            failed: FailedCompiles::default(),
            ahead: ahead.iter().filter_map(|code| Some((ahead::digest(code)?, *code))).collect(),
            closed: CancellationToken::new(),
            loaded: Mutex::default(),
            kept: Mutex::default(),
            files: Mutex::default(),
            flights: Mutex::default(),
            counters: CacheCounters::default(),
        })
    }

    /// Load the code of `bytes` for the engine `kind`, compiled now or before.
    ///
    /// Dropping the future ends its compile child; another waiter for the same code takes over.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is kept of a failure.
    pub async fn load(
        &self,
        bytes: Arc<[u8]>,
        kind: EngineKind,
        format: WasmFormat,
    ) -> Result<Arc<LoadedCode>, LoadError> {
        let within = CompileLimits::for_file_size(kind.file_bytes_max());
        self.load_for(bytes, &CodeAsk { kind, format, within, owner: "", say: None }).await
    }

    /// [`CodeCache::load`] for an owner, with the guest's own limits for file and compile child.
    /// Code that is there already is returned whatever it cost.
    ///
    /// # Errors
    /// [`LoadError`]. A failure that is the fault of the bytes is remembered.
    pub async fn load_for(
        &self,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> Result<Arc<LoadedCode>, LoadError> {
        let known = |key: &CodeKey| self.find_in_memory(key);
        let engine = self.engine(ask.kind).0.clone();
        let take = move |key: CodeKey, file| disk::map(&engine, key.format, &file, false);
        let keep = |key, code| self.remember(key, code);
        self.find(bytes, ask, known, take, keep).await
    }

    /// As [`CodeCache::load_for`], for another process that maps the code ([`CodeCache::map`]).
    ///
    /// # Errors
    /// As [`CodeCache::load_for`].
    pub async fn file_for(
        &self,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> Result<CodeFile, LoadError> {
        let known = |key: &CodeKey| self.handed_file(key);
        let take = |key: CodeKey, file| {
            let CodeKey { digest, kind, format } = key;
            Ok(Ok(CodeFile { digest, kind, format, file: Arc::new(file) }))
        };
        let keep = |_, file: CodeFile| {
            keep_newest(&self.files, file.clone(), |other| other.digest == file.digest);
            file
        };
        self.find(bytes, ask, known, take, keep).await
    }

    /// Code that is mapped already.
    #[must_use]
    pub fn find_mapped(
        &self,
        digest: Digest,
        kind: EngineKind,
        format: WasmFormat,
    ) -> Option<Arc<LoadedCode>> {
        self.find_in_memory(&CodeKey { digest, kind, format })
    }

    /// The file of code that was handed to another process before.
    #[must_use]
    pub fn find_file(
        &self,
        digest: Digest,
        kind: EngineKind,
        format: WasmFormat,
    ) -> Option<CodeFile> {
        self.handed_file(&CodeKey { digest, kind, format })
    }

    /// Map the code of a file whose seal the agent checked, in a process that has no cache of its
    /// own. Blocks when the code is not mapped yet.
    ///
    /// # Errors
    /// When it is not code for this process's engine, or needs more than a guest may have.
    pub fn map(&self, file: &CodeFile) -> Result<Arc<LoadedCode>, LoadError> {
        let CodeFile { digest, kind, format, file } = file;
        let key = CodeKey { digest: *digest, kind: *kind, format: *format };
        if let Some(code) = self.find_in_memory(&key) {
            return Ok(code);
        }
        match disk::map(&self.engine(*kind).0, *format, file, true)? {
            Ok(code) => Ok(self.remember(key, code)),
            Err(reason) => Err(LoadError::BadArtefact { path: self.path(&key), reason }),
        }
    }

    /// Is this code mapped, so that [`CodeCache::map`] does not block?
    #[must_use]
    pub fn is_mapped(&self, digest: Digest, kind: EngineKind, format: WasmFormat) -> bool {
        self.find_in_memory(&CodeKey { digest, kind, format }).is_some()
    }

    /// Compile nothing any more. Whoever waits for a compile child gets an error at once.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Compile the bytes when it is the turn of their owner.
    async fn compile_in_turn(
        &self,
        bytes: &Arc<[u8]>,
        key: CodeKey,
        ask: &CodeAsk<'_>,
        path: &Path,
    ) -> Result<(), LoadError> {
        let CodeAsk { within, owner, say, .. } = *ask;
        let mut slot = self.slots.join(owner, say).map_err(|_full| LoadError::OwnerBusy {
            owner: owner.to_owned(),
            limit: limits::COMPILE_OWNER_QUEUE_MAX,
        })?;
        loop {
            slot.wait_turn().await;
            tokio::select! {
                biased;
                compiled = self.compile(bytes, key, &within, path) => return compiled,
                () = slot.wait_set_back() => {}
            }
        }
    }

    /// Counts of what the cache did so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            compiled: read(&self.counters.compiled),
            ahead: read(&self.counters.ahead),
            disk_hits: read(&self.counters.disk_hits),
            memory_hits: read(&self.counters.memory_hits),
            refused: read(&self.counters.refused),
        }
    }

    const fn engine(&self, kind: EngineKind) -> &(Engine, String) {
        match kind {
            EngineKind::Plugin => &self.plugin,
            EngineKind::Task | EngineKind::Dense => &self.task,
        }
    }

    fn path(&self, key: &CodeKey) -> PathBuf {
        let CodeKey { digest, kind, format } = key;
        let (_, hash) = self.engine(*kind);
        self.dir.join(format!("{digest}-{hash}-{}-{}.code", kind.as_str(), format.as_str()))
    }

    fn find_in_memory(&self, key: &CodeKey) -> Option<Arc<LoadedCode>> {
        let code = lock(&self.loaded).get(key)?.upgrade()?;
        self.keep(&code);
        Some(code)
    }

    /// Keep the code of a task beyond its end, and drop the code used longest ago for it.
    fn keep(&self, code: &Arc<LoadedCode>) {
        if code.kind != EngineKind::Task {
            return;
        }
        keep_newest(&self.kept, Arc::clone(code), |other| Arc::ptr_eq(other, code));
    }

    fn handed_file(&self, key: &CodeKey) -> Option<CodeFile> {
        let files = lock(&self.files);
        let is_it = |file: &&CodeFile| {
            file.digest == key.digest && file.kind == key.kind && file.format == key.format
        };
        files.iter().find(is_it).cloned()
    }

    fn remember(&self, key: CodeKey, code: MappedCode) -> Arc<LoadedCode> {
        let code = Arc::new(LoadedCode { digest: key.digest, kind: key.kind, code });
        let mut loaded = lock(&self.loaded);
        loaded.retain(|_, code| code.strong_count() > 0);
        loaded.insert(key, Arc::downgrade(&code));
        drop(loaded);
        self.keep(&code);
        code
    }

    /// What the seal of the entry of `key` must name.
    fn expected_code(&self, key: CodeKey) -> CodeIdentity {
        let CodeKey { digest, kind, format } = key;
        CodeIdentity { digest, kind, format, engine: self.engine(kind).1.clone() }
    }

    async fn compile(
        &self,
        bytes: &Arc<[u8]>,
        key: CodeKey,
        within: &CompileLimits,
        path: &Path,
    ) -> Result<(), LoadError> {
        let failed = |source| LoadError::Cache { path: path.to_owned(), source };
        let Some(sealer) = self.sealer.clone() else { return Err(LoadError::NoCache) };
        let temporary = disk::temporary_file(&self.dir).map_err(failed)?;
        let output = temporary.path();
        let limit = artefact_bytes_max(bytes.len());
        let kind = if key.kind == EngineKind::Plugin { key.kind } else { self.task_code };
        let compiled =
            self.compiler.compile(Arc::clone(bytes), kind, key.format, within, output).await;
        // The child limits itself, and is not trusted to do so.
        let compiled = compiled.and_then(|()| {
            let bytes = temporary.as_file().metadata().map_or(0, |found| found.len());
            if bytes > limit { Err(CompileError::ArtefactTooLarge { limit }) } else { Ok(()) }
        });
        if let Err(error) = compiled {
            self.failed.keep(key, within, &error);
            return Err(error.into());
        }
        let to = path.to_owned();
        let meant = self.expected_code(key);
        run_blocking(move || {
            disk::publish(temporary, &sealer, &meant, &to)
                .map_err(|source| LoadError::Cache { path: to, source })
        })
        .await
    }

    /// Join the loads that wait for the same code.
    fn join_flight(&self, key: CodeKey) -> Result<CompileFlight<'_>, LoadError> {
        let mut flights = lock(&self.flights);
        let waiting: usize = flights.values().map(|turn| Arc::strong_count(turn) - 1).sum();
        if waiting >= limits::COMPILE_QUEUE_MAX {
            return Err(LoadError::Busy { limit: limits::COMPILE_QUEUE_MAX });
        }
        let turn = Arc::clone(flights.entry(key).or_default());
        Ok(CompileFlight { cache: self, key, turn })
    }
}

impl fmt::Debug for CodeCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CodeCache")
            .field("dir", &self.dir)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A place among the loads that wait for the same code. The last to leave removes the queue.
struct CompileFlight<'a> {
    cache: &'a CodeCache,
    key: CodeKey,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for CompileFlight<'_> {
    fn drop(&mut self) {
        let mut flights = lock(&self.cache.flights);
        // Two remain, the one of the map and this one: clones are only made under this lock.
        if Arc::strong_count(&self.turn) <= 2 {
            flights.remove(&self.key);
        }
    }
}

/// Put `one` last, without a second copy of it, and drop the one used longest ago beyond the limit.
fn keep_newest<T>(kept: &Mutex<VecDeque<T>>, one: T, same: impl Fn(&T) -> bool) {
    let mut kept = lock(kept);
    kept.retain(|other| !same(other));
    kept.push_back(one);
    let excess = kept.len().saturating_sub(limits::TASK_CODE_KEPT_MAX);
    let gone: Vec<_> = kept.drain(..excess).collect();
    drop(kept);
    // Unmapped or closed without holding the lock.
    drop(gone);
}

/// Lock, also after a panic: every change is one call, so a panic leaves the data whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(LoadError::Interrupted))
}
