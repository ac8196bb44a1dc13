//! Directories of the node that the operator offers to jobs by name.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A `host_volume` of the agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostVolume {
    /// Absolute path on the node.
    pub path: PathBuf,
    /// Nobody writes to it.
    pub read_only: bool,
}

/// What a group asks for, by the name that its tasks mount it by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRequest {
    /// Name of the node's [`HostVolume`].
    pub source: String,
    /// Its tasks only read it.
    pub read_only: bool,
}

/// Where a task sees a volume of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Name of the group's request.
    pub volume: String,
    /// Absolute path in the task; `${…}` not yet replaced.
    pub destination: String,
    /// This task only reads it.
    pub read_only: bool,
}

/// Why a node cannot give a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum NoVolume {
    /// There is none of that name.
    #[error(
        "this node has no host volume of that name; the operator gives it one by a block host_volume \
         \"name\" with its path, in client of the agent's configuration"
    )]
    Missing,
    /// It may only be read.
    #[error("this node's host volume of that name is read-only; ask for it with read_only = true")]
    ReadOnly,
}

impl VolumeRequest {
    /// What the node has of that name, where it meets this request.
    ///
    /// # Errors
    /// Why it does not.
    pub fn met_by<'a>(&self, there: Option<&'a HostVolume>) -> Result<&'a HostVolume, NoVolume> {
        match there {
            None => Err(NoVolume::Missing),
            Some(volume) if volume.read_only && !self.read_only => Err(NoVolume::ReadOnly),
            Some(volume) => Ok(volume),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_volume_is_given_to_those_who_only_read() {
        let volume = |read_only| HostVolume { path: "/srv/x".into(), read_only };
        let asks = |read_only| VolumeRequest { source: "x".to_owned(), read_only };
        assert_eq!(asks(false).met_by(None), Err(NoVolume::Missing));
        assert_eq!(asks(false).met_by(Some(&volume(true))), Err(NoVolume::ReadOnly));
        assert_eq!(asks(true).met_by(Some(&volume(true))), Ok(&volume(true)));
        assert_eq!(asks(true).met_by(Some(&volume(false))), Ok(&volume(false)));
        assert_eq!(asks(false).met_by(Some(&volume(false))), Ok(&volume(false)));
    }
}
