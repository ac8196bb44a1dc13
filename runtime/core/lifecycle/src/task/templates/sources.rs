//! What templates may ask of the node, beside files: its services, and the variables that the
//! task may read.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_model::alloc::Allocation;
use ostler_model::ids::TaskName;
use ostler_model::service::{ServiceInstance, Services};
use ostler_model::vars::{ReadablePaths, Secret, VarKey, VarList, Variable, VariableStore};
use ostler_template::{Dependency, OutsideAnswer, TemplateProblem, Value};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::node_values;
use crate::task::TaskScope;
use crate::task::env::NodeFacts;

/// The one region there is.
const REGION: &str = "global";

/// What a task's templates may ask of the node.
#[derive(Clone)]
pub struct Sources {
    services: Arc<dyn Services>,
    variables: Arc<dyn VariableStore>,
    node: Arc<NodeFacts>,
    namespace: Arc<str>,
    readable: ReadablePaths,
    /// A placeholder stands for the content of variables.
    hidden: bool,
}

/// The indexes of services and variables at some time.
#[derive(Clone, Copy, Debug)]
pub struct Indexes {
    services: u64,
    variables: u64,
}

/// The kinds of sources that templates ask.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AskedSources {
    pub(super) files: bool,
    pub(super) services: bool,
    pub(super) variables: bool,
}

impl AskedSources {
    pub(super) fn from_dependencies<'a>(all: impl Iterator<Item = &'a Dependency>) -> Self {
        let mut asks = Self::default();
        for what in all {
            match what {
                Dependency::File(_) => asks.files = true,
                Dependency::Service { .. } | Dependency::Services => asks.services = true,
                Dependency::Variable { .. } | Dependency::Variables { .. } => asks.variables = true,
            }
        }
        asks
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sources").field("readable", &self.readable).finish_non_exhaustive()
    }
}

impl Sources {
    /// The sources of a task.
    #[must_use]
    pub fn from_scope(scope: &TaskScope) -> Self {
        let services = Arc::new(scope.node.services.clone());
        let variables = Arc::clone(&scope.node.variables);
        let facts = Arc::clone(&scope.context.facts);
        Self::new(services, variables, facts, &scope.allocation, &scope.task.name)
    }

    pub(super) fn new(
        services: Arc<dyn Services>,
        variables: Arc<dyn VariableStore>,
        node: Arc<NodeFacts>,
        allocation: &Allocation,
        task: &TaskName,
    ) -> Self {
        let job = &allocation.job;
        let readable =
            ReadablePaths::for_task(&job.id, job.parent.as_ref(), &allocation.group, task);
        let namespace = job.namespace().into();
        Self { services, variables, node, namespace, readable, hidden: false }
    }

    /// The same sources without the content of variables. An error of a rendering with them
    /// can be shown.
    pub(super) fn without_secrets(&self) -> Self {
        Self { hidden: true, ..self.clone() }
    }

    /// The present indexes.
    #[must_use]
    pub fn indexes(&self) -> Indexes {
        Indexes { services: self.services.index(), variables: self.variables.index() }
    }

    /// Wait until the index of a source that is asked differs from `since`.
    pub(super) async fn wait_changed(&self, since: Indexes, asks: AskedSources) {
        tokio::select! {
            () = self.services.wait_for_change(since.services), if asks.services => {}
            () = self.variables.wait_for_change(since.variables), if asks.variables => {}
            () = std::future::pending() => {}
        }
    }

    /// Wait until the index of services or variables differs from `since`.
    pub async fn wait_any_changed(&self, since: Indexes) {
        self.wait_changed(since, AskedSources { services: true, variables: true, files: false })
            .await;
    }

    /// Wait, up to a bound, until the list has the services that run on from an earlier agent.
    pub async fn wait_restored(&self) {
        self.services.wait_until_restored().await;
    }

    /// The answer to a question of a template.
    pub(super) fn answer(&self, what: &Dependency) -> OutsideAnswer {
        let answer = match what {
            Dependency::File(_) => return OutsideAnswer::Missing,
            Dependency::Service { name, choose } => self.service(name, choose.as_ref()),
            Dependency::Services => {
                let list = self.services.list();
                let own = |of: &&Arc<ServiceInstance>| *of.namespace == *self.namespace;
                node_values::services(list.instances.iter().filter(own)).map_err(problem_text)
            }
            Dependency::Variable { path, required } => match self.variable(path) {
                Ok(Some(found)) => node_values::variable(&found).map_err(problem_text),
                Ok(None) if *required => return OutsideAnswer::Missing,
                Ok(None) => Ok(Value::Nothing),
                Err(error) => Err(error),
            },
            Dependency::Variables { prefix, required } => match self.list(prefix) {
                Ok(list) if list.found.is_empty() && *required => return OutsideAnswer::Missing,
                Ok(list) => node_values::variables(list.found.iter()).map_err(problem_text),
                Err(error) => Err(error),
            },
        };
        answer.map_or_else(OutsideAnswer::Refused, OutsideAnswer::Is)
    }

