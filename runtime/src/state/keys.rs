//! Typed keys and their bytes.
//!
//! ```text
//! meta            01 item
//! allocation      10 id[16] 01                          what was asked
//!                 10 id[16] 02                          what is
//!   its tasks     10 id[16] 80 name… 00 01              local state
//!                 10 id[16] 80 name… 00 02              public state
//! device ledger   20
//! plugin state    30 name…
//! node            40 01                                 registration
//! ```
//!
//! Bytes sort as keys do within an allocation (names hold no NUL byte), every group of keys that is
//! read or removed together shares a prefix, and each key parses back from its bytes. Numbers in
//! between are free for later items; a number is never used again for something else.

use std::fmt::{self, Write as _};

use uuid::Uuid;

use crate::model::ids::{AllocId, NameError, PluginName, TaskName};

const META: u8 = 0x01;
const ALLOC: u8 = 0x10;
const LEDGER: u8 = 0x20;
const PLUGIN: u8 = 0x30;
const NODE: u8 = 0x40;

const ALLOC_SPEC: u8 = 0x01;
const ALLOC_STATE: u8 = 0x02;
const ALLOC_TASK: u8 = 0x80;
const TASK_END: u8 = 0x00;
const TASK_LOCAL: u8 = 0x01;
const TASK_STATE: u8 = 0x02;
const NODE_REGISTRATION: u8 = 0x01;

/// Facts about the state file itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MetaItem {
    /// Version of the record schema, a `u16`.
    SchemaVersion,
}

/// Name of a record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// About the file.
    Meta(MetaItem),
    /// What was asked: [`crate::model::alloc::Allocation`].
    Alloc(AllocId),
    /// What is: [`crate::model::alloc::AllocState`].
    AllocState(AllocId),
    /// What the task runner needs to own the task again: handle, hooks done, restarts.
    TaskLocal(AllocId, TaskName),
    /// The task's public state: [`crate::model::task::TaskState`].
    TaskState(AllocId, TaskName),
    /// Which device instances are lent to whom.
    DeviceLedger,
    /// What the agent remembers of a plugin: digest, grants, strikes.
    PluginState(PluginName),
    /// The node's identity and registration.
    NodeRegistration,
}

/// Which record type a key holds; part of every record, so that a record under the wrong key is
/// noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`Key::Meta`].
    Meta = 1,
    /// [`Key::Alloc`].
    Alloc = 2,
    /// [`Key::AllocState`].
    AllocState = 3,
    /// [`Key::TaskLocal`].
    TaskLocal = 4,
    /// [`Key::TaskState`].
    TaskState = 5,
    /// [`Key::DeviceLedger`].
    DeviceLedger = 6,
    /// [`Key::PluginState`].
    PluginState = 7,
    /// [`Key::NodeRegistration`].
    NodeRegistration = 8,
}

/// Keys that are read together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// Everything.
    All,
    /// All records of all allocations.
    Allocs,
    /// All records of one allocation, its tasks included.
    Alloc(AllocId),
    /// All records of one task.
    Task(AllocId, TaskName),
    /// All plugins.
    Plugins,
}

/// Why bytes are not a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Too short, or with bytes after its end.
    #[error("key has the wrong length")]
    Length,
    /// A number no key uses.
    #[error("key has the unknown part {tag:#04x}")]
    Unknown {
        /// The number.
        tag: u8,
    },
    /// A name is not UTF-8.
    #[error("name in key is not UTF-8")]
    NotUtf8,
    /// A name no job could have had.
    #[error("name in key is not allowed")]
    Name(#[source] NameError),
}

