//! The binary on a kernel of its own: an emulated machine with version 2 cgroups, a disk that can be
//! full, read-only or cut from its power, and a clock that can jump.
//!
//! ```text
//!   rig: kernel, busybox, our binary ─► vm: qemu (no KVM needed) ─► scripts over a serial line
//!                                        │ killed
//!   writes: log of the data disk ◄───────┘ ─► what a real disk would hold ─► next start
//! ```
//! `.ci/machine` fetches what it needs (Debian packages); elsewhere the tests say that they are skipped.
//! `OSTLER_SOAK=1 cargo test -p ostler --test it machine` cuts the power 50 times instead of twice.

mod cores;
mod isolation;
mod jobs;
mod power;
mod rig;
mod service;
mod trouble;
mod vm;
mod worker;
mod writes;

use std::path::PathBuf;
use std::sync::LazyLock;

use rig::Rig;
use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::support::needs::{Need, skipped};

/// Machines at once: each takes a processor.
static TURNS: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)));

/// The rig, for as many tests at once as there are processors.
async fn rig() -> Option<(Rig, SemaphorePermit<'static>)> {
    let turn = TURNS.acquire().await.unwrap();
    match assembled().await {
        Ok(rig) => Some((rig, turn)),
        Err(missing) => {
            skipped(Need::Machine, &missing);
            None
        }
    }
}

/// One at a time: the first one makes the disks that the others find.
async fn assembled() -> Result<Rig, String> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    let _alone = ALONE.lock().await;
    Rig::assemble().await
}

impl Rig {
    /// A data disk of its own, under this name.
    fn disk(&self, name: &str) -> PathBuf {
        let disk = self.dir.path().join(name);
        std::fs::copy(&self.warm, &disk).unwrap();
        disk
    }
}
