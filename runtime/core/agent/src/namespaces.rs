//! The namespaces of the agent, and the check whether a job is in one of them.

use std::collections::BTreeMap;

use super::{AgentHandle, AgentOptions, SubmitError};
use ostler_control::namespaces::{KnownNamespace, NamespaceError, NodeNamespaces};
use ostler_control::variables::NodeVariables;
use ostler_model::ids::{Namespace, UnknownNamespace};
use ostler_model::job::Job;
use ostler_state::{StateError, StateStore};

/// Load the kept namespaces and the variables in them. Returns a sentence for each record that was
/// put aside.
pub(super) async fn load(
    options: &AgentOptions,
    state: &StateStore,
    index: u64,
    notices: &mut Vec<String>,
) -> Result<(NodeNamespaces, NodeVariables), StateError> {
    let (clock, configured) = (&options.clock, options.config.namespaces.clone());
    let kept = NodeNamespaces::load(state.clone(), clock.clone(), configured, index).await?;
    let (namespaces, unread) = kept;
    notices.extend(unread);
    let (variables, unread) = NodeVariables::load(state.clone(), clock.clone(), index).await?;
    notices.extend(unread);
    Ok((namespaces, variables))
}

impl AgentHandle {
    /// The namespaces of jobs, by name.
    #[must_use]
    pub fn namespaces(&self) -> BTreeMap<Namespace, KnownNamespace> {
        self.0.namespaces.all()
    }

    /// The namespaces as a handle that can follow and change them.
    #[must_use]
    pub fn node_namespaces(&self) -> &NodeNamespaces {
        &self.0.namespaces
    }

    /// Remove a namespace that was created over the API. Returns the index of the change, which
    /// is durable.
    ///
    /// # Errors
    /// When jobs are in it, it is of the configuration or not there, or the change cannot be
    /// made durable.
    pub async fn remove_namespace(&self, name: Namespace) -> Result<u64, NamespaceError> {
        let jobs = |name: &Namespace| {
            let of = |id: &ostler_model::ids::JobId| id.namespace() == name.as_str();
            self.0.control.read_tables(|tables| tables.jobs().filter(|(id, _)| of(id)).count())
        };
        self.0.namespaces.delete(name, jobs).await
    }

    /// Whether there is a namespace of this name, or a job in it from before it was taken out of
    /// the configuration. `*` means all namespaces.
    #[must_use]
    pub fn has_namespace(&self, name: &str) -> bool {
        let is_used = || {
            self.0.control.read_tables(|tables| tables.jobs().any(|(id, _)| id.namespace() == name))
        };
        name == "*" || self.0.namespaces.has(name) || is_used()
    }

    /// Check whether a job may be registered here, as far as that is possible without placing it.
    pub(super) fn check_job(&self, job: &Job) -> Result<(), SubmitError> {
        self.is_in_a_namespace(job)?;
        self.has_drivers(job)?;
        self.check_all(job)
    }

    /// Check that the namespace of the job exists.
    pub(super) fn is_in_a_namespace(&self, job: &Job) -> Result<(), SubmitError> {
        if self.0.namespaces.has(job.namespace()) {
            Ok(())
        } else {
            Err(SubmitError::Namespace(UnknownNamespace::new(job.namespace())))
        }
    }
}
