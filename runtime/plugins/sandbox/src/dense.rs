//! The dense profile: memories and stacks of guests lie side by side in a few large mappings.
//!
//! ```text
//!  stacks    │guard│ stack │guard│ stack │ …            one mapping each, reserved only:
//!  memories  │ 16 MiB      │ 16 MiB      │ …            a guest takes pages, and no mapping
//!  larger    │ 4 GiB                     │ …            of its own
//! ```
//! A pool has six mappings for each guest, and the kernel gives a process 65,530 of them. Here all
//! guests have three mappings together. So a memory has no inaccessible pages around it, and code
//! checks every access, which costs a guest that computes 15 to 30 % of its speed. A stack has a
//! guard, made by `MADV_GUARD_INSTALL` (Linux 6.13), which divides no mapping. A memory that
//! outgrows its slot moves.

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use wasmtime::{Config, LinearMemory, MemoryCreator, MemoryType, StackCreator, StackMemory};

use ostler_model::limits::{
    DENSE_LARGE_MEMORIES_MAX, DENSE_MEMORY_BYTES, GUEST_FIBER_BYTES, TASK_MEMORY_BYTES_CEILING,
};

/// `MADV_GUARD_INSTALL`, which the headers of some C libraries do not have yet.
const GUARD_INSTALL: libc::c_int = 102;
/// Inaccessible bytes below a stack. They are as many pages as the largest frame of a host
/// function can skip.
const GUARD_BYTES: usize = 64 * 1024;

/// One mapping, divided into slots of one size.
struct SlotMapping {
    base: NonNull<u8>,
    slot: usize,
    count: usize,
    free: Mutex<FreeSlots>,
}

/// The slots that nobody has: those that were given back, and all from `next` on, which
/// were never taken.
#[derive(Default)]
struct FreeSlots {
    back: Vec<usize>,
    next: usize,
}

// SAFETY: the pointer is only the address of the mapping, which lives as long as this; each slot is
// handed to one owner at a time, under the lock.
unsafe impl Send for SlotMapping {}
// SAFETY: as above.
unsafe impl Sync for SlotMapping {}

impl SlotMapping {
    /// Reserve address space for `count` slots. This takes no memory.
    fn reserve(slot: usize, count: usize) -> io::Result<Arc<Self>> {
        let bytes = slot.checked_mul(count).ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new mapping where the kernel likes it overlaps nothing that is there.
        let base = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let slots = Arc::new(Self { base, slot, count, free: Mutex::default() });
        // With huge pages, a guest that touches a few pages would take two MiB.
        // SAFETY: the whole of the mapping just made; its content does not change.
        unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxNoHugepage)? };
        Ok(slots)
    }

    /// Take a slot, which is all zeroes. The second value says whether nobody had it before.
    fn take(self: &Arc<Self>) -> Option<(MappingSlot, bool)> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let (index, new) = match free.back.pop() {
            Some(index) => (index, false),
            None if free.next < self.count => {
                free.next += 1;
                (free.next - 1, true)
            }
            None => return None,
        };
        drop(free);
        Some((MappingSlot { slots: Arc::clone(self), index, used: 0 }, new))
    }
}

impl Drop for SlotMapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `reserve`, of which no slot is in use: each holds an `Arc` of this.
        let _unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.slot * self.count) };
    }
}

/// A part of a mapping that has one owner. Its pages go back to the kernel when it is dropped.
struct MappingSlot {
    slots: Arc<SlotMapping>,
    index: usize,
    /// How many bytes at its beginning may have been written to.
    used: usize,
}

impl MappingSlot {
    fn start(&self) -> *mut u8 {
        // SAFETY: `index` is below `count`, so this stays inside the mapping.
        unsafe { self.slots.base.as_ptr().add(self.index * self.slots.slot) }
    }
}

impl Drop for MappingSlot {
    fn drop(&mut self) {
        // SAFETY: these bytes are inside the slot, which nobody else has. They read as zeroes again.
        let cleared = unsafe { madvise(self.start().cast(), self.used, Advice::LinuxDontNeed) };
        if cleared.is_err() {
            // The slot is not used again, so that no guest sees what this one wrote.
            return;
        }
        self.slots.free.lock().unwrap_or_else(PoisonError::into_inner).back.push(self.index);
    }
}

/// The mappings for memories: one with small slots, one with large ones.
struct DenseMemories {
    small: Arc<SlotMapping>,
    large: Arc<SlotMapping>,
}

