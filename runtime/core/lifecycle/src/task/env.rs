//! The environment of a task: built from the allocation, the task, the node and the hooks.
//!
//! ```text
//! later wins:  of the driver (PATH, HOME)  <  NOMAD_* built here  <  the task's `env` block
//!                                          <  hooks (devices)     <  files of templates
//!
//! a value of `meta` may refer to:          of the driver, NOMAD_* but those of meta, attr.*, meta.*,
//!                                          node.*, job.dir
//! a value of the `env` block may refer to: all of these, NOMAD_META_*, hook variables
//! the task's `config` may refer to:        all of these and the `env` block
//! ```
//! Nothing of the agent's own environment reaches a task. Values of `meta` do not see each other, nor do
//! those of an `env` block, so their order means nothing. Pure.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::interpolate::{
    InterpolateError, UnknownReference, Variables, interpolate, interpolate_config,
    unknown_references,
};
use ostler_model::alloc::Allocation;
use ostler_model::ids::{GroupName, TaskName};
use ostler_model::job::{Task, TaskGroup};
use ostler_model::json::JsonObject;
use ostler_model::limits::MIB;
use ostler_model::network::AllocNetwork;
use ostler_model::ports::FsIsolation;
use ostler_model::resources::AllocatedPort;
use ostler_model::task_path::TaskView;
use ostler_model::volume::HostVolume;

/// Largest environment, names and values together, bytes: the kernel takes 2 MiB of arguments and
/// environment together (a quarter of the stack limit).
pub const ENV_BYTES_MAX: usize = MIB as usize;

/// The region every node is in: Ostler has one.
const REGION: &str = "global";

/// The facts of this node, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// `${node.unique.id}`
    pub id: String,
    /// `${node.unique.name}`
    pub name: String,
    /// `${node.datacenter}`, `NOMAD_DC`
    pub datacenter: String,
    /// `${node.class}`
    pub class: String,
    /// `${node.region}`, `NOMAD_REGION`; `global` when empty
    pub region: String,
    /// `${node.pool}`
    pub pool: String,
    /// `${attr.*}`, names without `attr.`.
    pub attributes: BTreeMap<String, String>,
    /// `${meta.*}`, names without `meta.`.
    pub meta: BTreeMap<String, String>,
    /// Volumes that the node offers.
    pub host_volumes: BTreeMap<String, HostVolume>,
}

impl NodeFacts {
    fn region(&self) -> &str {
        if self.region.is_empty() { REGION } else { &self.region }
    }
}

/// The allocation's directories as the task sees them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskDirs {
    /// `NOMAD_ALLOC_DIR`: shared by the tasks of the allocation.
    pub alloc: String,
    /// `NOMAD_TASK_DIR`: the task's `local`.
    pub task: String,
    /// `NOMAD_SECRETS_DIR`
    pub secrets: String,
}

impl TaskDirs {
    /// From the host paths of the shared directory (`…/<alloc id>/alloc`) and of the
    /// task's (`…/<alloc id>/<task>`).
    ///
    /// # Errors
    /// [`EnvError::PathNotText`] when the task sees host paths and one is not UTF-8.
    pub fn new(
        isolation: FsIsolation,
        alloc_dir: &Path,
        task_dir: &Path,
    ) -> Result<Self, EnvError> {
        match isolation {
            FsIsolation::None => Ok(Self {
                alloc: path_text(alloc_dir)?,
                task: path_text(&task_dir.join("local"))?,
                secrets: path_text(&task_dir.join("secrets"))?,
            }),
            FsIsolation::Chroot | FsIsolation::Preopen => Ok(Self {
                alloc: "/alloc".to_owned(),
                task: "/local".to_owned(),
                secrets: "/secrets".to_owned(),
            }),
        }
    }
}

impl TaskDirs {
    /// The view of the task, by which paths of the job are resolved.
    #[must_use]
    pub fn view<'a>(&'a self, task: &'a TaskName, sees: FsIsolation) -> TaskView<'a> {
        TaskView { task, alloc: &self.alloc, local: &self.task, secrets: &self.secrets, sees }
    }
}

fn path_text(path: &Path) -> Result<String, EnvError> {
    path.to_str()
        .map(str::to_owned)
        .ok_or_else(|| EnvError::PathNotText { path: path.to_path_buf() })
}

