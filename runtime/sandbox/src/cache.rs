//! Compiled code: each guest is compiled once per content and engine, then only mapped.
//!
//! ```text
//!  load(bytes) ─► digest ─► in memory? ─► pre-scan ─► on disk and sound? ─► compile child
//!                              │                          │  no: remove it        │
//!                              ▼                          ▼   └─► made ahead? ─────▼
//!                            share                       map ◄── seal, rename ── temporary file
//! ```
//!
//! Requests for the same code wait for one another, so that it is compiled once. Those for different
//! code wait for a compile child, in an order that is fair to their owners (`queue`); what cannot be
//! compiled within its limits is remembered (`failed`). Whoever drops a load gives up its place. Mapping finished
//! code is as good as running it, so an entry is trusted only when nobody but this user can have
//! written it, and when it carries a seal made with the secret of this cache for just this wasm and
//! this engine (`seal`, `secret`). Entries are never changed in place, because a mapped file must
//! not change.

mod compile_slots;
mod disk;
mod failed;
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
use failed::Failed;
use ostler_engine::{EngineKind, Format, Meant, Sealer, ahead, compatibility};
use ostler_model::limits::{self, COMPILE_FAILED_KEPT, CompileLimits};

pub use ostler_model::digest::Digest;

/// Why a guest could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The bytes did not become code.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// They did not a short while ago.
    #[error(
        "{text} (this was so when it was tried last; with the same limits it is not tried again \
         within {} minutes)",
        COMPILE_FAILED_KEPT.as_secs() / 60
    )]
    Known {
        /// Why.
        text: String,
    },
    /// Too much of one owner waits already.
    #[error("{owner} has {limit} guests that wait to be compiled; try again later")]
    OwnerBusy {
        /// The job or plugin.
        owner: String,
        /// The limit.
        limit: usize,
    },
    /// The cache could not be read or written.
    #[error("cannot use the code cache entry {}: {source}", path.display())]
    Cache {
        /// The entry.
        path: PathBuf,
        /// What the kernel said.
        #[source]
        source: io::Error,
    },
    /// Valid code that needs more than a guest may have (memory, memories, tables, instances).
    #[error("the guest needs more than a guest may have: {message}")]
    DoesNotFit {
        /// Wasmtime's words.
        message: String,
    },
    /// Freshly compiled code was not accepted: a defect, or somebody meddles with the cache.
    #[error("freshly compiled code at {} is not usable: {reason}", path.display())]
    BadArtefact {
        /// The entry.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// Too many loads wait already.
    #[error("{limit} guests wait to be compiled already; try again later")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// It only maps what it is handed.
    #[error("this process has no code cache: it does not compile")]
    NoCache,
    /// The runtime is shutting down.
    #[error("loading was interrupted by the shutdown")]
    Interrupted,
}

impl LoadError {
    /// May the same bytes load a little later?
    #[must_use]
    pub const fn passing(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::OwnerBusy { .. } | Self::Interrupted)
    }
}

/// Whose code is wanted, and how.
#[derive(Clone, Copy)]
pub struct CodeAsk<'a> {
    /// The engine.
    pub kind: EngineKind,
    /// Component or core module.
    pub format: Format,
    /// What file and compile child may use.
    pub within: CompileLimits,
    /// Who waits for it: a job, a plugin.
    pub owner: &'a str,
    /// Hears what becomes of it when it takes long, in words that follow its name.
    pub say: Option<&'a (dyn Fn(&str) + Send + Sync)>,
}

/// A guest's code, ready to be instantiated; shared by all its instances. The mapping goes when the
/// last of them is dropped, but that of a few tasks is kept ([`limits::TASK_CODE_KEPT_MAX`]).
#[derive(Clone)]
pub struct LoadedCode {
    digest: Digest,
    kind: EngineKind,
    code: Code,
}

#[derive(Clone)]
enum Code {
    Component(Component),
    Module(Module),
}

