//! Storage of the data directory: `unique.storage.volume`, `unique.storage.bytestotal`,
//! `unique.storage.bytesfree`.

use std::path::Path;

use super::{Facts, add_number, add_text, read};

pub(super) fn fingerprint(root: &Path, data_dir: &Path, facts: &mut Facts) {
    if let Ok(stat) = rustix::fs::statvfs(data_dir) {
        let bytes = |blocks: u64| blocks.checked_mul(stat.f_frsize);
        add_number(facts, "unique.storage.bytestotal", bytes(stat.f_blocks));
        add_number(facts, "unique.storage.bytesfree", bytes(stat.f_bavail));
    }
    // Mount points are real paths. No mount point is found for a relative or linked directory.
    let mounts = read(root, "proc/self/mounts");
    let real = std::fs::canonicalize(data_dir).ok();
    let volume = mounts.as_deref().zip(real).and_then(|(mounts, real)| volume(mounts, &real));
    add_text(facts, "unique.storage.volume", volume);
}

/// The device of the longest mount point above `path`. Of several equal ones the last counts,
/// because it hides the others.
fn volume<'a>(mounts: &'a str, path: &Path) -> Option<&'a str> {
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let device = fields.next()?;
            let point = Path::new(fields.next()?);
            path.starts_with(point).then(|| (point.components().count(), device))
        })
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, device)| device)
}
