//! Builds the allocation's directory; removes it when the allocation is removed.

use super::{AllocHook, AllocScope, HookResult};
use crate::alloc::dir::AllocDir;
use crate::task::hooks::chain;

pub(super) struct DirHook;

impl AllocHook for DirHook {
    fn name(&self) -> &'static str {
        "alloc_dir"
    }

    /// A task that was started before has its data there: where the directory is gone, an empty one
    /// in its place would let the task go on as if it had never written anything (nomad #27933).
    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
        let must_exist = scope.started_before;
        Box::pin(async move {
            let make = move || {
                if must_exist {
                    AllocDir::open(&root, id)?;
                }
                AllocDir::create(&root, id).map(drop)
            };
            tokio::task::spawn_blocking(make)
                .await
                .map_err(|e| e.to_string())?
                .map_err(|e| chain(&e))
        })
    }

    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> HookResult<'a> {
        let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
        Box::pin(async move {
            tokio::task::spawn_blocking(move || AllocDir::destroy(&root, id))
                .await
                .map_err(|e| e.to_string())?
                .map_err(|e| chain(&e))
        })
    }
}
