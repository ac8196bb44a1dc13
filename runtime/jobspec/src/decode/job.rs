//! The job itself and what concerns all its groups together.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::constraint::{AffinityKeys, ConstraintKeys, constraints_on_allocs};
use super::group::{self, GroupKeys};
use super::health::{self, MigrateKeys, UpdateKeys};
use super::placement::{self, SpreadKeys};
use super::reschedule::{self, RescheduleKeys};
use super::task::TaskKeys;
use crate::diagnostic::Span;
use crate::keys::Bounds::{NotZero, Unwritten};
use crate::keys::{
    CONSUL, Context, Given, Keys as _, Shape, Texts, VAULT, keys, keyword, left_out, left_out_kind,
    neutral, neutral_left_out,
};
use crate::tree::{Attribute, Block, Item, Key, Value, ValueKind};
use ostler_model::ids::{JobId, Namespace};
use ostler_model::job::{Job, JobKind, NAMESPACE, TaskGroup};
use ostler_model::limits::{JOB_TASK_BLOCKS_MAX, JOB_TASKS_MAX};
use ostler_model::rollout::ReschedulePolicy;

/// The region every node is in, and what a priority is unless somebody says otherwise: written out
/// or not, nothing is missed.
pub(crate) const REGION: &str = "global";
const PRIORITY: u8 = 50;

/// What to do instead of what only servers of a cluster do.
const PERIODIC: &str = "the servers of a cluster start such a job again and again, and this agent can be a \
                        node of one; without them, let cron or a timer call `ostler run`";
const PARAMETERIZED: &str = "the servers of a cluster dispatch such a job, and this agent can be a node of \
                             one; without them, use variables and `ostler run --var NAME=VALUE`";
const MULTIREGION: &str =
    "the servers of several regions do that together; register the job in each region";

keys! {
    /// A job.
    struct JobKeys: "a job" {
        /// Unique on the node.
        id / ID: Given<String> => ("a job needs an id; write job \"id\" { … }", "Job needs an ID"),
            "the label of the block";
        /// Name that people see.
        name / Name: Given<String>, "the id";
        /// Every node is in this one.
        region / Region: Given<String> = REGION;
        /// Data centers it may run in, by name or pattern.
        datacenters / Datacenters: Texts, "`[\"*\"]`";
        /// What kind of work it is: a `service` runs until it is stopped, a `batch` to its end.
        kind "type" / Type: Given<JobKind> = JobKind::Service;
        /// One of the agent's [namespaces](namespaces.md).
        namespace / Namespace: Given<String> = NAMESPACE;
        /// Of jobs that wait for room, those of a higher one have it first.
        priority / Priority: Given<u8> [NotZero(1, 100)] = PRIORITY;
        /// For people, and as `NOMAD_META_*` for tasks.
        meta / Meta: BTreeMap<String, String>;
        /// What has to hold of the node.
        constraints "constraint" / Constraints: Vec<ConstraintKeys>;
        /// What is preferred of a node: kept, and without effect where there is one node.
        affinities "affinity" / Affinities: Vec<AffinityKeys>;
        /// Over which nodes it is spread: kept, and without effect where there is one node.
        spreads "spread" / Spreads: Vec<SpreadKeys>;
        /// A plan of servers that cannot be carried out whole is not carried out at all. One node's always is,
        /// so it changes nothing here: what does not fit waits, in either case.
        all_at_once / AllAtOnce: Given<bool> = false;
        /// Tasks that live together; at least one, or a task.
        groups "group" / TaskGroups: Vec<GroupKeys>;
        /// A task that is a group of its own, of the same name.
        tasks "task": Vec<TaskKeys>;
        /// What `${job.dir}` means, in JSON.
        source_dir "" / SourceDir: Given<PathBuf>, "the job file's directory, where something refers to it";
        /// In JSON: it does not run. A job of a file must not say so.
        stop "" / Stop: Given<bool> [Unwritten] = false;
        /// For groups that do not say it themselves.
        update / Update: Option<UpdateKeys>;
        /// For groups that do not say it themselves.
        migrate / Migrate: Option<MigrateKeys> [Unwritten];
        /// For groups that do not say it themselves.
        reschedule / Reschedule: Option<RescheduleKeys> [Unwritten];
    }
    not_yet {
        "periodic" / Periodic [left_out_kind(PERIODIC)] => null;
        "parameterized" / ParameterizedJob [left_out_kind(PARAMETERIZED)] => null;
        "multiregion" / Multiregion [left_out_kind(MULTIREGION)] => null;
        "vault" / Vault [left_out(VAULT)]; "consul" / Consul [left_out(CONSUL)];
        "vault_token" / VaultToken [left_out(VAULT)] => "";
        "consul_token" / ConsulToken [left_out(CONSUL)] => "";
        "node_pool" / NodePool [neutral("", &["default"])];
        "ui" / UI; "version_tag" / VersionTag;
        "" / Payload => null; "" / ParentID => ""; "" / Dispatched => false;
        "" / DispatchIdempotencyToken;
        "vault_namespace" / VaultNamespace [neutral_left_out(VAULT, &["default"])] => "";
        "consul_namespace" / ConsulNamespace [neutral_left_out(CONSUL, &["default"])];
        "" / NomadTokenID [Shape::Served] => ""; "" / Status [Shape::Served];
        "" / StatusDescription [Shape::Served]; "" / Stable [Shape::Served];
        "" / Version [Shape::Served]; "" / SubmitTime [Shape::Served];
        "" / CreateIndex [Shape::Served]; "" / ModifyIndex [Shape::Served];
        "" / JobModifyIndex [Shape::Served];
        "" / Origin [Shape::Served]; "" / Places [Shape::Served];
    }
}

