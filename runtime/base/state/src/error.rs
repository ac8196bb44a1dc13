//! The errors of the state store, and what to do about them.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use super::codec::{CodecError, SCHEMA};
use super::keys::RecordKey;

/// Why a backend could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// The disk or the quota is full. Later writes work again once there is room.
    #[error("no space left on the disk")]
    DiskFull {
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The operating system refused.
    #[error("input or output failed")]
    Io {
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The content of the file is not what was written.
    #[error("the content is damaged: {detail}")]
    Damaged {
        /// The message of the storage engine.
        detail: String,
    },
    /// Another process, or this one, has the file open.
    #[error("the file is already open")]
    InUse,
    /// The journal beside a state file cannot be read or kept.
    #[error("the journal {path} cannot be used")]
    Journal {
        /// The path of the journal.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// No copy could be made of a file that is about to be migrated.
    #[error("cannot make the copy {backup}")]
    Backup {
        /// The path that the copy was to have.
        backup: PathBuf,
        /// The schema of the file.
        from: u16,
        /// The error of making the copy.
        #[source]
        source: io::Error,
    },
    /// Any other failure of the storage engine.
    #[error("the storage engine failed")]
    Engine {
        /// The error of the engine.
        #[source]
        source: Box<redb::Error>,
    },
    /// The storage engine panicked. The panic ended only this call.
    #[error("the storage engine found something that no intact file has{}", panic_words(.message))]
    Panicked {
        /// The panic's text.
        message: String,
    },
    /// A fault that a test asked for.
    #[error("injected fault in commit {commit}")]
    Injected {
        /// Number of the commit, from 1.
        commit: u64,
    },
}

/// The message of a panic in parentheses, without the words that only say that it is one.
fn panic_words(message: &str) -> String {
    // These are the words of the language for code that is held to be impossible.
    let own = message.strip_prefix("internal error: entered unreachable code");
    match own.unwrap_or(message).trim_start_matches(": ") {
        "" => String::new(),
        text => format!(" ({text})"),
    }
}

/// The disk or the quota is full.
fn no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

impl From<io::Error> for BackendError {
    fn from(source: io::Error) -> Self {
        match source.kind() {
            _ if no_room(&source) => Self::DiskFull { source },
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                Self::Damaged { detail: source.to_string() }
            }
            _ => Self::Io { source },
        }
    }
}

impl From<redb::Error> for BackendError {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(source) => source.into(),
            redb::Error::Corrupted(detail) => Self::Damaged { detail },
            redb::Error::DatabaseAlreadyOpen => Self::InUse,
            other => Self::Engine { source: Box::new(other) },
        }
    }
}

