//! Fetches files for tasks: from the cache, together with others who want the same file, or by a
//! child process.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ostler_artifact::trust::{self, Demand, PluginOrigin, Signature};
use ostler_model::artifact::{
    ArchiveKind, ArtifactConfig, ArtifactError, ArtifactOutcome, ArtifactRequest, ArtifactSource,
    Artifacts, Checksum, ChecksumKind, FetchProgress, PinnedFile, SourcePlace, StagedArtifact,
};
use ostler_model::clock::{self, Clock};
use ostler_model::digest::Digest;
use ostler_model::limits::{
    ARTIFACT_CHILD_TRIES_MAX, ARTIFACT_FETCHES_MAX, ARTIFACT_UNPACK_WALL, ARTIFACT_UNPACKS_MAX,
    REGISTRY_PULL_WALL, TASK_FILE_BYTES_MAX,
};
use ostler_model::ports::BoxFuture;
use ostler_model::trust::{PluginSource, TrustConfig};
use tokio::sync::{Semaphore, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::cache::{Cache, CacheKey, CachedFile};
use crate::order::{DOWNLOAD, FetchOrder, ONE, TREE};
use crate::run::{OrderFailure, OrderResult, carry_out};
use crate::sums;
use crate::work::{WorkPlace, WorkRoot, make_tree};

/// The additional time of a child beyond its own limit, so that its own error comes first.
const MARGIN: Duration = Duration::from_secs(30);

/// The settings of a [`Fetcher`].
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// The data directory. Files are made and kept below its `artifacts`.
    pub data_dir: PathBuf,
    /// A program that calls [`crate::main`] when its first argument is [`crate::ARGUMENT`].
    pub program: PathBuf,
    /// The limits, and the sources that are allowed.
    pub config: ArtifactConfig,
    /// Registries that are asked over plain HTTP.
    pub insecure: Vec<String>,
    /// The trust settings for modules from registries.
    pub trust: TrustConfig,
    /// The source of time, which a test can replace.
    pub clock: Clock,
}

/// The fetcher of an agent. Clones are the same fetcher.
#[derive(Clone)]
pub struct Fetcher(Arc<FetcherInner>);

struct FetcherInner {
    options: FetchOptions,
    work: WorkRoot,
    cache: Arc<Cache>,
    fetches: Semaphore,
    unpacks: Semaphore,
    flights: Mutex<HashMap<String, Weak<SharedDownload>>>,
}

/// A file that was fetched, and what keeps it where it is.
#[derive(Clone)]
struct FetchedFile {
    path: PathBuf,
    held: FileHold,
}

/// What keeps a file where it is.
#[derive(Clone)]
enum FileHold {
    /// The cache, which keeps it for later tasks as well.
    Kept(Arc<CachedFile>),
    /// A work directory, which is removed with this.
    Here(Arc<WorkPlace>),
}

impl PinnedFile for FetchedFile {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl FetchedFile {
    fn from_cached(kept: CachedFile) -> Self {
        Self { path: kept.path().to_owned(), held: FileHold::Kept(Arc::new(kept)) }
    }
}

/// A download that several tasks wait for. It is cancelled when nobody waits any more.
struct SharedDownload {
    done: watch::Receiver<Option<Result<FetchedFile, ArtifactError>>>,
    progress: watch::Receiver<(u64, Option<u64>)>,
    _work: AbortOnDropHandle<()>,
}

/// Stops blocking work when whoever waits for it is gone.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Run blocking work, which ends early when nobody waits for it any more.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> io::Result<T> + Send + 'static,
) -> Result<T, ArtifactError> {
    let stop = StopOnDrop(Arc::default());
    let seen = Arc::clone(&stop.0);
    let done = clock::run_blocking(move || work(&seen)).await;
    drop(stop);
    let done = done.map_err(ArtifactError::transient)?;
    done.map_err(|error| {
        ArtifactError::transient(format!("the data directory cannot be used: {error}"))
    })
}

