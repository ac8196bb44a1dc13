//! What templates may ask of the node, beside files: its services, and the variables that are the task's to
//! read.

use std::collections::BTreeMap;
use std::sync::Arc;

use ostler_model::alloc::Allocation;
use ostler_model::ids::TaskName;
use ostler_model::service::{ServiceInstance, Services};
use ostler_model::vars::{KeptVariables, Readable, Secret, VarKey, VarList, Variable};
use ostler_template::{Dependency, OutsideAnswer, TemplateProblem, Value, node};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::task::TaskScope;
use crate::task::env::NodeFacts;

/// The one region there is.
const REGION: &str = "global";

/// What a task's templates may ask of the node.
#[derive(Clone)]
pub struct Sources {
    services: Arc<dyn Services>,
    variables: Arc<dyn KeptVariables>,
    node: Arc<NodeFacts>,
    namespace: Arc<str>,
    readable: Readable,
    /// Instead of what is in variables a word stands there.
    hidden: bool,
}

/// How far services and variables were.
#[derive(Clone, Copy, Debug)]
pub struct Indexes {
    services: u64,
    variables: u64,
}

/// Which of them templates ask for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asks {
    pub(super) files: bool,
    pub(super) services: bool,
    pub(super) variables: bool,
}

impl Asks {
    pub(super) fn of<'a>(all: impl Iterator<Item = &'a Dependency>) -> Self {
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
    /// Those of a task.
    #[must_use]
    pub fn of(scope: &TaskScope) -> Self {
        let (services, variables) = (Arc::clone(&scope.services), Arc::clone(&scope.variables));
        let node = Arc::clone(&scope.node);
        Self::over(services, variables, node, &scope.allocation, &scope.task.name)
    }

    pub(super) fn over(
        services: Arc<dyn Services>,
        variables: Arc<dyn KeptVariables>,
        node: Arc<NodeFacts>,
        allocation: &Allocation,
        task: &TaskName,
    ) -> Self {
        let job = &allocation.job;
        let readable = Readable::of(&job.id, job.parent.as_ref(), &allocation.group, task);
        let namespace = job.namespace().into();
        Self { services, variables, node, namespace, readable, hidden: false }
    }

    /// The same without what is in variables: what is said of a render of these can be shown.
    pub(super) fn without_secrets(&self) -> Self {
        Self { hidden: true, ..self.clone() }
    }

    /// How far they are now.
    #[must_use]
    pub fn indexes(&self) -> Indexes {
        Indexes { services: self.services.index(), variables: self.variables.index() }
    }

    /// Wait until one of those that are asked for is another one than it was.
    pub(super) async fn changed(&self, since: Indexes, asks: Asks) {
        tokio::select! {
            () = self.services.changed(since.services), if asks.services => {}
            () = self.variables.changed(since.variables), if asks.variables => {}
            () = std::future::pending() => {}
        }
    }

    /// Wait until any of them is another one than it was.
    pub async fn any_changed(&self, since: Indexes) {
        self.changed(since, Asks { services: true, variables: true, files: false }).await;
    }

    /// Wait, not for ever, until what runs on from an earlier agent is among the services.
    pub async fn restored(&self) {
        self.services.restored().await;
    }

    /// What is said to a question.
    pub(super) fn answer(&self, what: &Dependency) -> OutsideAnswer {
        let answer = match what {
            Dependency::File(_) => return OutsideAnswer::Missing,
            Dependency::Service { name, choose } => self.service(name, choose.as_ref()),
            Dependency::Services => {
                let list = self.services.list();
                let own = |of: &&Arc<ServiceInstance>| *of.namespace == *self.namespace;
                node::services(list.instances.iter().filter(own)).map_err(said)
            }
            Dependency::Variable { path, required } => match self.variable(path) {
                Ok(Some(found)) => node::variable(&found).map_err(said),
                Ok(None) if *required => return OutsideAnswer::Missing,
                Ok(None) => Ok(Value::Nothing),
                Err(error) => Err(error),
            },
            Dependency::Variables { prefix, required } => match self.list(prefix) {
                Ok(list) if list.found.is_empty() && *required => return OutsideAnswer::Missing,
                Ok(list) => node::variables(list.found.iter()).map_err(said),
                Err(error) => Err(error),
            },
        };
        answer.map_or_else(OutsideAnswer::Refused, OutsideAnswer::Is)
    }

    /// What tells that the answer to a question is another one. Of variables their indexes: nothing of what
    /// is in them.
    pub(super) fn seen(&self, what: &Dependency) -> u128 {
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
                match required {
                    true => format!("{:?}", found.map(|of| of.modify_index)),
                    false => format!("{:?}", found.is_some()),
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

    /// A variable that the task may read; absent: there is none.
    fn variable(&self, path: &str) -> Result<Option<Arc<Variable>>, String> {
        let key = VarKey::new(&self.namespace, path).map_err(|error| error.to_string())?;
        if !self.readable.has(path) {
            return Err(format!(
                "this task may not read the variable {path}; it may read {}",
                self.readable
            ));
        }
        let found = self.variables.get(&key).1;
        Ok(if self.hidden { found.map(|found| Arc::new(hidden(&found))) } else { found })
    }

    /// Those of its variables that begin so.
    fn list(&self, prefix: &str) -> Result<VarList, String> {
        if !self.readable.some_begin(prefix) {
            return Err(format!(
                "this task may read no variable whose path begins with {prefix}; it may read {}",
                self.readable
            ));
        }
        let mut list = self.variables.list(Some(&self.namespace), prefix);
        list.found.retain(|of| self.readable.has(of.path.as_str()));
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
            found = chosen(found, *count, key);
        }
        node::service(found.iter(), &self.node.id, &self.node.datacenter).map_err(said)
    }

    fn instances(&self, query: &Query<'_>) -> Vec<Arc<ServiceInstance>> {
        let tagged = |of: &&Arc<ServiceInstance>| {
            query.tag.is_none_or(|tag| of.tags.iter().any(|known| known == tag))
        };
        let list = self.services.list();
        list.named(&self.namespace, query.name).filter(tagged).cloned().collect()
    }
}

/// A variable without what is in it.
fn hidden(of: &Variable) -> Variable {
    let word = |name: &String| (name.clone(), Secret::new("(secret)"));
    Variable { items: of.items.keys().map(word).collect(), ..of.clone() }
}

fn said(problem: TemplateProblem) -> String {
    problem.to_string()
}

/// So many of them, the same ones for the same key as long as they are there.
fn chosen(all: Vec<Arc<ServiceInstance>>, count: u64, key: &str) -> Vec<Arc<ServiceInstance>> {
    let rank =
        |of: &ServiceInstance| xxh3_64(format!("{}\0{}\0{key}", of.address, of.port).as_bytes());
    let ranked: BTreeMap<_, _> =
        all.into_iter().map(|of| ((rank(&of), of.id.clone()), of)).collect();
    ranked.into_values().take(usize::try_from(count).unwrap_or(usize::MAX)).collect()
}

/// `tag.name?ns=namespace@region`
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
        match whole {
            true => Ok(Self { tag, name, namespace, region }),
            false => Err(format!("{text:?} names no service; write name, or tag.name")),
        }
    }
}

#[cfg(test)]
#[path = "sources_tests.rs"]
mod tests;