impl DenseMemories {
    /// Take a slot for this many bytes.
    fn slot(&self, bytes: usize) -> Result<MappingSlot, String> {
        let slots = if bytes <= self.small.slot { &self.small } else { &self.large };
        if bytes > slots.slot {
            return Err(format!("a memory has at most {} bytes", slots.slot));
        }
        let none = || format!("all {} places for memories of this size are taken", slots.count);
        Ok(slots.take().ok_or_else(none)?.0)
    }
}

struct DenseMemoryCreator(Arc<DenseMemories>);

// SAFETY: each memory is a slot of its own, zeroed, and as large as it says. The engine's configuration
// asks for no reserved and no inaccessible bytes behind it, so compiled code checks every access.
unsafe impl MemoryCreator for DenseMemoryCreator {
    fn new_memory(
        &self,
        _ty: MemoryType,
        minimum: usize,
        _maximum: Option<usize>,
        _reserved: Option<usize>,
        guard: usize,
    ) -> Result<Box<dyn LinearMemory>, String> {
        if guard > 0 {
            return Err("a dense memory has no guard".to_owned());
        }
        let mut slot = self.0.slot(minimum)?;
        slot.used = minimum;
        Ok(Box::new(DenseMemory { all: Arc::clone(&self.0), slot }))
    }
}

struct DenseMemory {
    all: Arc<DenseMemories>,
    slot: MappingSlot,
}

// SAFETY: `as_ptr` begins `byte_capacity` bytes that nobody else has, of which those beyond
// `byte_size` are zero; growing keeps the content, and moves it only beyond the capacity.
unsafe impl LinearMemory for DenseMemory {
    fn byte_size(&self) -> usize {
        self.slot.used
    }

    fn byte_capacity(&self) -> usize {
        self.slot.slots.slot
    }

    fn grow_to(&mut self, new_size: usize) -> wasmtime::Result<()> {
        if new_size > self.byte_capacity() {
            let slot = self.all.slot(new_size).map_err(wasmtime::Error::msg)?;
            // SAFETY: two different slots; the new one has room for more than is copied.
            unsafe {
                std::ptr::copy_nonoverlapping(self.slot.start(), slot.start(), self.slot.used);
            }
            self.slot = slot;
        }
        self.slot.used = self.slot.used.max(new_size);
        Ok(())
    }

    fn as_ptr(&self) -> *mut u8 {
        self.slot.start()
    }
}

struct DenseStacks(Arc<SlotMapping>);

// SAFETY: each stack is a slot of its own, zeroed, aligned to pages, with a guard below it.
unsafe impl StackCreator for DenseStacks {
    fn new_stack(&self, size: usize, _zeroed: bool) -> wasmtime::Result<Box<dyn StackMemory>> {
        let slots = &self.0;
        if size.checked_add(GUARD_BYTES) != Some(slots.slot) {
            return Err(wasmtime::Error::msg("a stack of another size"));
        }
        let none = || wasmtime::Error::msg(format!("all {} stacks are taken", slots.count));
        let (mut slot, new) = slots.take().ok_or_else(none)?;
        slot.used = slots.slot;
        if new {
            guard(&slot)?;
        }
        Ok(Box::new(DenseStack(slot)))
    }
}

