//! Fetches for tasks: from what is kept, with others who want the same, or by a child of its own.

use std::collections::HashMap;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ostler_artifact::trust::{self, Demand, PluginOrigin, Signature};
use ostler_model::artifact::{
    ArchiveKind, ArtifactAsk, ArtifactConfig, ArtifactError, ArtifactOutcome, ArtifactSource,
    Artifacts, Checksum, ChecksumKind, FetchProgress, KeptFile, SourcePlace, Staged,
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

use crate::cache::{Cache, InUse, Key};
use crate::order::{DOWNLOAD, ONE, Order, TREE};
use crate::run::{Brought, NotBrought, carry_out};
use crate::sums;
use crate::work::{Work, WorkPlace, make_tree};

/// What a child gets beyond its own bound, so that its own words come first.
const MARGIN: Duration = Duration::from_secs(30);

/// What a [`Fetcher`] works with.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// Where it works and keeps: below `artifacts`.
    pub data_dir: PathBuf,
    /// A program that calls [`crate::main`] when its first argument is [`crate::ARGUMENT`].
    pub program: PathBuf,
    /// Bounds, and what is allowed.
    pub config: ArtifactConfig,
    /// Registries that are asked over plain HTTP.
    pub insecure: Vec<String>,
    /// Whose modules from registries are trusted.
    pub trust: TrustConfig,
    /// Time.
    pub clock: Clock,
}

/// Those who fetch. Clones are the same.
#[derive(Clone)]
pub struct Fetcher(Arc<Inner>);

struct Inner {
    options: FetchOptions,
    work: Work,
    cache: Arc<Cache>,
    fetches: Semaphore,
    unpacks: Semaphore,
    flights: Mutex<HashMap<String, Weak<Flight>>>,
}

/// A file that came.
#[derive(Clone)]
struct Got {
    path: PathBuf,
    held: Held,
}

/// What keeps a file where it is.
#[derive(Clone)]
enum Held {
    /// It is kept for later tasks as well.
    Kept(Arc<InUse>),
    /// It goes with this.
    Here(Arc<WorkPlace>),
}

impl KeptFile for Got {
    fn path(&self) -> &Path {
        &self.path
    }
}

impl Got {
    fn kept(kept: InUse) -> Self {
        Self { path: kept.path().to_owned(), held: Held::Kept(Arc::new(kept)) }
    }
}

/// A download that several wait for. It is broken off when nobody does any more.
struct Flight {
    done: watch::Receiver<Option<Result<Got, ArtifactError>>>,
    progress: watch::Receiver<(u64, Option<u64>)>,
    _work: AbortOnDropHandle<()>,
}

/// Ends what blocks when whoever waits for it is gone.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Work that blocks, and ends early when it is not waited for any more.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> io::Result<T> + Send + 'static,
) -> Result<T, ArtifactError> {
    let stop = Stop(Arc::default());
    let seen = Arc::clone(&stop.0);
    let done = clock::blocking(move || work(&seen)).await;
    drop(stop);
    let done = done.map_err(ArtifactError::passing)?;
    done.map_err(|error| {
        ArtifactError::passing(format!("the data directory cannot be used: {error}"))
    })
}

