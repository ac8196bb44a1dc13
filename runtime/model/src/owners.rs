//! Whose the files of a task are, and whom it runs as. Pure.

/// Whose a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOwner {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Whose the files are that are made for a task: whom its processes will run as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskOwner {
    /// The agent's own.
    Agent,
    /// This user's.
    User(FileOwner),
    /// Those of the user id that its allocation has of its own.
    OfAlloc {
        /// Whose they are where the allocation has none.
        otherwise: FileOwner,
    },
}

/// Whom the tasks of an allocation run as that are kept apart and that name no user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllocUser {
    /// It was not asked yet.
    #[default]
    NotKnown,
    /// A user of the node that others may be as well.
    Shared,
    /// A user id that no other allocation has.
    Own(u32),
}

impl AllocUser {
    /// The id that it has of its own.
    #[must_use]
    pub const fn own(self) -> Option<u32> {
        match self {
            Self::Own(id) => Some(id),
            Self::NotKnown | Self::Shared => None,
        }
    }
}
