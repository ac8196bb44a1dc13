//! What this machine uses now: processors, memory, file systems.
//!
//! ```text
//!   /proc/stat, meminfo, uptime, mounts ─► HostUsage ─┐
//!                                                     ├─► per cent of each core between two looks
//!   the look before ──────────────────────────────────┘
//! ```
//! As with the fingerprints, what cannot be read is absent and every read is bounded.

use std::path::{Path, PathBuf};

use super::fingerprint::read;
use ostler_model::limits::KIB;

/// The most file systems that are read.
const DISKS_MAX: usize = 64;
/// The most processors that are reported.
const CORES_MAX: usize = 4_096;

/// What the machine used at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostUsage {
    /// Memory of the machine, bytes.
    pub memory: MemoryUse,
    /// Processor time, one entry for each core.
    pub cores: Vec<CoreTime>,
    /// File systems on devices, one entry for each device.
    pub disks: Vec<DiskUse>,
    /// The file system of the data directory; `None` where it cannot be read.
    pub data_dir: Option<DiskUse>,
    /// Seconds since the machine started.
    pub uptime_secs: u64,
}

/// Memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// All memory of the machine.
    pub total: u64,
    /// Memory that programs could have without swapping.
    pub available: u64,
    /// Memory that is not used for anything.
    pub free: u64,
}

/// Processor time of one core since the machine started, clock ticks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    /// The kernel's name of the core: `cpu0`, `cpu1` …
    pub name: String,
    /// Time in programs, niced ones included.
    pub user: u64,
    /// Time in the kernel, interrupts included.
    pub system: u64,
    /// Idle time, waits for disks included.
    pub idle: u64,
    /// All of the time.
    pub total: u64,
}

/// Shares of a core's time between two moments, per cent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CoreShare {
    /// Share spent in programs.
    pub user: f64,
    /// Share spent in the kernel.
    pub system: f64,
    /// Share spent idle.
    pub idle: f64,
    /// Everything but the idle share.
    pub busy: f64,
}

impl CoreTime {
    /// The shares of the time since `before`, an earlier reading of the same core. Without one they
    /// are the shares since the machine started.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a percentage")]
    pub fn share_since(&self, before: Option<&Self>) -> CoreShare {
        let gone = |of: fn(&Self) -> u64| of(self).saturating_sub(before.map_or(0, of)) as f64;
        let total = gone(|core| core.total);
        if total <= 0.0 {
            return CoreShare { idle: 100.0, ..CoreShare::default() };
        }
        let share = |part: f64| (part / total * 100.0).clamp(0.0, 100.0);
        let idle = share(gone(|core| core.idle));
        CoreShare {
            user: share(gone(|core| core.user)),
            system: share(gone(|core| core.system)),
            idle,
            busy: 100.0 - idle,
        }
    }
}

/// A file system.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DiskUse {
    /// The device as the kernel names it in its list of mounts, for example `/dev/sda1`.
    pub device: String,
    /// The first directory where the device is mounted.
    pub mountpoint: PathBuf,
    /// Size of the file system, bytes.
    pub size: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that are free for programs without special rights.
    pub available: u64,
    /// Used share of what such programs could have in all, per cent.
    pub used_percent: f64,
    /// Used share of the inodes, per cent; 0 where the file system does not bound them.
    pub inodes_used_percent: f64,
}

/// Read what the machine uses now. `root` is `/`; `data_dir` is where allocations live. It reads
/// files and asks the file systems of local devices, so it blocks.
#[must_use]
pub fn read_host_usage(root: &Path, data_dir: &Path) -> HostUsage {
    let mounts = read(root, "proc/self/mounts").unwrap_or_default();
    let mounts: Vec<(&str, PathBuf)> = devices(&mounts).collect();
    let disks = mounts.iter().filter_map(|(device, point)| disk(device, point)).collect();
    // The longest mount point above the data directory counts. A data directory that is on no
    // device is named by its own path alone.
    let real = std::fs::canonicalize(data_dir).ok();
    let above = mounts
        .iter()
        .filter(|(_, point)| real.as_ref().is_some_and(|real| real.starts_with(point)))
        .max_by_key(|(_, point)| point.components().count());
    let of_data = match above {
        Some((device, point)) => disk(device, point),
        None => disk("", data_dir),
    };
    HostUsage {
        memory: read(root, "proc/meminfo").map(|text| memory(&text)).unwrap_or_default(),
        cores: read(root, "proc/stat").map(|text| cores(&text)).unwrap_or_default(),
        disks,
        data_dir: of_data,
        uptime_secs: read(root, "proc/uptime").and_then(|text| uptime(&text)).unwrap_or(0),
    }
}

fn uptime(text: &str) -> Option<u64> {
    text.split(['.', ' ']).next()?.parse().ok()
}

fn memory(text: &str) -> MemoryUse {
    let of = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
        kib.checked_mul(KIB)
    };
    let (total, free) = (of("MemTotal").unwrap_or(0), of("MemFree").unwrap_or(0));
    // Kernels before 3.14 do not report it.
    MemoryUse { total, free, available: of("MemAvailable").unwrap_or(free) }
}

