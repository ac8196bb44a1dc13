//! Writes and reads the values of a trace: little-endian numbers, and lengths before bytes. What is
//! read is bounded by the bytes that are there.

use serde::Serialize;
use serde::de::DeserializeOwned;
use wasmtime::component::Resource;
use wasmtime_wasi::p2::bindings::clocks::wall_clock::Datetime;
use wasmtime_wasi::p2::bindings::filesystem::types::{
    DescriptorFlags, DescriptorStat, DescriptorType, DirectoryEntry, ErrorCode, MetadataHashValue,
};

/// Reads values from the front of some bytes. Each function returns `None` where the bytes
/// do not suffice.
#[derive(Debug)]
pub struct WireReader<'a>(&'a [u8]);

impl<'a> WireReader<'a> {
    /// A reader of these bytes.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Were all bytes read?
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes are left to read.
    pub const fn remaining(&self) -> usize {
        self.0.len()
    }

    /// Read `len` bytes.
    pub fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// Read one byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// Read a number of four bytes.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Read a number of eight bytes.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Read bytes that follow their length.
    pub fn counted_bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()? as usize;
        self.bytes(len)
    }

    /// Read a text that follows its length.
    pub fn text(&mut self) -> Option<String> {
        String::from_utf8(self.counted_bytes()?.to_vec()).ok()
    }
}

pub fn put_counted(bytes: &[u8], out: &mut Vec<u8>) {
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

/// A value that can be written into a trace and read from it.
pub trait Wire: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn get(reader: &mut WireReader<'_>) -> Option<Self>;
}

impl Wire for () {
    fn put(&self, _out: &mut Vec<u8>) {}
    fn get(_reader: &mut WireReader<'_>) -> Option<Self> {
        Some(())
    }
}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(reader.u8()? != 0)
    }
}

impl Wire for u32 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        reader.u32()
    }
}

impl Wire for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        reader.u64()
    }
}

impl Wire for String {
    fn put(&self, out: &mut Vec<u8>) {
        put_counted(self.as_bytes(), out);
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        reader.text()
    }
}

impl Wire for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) {
        put_counted(self, out);
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(reader.counted_bytes()?.to_vec())
    }
}

impl Wire for Vec<u32> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        self.iter().for_each(|number| number.put(out));
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        let len = reader.u64()?;
        (0..len).map(|_| reader.u32()).collect()
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some((A::get(reader)?, B::get(reader)?))
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.put(out);
        }
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            0 => None,
            _ => Some(T::get(reader)?),
        })
    }
}

/// A handle is written as its number, so that a played one is the same to the guest. No resource
/// belongs to a played handle.
impl<T: 'static> Wire for Resource<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.rep().put(out);
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(Self::new_own(reader.u32()?))
    }
}

impl<T: 'static> Wire for Vec<(Resource<T>, String)> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for (handle, name) in self {
            handle.put(out);
            name.put(out);
        }
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        let len = reader.u64()?;
        (0..len).map(|_| Some((Resource::get(reader)?, String::get(reader)?))).collect()
    }
}

impl Wire for Vec<(String, String)> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for (name, value) in self {
            name.put(out);
            value.put(out);
        }
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        let len = reader.u64()?;
        (0..len).map(|_| Some((reader.text()?, reader.text()?))).collect()
    }
}

/// A value of our own interfaces, which is written in its serialised form.
#[derive(Debug)]
pub struct PackedValue<T>(pub T);

impl<T: Serialize + DeserializeOwned> Wire for PackedValue<T> {
    fn put(&self, out: &mut Vec<u8>) {
        // Plain data is written into memory, so this does not fail. If it did, the answer could not
        // be read again.
        let bytes = postcard::to_stdvec(&self.0).unwrap_or_default();
        put_counted(&bytes, out);
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        postcard::from_bytes(reader.counted_bytes()?).ok().map(Self)
    }
}

