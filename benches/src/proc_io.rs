//! The kernel's counts of this process' reads and writes, from `/proc/self/io`.

/// Counts since the process began, all threads together.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcIo {
    /// `write_bytes`: bytes of pages made dirty, in whole pages; what will go to the disk.
    pub write_bytes: u64,
    /// `syscw`: write system calls of any kind.
    pub write_calls: u64,
    /// `wchar`: bytes given to them.
    pub written: u64,
}

impl ProcIo {
    /// Counts now.
    ///
    /// # Panics
    /// When the kernel does not tell.
    #[must_use]
    pub fn now() -> Self {
        let text = std::fs::read_to_string("/proc/self/io").expect("/proc/self/io is readable");
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.trim().parse().ok()).expect("a known field")
        };
        Self {
            write_bytes: field("write_bytes:"),
            write_calls: field("syscw:"),
            written: field("wchar:"),
        }
    }
}