fn cores(text: &str) -> Vec<CoreTime> {
    let core = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let name = fields.next().filter(|name| name.len() > 3 && name.starts_with("cpu"))?;
        // The fields are user nice system idle iowait irq softirq steal. Time of guests is part of
        // user.
        let mut times = [0_u64; 8];
        for (time, field) in times.iter_mut().zip(fields) {
            *time = field.parse().ok()?;
        }
        let [user, nice, system, idle, iowait, irq, softirq, _] = times;
        Some(CoreTime {
            name: name.to_owned(),
            user: user.saturating_add(nice),
            system: system.saturating_add(irq).saturating_add(softirq),
            idle: idle.saturating_add(iowait),
            total: times.iter().fold(0, |sum: u64, time| sum.saturating_add(*time)),
        })
    };
    text.lines().filter_map(core).take(CORES_MAX).collect()
}

/// Local devices, each with the place where it is mounted first. File systems of other machines are
/// left out: a question to one whose server is gone would not return.
fn devices(mounts: &str) -> impl Iterator<Item = (&str, PathBuf)> {
    let mut seen = std::collections::BTreeSet::new();
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let device = fields.next().filter(|device| device.starts_with("/dev/"))?;
            Some((device, unescape_octal(fields.next()?)))
        })
        .filter(move |(device, _)| seen.insert(*device))
        .take(DISKS_MAX)
}

/// `/a\040b` → `/a b`.
fn unescape_octal(text: &str) -> PathBuf {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('\\') {
        plain.push_str(before);
        let code = after.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        let code = code.filter(u8::is_ascii);
        plain.push(code.map_or('\\', char::from));
        rest = if code.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    plain.push_str(rest);
    PathBuf::from(plain)
}

fn disk(device: &str, mountpoint: &Path) -> Option<DiskUse> {
    let stat = rustix::fs::statvfs(mountpoint).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let (size, available) = (bytes(stat.f_blocks), bytes(stat.f_bavail));
    let used = size.saturating_sub(bytes(stat.f_bfree));
    let inodes_used = stat.f_files.saturating_sub(stat.f_ffree);
    Some(DiskUse {
        device: device.to_owned(),
        mountpoint: mountpoint.to_owned(),
        size,
        used,
        available,
        used_percent: percent(used, used.saturating_add(available)),
        inodes_used_percent: percent(inodes_used, stat.f_files),
    })
}

#[expect(clippy::cast_precision_loss, reason = "a percentage")]
fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 * 100.0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

    use super::*;

    const STAT: &str = "cpu  30 0 30 140 0 0 0 0 0 0\n\
                        cpu0 10 5 20 60 3 1 1 0 4 0\n\
                        cpu1 20 0 10 80 0 0 0 0 0 0\n\
                        intr 1\nctxt 2\n";

    #[test]
    fn the_share_of_a_core_is_of_the_time_between_two_looks() {
        let before = cores(STAT);
        assert_eq!(before.len(), 2, "not the sum of all");
        assert_eq!((before[0].user, before[0].system, before[0].idle), (15, 22, 63));
        let after = cores(&STAT.replace("cpu0 10 5 20 60", "cpu0 60 5 40 90"));
        let share = after[0].share_since(Some(&before[0]));
        assert_eq!((share.user, share.system, share.idle, share.busy), (50.0, 20.0, 30.0, 70.0));
        let still = after[1].share_since(Some(&before[1]));
        assert_eq!((still.idle, still.busy), (100.0, 0.0), "not a division by zero");
        assert_eq!(before[1].share_since(None).idle, 80.0 / 110.0 * 100.0, "since the start");
    }

    #[test]
    fn memory_and_uptime_are_read_as_the_kernel_writes_them() {
        let text = "MemTotal:  16384 kB\nMemFree:   1024 kB\nMemAvailable:  8192 kB\n";
        let expected = MemoryUse { total: 16384 * KIB, available: 8192 * KIB, free: 1024 * KIB };
        assert_eq!(memory(text), expected);
        assert_eq!(memory("MemTotal: much"), MemoryUse::default());
        assert_eq!(uptime("1234.56 99.0\n"), Some(1234));
    }

    #[test]
    fn a_device_is_listed_once_and_what_is_no_device_never() {
        let mounts = "proc /proc proc rw 0 0\n/dev/sda1 /a\\040b ext4 rw 0 0\n\
                      server:/x /net nfs rw 0 0\n/dev/sda1 /etc/hosts ext4 rw 0 0\n";
        let found: Vec<_> = devices(mounts).collect();
        assert_eq!(found, [("/dev/sda1", PathBuf::from("/a b"))]);
        assert_eq!(unescape_octal("/a\\9\\134"), PathBuf::from("/a\\9\\"));
    }

    #[test]
    fn this_machine_says_something() {
        let dir = tempfile::tempdir().unwrap();
        let now = read_host_usage(Path::new("/"), dir.path());
        assert!(now.memory.total >= now.memory.available && now.memory.available > 0);
        assert!(!now.cores.is_empty() && now.cores.iter().all(|core| core.total > 0));
        let disk = now.data_dir.unwrap();
        assert!(disk.size >= disk.used && disk.used_percent <= 100.0, "{disk:?}");
        let nothing = read_host_usage(dir.path(), dir.path());
        assert_eq!((nothing.cores.len(), nothing.disks.len(), nothing.uptime_secs), (0, 0, 0));
    }
}
