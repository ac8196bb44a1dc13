//! A child that runs in the memory of this process, which waits until the child ends. This is
//! `vfork` with a stack for the child. Nothing is copied.

use std::io;

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Bytes of the child's stack. Pages that are not touched cost nothing.
const STACK_BYTES: usize = 2 << 20;
/// Bytes below the stack without access, so that an overflow ends the process.
const GUARD_BYTES: usize = 64 << 10;

/// Run `what` in a child to its end. `shared`: what the child shares beside the memory, as flags of `clone`.
///
/// # Errors
/// When the child cannot be made.
///
/// # Safety
/// This process has one thread and all its signals are blocked. `what` may fork copies of the child
/// that do not come back.
pub(super) unsafe fn run_vfork<F: FnOnce()>(shared: libc::c_int, what: F) -> io::Result<()> {
    let stack = ChildStack::new()?;
    let mut what = Some(what);
    let flags = shared | libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: stack and argument live until the child has ended, as this process goes on only then;
    // nobody else uses them or any other memory of it meanwhile.
    let pid = unsafe { libc::clone(entry::<F>, stack.top(), flags, (&raw mut what).cast()) };
    let child = match Pid::from_raw(pid) {
        Some(child) if pid > 0 => child,
        _ => return Err(io::Error::last_os_error()),
    };
    // The child has ended, so this does not block.
    while matches!(waitpid(Some(child), WaitOptions::empty()), Err(Errno::INTR)) {}
    Ok(())
}

extern "C" fn entry<F: FnOnce()>(what: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run` gives a live option of this type, and waits.
    let what = unsafe { &mut *what.cast::<Option<F>>() };
    if let Some(what) = what.take() {
        what();
    }
    0
}

struct ChildStack {
    lowest: *mut libc::c_void,
}

impl ChildStack {
    fn new() -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever there is room, of which nobody else knows.
        let stack = unsafe {
            let lowest = mmap_anonymous(std::ptr::null_mut(), STACK_BYTES, access, flags)?;
            Self { lowest }
        };
        // SAFETY: the lowest part of the mapping just made.
        unsafe { mprotect(stack.lowest, GUARD_BYTES, MprotectFlags::empty())? };
        Ok(stack)
    }

    /// The upper end of the stack, aligned to a page.
    fn top(&self) -> *mut libc::c_void {
        self.lowest.wrapping_byte_add(STACK_BYTES)
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        let _unmapped = unsafe { munmap(self.lowest, STACK_BYTES) };
    }
}