/// Make the lowest bytes of a slot inaccessible, for as long as the mapping lives.
fn guard(slot: &MappingSlot) -> io::Result<()> {
    // SAFETY: these bytes are inside the slot, which nobody else has and nothing uses yet.
    let result = unsafe { libc::madvise(slot.start().cast(), GUARD_BYTES, GUARD_INSTALL) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

struct DenseStack(MappingSlot);

// SAFETY: page aligned, a multiple of pages, with a guard right below.
unsafe impl StackMemory for DenseStack {
    fn top(&self) -> *mut u8 {
        // SAFETY: the end of the slot.
        unsafe { self.0.start().add(self.0.slots.slot) }
    }

    fn range(&self) -> Range<usize> {
        let start = self.0.start() as usize;
        start + GUARD_BYTES..start + self.0.slots.slot
    }

    fn guard_range(&self) -> Range<*mut u8> {
        let start = self.0.start();
        // SAFETY: inside the slot.
        start..unsafe { start.add(GUARD_BYTES) }
    }
}

/// Let an engine hold up to `guests` guests in mappings of this profile.
///
/// # Errors
/// When address space cannot be reserved, or the kernel makes no guards.
pub(super) fn hold(config: &mut Config, guests: u32) -> io::Result<()> {
    let guests = guests as usize;
    let stacks = SlotMapping::reserve(GUEST_FIBER_BYTES + GUARD_BYTES, guests)?;
    // Whether guards can be made is found out now rather than at the first guest.
    if let Some((slot, _)) = stacks.take() {
        guard(&slot)?;
    }
    let large = usize::try_from(TASK_MEMORY_BYTES_CEILING).unwrap_or(usize::MAX);
    let memories = DenseMemories {
        small: SlotMapping::reserve(DENSE_MEMORY_BYTES, guests)?,
        large: SlotMapping::reserve(large, guests.min(DENSE_LARGE_MEMORIES_MAX))?,
    };
    config
        .with_host_memory(Arc::new(DenseMemoryCreator(Arc::new(memories))))
        .with_host_stack(Arc::new(DenseStacks(stacks)));
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn memories(small: usize, large: usize) -> Arc<DenseMemories> {
        Arc::new(DenseMemories {
            small: SlotMapping::reserve(64 * 1024, small).unwrap(),
            large: SlotMapping::reserve(1024 * 1024, large).unwrap(),
        })
    }

    fn memory(all: &Arc<DenseMemories>, bytes: usize) -> Result<DenseMemory, String> {
        let mut slot = all.slot(bytes)?;
        slot.used = bytes;
        Ok(DenseMemory { all: Arc::clone(all), slot })
    }

    fn bytes(memory: &mut DenseMemory) -> &mut [u8] {
        // SAFETY: it is the only reference into the memory, which lives as long.
        unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), memory.byte_size()) }
    }

    #[test]
    fn a_memory_that_outgrows_its_slot_moves_with_its_content_and_is_zero_behind_it() {
        let all = memories(1, 1);
        let mut one = memory(&all, 4096).unwrap();
        bytes(&mut one).fill(7);
        one.grow_to(64 * 1024).unwrap();
        bytes(&mut one)[4096..].iter().for_each(|byte| assert_eq!(*byte, 0));
        let before = one.as_ptr();
        one.grow_to(128 * 1024).unwrap();
        assert_ne!(one.as_ptr(), before);
        assert_eq!((bytes(&mut one)[0], bytes(&mut one)[4095], bytes(&mut one)[4096]), (7, 7, 0));
        assert_eq!(one.byte_size(), 128 * 1024);
        assert!(memory(&all, 4096).is_ok(), "its first slot is free again");
        assert!(one.grow_to(1024 * 1024 + 1).is_err());
        assert!(one.grow_to(1024 * 1024).is_ok());
    }

    #[test]
    fn nobody_sees_what_the_guest_before_wrote() {
        let all = memories(1, 1);
        let mut one = memory(&all, 64 * 1024).unwrap();
        bytes(&mut one).fill(7);
        assert!(memory(&all, 1).is_err(), "there is one slot");
        drop(one);
        let mut two = memory(&all, 64 * 1024).unwrap();
        assert!(bytes(&mut two).iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_stack_ends_at_pages_that_nobody_can_write_to_also_when_it_is_used_again() {
        let stacks = DenseStacks(SlotMapping::reserve(GUARD_BYTES + 64 * 1024, 1).unwrap());
        for _ in 0..2 {
            let stack = match stacks.new_stack(64 * 1024, false) {
                Ok(stack) => stack,
                // A kernel before 6.13.
                Err(error) if error.to_string().contains("Invalid argument") => return,
                Err(error) => unreachable!("{error:#}"),
            };
            assert!(stacks.new_stack(64 * 1024, false).is_err(), "there is one");
            assert_eq!(stack.guard_range().end as usize, stack.range().start);
            assert_eq!(stack.top() as usize, stack.range().end);
            assert!(writable(stack.range().start) && writable(stack.range().end - 1));
            assert!(!writable(stack.guard_range().end as usize - 1));
            assert!(!writable(stack.guard_range().start as usize));
        }
    }

    /// Can this address be written to? The kernel is asked to write there, because a write of the
    /// test itself would end it.
    fn writable(address: usize) -> bool {
        let zero = std::fs::File::open("/dev/zero").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&zero);
        // SAFETY: the kernel checks the address; the byte there belongs to the test.
        unsafe { libc::read(fd, address as *mut libc::c_void, 1) == 1 }
    }
}
