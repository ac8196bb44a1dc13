//! Directories of the node that the operator offers to jobs by name.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A `host_volume` of the agent's configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostVolume {
    /// Absolute path on the node.
    pub path: PathBuf,
    /// No task may write to the volume.
    pub read_only: bool,
}

/// A volume that a group asks for, under the name by which its tasks mount it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRequest {
    /// Name of the node's [`HostVolume`].
    pub source: String,
    /// The tasks of the group only read the volume.
    pub read_only: bool,
}

/// Where a task sees a volume of its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// Name of the group's request.
    pub volume: String,
    /// Absolute path in the task; `${…}` not yet replaced.
    pub destination: String,
    /// The task only reads the volume.
    pub read_only: bool,
}

/// Why a node cannot provide a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum NoVolume {
    /// The node has no volume of that name.
    #[error(
        "this node has no host volume of that name; an operator can add it with a block host_volume \
         \"name\" with its path, in client of the agent's configuration"
    )]
    Missing,
    /// The volume may only be read.
    #[error("this node's host volume of that name is read-only; ask for it with read_only = true")]
    ReadOnly,
}

impl VolumeRequest {
    /// Check that the node's volume of that name meets this request, and return it.
    ///
    /// # Errors
    /// Why the volume does not meet the request.
    pub fn check_volume<'a>(
        &self,
        there: Option<&'a HostVolume>,
    ) -> Result<&'a HostVolume, NoVolume> {
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
        assert_eq!(asks(false).check_volume(None), Err(NoVolume::Missing));
        assert_eq!(asks(false).check_volume(Some(&volume(true))), Err(NoVolume::ReadOnly));
        assert_eq!(asks(true).check_volume(Some(&volume(true))), Ok(&volume(true)));
        assert_eq!(asks(true).check_volume(Some(&volume(false))), Ok(&volume(false)));
        assert_eq!(asks(false).check_volume(Some(&volume(false))), Ok(&volume(false)));
    }
}
