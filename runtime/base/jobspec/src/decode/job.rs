//! Decodes the job itself, and what concerns all its groups.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::constraint::{AffinityKeys, ConstraintKeys, constraints_on_allocs};
use super::group::{self, GroupKeys};
use super::health::{self, MigrateKeys, UpdateKeys};
use super::placement::{self, SpreadKeys};
use super::reschedule::{self, RescheduleKeys};
use super::task::TaskKeys;
use crate::diagnostic::Span;
use crate::keys::FieldBounds::{NotZero, Unwritten};
use crate::keys::{
    CONSUL, Context, FieldShape, Keys as _, Setting, Texts, VAULT, keys, keyword, left_out,
    left_out_kind, neutral, neutral_left_out,
};
use crate::tree::{AttributeItem, Block, Item, SpannedKey, SpannedValue, ValueKind};
use ostler_model::ids::{JobId, Namespace};
use ostler_model::job::{Job, JobKind, NAMESPACE, TaskGroup};
use ostler_model::limits::{JOB_TASK_BLOCKS_MAX, JOB_TASKS_MAX};
use ostler_model::rollout::ReschedulePolicy;

/// The region that every node is in. A job that names it means the same as one that names none.
pub(crate) const REGION: &str = "global";
/// The priority of a job that gives none.
const PRIORITY: u8 = 50;

/// The hints at keys for what only servers of a cluster do.
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
        id / ID: Setting<String> => ("a job needs an id; write job \"id\" { … }", "Job needs an ID"),
            "the label of the block";
        /// Name that people see.
        name / Name: Setting<String>, "the id";
        /// Every node is in this one.
        region / Region: Setting<String> = REGION;
        /// Data centers it may run in, by name or pattern.
        datacenters / Datacenters: Texts, "`[\"*\"]`";
        /// What kind of work it is: a `service` runs until it is stopped, a `batch` to its end.
        kind "type" / Type: Setting<JobKind> = JobKind::Service;
        /// One of the agent's [namespaces](namespaces.md).
        namespace / Namespace: Setting<String> = NAMESPACE;
        /// Of jobs that wait for room, those of a higher one have it first.
        priority / Priority: Setting<u8> [NotZero(1, 100)] = PRIORITY;
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
        all_at_once / AllAtOnce: Setting<bool> = false;
        /// Tasks that live together; at least one, or a task.
        groups "group" / TaskGroups: Vec<GroupKeys>;
        /// A task that is a group of its own, of the same name.
        tasks "task": Vec<TaskKeys>;
        /// What `${job.dir}` means, in JSON.
        source_dir "" / SourceDir: Setting<PathBuf>, "the job file's directory, where something refers to it";
        /// In JSON: it does not run. A job of a file must not say so.
        stop "" / Stop: Setting<bool> [Unwritten] = false;
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
        "" / NomadTokenID [FieldShape::Served] => ""; "" / Status [FieldShape::Served];
        "" / StatusDescription [FieldShape::Served]; "" / Stable [FieldShape::Served];
        "" / Version [FieldShape::Served]; "" / SubmitTime [FieldShape::Served];
        "" / CreateIndex [FieldShape::Served]; "" / ModifyIndex [FieldShape::Served];
        "" / JobModifyIndex [FieldShape::Served];
        "" / Origin [FieldShape::Served]; "" / Places [FieldShape::Served];
    }
}

keyword! {
    JobKind, "job type": "service" = Service, "batch" = Batch, "system" = System, "sysbatch" = Sysbatch;
}

/// Decode the one `job` block of a file. All problems are reported. The result is `None` when something
/// essential is missing.
pub(crate) fn job(mut block: Block, dir: Option<PathBuf>, cx: &mut Context<'_>) -> Option<Job> {
    if let (Some(SpannedKey { name, span }), false) = (block.labels.pop(), block.body.has("id")) {
        let value = SpannedValue { kind: ValueKind::Text(name), span };
        block
            .body
            .items
            .push(Item::Attribute(AttributeItem { key: SpannedKey::new("id", span), value }));
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
    // The agent checks whether the namespace exists.
    let mut namespace = keys.namespace;
    namespace.value.take_if(|name| name.is_empty());
    let namespace = namespace.parse_with(cx, |name| Namespace::new(&name)).unwrap_or_default();
    let datacenters = datacenters(keys.datacenters, cx);
    let constraints = constraints_on_allocs(keys.constraints, cx);
    let placement = placement::placement(keys.affinities, keys.spreads, kind, cx);
    let rules = health::rules(keys.update, keys.migrate, kind, health::HealthRules::default(), cx);
    let id = keys.id.parse_with(cx, |id| JobId::in_namespace(&namespace, id));
    let reschedule =
        reschedule::policy(keys.reschedule, ReschedulePolicy::default_for(kind), kind, cx);
    let outer = group::GroupScope { job: id.as_ref(), kind, rules, reschedule };
    // The groups of single tasks come before the other ones.
    let alone = keys.tasks.into_iter().map(group_of_task);
    let groups = groups(alone.chain(keys.groups).collect(), outer, cx);
    warn_mixed_promotion(&groups, at, cx);
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

/// Whether the block has groups or tasks. Problems in them are reported elsewhere.
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

/// Warn when some groups with canaries have `auto_promote` and others do not. A deployment is promoted as a
/// whole, so `auto_promote` has no effect then.
fn warn_mixed_promotion(groups: &[TaskGroup], at: Span, cx: &mut Context<'_>) {
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

/// The group that a task at the top of a job stands for.
fn group_of_task(task: TaskKeys) -> GroupKeys {
    GroupKeys { at: task.at, label: task.label.clone(), tasks: vec![task], ..GroupKeys::default() }
}

fn datacenters(given: Texts, cx: &mut Context<'_>) -> Vec<String> {
    if given.value.as_ref().is_some_and(Vec::is_empty) {
        cx.error(given.at, "datacenters must not be empty; leave it out for any");
    }
    given.check(cx, |name| name.is_empty().then_some("a data center's name must not be empty"));
    given.plain().unwrap_or_else(|| vec!["*".to_owned()])
}

fn groups(
    blocks: Vec<GroupKeys>,
    outer: group::GroupScope<'_>,
    cx: &mut Context<'_>,
) -> Vec<TaskGroup> {
    let mut names = BTreeSet::new();
    let mut groups = Vec::with_capacity(blocks.len());
    let (mut tasks, mut written) = (0_u64, 0_u64);
    for keys in blocks {
        cx.add_unique(&mut names, "a group", &keys.label);
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
