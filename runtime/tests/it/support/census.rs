//! What a process may leak: counted before and after.

/// What this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    pub files: usize,
    pub threads: usize,
    pub children: usize,
    pub tasks: usize,
}

/// Names in a directory; none when it is not there.
pub fn entries(dir: impl AsRef<std::path::Path>) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}

fn children() -> usize {
    let list = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let of = |thread: std::fs::DirEntry| std::fs::read_to_string(thread.path().join("children"));
    list.filter_map(|thread| of(thread).ok()).map(|pids| pids.split_whitespace().count()).sum()
}

impl Census {
    /// As it is now; with the tasks of this runtime.
    pub fn now(runtime: &tokio::runtime::Handle) -> Self {
        Self {
            files: entries("/proc/self/fd"),
            threads: entries("/proc/self/task"),
            children: children(),
            tasks: runtime.metrics().num_alive_tasks(),
        }
    }

    /// Is it no more of anything?
    pub fn within(&self, before: &Self) -> bool {
        self.files <= before.files
            && self.threads <= before.threads
            && self.children <= before.children
            && self.tasks <= before.tasks
    }
}