    /// A hash that changes with the answer to a question. For variables it is of their indexes, not
    /// of their content.
    pub(super) fn answer_hash(&self, what: &Dependency) -> u128 {
        let text = match what {
            Dependency::File(_) => String::new(),
            Dependency::Service { name, .. } => match Query::read(name) {
                Ok(query) => format!("{:?}", self.instances(&query)),
                Err(_) => String::new(),
            },
            Dependency::Services => {
                let list = self.services.list();
                let names = list.instances.iter().map(|of| (&of.namespace, &of.name, &of.tags));
                format!("{:?}", names.collect::<Vec<_>>())
            }
            Dependency::Variable { path, required } => {
                let found = self.variable(path).ok().flatten();
                if *required {
                    format!("{:?}", found.map(|of| of.modify_index))
                } else {
                    format!("{:?}", found.is_some())
                }
            }
            Dependency::Variables { prefix, .. } => {
                let found = self.list(prefix).map(|list| list.found).unwrap_or_default();
                let each = found.iter().map(|of| (of.path.as_str(), of.modify_index));
                format!("{:?}", each.collect::<Vec<_>>())
            }
        };
        xxh3_128(text.as_bytes())
    }

    /// A variable that the task may read; `None` where it does not exist.
    fn variable(&self, path: &str) -> Result<Option<Arc<Variable>>, String> {
        let key = VarKey::new(&self.namespace, path).map_err(|error| error.to_string())?;
        if !self.readable.contains(path) {
            return Err(format!(
                "this task may not read the variable {path}; it may read {}",
                self.readable
            ));
        }
        let found = self.variables.get(&key).1;
        Ok(if self.hidden { found.map(|found| Arc::new(hide_items(&found))) } else { found })
    }

    /// The variables of the task whose paths begin with `prefix`.
    fn list(&self, prefix: &str) -> Result<VarList, String> {
        if !self.readable.has_prefix(prefix) {
            return Err(format!(
                "this task may read no variable whose path begins with {prefix}; it may read {}",
                self.readable
            ));
        }
        let mut list = self.variables.list(Some(&self.namespace), prefix);
        list.found.retain(|of| self.readable.contains(of.path.as_str()));
        Ok(list)
    }

    fn service(&self, text: &str, choose: Option<&(u64, String)>) -> Result<Value, String> {
        let query = Query::read(text)?;
        let other = |what: &str, asked: &str| {
            format!("{text:?}: this node knows no {what} {asked}; leave it out")
        };
        if let Some(asked) = query.namespace.filter(|asked| *asked != &*self.namespace) {
            return Err(other("services for this job in namespace", asked));
        }
        if let Some(asked) = query.region.filter(|asked| *asked != REGION) {
            return Err(other("region", asked));
        }
        let mut found = self.instances(&query);
        if let Some((count, key)) = choose {
            found = choose_instances(found, *count, key);
        }
        node_values::service(found.iter(), &self.node.id, &self.node.datacenter)
            .map_err(problem_text)
    }

    fn instances(&self, query: &Query<'_>) -> Vec<Arc<ServiceInstance>> {
        let tagged = |of: &&Arc<ServiceInstance>| {
            query.tag.is_none_or(|tag| of.tags.iter().any(|known| known == tag))
        };
        let list = self.services.list();
        list.find_by_name(&self.namespace, query.name).filter(tagged).cloned().collect()
    }
}

/// A variable with a placeholder for each value.
fn hide_items(of: &Variable) -> Variable {
    let word = |name: &String| (name.clone(), Secret::new("(secret)"));
    Variable { items: of.items.keys().map(word).collect(), ..of.clone() }
}

fn problem_text(problem: TemplateProblem) -> String {
    problem.to_string()
}

/// At most `count` instances; for the same key the same ones, as long as they exist.
fn choose_instances(
    all: Vec<Arc<ServiceInstance>>,
    count: u64,
    key: &str,
) -> Vec<Arc<ServiceInstance>> {
    let rank =
        |of: &ServiceInstance| xxh3_64(format!("{}\0{}\0{key}", of.address, of.port).as_bytes());
    let ranked: BTreeMap<_, _> =
        all.into_iter().map(|of| ((rank(&of), of.id.clone()), of)).collect();
    ranked.into_values().take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

/// A question for a service: `tag.name?ns=namespace@region`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Query<'a> {
    tag: Option<&'a str>,
    name: &'a str,
    namespace: Option<&'a str>,
    region: Option<&'a str>,
}

impl<'a> Query<'a> {
    fn read(text: &'a str) -> Result<Self, String> {
        let (rest, region) = match text.split_once('@') {
            Some((rest, region)) => (rest, Some(region)),
            None => (text, None),
        };
        let (rest, namespace) = match rest.split_once("?ns=") {
            Some((rest, namespace)) => (rest, Some(namespace)),
            None => (rest, None),
        };
        // Names of services have no dots, tags may.
        let (tag, name) = match rest.rsplit_once('.') {
            Some((tag, name)) => (Some(tag), name),
            None => (None, rest),
        };
        let word = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
            !text.is_empty() && text.chars().all(allowed)
        };
        let whole = word(name)
            && tag.is_none_or(|tag| !tag.is_empty())
            && [namespace, region].into_iter().flatten().all(word);
        if whole {
            Ok(Self { tag, name, namespace, region })
        } else {
            Err(format!("{text:?} does not name a service; write name, or tag.name"))
        }
    }
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