keyword! {
    JobKind, "job type": "service" = Service, "batch" = Batch, "system" = System, "sysbatch" = Sysbatch;
}

/// Decode the one `job` block of a file. `None` when something essential is missing; that and
/// everything else wrong is reported.
pub(crate) fn job(mut block: Block, dir: Option<PathBuf>, cx: &mut Context<'_>) -> Option<Job> {
    if let (Some(Key { name, span }), false) = (block.labels.pop(), block.body.has("id")) {
        let value = Value { kind: ValueKind::Text(name), span };
        block.body.items.push(Item::Attribute(Attribute { key: Key::new("id", span), value }));
    }
    let at = block.key.span;
    let groups_given = has_groups(&block);
    let keys = JobKeys::read(block, cx);
    if !groups_given {
        let none = "a job needs at least one group; write group \"name\" { … }";
        cx.error(at, cx.name(none, "TaskGroups must hold at least one group"));
    }
    let kind = keys.kind.get();
    cx.stop = keys.stop.place().filter(|_| keys.stop.value == Some(true));
    if let Some((region, at)) = keys.region.other_than(REGION) {
        let message = format!("{region} has no effect yet: this node is in region {REGION} alone");
        cx.sink.warn(at, message);
    }
    // Whether it is there the agent knows.
    let mut namespace = keys.namespace;
    namespace.value.take_if(|name| name.is_empty());
    let namespace = namespace.parsed(cx, |name| Namespace::new(&name)).unwrap_or_default();
    let datacenters = datacenters(keys.datacenters, cx);
    let constraints = constraints_on_allocs(keys.constraints, cx);
    let placement = placement::placement(keys.affinities, keys.spreads, kind, cx);
    let rules = health::rules(keys.update, keys.migrate, kind, health::Rules::default(), cx);
    let id = keys.id.parsed(cx, |id| JobId::within(&namespace, id));
    let reschedule =
        reschedule::policy(keys.reschedule, ReschedulePolicy::default_for(kind), kind, cx);
    let outer = group::Outer { job: id.as_ref(), kind, rules, reschedule };
    // Those of single tasks go before the others.
    let alone = keys.tasks.into_iter().map(alone);
    let groups = groups(alone.chain(keys.groups).collect(), outer, cx);
    all_promote(&groups, at, cx);
    let id = id?;
    Some(Job {
        name: keys.name.value.unwrap_or_else(|| id.to_string()),
        id,
        kind,
        priority: keys.priority.get(),
        datacenters,
        meta: keys.meta,
        constraints,
        placement,
        all_at_once: keys.all_at_once.get(),
        groups,
        source_dir: keys.source_dir.value.or(dir),
        parent: None,
    })
}

/// Is there anything to run? What of it is wrong is said elsewhere.
fn has_groups(block: &Block) -> bool {
    block.body.items.iter().any(|item| match item.key().name.as_str() {
        "group" | "task" => true,
        "TaskGroups" => match item.value().map(|value| &value.kind) {
            Some(ValueKind::Null) => false,
            Some(ValueKind::List(groups)) => !groups.is_empty(),
            _ => true,
        },
        _ => false,
    })
}

/// Warn of groups whose canaries are promoted by nobody while those of others would be by themselves: a
/// deployment is promoted as a whole.
fn all_promote(groups: &[TaskGroup], at: Span, cx: &mut Context<'_>) {
    let policies = || groups.iter().filter_map(|group| group.update);
    let waits = policies().any(|update| update.canary > 0 && !update.auto_promote);
    if waits && policies().any(|update| update.auto_promote) {
        let message = cx.name(
            "auto_promote has no effect: all groups with canaries are promoted together, and one of them \
             does not have it",
            "AutoPromote has no effect: all groups with canaries are promoted together, and one of them \
             does not have it",
        );
        cx.sink.warn(at, message);
    }
}

/// A task at the top of a job as the group that it is.
fn alone(task: TaskKeys) -> GroupKeys {
    GroupKeys { at: task.at, label: task.label.clone(), tasks: vec![task], ..GroupKeys::default() }
}

fn datacenters(given: Texts, cx: &mut Context<'_>) -> Vec<String> {
    if given.value.as_ref().is_some_and(Vec::is_empty) {
        cx.error(given.at, "datacenters must not be empty; leave it out for any");
    }
    given.check(cx, |name| name.is_empty().then_some("a data center's name must not be empty"));
    given.plain().unwrap_or_else(|| vec!["*".to_owned()])
}

fn groups(blocks: Vec<GroupKeys>, outer: group::Outer<'_>, cx: &mut Context<'_>) -> Vec<TaskGroup> {
    let mut names = BTreeSet::new();
    let mut groups = Vec::with_capacity(blocks.len());
    let (mut tasks, mut written) = (0_u64, 0_u64);
    for keys in blocks {
        cx.unique(&mut names, "a group", &keys.label);
        let at = keys.label.span;
        let task_blocks = u64::try_from(keys.tasks.len()).unwrap_or(u64::MAX);
        let Some(group) = group::group(keys, outer, cx) else { continue };
        let before = tasks;
        tasks = tasks.saturating_add(u64::from(group.count).saturating_mul(task_blocks));
        let most = u64::try_from(JOB_TASKS_MAX).unwrap_or(u64::MAX);
        if tasks > most && before <= most {
            let message = format!(
                "the job has {tasks} tasks up to here (count × tasks); at most {most} are allowed"
            );
            cx.error(at, message);
        }
        let written_before = written;
        written = written.saturating_add(task_blocks);
        let most = u64::try_from(JOB_TASK_BLOCKS_MAX).unwrap_or(u64::MAX);
        if written > most && written_before <= most {
            let message =
                format!("the job has {written} task blocks up to here; at most {most} are allowed");
            cx.error(at, message);
        }
        groups.push(group);
    }
    groups
}
