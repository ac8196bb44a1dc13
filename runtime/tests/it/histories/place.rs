//! Where a history happens: the data directory, perhaps a small disk of its own, and beside it what
//! the tasks write.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::DataDir;
use crate::support::system::{kill, processes_of};

/// Room of a small disk beside what is in it at the start, bytes.
const SMALL_DISK_ROOM: u64 = 24 << 20;

/// Two directories, and nothing of them when it is dropped, unless it is kept.
pub struct Site {
    data: DataDir,
    disk: Option<tempfile::TempDir>,
    beside: tempfile::TempDir,
}

fn done(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

fn mount(at: &Path, bytes: u64) -> bool {
    let size = format!("size={bytes},mode=700");
    done(Command::new("mount").args(["-t", "tmpfs", "-o", &size, "ostler-it"]).arg(at))
}

/// Can small disks be had here?
pub fn mounts() -> bool {
    let dir = tempfile::tempdir().unwrap();
    mount(dir.path(), 1 << 20) && done(Command::new("umount").arg(dir.path()))
}

impl Site {
    pub fn new(small_disk: bool) -> Self {
        let data = DataDir::new();
        let disk = small_disk.then(|| small(&data));
        let beside = tempfile::Builder::new().prefix("ostler-beside-").tempdir().unwrap();
        assert!(done(Command::new("mkfifo").arg(beside.path().join("never"))), "mkfifo");
        std::fs::write(beside.path().join("evidence"), "").unwrap();
        Self { data, disk, beside }
    }

    pub fn data(&self) -> &Path {
        self.disk.as_ref().map_or_else(|| self.data.path(), tempfile::TempDir::path)
    }

    pub fn beside(&self) -> &Path {
        self.beside.path()
    }

    pub fn evidence(&self) -> PathBuf {
        self.beside.path().join("evidence")
    }

    /// A line of the driver's own among those of the tasks.
    pub fn note(&self, line: &str) {
        let mut file = std::fs::OpenOptions::new().append(true).open(self.evidence()).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Take all room of the small disk.
    pub fn fill(&self) {
        let mut file = std::fs::File::create(self.filler()).unwrap();
        let mut size = 1 << 20;
        while size > 0 {
            match file.write(&vec![0; size]) {
                Ok(1..) => {}
                _ => size /= 2,
            }
        }
    }

    pub fn free(&self) {
        let _not_there = std::fs::remove_file(self.filler());
    }

    fn filler(&self) -> PathBuf {
        self.data().join("filler")
    }

    /// Processes that have to do with it.
    pub fn processes(&self) -> Vec<u32> {
        let mut all = processes_of(self.data());
        all.extend(processes_of(self.beside()));
        all.sort_unstable();
        all.dedup();
        all
    }

    fn kill_all(&self) {
        self.processes().into_iter().for_each(kill);
    }

    /// Leave the files for somebody to look at; where they are.
    pub fn keep(mut self) -> String {
        self.kill_all();
        let data = tempfile::Builder::new().prefix("ostler-kept-").tempdir().unwrap().keep();
        for dir in ["allocs", "exits", "state.redb"] {
            let _what_is_there =
                done(Command::new("cp").arg("-a").arg(self.data().join(dir)).arg(&data));
        }
        self.beside.disable_cleanup(true);
        format!(
            "what tasks and agents wrote: {}; data: {}",
            self.beside.path().display(),
            data.display()
        )
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_all();
        if let Some(disk) = &self.disk {
            done(Command::new("umount").arg("-l").arg(disk.path()));
        }
    }
}

/// A small disk with what a data directory begins with.
fn small(data: &DataDir) -> tempfile::TempDir {
    let disk = tempfile::Builder::new().prefix("ostler-disk-").tempdir().unwrap();
    let code = std::fs::read_dir(data.path().join("code")).unwrap().flatten();
    let used: u64 = code.filter_map(|entry| Some(entry.metadata().ok()?.len())).sum();
    assert!(mount(disk.path(), used + SMALL_DISK_ROOM), "a small disk can be mounted");
    for name in ["code", "code.key"] {
        let copied =
            Command::new("cp").arg("-a").arg(data.path().join(name)).arg(disk.path()).status();
        assert!(copied.unwrap().success());
    }
    disk
}
