//! Which namespaces there are, and whether a job is in one of them.

use std::collections::BTreeMap;

use super::{AgentHandle, AgentOptions, SubmitError};
use ostler_control::namespaces::{KnownNamespace, NamespaceError, NodeNamespaces};
use ostler_control::variables::NodeVariables;
use ostler_model::ids::{Namespace, UnknownNamespace};
use ostler_model::job::Job;
use ostler_state::{StateError, StateStore};

/// Those that are kept, and the variables in them. A sentence for each record that was put aside.
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

    /// The same, to follow and to change them.
    #[must_use]
    pub fn node_namespaces(&self) -> &NodeNamespaces {
        &self.0.namespaces
    }

    /// Remove a namespace that was made over the API. The index of the change, which is durable.
    ///
    /// # Errors
    /// When jobs are in it, it is of the configuration or not there, or the change cannot be made durable.
    pub async fn remove_namespace(&self, name: Namespace) -> Result<u64, NamespaceError> {
        let jobs = |name: &Namespace| {
            let of = |id: &ostler_model::ids::JobId| id.namespace() == name.as_str();
            self.0.control.look(|tables| tables.jobs().filter(|(id, _)| of(id)).count())
        };
        self.0.namespaces.delete(name, jobs).await
    }

    /// Is there a namespace of this name, or a job in it that came before it was taken out of the
    /// configuration? `*` means all of them.
    #[must_use]
    pub fn has_namespace(&self, name: &str) -> bool {
        let is_used =
            || self.0.control.look(|tables| tables.jobs().any(|(id, _)| id.namespace() == name));
        name == "*" || self.0.namespaces.has(name) || is_used()
    }

    /// May it be registered here? Everything that can be checked without placing it.
    pub(super) fn accepts(&self, job: &Job) -> Result<(), SubmitError> {
        self.is_in_a_namespace(job)?;
        self.has_drivers(job)?;
        self.check_all(job)
    }

    /// Is its namespace there?
    pub(super) fn is_in_a_namespace(&self, job: &Job) -> Result<(), SubmitError> {
        match self.0.namespaces.has(job.namespace()) {
            true => Ok(()),
            false => Err(SubmitError::Namespace(UnknownNamespace::new(job.namespace()))),
        }
    }
}
