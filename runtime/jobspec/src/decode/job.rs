//! The job itself and what concerns all its groups together.

use std::collections::BTreeSet;
use std::path::PathBuf;

use super::super::diagnostic::{Span, shown};
use super::super::schema;
use super::super::tree::{Block, Key};
use super::{Context, Reader, constraint, group, health};
use ostler_model::ids::{JobId, NameError};
use ostler_model::job::{Job, JobKind, NAMESPACE, TaskGroup};
use ostler_model::limits::JOB_TASKS_MAX;

const KINDS: [(&str, JobKind); 4] = [
    ("service", JobKind::Service),
    ("batch", JobKind::Batch),
    ("system", JobKind::System),
    ("sysbatch", JobKind::Sysbatch),
];

/// Decode the one `job` block of a file. `None` when something essential is missing; that and
/// everything else wrong is reported.
pub(in super::super) fn job(
    block: Block,
    source_dir: Option<PathBuf>,
    cx: &mut Context<'_>,
) -> Option<Job> {
    let header = block.key.span;
    let mut reader = Reader::new(block.body, &schema::JOB, cx);
    let id = job_id(block.labels.into_iter().next(), header, &mut reader, cx);
    let name = reader.text("name", cx);
    region(&mut reader, cx);
    let kind = reader.text("type", cx);
    let kind = cx.choice("job type", kind, &KINDS).unwrap_or_default();
    let namespace = namespace(&mut reader, cx);
    let priority = priority(&mut reader, cx);
    let datacenters = datacenters(&mut reader, cx);
    let meta = reader.text_map("meta", cx);
    let constraints = constraint::constraints(reader.blocks("constraint"), cx);
    // Only in JSON.
    let given_dir = reader.text("source dir", cx).map(|(dir, _)| PathBuf::from(dir));
    let rules = health::rules(&mut reader, &schema::JOB, kind, health::Rules::default(), cx);
    let blocks = reader.blocks("group");
    if !reader.was_given("group") {
        let form = cx.name(
            "a job needs at least one group; write group \"name\" { … }",
            "TaskGroups must hold at least one group",
        );
        cx.error(header, form);
    }
    let outer = group::Outer { job: id.as_ref(), kind, rules };
    let groups = groups(blocks, outer, cx);
    reader.finish();
    let id = id?;
    Some(Job {
        name: name.map_or_else(|| id.to_string(), |(name, _)| name),
        id,
        kind,
        namespace,
        priority,
        datacenters,
        meta,
        constraints,
        groups,
        source_dir: given_dir.or(source_dir),
    })
}

/// The region every node is in, and what a priority is unless somebody says otherwise: written out
/// or not, nothing is missed.
const REGION: &str = "global";
const PRIORITY: u8 = 50;

fn region(reader: &mut Reader, cx: &mut Context<'_>) {
    if let Some((region, at)) = reader.text("region", cx)
        && region != REGION
    {
        let key = cx.name("region", "Region");
        let message = format!("{key} has no effect yet: this node is in region {REGION} alone");
        cx.sink.warn(at, message);
    }
}

fn priority(reader: &mut Reader, cx: &mut Context<'_>) -> u8 {
    let Some((priority, at)) = reader.integer("priority", 1..=100, cx) else { return PRIORITY };
    let priority = u8::try_from(priority).unwrap_or(PRIORITY);
    if priority != PRIORITY {
        let key = cx.name("priority", "Priority");
        let message = format!("{key} has no effect yet: no job goes before another");
        cx.sink.warn(at, message);
    }
    priority
}

fn job_id(
    label: Option<Key>,
    header: Span,
    reader: &mut Reader,
    cx: &mut Context<'_>,
) -> Option<JobId> {
    let given = reader.text("id", cx).or_else(|| label.map(|key| (key.name, key.span)));
    let Some((id, at)) = given else {
        let form = cx.name("a job needs an id; write job \"id\" { … }", "Job needs an ID");
        cx.error(header, form);
        return None;
    };
    checked(JobId::new(id), at, cx)
}

/// Another one is refused: a job of the same id there would replace the one here.
fn namespace(reader: &mut Reader, cx: &mut Context<'_>) -> String {
    if let Some((named, at)) = reader.text("namespace", cx).filter(|(named, _)| named != NAMESPACE)
    {
        let (key, named) = (cx.name("namespace", "Namespace"), shown(&named));
        cx.error(at, format!("{key} must be \"{NAMESPACE}\", not {named}: there is no other yet"));
    }
    NAMESPACE.to_owned()
}

/// A name, or its problem reported.
pub(super) fn checked<T>(name: Result<T, NameError>, at: Span, cx: &mut Context<'_>) -> Option<T> {
    name.map_err(|error| cx.error(at, error.to_string())).ok()
}

fn datacenters(reader: &mut Reader, cx: &mut Context<'_>) -> Vec<String> {
    let Some((names, at)) = reader.texts("datacenters", cx) else {
        return vec!["*".to_owned()];
    };
    if names.is_empty() {
        cx.error(at, "datacenters must not be empty; leave it out for any");
    }
    for (name, at) in &names {
        if name.is_empty() {
            cx.error(*at, "a data center's name must not be empty");
        }
    }
    names.into_iter().map(|(name, _)| name).collect()
}

fn groups(blocks: Vec<Block>, outer: group::Outer<'_>, cx: &mut Context<'_>) -> Vec<TaskGroup> {
    let mut names = BTreeSet::new();
    let mut groups = Vec::with_capacity(blocks.len());
    let mut tasks: u64 = 0;
    for block in blocks {
        let at = block.labels.first().map_or(block.key.span, |label| label.span);
        let label = block.labels.first().map(|label| label.name.clone()).unwrap_or_default();
        if !names.insert(label.clone()) {
            cx.error(at, format!("a group {} is here already", shown(&label)));
        }
        let task_blocks = group::task_blocks(&block);
        let Some(group) = group::group(block, outer, cx) else {
            continue;
        };
        let before = tasks;
        tasks = tasks.saturating_add(u64::from(group.count).saturating_mul(task_blocks));
        let most = u64::try_from(JOB_TASKS_MAX).unwrap_or(u64::MAX);
        if tasks > most && before <= most {
            let message = format!(
                "the job has {tasks} tasks up to here (count × tasks); at most {most} are allowed"
            );
            cx.error(at, message);
        }
        groups.push(group);
    }
    groups
}