impl Fetcher {
    /// Ready; what an earlier agent left half-way is removed. Blocking.
    ///
    /// # Errors
    /// When its directories cannot be made.
    pub fn begin(options: FetchOptions) -> io::Result<Self> {
        let root = options.data_dir.join("artifacts");
        let work = Work::begin(root.join("work"))?;
        let cache =
            Cache::open(root.join("cache"), options.config.cache_size, options.clock.clone())?;
        Ok(Self(Arc::new(Inner {
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
        ask: ArtifactAsk,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Staged, ArtifactError>> {
        Box::pin(self.0.staged(ask, progress))
    }

    fn module(
        &self,
        ask: ArtifactAsk,
        progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Arc<dyn KeptFile>, ArtifactError>> {
        Box::pin(self.0.kept_module(ask, progress))
    }
}

impl Inner {
    async fn staged(
        self: &Arc<Self>,
        ask: ArtifactAsk,
        progress: FetchProgress,
    ) -> Result<Staged, ArtifactError> {
        let outcome = ask.source.outcome(ask.mode).map_err(ArtifactError::lasting)?;
        let got = self.obtain(&ask, &progress).await?;
        let (place, path) = match ask.source.archive {
            // What others wait for too, or what is kept, is copied.
            None => self.copied(got, key(&ask.source).is_some()).await?,
            Some(kind) => self.tree(&ask, kind, &outcome, got, &progress).await?,
        };
        Ok(Staged { path, outcome, held: Box::new(place) })
    }

    /// A module is one file that is kept; an archive of one has it in it.
    async fn kept_module(
        self: &Arc<Self>,
        ask: ArtifactAsk,
        progress: FetchProgress,
    ) -> Result<Arc<dyn KeptFile>, ArtifactError> {
        if ask.source.archive.is_some() {
            let reason = "a module is one file, not an archive; name the archive in an artifact block and the \
                          module in it by its path";
            return Err(ArtifactError::lasting(reason));
        }
        let got = self.obtain(&ask, &progress).await?;
        let name = ask.source.name();
        let (cache, named) = (Arc::clone(&self.cache), got.clone());
        let got = blocking(move |_| {
            let (Held::Kept(held), Some(name)) = (&named.held, name) else {
                return Ok(named);
            };
            let path = cache.named(held, &name);
            Ok(Got { path, held: named.held.clone() })
        });
        Ok(Arc::new(got.await?))
    }

    /// The file, as it is at its source.
    async fn obtain(
        self: &Arc<Self>,
        ask: &ArtifactAsk,
        progress: &FetchProgress,
    ) -> Result<Got, ArtifactError> {
        let got = match key(&ask.source) {
            None => {
                progress(0, None);
                self.fetch(ask, None, progress).await?
            }
            Some(key) => match self.kept(&key).await? {
                Some(got) => got,
                None => {
                    progress(0, None);
                    self.joined(ask, key, progress).await?
                }
            },
        };
        self.judged(&ask.source, got).await
    }

    /// What is kept under this key.
    async fn kept(&self, key: &Key) -> Result<Option<Got>, ArtifactError> {
        let (cache, key) = (Arc::clone(&self.cache), key.clone());
        let kept = blocking(move |stop| cache.find(&key, stop)).await?;
        Ok(kept.map(Got::kept))
    }

    /// One download for all who want the same at the same time.
    async fn joined(
        self: &Arc<Self>,
        ask: &ArtifactAsk,
        key: Key,
        progress: &FetchProgress,
    ) -> Result<Got, ArtifactError> {
        let flight = self.flight(ask, key);
        let (mut done, mut told) = (flight.done.clone(), flight.progress.clone());
        loop {
            tokio::select! {
                biased;
                changed = done.changed() => {
                    if let Some(result) = done.borrow_and_update().clone() {
                        return result;
                    }
                    if changed.is_err() {
                        return Err(ArtifactError::passing("the download ended unexpectedly"));
                    }
                }
                Ok(()) = told.changed() => {
                    let (bytes, of) = *told.borrow_and_update();
                    progress(bytes, of);
                }
            }
        }
    }

    fn flight(self: &Arc<Self>, ask: &ArtifactAsk, key: Key) -> Arc<Flight> {
        let name = flight_name(ask, &key);
        let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let known = flights.get(&name).and_then(Weak::upgrade);
        // One that failed is not what a later one waits for.
        let live = |flight: &Arc<Flight>| !matches!(&*flight.done.borrow(), Some(Err(_)));
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
            // A download may have ended between the look of whoever asks and this one's begin.
            let result = match this.kept(&key).await {
                Ok(None) => this.fetch(&ask, Some(key), &tell).await,
                Ok(Some(got)) => Ok(got),
                Err(error) => Err(error),
            };
            let _nobody = done_to.send(Some(result));
        });
        let _work = AbortOnDropHandle::new(work);
        let flight = Arc::new(Flight { done, progress, _work });
        flights.retain(|_, flight| flight.strong_count() > 0);
        flights.insert(name, Arc::downgrade(&flight));
        flight
    }

    /// Have a child fetch it, check it, keep it.
    async fn fetch(
        self: &Arc<Self>,
        ask: &ArtifactAsk,
        key: Option<Key>,
        progress: &FetchProgress,
    ) -> Result<Got, ArtifactError> {
        let permit = self.fetches.acquire().await.map_err(ArtifactError::passing)?;
        let mut tries = 1;
        let (place, brought) = loop {
            let work = self.work.clone();
            let place = blocking(move |_| work.place()).await?;
            let (order, wall) = self.order(ask)?;
            let dir = place.path().to_owned();
            match carry_out(&self.options.program, dir, &order, wall, progress).await {
                Ok(brought) => break (place, brought),
                Err(NotBrought::Hung) if tries < ARTIFACT_CHILD_TRIES_MAX => tries += 1,
                Err(error) => return Err(error.told()),
            }
        };
        drop(permit);
        let (source, manifest) =
            (ask.source.shown(), brought.manifest.as_deref().unwrap_or_default());
        tracing::debug!(source, bytes = brought.bytes, manifest, "fetched for a task");
        let file = place.path().join(DOWNLOAD);
        let wanted = ask.source.checksum.clone();
        let kind = wanted.as_ref().map_or(ChecksumKind::Sha256, |sum| sum.kind);
        // What nobody asks the sum of is not summed.
        if wanted.is_none() && key.is_none() && !matches!(ask.source.place, SourcePlace::Oci(_)) {
            return Ok(Got { path: file, held: Held::Here(place) });
        }
        let summed = file.clone();
        let sum = blocking(move |stop| sums::of_file(&summed, kind, stop)).await?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != sum) {
            let reason = format!("its checksum is {sum}, and the job wants {wanted}");
            return Err(ArtifactError::passing(reason));
        }
        self.keep(place, file, key, sum, brought).await
    }

    async fn keep(
        self: &Arc<Self>,
        place: Arc<WorkPlace>,
        file: PathBuf,
        key: Option<Key>,
        sum: Checksum,
        brought: Brought,
    ) -> Result<Got, ArtifactError> {
        let cache = Arc::clone(&self.cache);
        blocking(move |_| {
            let signature = brought.signature.as_deref();
            if let Some(key) = key
                && let Some(kept) = cache.keep(&key, &file, &sum, signature)?
            {
                return Ok(Got::kept(kept));
            }
            if let Some(signature) = signature {
                std::fs::write(place.path().join("signature"), signature)?;
            }
            Ok(Got { path: file, held: Held::Here(place) })
        })
        .await
    }

    /// What the child is to do, and how long that may take.
    fn order(&self, ask: &ArtifactAsk) -> Result<(Order, Duration), ArtifactError> {
        let config = &self.options.config;
        let bytes_max = config.http_max_size;
        let wall = config.http_read_timeout;
        Ok(match &ask.source.place {
            SourcePlace::Http(url) => {
                let (url, headers) = (url.clone(), ask.headers.clone());
                (Order::Download { url, headers, bytes_max, wall }, wall.saturating_add(MARGIN))
            }
            SourcePlace::File(path) => {
                let (root, below) = self.allowed(path)?;
                (Order::Copy { root, below, bytes_max }, wall)
            }
            SourcePlace::Oci(reference) => {
                let (reference, insecure) = (reference.to_string(), self.options.insecure.clone());
                let wall = REGISTRY_PULL_WALL.saturating_mul(2).saturating_add(MARGIN);
                (Order::Pull { reference, insecure }, wall)
            }
        })
    }

    /// The directory that the operator allows, and the path below it.
    fn allowed(&self, path: &Path) -> Result<(PathBuf, PathBuf), ArtifactError> {
        let up = path.components().any(|part| part == Component::ParentDir);
        let roots = self.options.config.file_sources.iter().filter(|_| !up);
        for root in roots {
            if let Ok(below) = path.strip_prefix(root) {
                return Ok((root.clone(), below.to_owned()));
            }
        }
        let dir = path.parent().unwrap_or(path).display();
        Err(ArtifactError::lasting(format!(
            "files of the node may be taken from directories that its configuration allows; this one would be \
             with\nclient {{\n  artifact {{\n    file_sources = [\"{dir}\"]\n  }}\n}}"
        )))
    }

    /// The file, for the task alone.
    async fn copied(
        self: &Arc<Self>,
        got: Got,
        shared: bool,
    ) -> Result<(Arc<WorkPlace>, PathBuf), ArtifactError> {
        let work = self.work.clone();
        blocking(move |stop| {
            let (place, path) = match got.held {
                Held::Here(place) if !shared => (place, got.path),
                _ => {
                    let place = work.place()?;
                    let path = place.path().join(ONE);
                    copy(&got.path, &path, stop)?;
                    (place, path)
                }
            };
            // It is perhaps a program; Nomad's drivers make what they start executable.
            let all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            std::fs::set_permissions(&path, all)?;
            Ok((place, path))
        })
        .await
    }

    async fn tree(
        self: &Arc<Self>,
        ask: &ArtifactAsk,
        kind: ArchiveKind,
        outcome: &ArtifactOutcome,
        got: Got,
        progress: &FetchProgress,
    ) -> Result<(Arc<WorkPlace>, PathBuf), ArtifactError> {
        let permit = self.unpacks.acquire().await.map_err(ArtifactError::passing)?;
        let config = &self.options.config;
        let one_file = *outcome == ArtifactOutcome::Named;
        let (most, room) = (config.decompression_size_limit, ask.room_bytes.unwrap_or(u64::MAX));
        let order = Order::Unpack {
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
            let (place, tree) = blocking(move |_| {
                let place = work.place()?;
                let tree = make_tree(place.path())?;
                Ok((place, tree))
            })
            .await?;
            let (dir, wall) = (place.path().to_owned(), ARTIFACT_UNPACK_WALL);
            match carry_out(&self.options.program, dir, &order, wall, progress).await {
                Ok(_) => break (place, tree),
                Err(NotBrought::Hung) if tries < ARTIFACT_CHILD_TRIES_MAX => tries += 1,
                Err(error) => {
                    let ArtifactError { reason, recoverable } = error.told();
                    let reason = format!("the archive cannot be unpacked: {reason}");
                    return Err(ArtifactError { reason, recoverable });
                }
            }
        };
        drop((permit, got));
        let path = if one_file { tree.join(ONE) } else { place.path().join(TREE) };
        Ok((place, path))
    }

    /// A module from a registry is used where the trust file lets it.
    async fn judged(&self, source: &ArtifactSource, got: Got) -> Result<Got, ArtifactError> {
        let SourcePlace::Oci(reference) = &source.place else { return Ok(got) };
        let config = self.options.trust.clone();
        if config == TrustConfig::default() {
            return Ok(got);
        }
        let place = reference.to_string();
        let name = reference.repository().rsplit('/').next().unwrap_or_default().to_owned();
        let verdict = blocking(move |_| {
            let policy = trust::policy(&config);
            let bytes = bounded(&got.path)?;
            let signature = match &got.held {
                Held::Kept(held) => held.signature.clone(),
                Held::Here(place) => std::fs::read(place.path().join("signature")).ok(),
            };
            let signature = signature.map(|text| Signature::parse(&text));
            let signed = trust::check(&bytes, signature.as_ref(), policy.trust());
            let (source, digest) = (PluginSource::Oci, Digest::of(&bytes));
            let origin = PluginOrigin { name: &name, source, place: &place, kind: None, digest };
            let verdict = trust::verdict(&policy, &Demand::default(), &origin, &signed);
            Ok(verdict.map(|_| got).map_err(|refusal| refusal.to_string()))
        });
        verdict.await?.map_err(ArtifactError::lasting)
    }
}

fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(TASK_FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Copy a file; ends early when `stop` is set. Where the file system can, both share their blocks.
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

/// By what a source is kept: a checksum, or the digest of a manifest. What has neither is not kept.
fn key(source: &ArtifactSource) -> Option<Key> {
    if let Some(sum) = &source.checksum {
        let name = sum.to_string().replace(':', "-");
        // Somebody may make another file with the same sum: of the same address, it is the same one.
        let name = match sum.kind.is_strong() {
            true => name,
            false => format!("{name}-{}", Digest::of(address(source).as_bytes())),
        };
        return Some(Key { name, sum: Some(sum.clone()) });
    }
    match &source.place {
        SourcePlace::Oci(reference) => {
            let digest = reference.digest()?;
            Some(Key { name: format!("manifest-{digest}"), sum: None })
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

/// Who asks the same server the same waits for the same answer.
fn flight_name(ask: &ArtifactAsk, key: &Key) -> String {
    let asked = format!("{}\n{:?}", address(&ask.source), ask.headers);
    format!("{} {}", key.name, Digest::of(asked.as_bytes()))
}

#[cfg(test)]
#[path = "fetcher_tests.rs"]
mod tests;
