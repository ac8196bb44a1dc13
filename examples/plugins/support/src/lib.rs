//! What the device plugins share.
//!
//! - [`sysfs`]: small files, links and directories, with few calls out of the sandbox: each call of
//!   a plugin has a budget of them, and a large node has thousands of files.
//! - [`pci`]: PCI addresses in one form.
//! - [`groups`]: attributes that hold for a whole group; ids that the contract takes.
//! - [`testing`]: fixture trees (native only).

pub mod groups;
pub mod pci;
pub mod sysfs;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