impl Fetcher {
    /// Open the fetcher, and remove what an earlier agent left half-way. Blocking.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn open(options: FetchOptions) -> io::Result<Self> {
        let root = options.data_dir.join("artifacts");
        let work = WorkRoot::open_empty(root.join("work"))?;
        let cache =
            Cache::open(root.join("cache"), options.config.cache_size, options.clock.clone())?;
        Ok(Self(Arc::new(FetcherInner {
            options,
            work,
            cache: Arc::new(cache),
            fetches: Semaphore::new(ARTIFACT_FETCHES_MAX),
            unpacks: Semaphore::new(ARTIFACT_UNPACKS_MAX),
            flights: Mutex::default(),
        })))
    }
}

impl Artifacts for Fetcher {
    fn fetch(
        &self,
        ask: ArtifactRequest,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<StagedArtifact, ArtifactError>> {
        Box::pin(self.0.stage_artifact(ask, progress))
    }

    fn fetch_module(
        &self,
        ask: ArtifactRequest,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Arc<dyn PinnedFile>, ArtifactError>> {
        Box::pin(self.0.fetch_module(ask, progress))
    }
}

impl FetcherInner {
    async fn stage_artifact(
        self: &Arc<Self>,
        ask: ArtifactRequest,
        progress: FetchProgress,
    ) -> Result<StagedArtifact, ArtifactError> {
        let outcome = ask.source.outcome(ask.mode).map_err(ArtifactError::permanent)?;
        let got = self.obtain(&ask, &progress).await?;
        let (place, path) = match ask.source.archive {
            // A file that others wait for too, or that is in the cache, is copied.
            None => self.own_copy(got, cache_key(&ask.source).is_some()).await?,
            Some(kind) => self.unpack_tree(&ask, kind, &outcome, got, &progress).await?,
        };
        Ok(StagedArtifact { path, outcome, held: Box::new(place) })
    }

    /// Fetch a module, which is one file that is kept. An archive is refused.
    async fn fetch_module(
        self: &Arc<Self>,
        ask: ArtifactRequest,
        progress: FetchProgress,
    ) -> Result<Arc<dyn PinnedFile>, ArtifactError> {
        if ask.source.archive.is_some() {
            let reason = "a module is one file, not an archive; name the archive in an artifact block and the \
                          module in it by its path";
            return Err(ArtifactError::permanent(reason));
        }
        let got = self.obtain(&ask, &progress).await?;
        let name = ask.source.name();
        let (cache, named) = (Arc::clone(&self.cache), got.clone());
        let got = run_blocking(move |_| {
            let (FileHold::Kept(held), Some(name)) = (&named.held, name) else {
                return Ok(named);
            };
            let path = cache.link_name(held, &name);
            Ok(FetchedFile { path, held: named.held.clone() })
        });
        Ok(Arc::new(got.await?))
    }

    /// Get the file as it is at its source.
    async fn obtain(
        self: &Arc<Self>,
        ask: &ArtifactRequest,
        progress: &FetchProgress,
    ) -> Result<FetchedFile, ArtifactError> {
        let got = match cache_key(&ask.source) {
            None => {
                progress(0, None);
                self.fetch(ask, None, progress).await?
            }
            Some(key) => match self.find_cached(&key).await? {
                Some(got) => got,
                None => {
                    progress(0, None);
                    self.join_download(ask, key, progress).await?
                }
            },
        };
        self.check_trust(&ask.source, got).await
    }

    /// The file that is in the cache under this key.
    async fn find_cached(&self, key: &CacheKey) -> Result<Option<FetchedFile>, ArtifactError> {
        let (cache, key) = (Arc::clone(&self.cache), key.clone());
        let kept = run_blocking(move |stop| cache.find(&key, stop)).await?;
        Ok(kept.map(FetchedFile::from_cached))
    }

    /// Join the one download for all who want the same file at the same time.
    async fn join_download(
        self: &Arc<Self>,
        ask: &ArtifactRequest,
        key: CacheKey,
        progress: &FetchProgress,
    ) -> Result<FetchedFile, ArtifactError> {
        let flight = self.find_download(ask, key);
        let (mut done, mut told) = (flight.done.clone(), flight.progress.clone());
        loop {
            tokio::select! {
                biased;
                changed = done.changed() => {
                    if let Some(result) = done.borrow_and_update().clone() {
                        return result;
                    }
                    if changed.is_err() {
                        return Err(ArtifactError::transient("the download ended unexpectedly"));
                    }
                }
                Ok(()) = told.changed() => {
                    let (bytes, of) = *told.borrow_and_update();
                    progress(bytes, of);
                }
            }
        }
    }

    fn find_download(
        self: &Arc<Self>,
        ask: &ArtifactRequest,
        key: CacheKey,
    ) -> Arc<SharedDownload> {
        let name = download_name(ask, &key);
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let known = flights.get(&name).and_then(Weak::upgrade);
        // A later task does not wait for a download that has failed.
        let live = |flight: &Arc<SharedDownload>| !matches!(&*flight.done.borrow(), Some(Err(_)));
        if let Some(flight) = known.filter(live) {
            return flight;
        }
        let (done_to, done) = watch::channel(None);
        let (told, progress) = watch::channel((0, None));
        let (this, ask) = (Arc::clone(self), ask.clone());
        let work = tokio::spawn(async move {
            let tell: FetchProgress = Arc::new(move |bytes, of| {
                let _nobody = told.send((bytes, of));
            });
            // A download may have ended between the caller's check of the cache and the start of
            // this one.
            let result = match this.find_cached(&key).await {
                Ok(None) => this.fetch(&ask, Some(key), &tell).await,
                Ok(Some(got)) => Ok(got),
                Err(error) => Err(error),
            };
            let _nobody = done_to.send(Some(result));
        });
        let _work = AbortOnDropHandle::new(work);
        let flight = Arc::new(SharedDownload { done, progress, _work });
        flights.retain(|_, flight| flight.strong_count() > 0);
        flights.insert(name, Arc::downgrade(&flight));
        flight
    }

    /// Let a child process fetch the file, then check it and keep it.
    async fn fetch(
        self: &Arc<Self>,
        ask: &ArtifactRequest,
        key: Option<CacheKey>,
        progress: &FetchProgress,
    ) -> Result<FetchedFile, ArtifactError> {
        let permit = self.fetches.acquire().await.map_err(ArtifactError::transient)?;
        let mut tries = 1;
        let (place, brought) = loop {
            let work = self.work.clone();
            let place = run_blocking(move |_| work.new_place()).await?;
            let (order, wall) = self.order(ask)?;
            let dir = place.path().to_owned();
            match carry_out(&self.options.program, dir, &order, wall, progress).await {
                Ok(brought) => break (place, brought),
                Err(OrderFailure::Hung) if tries < ARTIFACT_CHILD_TRIES_MAX => tries += 1,
                Err(error) => return Err(error.into_artifact_error()),
            }
        };
        drop(permit);
        let (source, manifest) =
            (ask.source.public_text(), brought.manifest.as_deref().unwrap_or_default());
        tracing::debug!(source, bytes = brought.bytes, manifest, "fetched for a task");
        let file = place.path().join(DOWNLOAD);
        let wanted = ask.source.checksum.clone();
        let kind = wanted.as_ref().map_or(ChecksumKind::Sha256, |sum| sum.kind);
        // The sum is not computed if nobody asks for it.
        if wanted.is_none() && key.is_none() && !matches!(ask.source.place, SourcePlace::Oci(_)) {
            return Ok(FetchedFile { path: file, held: FileHold::Here(place) });
        }
        let summed = file.clone();
        let sum = run_blocking(move |stop| sums::file_sum(&summed, kind, stop)).await?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != sum) {
            let reason = format!("its checksum is {sum}, and the job wants {wanted}");
            return Err(ArtifactError::transient(reason));
        }
        self.keep_file(place, file, key, sum, brought).await
    }

    async fn keep_file(
        self: &Arc<Self>,
        place: Arc<WorkPlace>,
        file: PathBuf,
        key: Option<CacheKey>,
        sum: Checksum,
        brought: OrderResult,
    ) -> Result<FetchedFile, ArtifactError> {
        let cache = Arc::clone(&self.cache);
        run_blocking(move |_| {
            let signature = brought.signature.as_deref();
            if let Some(key) = key
                && let Some(kept) = cache.keep(&key, &file, &sum, signature)?
            {
                return Ok(FetchedFile::from_cached(kept));
            }
            if let Some(signature) = signature {
                std::fs::write(place.path().join("signature"), signature)?;
            }
            Ok(FetchedFile { path: file, held: FileHold::Here(place) })
        })
        .await
    }

    /// The order for the child process, and how long it may take.
    fn order(&self, ask: &ArtifactRequest) -> Result<(FetchOrder, Duration), ArtifactError> {
        let config = &self.options.config;
        let bytes_max = config.http_max_size;
        let wall = config.http_read_timeout;
        Ok(match &ask.source.place {
            SourcePlace::Http(url) => {
                let (url, headers) = (url.clone(), ask.headers.clone());
                (
                    FetchOrder::Download { url, headers, bytes_max, wall },
                    wall.saturating_add(MARGIN),
                )
            }
            SourcePlace::File(path) => {
                let (root, below) = self.allowed_root(path)?;
                (FetchOrder::Copy { root, below, bytes_max }, wall)
            }
            SourcePlace::Oci(reference) => {
                let (reference, insecure) = (reference.to_string(), self.options.insecure.clone());
                let wall = REGISTRY_PULL_WALL.saturating_mul(2).saturating_add(MARGIN);
                (FetchOrder::Pull { reference, insecure }, wall)
            }
        })
    }

    /// The directory that the operator allows, and the path below it.
    fn allowed_root(&self, path: &Path) -> Result<(PathBuf, PathBuf), ArtifactError> {
        let up = path.components().any(|part| part == Component::ParentDir);
        let roots = self.options.config.file_sources.iter().filter(|_| !up);
        for root in roots {
            if let Ok(below) = path.strip_prefix(root) {
                return Ok((root.clone(), below.to_owned()));
            }
        }
        let dir = path.parent().unwrap_or(path).display();
        Err(ArtifactError::permanent(format!(
            "files of the node may only be taken from directories that the agent's configuration allows; to \
             allow this one, add\nclient {{\n  artifact {{\n    file_sources = [\"{dir}\"]\n  }}\n}}"
        )))
    }

    /// The file as a copy for the task alone.
    async fn own_copy(
        self: &Arc<Self>,
        got: FetchedFile,
        shared: bool,
    ) -> Result<(Arc<WorkPlace>, PathBuf), ArtifactError> {
        let work = self.work.clone();
        run_blocking(move |stop| {
            let (place, path) = match got.held {
                FileHold::Here(place) if !shared => (place, got.path),
                _ => {
                    let place = work.new_place()?;
                    let path = place.path().join(ONE);
                    copy(&got.path, &path, stop)?;
                    (place, path)
                }
            };
            // The file may be a program; Nomad's drivers make what they start executable.
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, all)?;
            Ok((place, path))
        })
        .await
    }

