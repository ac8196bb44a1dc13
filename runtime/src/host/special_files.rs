//! Guests open files and directories, no pipes, devices or sockets.
//!
//! Opening a pipe waits until somebody opens its other end, reading a device perhaps for ever; file calls
//! run on the guest's thread, and nothing ends one that waits in the kernel. Two of them would hold all
//! guests of the node. So what stands under a name is looked at before it is opened. Whoever swaps it in
//! between has write access to the directory outside of the sandbox; that is not prevented.

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::WasiView;
use wasmtime_wasi::filesystem::{Descriptor, WasiFilesystemView};
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DescriptorType, ErrorCode, Host as _, HostDescriptor as _,
    OpenFlags, PathFlags,
};

/// The interface as wasmtime-wasi links it; a component may ask for any older 0.2.
pub(super) const TYPES: &str = "wasi:filesystem/types@0.2.12";

/// May a guest open what this says of?
pub(super) fn plain(stat: &DescriptorStat) -> bool {
    use DescriptorType::{Directory, RegularFile, SymbolicLink};
    matches!(stat.type_, RegularFile | Directory | SymbolicLink)
}

/// Let guests linked here open nothing else.
pub(super) fn refuse<T>(linker: &mut Linker<T>) -> wasmtime::Result<()>
where
    T: WasiView + WasiFilesystemView + 'static,
{
    linker.allow_shadowing(true);
    linker.instance(TYPES)?.func_wrap_async(
        "[method]descriptor.open-at",
        |mut context: StoreContextMut<'_, T>,
         (dir, flags, path, open, rights): (
            Resource<Descriptor>,
            PathFlags,
            String,
            OpenFlags,
            DescriptorFlags,
        )| {
            Box::new(async move {
                let state = context.data_mut();
                let here = Resource::new_borrow(dir.rep());
                let stat = state.filesystem().stat_at(here, flags, path.clone()).await;
                if stat.is_ok_and(|stat| !plain(&stat)) {
                    return Ok((Err(ErrorCode::Access),));
                }
                let mut files = state.filesystem();
                let opened = files.open_at(dir, flags, path, open, rights).await;
                Ok((match opened {
                    Ok(file) => Ok(file),
                    Err(error) => Err(files.convert_error_code(error)?),
                },))
            })
        },
    )?;
    linker.allow_shadowing(false);
    Ok(())
}