/// Enumerations are written as the place of a variant in its list. The lists may only
/// be appended to.
macro_rules! enumerations {
    ($($type:ident { $($variant:ident),* $(,)? })*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                const ALL: &[$type] = &[$($type::$variant),*];
                let place = ALL.iter().position(|one| one == self);
                out.push(place.and_then(|place| u8::try_from(place).ok()).unwrap_or(u8::MAX));
            }
            fn get(reader: &mut WireReader<'_>) -> Option<Self> {
                const ALL: &[$type] = &[$($type::$variant),*];
                ALL.get(usize::from(reader.u8()?)).copied()
            }
        })*
    };
}

enumerations! {
    DescriptorType {
        Unknown, BlockDevice, CharacterDevice, Directory, Fifo, SymbolicLink, RegularFile, Socket,
    }
    ErrorCode {
        Access, WouldBlock, Already, BadDescriptor, Busy, Deadlock, Quota, Exist, FileTooLarge,
        IllegalByteSequence, InProgress, Interrupted, Invalid, Io, IsDirectory, Loop, TooManyLinks,
        MessageSize, NameTooLong, NoDevice, NoEntry, NoLock, InsufficientMemory, InsufficientSpace,
        NotDirectory, NotEmpty, NotRecoverable, Unsupported, NoTty, NoSuchDevice, Overflow,
        NotPermitted, Pipe, ReadOnly, InvalidSeek, TextFileBusy, CrossDevice,
    }
}

/// Records are written field by field.
macro_rules! records {
    ($($type:ident { $($field:ident),* })*) => {
        $(impl Wire for $type {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
            fn get(reader: &mut WireReader<'_>) -> Option<Self> {
                Some(Self { $($field: Wire::get(reader)?),* })
            }
        })*
    };
}

records! {
    Datetime { seconds, nanoseconds }
    DescriptorStat {
        type_, link_count, size, data_access_timestamp, data_modification_timestamp,
        status_change_timestamp
    }
    DirectoryEntry { type_, name }
    MetadataHashValue { lower, upper }
}

/// Flags by their bit in a trace. The list may only be appended to.
const FLAGS: [DescriptorFlags; 6] = [
    DescriptorFlags::READ,
    DescriptorFlags::WRITE,
    DescriptorFlags::FILE_INTEGRITY_SYNC,
    DescriptorFlags::DATA_INTEGRITY_SYNC,
    DescriptorFlags::REQUESTED_WRITE_SYNC,
    DescriptorFlags::MUTATE_DIRECTORY,
];

impl Wire for DescriptorFlags {
    fn put(&self, out: &mut Vec<u8>) {
        let set = FLAGS.iter().enumerate().filter(|(_, flag)| self.contains(**flag));
        out.push(set.fold(0, |bits, (place, _)| bits | 1 << place));
    }
    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        let bits = reader.u8()?;
        let set = FLAGS.iter().enumerate().filter(|(place, _)| bits & (1 << place) != 0);
        Some(set.fold(Self::empty(), |all, (_, flag)| all | *flag))
    }
}

/// An argument that is hashed. Handles are not hashed, because their numbers follow
/// from the answers.
pub trait Argument {
    fn digest(&self) -> u64;
}

impl Argument for u64 {
    fn digest(&self) -> u64 {
        *self
    }
}

impl Argument for u32 {
    fn digest(&self) -> u64 {
        u64::from(*self)
    }
}

impl Argument for String {
    fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self.as_bytes())
    }
}

impl Argument for Vec<u8> {
    fn digest(&self) -> u64 {
        xxhash_rust::xxh3::xxh3_64(self)
    }
}

impl Argument for Vec<String> {
    fn digest(&self) -> u64 {
        self.iter().fold(self.len() as u64, |so_far, text| mix_digests(so_far, text.digest()))
    }
}

/// Mix two digests into one. The order of the two matters.
pub const fn mix_digests(first: u64, second: u64) -> u64 {
    (first.rotate_left(23) ^ second).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