/// Why the state could not be opened, read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file is no state file, or its content is broken beyond single records.
    #[error(
        "state file {path} is damaged or not a state file: {detail}; it was left as it is: \
         `ostler state check --file {path}` says more. Put back the newest copy there is, or keep the \
         file under another name to start with an empty state: what a copy does not know is not done \
         again by itself, and jobs whose tasks still run are held back until these are ended \
         (`ostler state runs`)"
    )]
    Damaged {
        /// The path of the state file.
        path: PathBuf,
        /// What is wrong with the file, as a text.
        detail: String,
    },
    /// Another process has the file open.
    #[error(
        "state file {path} is in use by another process; stop it or use another data directory"
    )]
    InUse {
        /// The path of the state file.
        path: PathBuf,
    },
    /// The file or its directory cannot be read or written.
    #[error(
        "state file {path} cannot be opened; check the owner, the mode and the mount of it and of its \
         directory"
    )]
    ReadOnly {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// There is no room to open or create the file.
    #[error("no space left for state file {path}; make room on its disk and start again")]
    DiskFull {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The journal beside the file cannot be read or kept.
    #[error(
        "the journal {journal} of state file {path} cannot be used; nothing was changed: it may hold the \
         newest changes, so check its owner and mode and the room on its disk, and start again"
    )]
    Journal {
        /// The path of the state file.
        path: PathBuf,
        /// The path of the journal.
        journal: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Opening failed for another reason.
    #[error("cannot open state file {path}")]
    Open {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the backend.
        #[source]
        source: BackendError,
    },
    /// A newer agent wrote the file.
    #[error(
        "state file {path} has schema {found}, this agent knows up to {supported}; \
         use the agent that wrote it or a newer one"
    )]
    Schema {
        /// The path of the state file.
        path: PathBuf,
        /// The schema in the file.
        found: u16,
        /// The newest schema that this agent knows.
        supported: u16,
    },
    /// An agent from before the first release wrote the file.
    #[error(
        "state file {path} has schema {found}, this agent reads {oldest} and later; \
         use the agent that wrote it, or move the file away to begin with an empty one"
    )]
    TooOld {
        /// The path of the state file.
        path: PathBuf,
        /// The schema in the file.
        found: u16,
        /// The oldest schema that this agent knows.
        oldest: u16,
    },
    /// A file of an older schema could not be copied, so it was not migrated.
    #[error(
        "cannot copy state file {path} to {backup} before migrating it from schema {from} to {SCHEMA}; \
         nothing was changed: make room in its directory or check its mode, and start again"
    )]
    Backup {
        /// The path of the state file.
        path: PathBuf,
        /// The path that the copy was to have.
        backup: PathBuf,
        /// The schema of the file.
        from: u16,
        /// The error of making the copy.
        #[source]
        source: io::Error,
    },
    /// A file of an older schema could not be migrated.
    #[error(
        "cannot migrate state file {path} from schema {from} to {to}; nothing of it is lost: start \
         again when the cause is gone"
    )]
    Migrate {
        /// The path of the state file.
        path: PathBuf,
        /// The schema of the file.
        from: u16,
        /// The schema of this agent.
        to: u16,
        /// The error of the backend.
        #[source]
        source: BackendError,
    },
    /// A file could not be made smaller.
    #[error("cannot compact state file {path}; its records are as they were")]
    Compact {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the backend.
        #[source]
        source: BackendError,
    },
    /// A value cannot be stored.
    #[error("cannot encode {key}")]
    Encode {
        /// The key of the record that was to be written.
        key: RecordKey,
        /// The reason why it cannot be encoded.
        #[source]
        source: CodecError,
    },
    /// The commit of the write failed. The write is not known to be durable and may be tried again.
    #[error("write to state file {path} failed")]
    Commit {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the commit, shared by all writes of the batch.
        #[source]
        source: Arc<BackendError>,
    },
    /// A read failed.
    #[error("cannot read state file {path}")]
    Read {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the backend.
        #[source]
        source: BackendError,
    },
    /// One record cannot be used, but others can.
    #[error("record {key} in state file {path} cannot be used; it can be quarantined")]
    Record {
        /// The path of the state file.
        path: PathBuf,
        /// The key of the record.
        key: RecordKey,
        /// The reason why the record cannot be read.
        #[source]
        source: CodecError,
    },
    /// The store was closed before this write.
    #[error("state file {path} is closed: the agent is shutting down")]
    Closed {
        /// The path of the state file.
        path: PathBuf,
    },
    /// The writer thread could not be started.
    #[error("cannot start the state writer thread")]
    Thread {
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file could not be moved aside.
    #[error("cannot move state file {path} aside")]
    MoveAside {
        /// The path of the state file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

impl StateError {
    /// The error of opening `path`, as a variant for each cause.
    #[must_use]
    pub fn from_open_error(path: PathBuf, error: BackendError) -> Self {
        match error {
            BackendError::Damaged { detail } => Self::Damaged { path, detail },
            panic @ BackendError::Panicked { .. } => {
                Self::Damaged { path, detail: panic.to_string() }
            }
            BackendError::InUse => Self::InUse { path },
            BackendError::DiskFull { source } => Self::DiskFull { path, source },
            BackendError::Backup { backup, from, source } => {
                Self::Backup { path, backup, from, source }
            }
            BackendError::Journal { path: journal, source } => {
                Self::Journal { path, journal, source }
            }
            BackendError::Io { source }
                if matches!(
                    source.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                Self::ReadOnly { path, source }
            }
            source => Self::Open { path, source },
        }
    }

    /// What is wrong with a file that is damaged as a whole; `None` for other errors.
    #[must_use]
    pub fn damage(&self) -> Option<&str> {
        match self {
            Self::Damaged { detail, .. } => Some(detail),
            _ => None,
        }
    }

    /// Whether examining the file without changing it takes more memory than is allowed.
    #[must_use]
    pub(super) fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::Open { source: BackendError::Io { source }, .. }
                if source.kind() == io::ErrorKind::OutOfMemory
        )
    }

    /// Whether the cause is a full disk or quota.
    #[must_use]
    pub fn disk_full(&self) -> bool {
        match self {
            Self::DiskFull { .. } => true,
            Self::Backup { source, .. } | Self::Journal { source, .. } => no_room(source),
            Self::Commit { source, .. } => matches!(**source, BackendError::DiskFull { .. }),
            Self::Open { source, .. }
            | Self::Read { source, .. }
            | Self::Compact { source, .. }
            | Self::Migrate { source, .. } => matches!(source, BackendError::DiskFull { .. }),
            _ => false,
        }
    }
}