impl LoadedCode {
    /// Digest of the wasm it was compiled from.
    #[must_use]
    pub const fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Slots of a pool that one guest takes: one for each memory, and what its tables need.
    pub(super) fn slots(&self) -> u32 {
        let needs = match &self.code {
            Code::Component(component) => component.resources_required(),
            Code::Module(module) => Some(module.resources_required()),
        };
        // Of a component whose parts are imported it is not known; none runs here.
        let parts = needs.map(|needs| (needs.num_memories, needs.num_tables));
        let (memories, tables) =
            parts.unwrap_or((limits::GUEST_MEMORIES_MAX, limits::GUEST_TABLES_MAX));
        memories.max(tables.div_ceil(limits::POOL_TABLES_PER_SLOT)).max(1)
    }

    /// The engine it belongs to.
    #[must_use]
    pub const fn kind(&self) -> EngineKind {
        self.kind
    }

    /// The component, when it was loaded as one.
    #[must_use]
    pub const fn component(&self) -> Option<&Component> {
        match &self.code {
            Code::Component(component) => Some(component),
            Code::Module(_) => None,
        }
    }

    /// The core module, when it was loaded as one.
    #[must_use]
    pub const fn module(&self) -> Option<&Module> {
        match &self.code {
            Code::Module(module) => Some(module),
            Code::Component(_) => None,
        }
    }
}

impl fmt::Debug for LoadedCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadedCode({} {})", self.kind, self.digest)
    }
}

/// Compiled code as a file that was found sealed, for a process that maps it and has no cache.
#[derive(Clone, Debug)]
pub struct CodeFile {
    /// Of the wasm it was compiled from.
    pub digest: Digest,
    /// The engine it was compiled for.
    pub kind: EngineKind,
    /// Component or core module.
    pub format: Format,
    /// The file, open for reading. Its content never changes.
    pub file: Arc<File>,
}

/// What the cache did so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheStats {
    /// Compile children that succeeded.
    pub compiled: u64,
    /// Loads served from code that came with the program.
    pub ahead: u64,
    /// Loads served from disk.
    pub disk_hits: u64,
    /// Loads served from memory.
    pub memory_hits: u64,
    /// Entries removed because they were damaged or not safe.
    pub refused: u64,
}

#[derive(Debug, Default)]
struct Counters {
    compiled: AtomicU64,
    ahead: AtomicU64,
    disk_hits: AtomicU64,
    memory_hits: AtomicU64,
    refused: AtomicU64,
}

/// What identifies an entry, and with the directory its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    digest: Digest,
    kind: EngineKind,
    format: Format,
}

/// The code cache of one agent.
pub struct CodeCache {
    /// Empty without a directory.
    dir: PathBuf,
    /// `None` without a directory: nothing is compiled, and what is mapped comes from others.
    sealer: Option<Sealer>,
    compiler: Compiler,
    plugin: (Engine, String),
    task: (Engine, String),
    /// What code of tasks is compiled as.
    task_code: EngineKind,
    slots: CompileSlots,
    failed: Failed,
    /// Code that came with the program, by the wasm that it says it was made of.
    ahead: HashMap<Digest, &'static [u8]>,
    /// Nothing is compiled any more.
    closed: CancellationToken,
    loaded: Mutex<HashMap<Key, Weak<LoadedCode>>>,
    /// Code of tasks, the one used last at the end. That of plugins their owners keep.
    kept: Mutex<VecDeque<Arc<LoadedCode>>>,
    /// Files of code handed to other processes, likewise.
    files: Mutex<VecDeque<CodeFile>>,
    flights: Mutex<HashMap<Key, Arc<tokio::sync::Mutex<()>>>>,
    counters: Counters,
}