/// Why an environment could not be built. Trying again does not help.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A value of the `env` block or of `meta` cannot be made.
    #[error("{block} {name}: {source}")]
    Value {
        /// The block of the value: `env` or `meta`.
        block: &'static str,
        /// The name of the value.
        name: String,
        /// What is wrong with the value.
        #[source]
        source: InterpolateError,
    },
    /// A name or value that no process can be given.
    #[error("environment variable {name:?} {problem}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// What is wrong with the name or value.
        problem: &'static str,
    },
    /// All variables together are too large.
    #[error("the environment has {bytes} bytes; the largest allowed is {max}")]
    TooLarge {
        /// Bytes of all names and values.
        bytes: usize,
        /// Most bytes that are allowed.
        max: usize,
    },
    /// The allocation names a group its job does not have.
    #[error("the job has no task group {group}")]
    UnknownGroup {
        /// The group that the allocation names.
        group: GroupName,
    },
    /// A path is not UTF-8, and an environment is text.
    #[error("path {path:?} is not UTF-8; choose another data directory")]
    PathNotText {
        /// The path that is not UTF-8.
        path: PathBuf,
    },
}

/// What an environment is built from.
#[derive(Clone, Copy, Debug)]
pub struct EnvInput<'a> {
    /// The allocation: job, group, index, ports.
    pub alloc: &'a Allocation,
    /// The task, one of the allocation's group.
    pub task: &'a Task,
    /// The facts of this node.
    pub node: &'a Arc<NodeFacts>,
    /// Directories as this task sees them.
    pub dirs: &'a TaskDirs,
    /// Variables that the driver gives its tasks; all others override them.
    pub of_driver: &'a [(String, String)],
    /// Variables from hooks, in hook order; the last of a name wins.
    pub hook_env: &'a [(String, String)],
    /// The network that the allocation has of its own.
    pub network: Option<&'a AllocNetwork>,
}

/// The environment of one start of one task, and what its texts may refer to.
#[derive(Clone, Debug)]
pub struct TaskEnv {
    /// The values of the variables by name.
    pub vars: BTreeMap<String, String>,
    /// Unknown references in values of `meta` and of the `env` block.
    pub unknown: Vec<UnknownReference>,
    node: Arc<NodeFacts>,
    facts: BTreeMap<&'static str, String>,
}

impl TaskEnv {
    /// Build the environment.
    ///
    /// # Errors
    /// [`EnvError`], when no process can be given a name or value, or when the environment
    /// is too large.
    pub fn build(input: &EnvInput<'_>) -> Result<Self, EnvError> {
        let group = input
            .alloc
            .task_group()
            .ok_or_else(|| EnvError::UnknownGroup { group: input.alloc.group.clone() })?;
        let mut vars: BTreeMap<_, _> = input.of_driver.iter().cloned().collect();
        add_identity(&mut vars, input, group);
        add_limits(&mut vars, input.alloc, input.task);
        for port in &input.alloc.ports {
            match &port.task {
                None => add_port(&mut vars, port, input.network),
                Some(task) if *task == input.task.name => add_port(&mut vars, port, None),
                Some(task) => add_port_of(&mut vars, port, task),
            }
        }
        let mut env = Self::of_vars(vars, input.node, input.alloc)?;
        env.add_meta(&[&input.alloc.job.meta, &group.meta, &input.task.meta])?;
        env.vars.extend(input.hook_env.iter().cloned());
        let own: Vec<_> = input.task.env.iter().collect();
        let own = env.replace_references("env", &own)?;
        env.vars.extend(own);
        env.vars.extend(input.hook_env.iter().cloned());
        check(&env.vars)?;
        Ok(env)
    }

    /// Add variables, which replace those of the same names.
    ///
    /// # Errors
    /// [`EnvError`], when no process can be given a name or value, or when the environment
    /// is too large.
    pub fn add(&mut self, vars: BTreeMap<String, String>) -> Result<(), EnvError> {
        if vars.is_empty() {
            return Ok(());
        }
        self.vars.extend(vars);
        check(&self.vars)
    }

    /// The value of a name: a variable, or `attr.…`, `meta.…`, `node.…`, `job.dir`.
    #[must_use]
    pub fn lookup(&self, name: &str) -> Option<&str> {
        self.scope().get(name)
    }

    /// The environment for texts of the group as a whole, without what only a task has.
    ///
    /// # Errors
    /// As [`TaskEnv::build`].
    pub fn of_group(
        alloc: &Allocation,
        node: &Arc<NodeFacts>,
        network: Option<&AllocNetwork>,
    ) -> Result<Self, EnvError> {
        let group = alloc
            .task_group()
            .ok_or_else(|| EnvError::UnknownGroup { group: alloc.group.clone() })?;
        let mut vars = BTreeMap::new();
        add_place(&mut vars, alloc, node, group);
        for port in alloc.ports.iter().filter(|port| port.task.is_none()) {
            add_port(&mut vars, port, network);
        }
        let mut env = Self::of_vars(vars, node, alloc)?;
        env.add_meta(&[&alloc.job.meta, &group.meta])?;
        Ok(env)
    }

