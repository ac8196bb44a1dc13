//! Answers to requests that change something, or say what would.

use std::borrow::Cow;

use ostler_agent::{ConfigProblem, DeviceExplanation, GroupPlan, Plan, Registered};
use ostler_model::words::counted;
use ostler_wire::{
    self as wire, Annotations, Deregistered, DesiredUpdates, Effects, JobDiff, Text,
};

use super::metric;

/// The answer to a registration. `index`, `eval_id`: those of what it did; `of_job`: what the job's text
/// says that is not done.
pub(crate) fn registered(
    registered: Registered,
    index: u64,
    eval_id: String,
    mut of_job: Vec<String>,
) -> wire::Registered {
    let Registered { job_modify_index, version, index: _, placed, updated, stopped, warnings } =
        registered;
    of_job.extend_from_slice(&warnings);
    wire::Registered {
        eval_id,
        eval_create_index: index,
        job_modify_index,
        warnings: warnings_text(&of_job),
        index,
        last_contact: 0,
        known_leader: true,
        registered: Effects { version, placed, updated, stopped },
        agent_warnings: Some(warnings),
    }
}

/// Warnings in the one text that clients print: how many there are, and a line for each.
pub(crate) fn warnings_text(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let lines: String = warnings.iter().map(|warning| format!("\n* {warning}")).collect();
    format!("{}:\n{lines}", counted(warnings.len(), "warning"))
}

/// The answer to the stop of a job. Without an evaluation (an empty `eval_id`) Nomad's command line waits
/// for none.
pub(crate) fn deregistered(index: u64, eval_id: String, warnings: Option<String>) -> Deregistered {
    Deregistered {
        eval_create_index: if eval_id.is_empty() { 0 } else { index },
        eval_id,
        job_modify_index: index,
        index,
        known_leader: true,
        warnings,
        ..Deregistered::default()
    }
}

/// Something wrong with a task's configuration.
pub(crate) fn config_problem(problem: ConfigProblem) -> wire::ConfigProblem {
    let ConfigProblem { group, task, path, message, suggestion, of_driver } = problem;
    wire::ConfigProblem { group, task, path, message, suggestion, of_driver }
}

/// The answer to a plan. `datacenter`: the node's. `diff`: what differs, where that was asked for. `of_job`:
/// what the job's text says that is not done.
pub(crate) fn plan<'a>(
    plan: &'a Plan,
    datacenter: &str,
    diff: Option<JobDiff<'a>>,
    of_job: &[String],
) -> wire::Plan<'a, &'a [DeviceExplanation]> {
    let Plan {
        job_modify_index,
        version: _,
        known: _,
        groups,
        waiting,
        changes,
        devices,
        warnings,
    } = plan;
    let groups = groups.iter().map(|(name, plan)| (Text::from(name.as_str()), updates(plan)));
    wire::Plan {
        annotations: Annotations { groups: groups.collect(), ..Annotations::default() },
        failed_tg_allocs: metric::failed(waiting, datacenter),
        job_modify_index: *job_modify_index,
        diff,
        warnings: warnings_text(&[of_job, warnings].concat()).into(),
        index: *job_modify_index,
        changes: Cow::Borrowed(changes),
        waiting: plan.waits(),
        devices,
        agent_warnings: Some(Cow::Borrowed(warnings)),
        ..wire::Plan::default()
    }
}

fn updates(plan: &GroupPlan) -> DesiredUpdates {
    let GroupPlan { place, in_place, destructive, canary, stop, later, waiting, ignore } = *plan;
    let (in_place_update, destructive_update) = (in_place, destructive);
    DesiredUpdates {
        ignore: ignore.saturating_add(later),
        place: place.saturating_add(waiting),
        stop,
        in_place_update,
        destructive_update,
        canary,
        later,
        waiting,
        ..DesiredUpdates::default()
    }
}