impl Key {
    /// The record type under this key.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Meta(_) => Kind::Meta,
            Self::Alloc(_) => Kind::Alloc,
            Self::AllocState(_) => Kind::AllocState,
            Self::TaskLocal(..) => Kind::TaskLocal,
            Self::TaskState(..) => Kind::TaskState,
            Self::DeviceLedger => Kind::DeviceLedger,
            Self::PluginState(_) => Kind::PluginState,
            Self::NodeRegistration => Kind::NodeRegistration,
        }
    }

    /// The allocation this record dies with.
    #[must_use]
    pub fn alloc(&self) -> Option<AllocId> {
        match self {
            Self::Alloc(id)
            | Self::AllocState(id)
            | Self::TaskLocal(id, _)
            | Self::TaskState(id, _) => Some(*id),
            _ => None,
        }
    }

    /// Replace `out` by the key's bytes.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        out.clear();
        match self {
            Self::Meta(MetaItem::SchemaVersion) => out.extend([META, 1]),
            Self::Alloc(id) => {
                push_alloc(out, *id);
                out.push(ALLOC_SPEC);
            }
            Self::AllocState(id) => {
                push_alloc(out, *id);
                out.push(ALLOC_STATE);
            }
            Self::TaskLocal(id, task) => {
                push_task(out, *id, task);
                out.push(TASK_LOCAL);
            }
            Self::TaskState(id, task) => {
                push_task(out, *id, task);
                out.push(TASK_STATE);
            }
            Self::DeviceLedger => out.push(LEDGER),
            Self::PluginState(name) => {
                out.push(PLUGIN);
                out.extend_from_slice(name.as_str().as_bytes());
            }
            Self::NodeRegistration => out.extend([NODE, NODE_REGISTRATION]),
        }
    }

    /// The key's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode_into(&mut out);
        out
    }

    /// The key of these bytes.
    ///
    /// # Errors
    /// When no key has these bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, KeyError> {
        let (area, rest) = bytes.split_first().ok_or(KeyError::Length)?;
        match (*area, rest) {
            (META, [1]) => Ok(Self::Meta(MetaItem::SchemaVersion)),
            (ALLOC, _) => parse_alloc(rest),
            (LEDGER, []) => Ok(Self::DeviceLedger),
            (PLUGIN, name) => {
                PluginName::new(text(name)?).map(Self::PluginState).map_err(KeyError::Name)
            }
            (NODE, [NODE_REGISTRATION]) => Ok(Self::NodeRegistration),
            (META | NODE, [tag]) => Err(KeyError::Unknown { tag: *tag }),
            (META | NODE | LEDGER, _) => Err(KeyError::Length),
            (tag, _) => Err(KeyError::Unknown { tag }),
        }
    }
}

impl Prefix {
    /// The first bytes of every key of the group.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Self::All => {}
            Self::Allocs => out.push(ALLOC),
            Self::Alloc(id) => push_alloc(&mut out, *id),
            Self::Task(id, task) => push_task(&mut out, *id, task),
            Self::Plugins => out.push(PLUGIN),
        }
        out
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Meta(MetaItem::SchemaVersion) => f.write_str("meta/schema"),
            Self::Alloc(id) => write!(f, "allocation/{id}"),
            Self::AllocState(id) => write!(f, "allocation/{id}/state"),
            Self::TaskLocal(id, task) => write!(f, "allocation/{id}/task/{task}/local"),
            Self::TaskState(id, task) => write!(f, "allocation/{id}/task/{task}/state"),
            Self::DeviceLedger => f.write_str("device/ledger"),
            Self::PluginState(name) => write!(f, "plugin/{name}"),
            Self::NodeRegistration => f.write_str("node/registration"),
        }
    }
}

fn push_alloc(out: &mut Vec<u8>, id: AllocId) {
    out.push(ALLOC);
    out.extend_from_slice(&id_bytes(id));
}

fn push_task(out: &mut Vec<u8>, id: AllocId, task: &TaskName) {
    push_alloc(out, id);
    out.push(ALLOC_TASK);
    out.extend_from_slice(task.as_str().as_bytes());
    out.push(TASK_END);
}

fn parse_alloc(rest: &[u8]) -> Result<Key, KeyError> {
    let (id, rest) = rest.split_first_chunk::<16>().ok_or(KeyError::Length)?;
    let id = AllocId::new(Uuid::from_bytes(*id));
    match rest {
        [ALLOC_SPEC] => Ok(Key::Alloc(id)),
        [ALLOC_STATE] => Ok(Key::AllocState(id)),
        [ALLOC_TASK, name @ .., TASK_END, item] => {
            let task = TaskName::new(text(name)?).map_err(KeyError::Name)?;
            match *item {
                TASK_LOCAL => Ok(Key::TaskLocal(id, task)),
                TASK_STATE => Ok(Key::TaskState(id, task)),
                tag => Err(KeyError::Unknown { tag }),
            }
        }
        [ALLOC_SPEC | ALLOC_STATE | ALLOC_TASK, ..] | [] => Err(KeyError::Length),
        [tag, ..] => Err(KeyError::Unknown { tag: *tag }),
    }
}

fn text(bytes: &[u8]) -> Result<&str, KeyError> {
    std::str::from_utf8(bytes).map_err(|_| KeyError::NotUtf8)
}

/// The id's sixteen bytes, read from its text without allocating: ids show only their text.
fn id_bytes(id: AllocId) -> [u8; 16] {
    struct Digits {
        bytes: [u8; 16],
        count: usize,
    }
    impl fmt::Write for Digits {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            for digit in text.chars().filter_map(|c| c.to_digit(16)) {
                let digit = u8::try_from(digit).map_err(|_| fmt::Error)?;
                let byte = self.bytes.get_mut(self.count / 2).ok_or(fmt::Error)?;
                *byte = (*byte << 4) | digit;
                self.count += 1;
            }
            Ok(())
        }
    }
    let mut digits = Digits { bytes: [0; 16], count: 0 };
    // Cannot fail: a UUID's text has exactly 32 hexadecimal digits.
    let _ = write!(digits, "{id}");
    digits.bytes
}

#[cfg(test)]
#[path = "keys_tests.rs"]
mod tests;