impl CodeCache {
    /// Open the cache at `dir`: create it, check that nobody else can write there, drop what is
    /// too much. Without one it only maps what it is handed.
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
                Some(Sealer::new(&secret::of_cache(dir)?))
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
            failed: Failed::default(),
            ahead: ahead.iter().filter_map(|code| Some((ahead::digest(code)?, *code))).collect(),
            closed: CancellationToken::new(),
            loaded: Mutex::default(),
            kept: Mutex::default(),
            files: Mutex::default(),
            flights: Mutex::default(),
            counters: Counters::default(),
        })
    }

    /// The code of `bytes` for the engine `kind`, compiled now or before.
    ///
    /// Dropping the future ends its compile child; another waiter for the same code takes over.
    ///
    /// # Errors
    /// [`LoadError`]; nothing is kept of a failure.
    pub async fn load(
        &self,
        bytes: Arc<[u8]>,
        kind: EngineKind,
        format: Format,
    ) -> Result<Arc<LoadedCode>, LoadError> {
        let within = CompileLimits::of_file(kind.file_bytes_max());
        self.load_for(bytes, &CodeAsk { kind, format, within, owner: "", say: None }).await
    }

    /// [`CodeCache::load`] for an owner, with limits of the guest's own for file and compile child. Code
    /// that is there already is given whatever it cost.
    ///
    /// # Errors
    /// [`LoadError`]; of a failure that the bytes are at fault for it is kept that it was one.
    pub async fn load_for(
        &self,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> Result<Arc<LoadedCode>, LoadError> {
        let known = |key: &Key| self.in_memory(key);
        let engine = self.engine(ask.kind).0.clone();
        let take = move |key: Key, file| disk::map(&engine, key.format, &file, false);
        let keep = |key, code| self.remember(key, code);
        self.find(bytes, ask, known, take, keep).await
    }

    /// As [`CodeCache::load_for`], for another process that is to map it ([`CodeCache::map`]).
    ///
    /// # Errors
    /// As [`CodeCache::load_for`].
    pub async fn file_for(
        &self,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
    ) -> Result<CodeFile, LoadError> {
        let known = |key: &Key| self.handed(key);
        let take = |key: Key, file| {
            let Key { digest, kind, format } = key;
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
    pub fn known(
        &self,
        digest: Digest,
        kind: EngineKind,
        format: Format,
    ) -> Option<Arc<LoadedCode>> {
        self.in_memory(&Key { digest, kind, format })
    }

    /// The file of code that was handed out before.
    #[must_use]
    pub fn known_file(&self, digest: Digest, kind: EngineKind, format: Format) -> Option<CodeFile> {
        self.handed(&Key { digest, kind, format })
    }

    /// The code of a file that the agent found sealed, in a process that has no cache of its own.
    /// Blocks when it is not mapped yet.
    ///
    /// # Errors
    /// When it is not code of this process's engine, or needs more than a guest may have.
    pub fn map(&self, file: &CodeFile) -> Result<Arc<LoadedCode>, LoadError> {
        let CodeFile { digest, kind, format, file } = file;
        let key = Key { digest: *digest, kind: *kind, format: *format };
        if let Some(code) = self.in_memory(&key) {
            return Ok(code);
        }
        match disk::map(&self.engine(*kind).0, *format, file, true)? {
            Ok(code) => Ok(self.remember(key, code)),
            Err(reason) => Err(LoadError::BadArtefact { path: self.path(&key), reason }),
        }
    }

    /// Compile nothing any more: whoever waits for it is told so at once.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Compile it when it is its owner's turn.
    async fn compile_in_turn(
        &self,
        bytes: &Arc<[u8]>,
        key: Key,
        ask: &CodeAsk<'_>,
        path: &Path,
    ) -> Result<(), LoadError> {
        let CodeAsk { within, owner, say, .. } = *ask;
        let mut slot = self.slots.join(owner, say).map_err(|_full| LoadError::OwnerBusy {
            owner: owner.to_owned(),
            limit: limits::COMPILE_OWNER_QUEUE_MAX,
        })?;
        loop {
            slot.granted().await;
            tokio::select! {
                biased;
                compiled = self.compile(bytes, key, &within, path) => return compiled,
                () = slot.set_back() => {}
            }
        }
    }

    /// What the cache did so far.
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

    fn path(&self, key: &Key) -> PathBuf {
        let Key { digest, kind, format } = key;
        let (_, hash) = self.engine(*kind);
        self.dir.join(format!("{digest}-{hash}-{}-{}.code", kind.as_str(), format.as_str()))
    }

    fn in_memory(&self, key: &Key) -> Option<Arc<LoadedCode>> {
        let code = lock(&self.loaded).get(key)?.upgrade()?;
        self.keep(&code);
        Some(code)
    }

    /// Let the code of a task outlast it, and the one used longest ago go for it.
    fn keep(&self, code: &Arc<LoadedCode>) {
        if code.kind != EngineKind::Task {
            return;
        }
        keep_newest(&self.kept, Arc::clone(code), |other| Arc::ptr_eq(other, code));
    }

    fn handed(&self, key: &Key) -> Option<CodeFile> {
        let files = lock(&self.files);
        let is_it = |file: &&CodeFile| {
            file.digest == key.digest && file.kind == key.kind && file.format == key.format
        };
        files.iter().find(is_it).cloned()
    }

    fn remember(&self, key: Key, code: Code) -> Arc<LoadedCode> {
        let code = Arc::new(LoadedCode { digest: key.digest, kind: key.kind, code });
        let mut loaded = lock(&self.loaded);
        loaded.retain(|_, code| code.strong_count() > 0);
        loaded.insert(key, Arc::downgrade(&code));
        drop(loaded);
        self.keep(&code);
        code
    }

    /// What the entry of `key` must be the code of.
    fn meant(&self, key: Key) -> Meant {
        let Key { digest, kind, format } = key;
        Meant { digest, kind, format, engine: self.engine(kind).1.clone() }
    }

    async fn compile(
        &self,
        bytes: &Arc<[u8]>,
        key: Key,
        within: &CompileLimits,
        path: &Path,
    ) -> Result<(), LoadError> {
        let failed = |source| LoadError::Cache { path: path.to_owned(), source };
        let Some(sealer) = self.sealer.clone() else { return Err(LoadError::NoCache) };
        let temporary = disk::temporary(&self.dir).map_err(failed)?;
        let output = temporary.path();
        let limit = artefact_bytes_max(bytes.len());
        let kind = if key.kind == EngineKind::Plugin { key.kind } else { self.task_code };
        let compiled =
            self.compiler.compile(Arc::clone(bytes), kind, key.format, within, output).await;
        // The child limits itself; it is not trusted.
        let compiled = compiled.and_then(|()| {
            let bytes = temporary.as_file().metadata().map_or(0, |found| found.len());
            if bytes > limit { Err(CompileError::ArtefactTooLarge { limit }) } else { Ok(()) }
        });
        if let Err(error) = compiled {
            self.failed.keep(key, within, &error);
            return Err(error.into());
        }
        let to = path.to_owned();
        let meant = self.meant(key);
        blocking(move || {
            disk::publish(temporary, &sealer, &meant, &to)
                .map_err(|source| LoadError::Cache { path: to, source })
        })
        .await
    }

    /// Join those who wait for the same code.
    fn board(&self, key: Key) -> Result<Flight<'_>, LoadError> {
        let mut flights = lock(&self.flights);
        let waiting: usize = flights.values().map(|turn| Arc::strong_count(turn) - 1).sum();
        if waiting >= limits::COMPILE_QUEUE_MAX {
            return Err(LoadError::Busy { limit: limits::COMPILE_QUEUE_MAX });
        }
        let turn = Arc::clone(flights.entry(key).or_default());
        Ok(Flight { cache: self, key, turn })
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

/// A place among those who wait for the same code; the last to leave removes the queue.
struct Flight<'a> {
    cache: &'a CodeCache,
    key: Key,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let mut flights = lock(&self.cache.flights);
        // The map's and ours: clones are only made under this lock.
        if Arc::strong_count(&self.turn) <= 2 {
            flights.remove(&self.key);
        }
    }
}

/// Put `one` last, once, and let the one used longest ago go for it.
fn keep_newest<T>(kept: &Mutex<VecDeque<T>>, one: T, same: impl Fn(&T) -> bool) {
    let mut kept = lock(kept);
    kept.retain(|other| !same(other));
    kept.push_back(one);
    let excess = kept.len().saturating_sub(limits::TASK_CODE_KEPT_MAX);
    let gone: Vec<_> = kept.drain(..excess).collect();
    drop(kept);
    // Unmapped, or closed, without the lock.
    drop(gone);
}

/// A panic while the map was held leaves it whole: every change is one call.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    tokio::task::spawn_blocking(work).await.unwrap_or(Err(LoadError::Interrupted))
}