    fn of_vars(
        vars: BTreeMap<String, String>,
        node: &Arc<NodeFacts>,
        alloc: &Allocation,
    ) -> Result<Self, EnvError> {
        let (node, facts) = (Arc::clone(node), facts(node, alloc)?);
        Ok(Self { vars, unknown: Vec::new(), node, facts })
    }

    /// The values of a block with their references replaced. They see what is known
    /// before the block.
    fn replace_references(
        &mut self,
        block: &'static str,
        values: &[(&String, &String)],
    ) -> Result<Vec<(String, String)>, EnvError> {
        let unknown = self.unknown_in(values.iter().map(|(_, value)| value.as_str()));
        for one in unknown {
            if !self.unknown.iter().any(|known| known.reference == one.reference) {
                self.unknown.push(one);
            }
        }
        let one = |(name, value): &(&String, &String)| match self.interpolate(value) {
            Ok(value) => Ok(((*name).clone(), value)),
            Err(source) => Err(EnvError::Value { block, name: (*name).clone(), source }),
        };
        values.iter().map(one).collect()
    }

    /// Add the variables of `meta`. Inner levels override outer ones.
    fn add_meta(&mut self, levels: &[&BTreeMap<String, String>]) -> Result<(), EnvError> {
        let mut meta: BTreeMap<&String, &String> = BTreeMap::new();
        for level in levels {
            meta.extend(level.iter());
        }
        let meta: Vec<_> = meta.into_iter().collect();
        let meta = self.replace_references("meta", &meta)?;
        let mut set = |key: &str, value: &str| {
            self.vars.insert(format!("NOMAD_META_{key}"), value.to_owned());
        };
        // A key written just so wins over one that only becomes so: `FOO` over `foo`, `a_b` over `a-b`.
        for (key, value) in &meta {
            set(&clean(key).to_uppercase(), value);
        }
        for (key, value) in &meta {
            set(&clean(key), value);
        }
        for (key, value) in meta.iter().filter(|(key, _)| clean(key) == *key) {
            set(key, value);
        }
        Ok(())
    }

    /// Replace the references in a text.
    ///
    /// # Errors
    /// See [`interpolate`].
    pub fn interpolate(&self, text: &str) -> Result<String, InterpolateError> {
        interpolate(text, self.scope())
    }

    /// Replace the references in every string of a task's `config`.
    ///
    /// # Errors
    /// See [`interpolate_config`].
    pub fn interpolate_config(&self, config: &JsonObject) -> Result<JsonObject, InterpolateError> {
        interpolate_config(config, self.scope())
    }

    /// The unknown references in these texts.
    pub fn unknown_in<'t>(
        &self,
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Vec<UnknownReference> {
        unknown_references(texts, self.scope())
    }

    /// The variables in order of their names.
    #[must_use]
    pub fn pairs(&self) -> Vec<(String, String)> {
        self.vars.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    fn scope(&self) -> Variables<'_> {
        Variables {
            env: &self.vars,
            attributes: &self.node.attributes,
            meta: &self.node.meta,
            facts: &self.facts,
        }
    }
}

fn facts(node: &NodeFacts, alloc: &Allocation) -> Result<BTreeMap<&'static str, String>, EnvError> {
    let mut facts = BTreeMap::from([
        ("node.unique.id", node.id.clone()),
        ("node.unique.name", node.name.clone()),
        ("node.datacenter", node.datacenter.clone()),
        ("node.class", node.class.clone()),
        ("node.region", node.region().to_owned()),
        ("node.pool", node.pool.clone()),
    ]);
    if let Some(dir) = &alloc.job.source_dir {
        facts.insert("job.dir", path_text(dir)?);
    }
    Ok(facts)
}

fn add_identity(vars: &mut BTreeMap<String, String>, input: &EnvInput<'_>, group: &TaskGroup) {
    let EnvInput { alloc, task, node, dirs, .. } = input;
    let mut set = |name: &str, value: String| vars.insert(format!("NOMAD_{name}"), value);
    set("ALLOC_DIR", dirs.alloc.clone());
    set("TASK_DIR", dirs.task.clone());
    set("SECRETS_DIR", dirs.secrets.clone());
    set("TASK_NAME", task.name.to_string());
    add_place(vars, alloc, node, group);
}

