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

    /// Is there a namespace of this name, or a job in it that came before it was taken out of the
    /// configuration? `*` means all of them.
    #[must_use]
    pub fn has_namespace(&self, name: &str) -> bool {
        let is_used =
            || self.0.control.look(|tables| tables.jobs().any(|(id, _)| id.namespace() == name));
        name == "*" || self.0.namespaces.contains_key(name) || is_used()
    }

    /// May it be registered here? Everything that can be checked without placing it.
    pub(super) fn accepts(&self, job: &Job) -> Result<(), SubmitError> {
        self.is_in_a_namespace(job)?;
        self.check_all(job)
    }

    /// Is its namespace one of the configuration's?
    pub(super) fn is_in_a_namespace(&self, job: &Job) -> Result<(), SubmitError> {
        match self.0.namespaces.contains_key(job.namespace()) {
            true => Ok(()),
            false => Err(SubmitError::Namespace(UnknownNamespace::new(job.namespace()))),
        }
    }
}
