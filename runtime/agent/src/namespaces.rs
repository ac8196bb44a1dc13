//! Which namespaces there are, and whether a job is in one of them.

use std::collections::BTreeMap;

use super::{AgentHandle, SubmitError};
use ostler_model::config::AgentConfig;
use ostler_model::ids::{Namespace, UnknownNamespace};
use ostler_model::job::Job;

/// As Nomad describes it.
const DEFAULT: &str = "Default shared namespace";

/// Those of the configuration and the one that is always there.
pub(super) fn all(config: &AgentConfig) -> BTreeMap<Namespace, String> {
    let mut all = config.namespaces.clone();
    all.entry(Namespace::default()).or_insert_with(|| DEFAULT.to_owned());
    all
}

impl AgentHandle {
    /// The namespaces of jobs, and what people say of each.
    #[must_use]
    pub fn namespaces(&self) -> &BTreeMap<Namespace, String> {
        &self.0.namespaces
    }

    /// Is there a namespace of this name? `*` means all of them.
    #[must_use]
    pub fn has_namespace(&self, name: &str) -> bool {
        name == "*" || self.0.namespaces.contains_key(name)
    }

    /// May it be registered here? Everything that can be checked without placing it.
    pub(super) fn accepts(&self, job: &Job) -> Result<(), SubmitError> {
        if !self.0.namespaces.contains_key(job.namespace()) {
            return Err(SubmitError::Namespace(UnknownNamespace::new(job.namespace())));
        }
        self.check_all(job)
    }
}