/// Add the variables that are the same for all tasks of an allocation.
fn add_place(
    vars: &mut BTreeMap<String, String>,
    alloc: &Allocation,
    node: &NodeFacts,
    group: &TaskGroup,
) {
    let mut set = |name: &str, value: String| vars.insert(format!("NOMAD_{name}"), value);
    set("ALLOC_ID", alloc.id.to_string());
    set("SHORT_ALLOC_ID", alloc.id.short());
    set("ALLOC_NAME", alloc.name.clone());
    set("ALLOC_INDEX", alloc.index.to_string());
    set("GROUP_NAME", group.name.to_string());
    set("JOB_ID", alloc.job.id.to_string());
    if let Some(parent) = &alloc.job.parent {
        set("JOB_PARENT_ID", parent.to_string());
    }
    set("JOB_NAME", alloc.job.name.clone());
    set("NAMESPACE", alloc.job.namespace().to_owned());
    set("DC", node.datacenter.clone());
    set("REGION", node.region().to_owned());
}

fn add_limits(vars: &mut BTreeMap<String, String>, alloc: &Allocation, task: &Task) {
    let resources = &task.resources;
    vars.insert("NOMAD_CPU_LIMIT".to_owned(), alloc.cpu_mhz(task).to_string());
    if let Some(assigned) = alloc.cores.get(&task.name) {
        vars.insert("NOMAD_CPU_CORES".to_owned(), assigned.cores.to_string());
    }
    vars.insert("NOMAD_MEMORY_LIMIT".to_owned(), resources.memory_mb.to_string());
    if let Some(max) = resources.memory_max_mb {
        vars.insert("NOMAD_MEMORY_MAX_LIMIT".to_owned(), max.to_string());
    }
}

/// Add the variables of a port. In host mode the task's own addresses are those of the node, so
/// both families have the same values; only `ALLOC_PORT` shows `to`. In a network of its own a task
/// has the port numbers of that network. The addresses are still those of the node, where others
/// reach the task; its own are `ALLOC_IP` and `ALLOC_ADDR`.
fn add_port(
    vars: &mut BTreeMap<String, String>,
    port: &AllocatedPort,
    network: Option<&AllocNetwork>,
) {
    let label = clean(&port.label);
    let address = socket_address(&port.host_ip, port.value);
    let mut set = |kind: &str, value: &str| {
        vars.insert(format!("NOMAD_{kind}_{label}"), value.to_owned());
    };
    let (value, to) = (port.value.to_string(), port.to.to_string());
    for (ip, number, addr) in [("IP", "PORT", "ADDR"), ("HOST_IP", "HOST_PORT", "HOST_ADDR")] {
        set(ip, &port.host_ip);
        set(number, &value);
        set(addr, &address);
    }
    set("ALLOC_PORT", &to);
    if let Some(AllocNetwork { status, .. }) = network {
        set("PORT", &to);
        if !status.address.is_empty() {
            set("ALLOC_INTERFACE", &status.interface_name);
            set("ALLOC_IP", &status.address);
            set("ALLOC_ADDR", &socket_address(&status.address, port.to));
        }
    }
}

/// Add the variables of another task's port. Their names have the names of that task and
/// of the port.
fn add_port_of(vars: &mut BTreeMap<String, String>, port: &AllocatedPort, task: &TaskName) {
    let name = format!("{}_{}", clean(task.as_str()), clean(&port.label));
    let address = socket_address(&port.host_ip, port.value);
    vars.insert(format!("NOMAD_IP_{name}"), port.host_ip.clone());
    vars.insert(format!("NOMAD_PORT_{name}"), port.value.to_string());
    vars.insert(format!("NOMAD_ADDR_{name}"), address);
}

fn socket_address(ip: &str, port: u16) -> String {
    if ip.contains(':') { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") }
}

/// A part of a name in which `_` stands for each character that a shell does not allow in a name.
fn clean(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

fn check(vars: &BTreeMap<String, String>) -> Result<(), EnvError> {
    let mut bytes = 0_usize;
    for (name, value) in vars {
        let problem = if name.is_empty() {
            "has no name"
        } else if name.contains(['=', '\0']) {
            "has a name with '=' or a zero byte"
        } else if value.contains('\0') {
            "has a value with a zero byte"
        } else {
            bytes = bytes.saturating_add(name.len()).saturating_add(value.len()).saturating_add(2);
            continue;
        };
        return Err(EnvError::Variable { name: name.clone(), problem });
    }
    if bytes > ENV_BYTES_MAX {
        return Err(EnvError::TooLarge { bytes, max: ENV_BYTES_MAX });
    }
    Ok(())
}

#[cfg(test)]
#[path = "env_tests.rs"]
mod tests;
