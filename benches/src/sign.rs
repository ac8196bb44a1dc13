//! The instant at which a program's own code runs: it writes to a named pipe that is watched.

use std::fs::{File, OpenOptions};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use ostler_model::clock::Stopwatch;

/// A named pipe.
#[derive(Debug)]
pub struct Sign {
    path: PathBuf,
    /// Open for writing too, so that reading never sees an end.
    pipe: File,
}

impl Sign {
    /// Make it at `path`.
    ///
    /// # Panics
    /// When it cannot be made.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let mode = rustix::fs::Mode::from_raw_mode(0o622);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("a named pipe");
        // Whoever runs the program, and whatever the mask.
        rustix::fs::chmod(path, mode).expect("its rights");
        let pipe = OpenOptions::new().read(true).write(true).open(path).expect("the pipe");
        Self { path: path.to_owned(), pipe }
    }

    /// Where to write one byte.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Time from now until somebody writes; another thread waits.
    #[must_use]
    pub fn wait(&self) -> Waiting {
        self.wait_for(1)
    }

    /// The same until so many have written.
    ///
    /// # Panics
    /// When the pipe cannot be read.
    #[must_use]
    pub fn wait_for(&self, count: u64) -> Waiting {
        let mut pipe = self.pipe.try_clone().expect("the pipe");
        let (ready, go) = std::sync::mpsc::sync_channel::<Stopwatch>(0);
        let thread = std::thread::spawn(move || {
            let watch = go.recv().expect("a start");
            let mut byte = [0; 1];
            for _ in 0..count {
                pipe.read_exact(&mut byte).expect("one byte");
            }
            watch.elapsed()
        });
        // Taken when the thread is there.
        ready.send(Stopwatch::start()).expect("the thread waits");
        Waiting(thread)
    }
}

/// A time that is being taken.
#[derive(Debug)]
pub struct Waiting(JoinHandle<Duration>);

impl Waiting {
    /// Wait for the sign; the time it took.
    ///
    /// # Panics
    /// When the thread failed.
    #[must_use]
    pub fn took(self) -> Duration {
        self.0.join().expect("the thread lives")
    }
}
