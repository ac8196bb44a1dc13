//! From the bytes of a guest to its entry: one way, whatever is made of the entry.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::disk::{self, Entry};
use super::{CodeAsk, CodeCache, Key, LoadError, blocking};
use crate::prescan::prescan;
use ostler_engine::ahead;
use ostler_model::digest::Digest;

/// What was made of an open entry; the inner error: it is not usable, and why.
type Taken<R> = Result<Result<R, String>, LoadError>;

/// What became of an entry.
enum Found<R> {
    Sound(R),
    Missing,
    Refused(String),
}

impl CodeCache {
    /// What `take` makes of the sealed entry of `bytes`, compiled now or before.
    pub(super) async fn find<R: Send + 'static, T>(
        &self,
        bytes: Arc<[u8]>,
        ask: &CodeAsk<'_>,
        known: impl Fn(&Key) -> Option<T>,
        take: impl Fn(Key, File) -> Taken<R> + Clone + Send + 'static,
        keep: impl Fn(Key, R) -> T,
    ) -> Result<T, LoadError> {
        let CodeAsk { kind, format, within, .. } = *ask;
        let digested = Arc::clone(&bytes);
        let digest = blocking(move || Ok(Digest::of(&digested))).await?;
        let key = Key { digest, kind, format };
        let hit = |found| {
            self.counters.memory_hits.fetch_add(1, Ordering::Relaxed);
            Ok(found)
        };
        if let Some(found) = known(&key) {
            return hit(found);
        }
        let scanned = Arc::clone(&bytes);
        blocking(move || Ok(prescan(&scanned, within.file_bytes_max, format)?)).await?;
        let flight = self.board(key)?;
        let _turn = flight.turn.lock().await;
        if let Some(found) = known(&key) {
            return hit(found);
        }
        let path = self.path(&key);
        if let Some(taken) = self.sound_entry(key, &path, take.clone()).await? {
            self.counters.disk_hits.fetch_add(1, Ordering::Relaxed);
            return Ok(keep(key, taken));
        }
        if let Some(taken) = self.made_ahead(key, &path, take.clone()).await? {
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
            Found::Sound(taken) => Ok(keep(key, taken)),
            Found::Missing => Err(LoadError::BadArtefact { path, reason: "it is gone".to_owned() }),
            Found::Refused(reason) => Err(LoadError::BadArtefact { path, reason }),
        }
    }

    /// The entry when it is there and sound; one that is not is removed.
    async fn sound_entry<R: Send + 'static>(
        &self,
        key: Key,
        path: &Path,
        take: impl Fn(Key, File) -> Taken<R> + Send + 'static,
    ) -> Result<Option<R>, LoadError> {
        match self.read_entry(key, path.to_owned(), take).await? {
            Found::Sound(taken) => Ok(Some(taken)),
            Found::Missing => Ok(None),
            Found::Refused(reason) => {
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

    /// What came with the program becomes an entry as if it had been compiled here.
    async fn made_ahead<R: Send + 'static>(
        &self,
        key: Key,
        path: &Path,
        take: impl Fn(Key, File) -> Taken<R> + Send + 'static,
    ) -> Result<Option<R>, LoadError> {
        let Some(sealer) = self.sealer.clone() else { return Ok(None) };
        let Some(&code) = self.ahead.get(&key.digest) else { return Ok(None) };
        let Key { digest, kind, format } = key;
        let (dir, to) = (self.dir.clone(), path.to_owned());
        let meant = self.meant(key);
        let written = blocking(move || {
            let Some(artefact) = ahead::artefact(code, digest, kind, format) else {
                return Ok(false);
            };
            let write = || {
                let mut temporary = disk::temporary(&dir)?;
                temporary.write_all(artefact)?;
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
        key: Key,
        path: PathBuf,
        take: impl Fn(Key, File) -> Taken<R> + Send + 'static,
    ) -> Result<Found<R>, LoadError> {
        let Some(sealer) = self.sealer.clone() else { return Err(LoadError::NoCache) };
        let meant = self.meant(key);
        blocking(move || match disk::read(&sealer, &meant, &path)? {
            Entry::Sealed(file) => Ok(match take(key, file)? {
                Ok(taken) => Found::Sound(taken),
                Err(reason) => Found::Refused(reason),
            }),
            Entry::Missing => Ok(Found::Missing),
            Entry::Refused(reason) => Ok(Found::Refused(reason)),
        })
        .await
    }
}
