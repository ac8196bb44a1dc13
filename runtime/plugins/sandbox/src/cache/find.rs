//! The way from the bytes of a guest to its cache entry. It is the same whatever is made
//! of the entry.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::{self, EntryFile};
use super::{CodeAsk, CodeCache, CodeKey, LoadError, run_blocking};
use crate::prescan::prescan;
use ostler_engine::ahead;
use ostler_model::digest::Digest;

/// What was made of an open entry. The inner error says why the entry is not usable.
type TakeResult<R> = Result<Result<R, String>, LoadError>;

/// Whether an entry is there, and whether it is usable.
enum EntryState<R> {
    Sound(R),
    Missing,
    Refused(String),
}

impl CodeCache {
    /// What `take` makes of the sealed entry of `bytes`, which is compiled now or was before.
    pub(super) async fn find<R: Send + 'static, T>(
        &self,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
        known: impl Fn(&CodeKey) -> Option<T>,
        take: impl Fn(CodeKey, File) -> TakeResult<R> + Clone + Send + 'static,
        keep: impl Fn(CodeKey, R) -> T,
    ) -> Result<T, LoadError> {
        let CodeAsk { kind, format, within, .. } = *ask;
        let digested = Arc::clone(&bytes);
        let digest = run_blocking(move || Ok(Digest::compute(&digested))).await?;
        let key = CodeKey { digest, kind, format };
        let hit = |found| {
            self.counters.memory_hits.fetch_add(1, Ordering::Relaxed);
            Ok(found)
        };
        if let Some(found) = known(&key) {
            return hit(found);
        }
        let scanned = Arc::clone(&bytes);
        run_blocking(move || Ok(prescan(&scanned, within.file_bytes_max, format)?)).await?;
        let flight = self.join_flight(key)?;
        let _turn = flight.turn.lock().await;
        if let Some(found) = known(&key) {
            return hit(found);
        }
        let path = self.path(&key);
        if let Some(taken) = self.sound_entry(key, &path, take.clone()).await? {
            self.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(keep(key, taken));
        }
        if let Some(taken) = self.publish_ahead(key, &path, take.clone()).await? {
            self.counters.ahead.fetch_add(1, Ordering::Relaxed);
            return Ok(keep(key, taken));
        }
        if let Some(text) = self.failed.find(key, &within) {
            return Err(LoadError::Known { text });
        }
        let compiled = self.compile_in_turn(&bytes, key, ask, &path);
        self.closed.run_until_cancelled(compiled).await.ok_or(LoadError::Interrupted)??;
        self.counters.compiled.fetch_add(1, Ordering::Relaxed);
        match self.read_entry(key, path.clone(), take).await? {
            EntryState::Sound(taken) => Ok(keep(key, taken)),
            EntryState::Missing => {
                Err(LoadError::BadArtefact { path, reason: "it is gone".to_owned() })
            }
            EntryState::Refused(reason) => Err(LoadError::BadArtefact { path, reason }),
        }
    }

    /// What `take` makes of the entry, if it is there and sound. An entry that is not
    /// sound is removed.
    async fn sound_entry<R: Send + 'static>(
        &self,
        key: CodeKey,
        path: &Path,
        take: impl Fn(CodeKey, File) -> TakeResult<R> + Send + 'static,
    ) -> Result<Option<R>, LoadError> {
        match self.read_entry(key, path.to_owned(), take).await? {
            EntryState::Sound(taken) => Ok(Some(taken)),
            EntryState::Missing => Ok(None),
            EntryState::Refused(reason) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(entry = %path.display(), %reason, "removing a code cache entry");
                match std::fs::remove_file(path) {
                    Err(source) if source.kind() != io::ErrorKind::NotFound => {
                        Err(LoadError::Cache { path: path.to_owned(), source })
                    }
                    _ => Ok(None),
                }
            }
        }
    }

    /// Make an entry of code that came with the program, as if it had been compiled here.
    async fn publish_ahead<R: Send + 'static>(
        &self,
        key: CodeKey,
        path: &Path,
        take: impl Fn(CodeKey, File) -> TakeResult<R> + Send + 'static,
    ) -> Result<Option<R>, LoadError> {
        let Some(sealer) = self.sealer.clone() else { return Ok(None) };
        let Some(&code) = self.ahead.get(&key.digest) else { return Ok(None) };
        let CodeKey { digest, kind, format } = key;
        let (dir, to) = (self.dir.clone(), path.to_owned());
        let meant = self.expected_code(key);
        let written = run_blocking(move || {
            let Some(artefact) = ahead::artefact(code, digest, kind, format) else {
                return Ok(false);
            };
            let write = || {
                let mut temporary = disk::temporary_file(&dir)?;
                temporary.write_all(&artefact)?;
                disk::publish(temporary, &sealer, &meant, &to)
            };
            write().map_err(|source| LoadError::Cache { path: to.clone(), source })?;
            Ok(true)
        });
        if written.await? {
            return self.sound_entry(key, path, take).await;
        }
        self.counters.refused.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(wasm = %digest, "code that came with the program is damaged, or of another build");
        Ok(None)
    }

    async fn read_entry<R: Send + 'static>(
        &self,
        key: CodeKey,
        path: PathBuf,
        take: impl Fn(CodeKey, File) -> TakeResult<R> + Send + 'static,
    ) -> Result<EntryState<R>, LoadError> {
        let Some(sealer) = self.sealer.clone() else { return Err(LoadError::NoCache) };
        let meant = self.expected_code(key);
        run_blocking(move || match disk::read(&sealer, &meant, &path)? {
            EntryFile::Sealed(file) => Ok(match take(key, file)? {
                Ok(taken) => EntryState::Sound(taken),
                Err(reason) => EntryState::Refused(reason),
            }),
            EntryFile::Missing => Ok(EntryState::Missing),
            EntryFile::Refused(reason) => Ok(EntryState::Refused(reason)),
        })
        .await
    }
}