    async fn unpack_tree(
        self: &Arc<Self>,
        ask: &ArtifactRequest,
        kind: ArchiveKind,
        outcome: &ArtifactOutcome,
        got: FetchedFile,
        progress: &FetchProgress,
    ) -> Result<(Arc<WorkPlace>, PathBuf), ArtifactError> {
        let permit = self.unpacks.acquire().await.map_err(ArtifactError::transient)?;
        let config = &self.options.config;
        let one_file = *outcome == ArtifactOutcome::Named;
        let (most, room) = (config.decompression_size_limit, ask.room_bytes.unwrap_or(u64::MAX));
        let order = FetchOrder::Unpack {
            archive: got.path.clone(),
            kind,
            part: ask.source.part.clone(),
            one_file,
            bytes_max: most.min(room),
            of_alloc: room < most,
            entries_max: config.decompression_file_count_limit,
        };
        let mut tries = 1;
        let (place, tree) = loop {
            let work = self.work.clone();
            let (place, tree) = run_blocking(move |_| {
                let place = work.new_place()?;
                let tree = make_tree(place.path())?;
                Ok((place, tree))
            })
            .await?;
            let (dir, wall) = (place.path().to_owned(), ARTIFACT_UNPACK_WALL);
            match carry_out(&self.options.program, dir, &order, wall, progress).await {
                Ok(_) => break (place, tree),
                Err(OrderFailure::Hung) if tries < ARTIFACT_CHILD_TRIES_MAX => tries += 1,
                Err(error) => {
                    let ArtifactError { reason, recoverable } = error.into_artifact_error();
                    let reason = format!("the archive cannot be unpacked: {reason}");
                    return Err(ArtifactError { reason, recoverable });
                }
            }
        };
        drop((permit, got));
        let path = if one_file { tree.join(ONE) } else { place.path().join(TREE) };
        Ok((place, path))
    }

