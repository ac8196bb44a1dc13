//! Builds the allocation's directory; removes it when the allocation is removed.

use super::{AllocHook, AllocScope};
use crate::alloc::dir::AllocDir;
use crate::driver::api::BoxFuture;
use crate::task::hooks::chain;

pub(super) struct DirHook;

impl AllocHook for DirHook {
    fn name(&self) -> &'static str {
        "alloc_dir"
    }

    fn prerun<'a>(&'a self, scope: &'a AllocScope) -> BoxFuture<'a, Result<(), String>> {
        let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
        Box::pin(async move {
            tokio::task::spawn_blocking(move || AllocDir::create(&root, id).map(drop))
                .await
                .map_err(|e| e.to_string())?
                .map_err(|e| chain(&e))
        })
    }

    fn destroy<'a>(&'a self, scope: &'a AllocScope) -> BoxFuture<'a, Result<(), String>> {
        let (root, id) = (scope.alloc_root.clone(), scope.allocation.id);
        Box::pin(async move {
            tokio::task::spawn_blocking(move || AllocDir::destroy(&root, id))
                .await
                .map_err(|e| e.to_string())?
                .map_err(|e| chain(&e))
        })
    }
}
