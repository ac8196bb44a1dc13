//! Owners of a task's files, and users that tasks run as. Pure.

/// Owner of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOwner {
    /// Id of the user that owns the file.
    pub uid: u32,
    /// Id of the group that owns the file.
    pub gid: u32,
}

/// Owner of the files that are made for a task, which is the user that its processes will run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOwner {
    /// The agent's own user.
    Agent,
    /// This user.
    User(FileOwner),
    /// The user id that the allocation has for itself.
    OfAlloc {
        /// Owner where the allocation has no such id.
        otherwise: FileOwner,
    },
}

/// The user that isolated tasks of an allocation run as when their job names none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocUser {
    /// The user was not looked up yet.
    #[default]
    NotKnown,
    /// A user of the node that other processes may run as too.
    Shared,
    /// A user id that no other allocation has.
    Own(u32),
}

impl AllocUser {
    /// The user id that the allocation has for itself, if it has one.
    #[must_use]
    pub const fn own_id(self) -> Option<u32> {
        match self {
            Self::Own(id) => Some(id),
            Self::NotKnown | Self::Shared => None,
        }
    }
}
