//! Packs the data of an allocation, so that another node can take it over.

use std::io::Write;

use super::AgentHandle;
use ostler_lifecycle::alloc::snapshot::pack;
use ostler_model::causes::chain;
use ostler_model::ids::{AllocId, TaskName};

impl AgentHandle {
    /// Write `alloc/data` and the `local` directory of each of these tasks as a tar
    /// archive. Blocks.
    ///
    /// # Errors
    /// Why the archive is not complete, as a text for people.
    pub fn pack_disk(
        &self,
        alloc: AllocId,
        tasks: &[TaskName],
        out: impl Write,
    ) -> Result<(), String> {
        let root = self.0.data_dir.join("allocs");
        pack(&root, alloc, tasks, out).map(drop).map_err(|error| chain(&error))
    }
}