    /// Check a module from a registry against the trust file.
    async fn check_trust(
        &self,
        source: &ArtifactSource,
        got: FetchedFile,
    ) -> Result<FetchedFile, ArtifactError> {
        let SourcePlace::Oci(reference) = &source.place else { return Ok(got) };
        let config = self.options.trust.clone();
        if config == TrustConfig::default() {
            return Ok(got);
        }
        let place = reference.to_string();
        let name = reference.repository().rsplit('/').next().unwrap_or_default().to_owned();
        let verdict = run_blocking(move |_| {
            let policy = trust::read_policy(&config);
            let bytes = read_bounded(&got.path)?;
            let signature = match &got.held {
                FileHold::Kept(held) => held.signature.clone(),
                FileHold::Here(place) => std::fs::read(place.path().join("signature")).ok(),
            };
            let signature = signature.map(|text| Signature::parse(&text));
            let signed = trust::check(&bytes, signature.as_ref(), policy.trust());
            let (source, digest) = (PluginSource::Oci, Digest::compute(&bytes));
            let origin = PluginOrigin { name: &name, source, place: &place, kind: None, digest };
            let verdict = trust::verdict(&policy, &Demand::default(), &origin, &signed);
            Ok(verdict.map(|_| got).map_err(|refusal| refusal.to_string()))
        });
        verdict.await?.map_err(ArtifactError::permanent)
    }
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(TASK_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Copy a file. This ends early when `stop` is set. If the file system can, both files share
/// their blocks.
fn copy(from: &Path, to: &Path, stop: &AtomicBool) -> io::Result<()> {
    use std::io::{Read as _, Write as _};
    let mut from = std::fs::File::open(from)?;
    let mut to = std::fs::File::create_new(to)?;
    if rustix::fs::ioctl_ficlone(&to, &from).is_ok() {
        return Ok(());
    }
    let mut piece = vec![0; 1 << 20];
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        match from.read(&mut piece)? {
            0 => return Ok(()),
            count => to.write_all(piece.get(..count).unwrap_or_default())?,
        }
    }
}

/// The key under which a source is kept: its checksum, or the digest of a manifest. A source with
/// neither is not kept.
fn cache_key(source: &ArtifactSource) -> Option<CacheKey> {
    if let Some(sum) = &source.checksum {
        let name = sum.to_string().replace(':', "-");
        // Somebody may make another file with the same weak sum, so the address is part of the key.
        let name = if sum.kind.is_strong() {
            name
        } else {
            format!("{name}-{}", Digest::compute(address(source).as_bytes()))
        };
        return Some(CacheKey { name, sum: Some(sum.clone()) });
    }
    match &source.place {
        SourcePlace::Oci(reference) => {
            let digest = reference.digest()?;
            Some(CacheKey { name: format!("manifest-{digest}"), sum: None })
        }
        _ => None,
    }
}

fn address(source: &ArtifactSource) -> String {
    match &source.place {
        SourcePlace::Http(url) => url.as_str().to_owned(),
        SourcePlace::File(path) => format!("file://{}", path.display()),
        SourcePlace::Oci(reference) => reference.to_string(),
    }
}

/// The name of a shared download: tasks that ask the same server for the same file wait for the
/// same answer.
fn download_name(ask: &ArtifactRequest, key: &CacheKey) -> String {
    let asked = format!("{}\n{:?}", address(&ask.source), ask.headers);
    format!("{} {}", key.name, Digest::compute(asked.as_bytes()))
}

#[cfg(test)]
#[path = "fetcher_tests.rs"]
mod tests;
