//! Answers to requests that change something or plan a change.

use std::borrow::Cow;

use ostler_agent::{DeviceExplanation, GroupPlan, JobPlan, RegisterOutcome, TaskConfigProblem};
use ostler_model::words::count_noun;
use ostler_wire::{
    self as wire, Annotations, DesiredUpdates, Effects, JobDeregisterResponse, JobDiff, Text,
};

use super::metric;

/// The answer to a registration. `index` and `eval_id` are those of its change; `of_job` has
/// warnings about parts of the job file that have no effect.
pub(crate) fn register_response(
    registered: RegisterOutcome,
    index: u64,
    eval_id: String,
    mut of_job: Vec<String>,
) -> wire::JobRegisterResponse {
    let RegisterOutcome { job_modify_index, version, index: _, placed, updated, stopped, warnings } =
        registered;
    of_job.extend_from_slice(&warnings);
    wire::JobRegisterResponse {
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

/// The warnings in one text that clients print: their number, and a line for each.
pub(crate) fn warnings_text(warnings: &[String]) -> String {
    if warnings.is_empty() {
        return String::new();
    }
    let lines: String = warnings.iter().map(|warning| format!("\n* {warning}")).collect();
    format!("{}:\n{lines}", count_noun(warnings.len(), "warning"))
}

/// The answer to the stop of a job. With an empty `eval_id` Nomad's command line does not wait for
/// an evaluation.
pub(crate) fn deregister_response(
    index: u64,
    eval_id: String,
    warnings: Option<String>,
) -> JobDeregisterResponse {
    JobDeregisterResponse {
        eval_create_index: if eval_id.is_empty() { 0 } else { index },
        eval_id,
        job_modify_index: index,
        index,
        known_leader: true,
        warnings,
        ..JobDeregisterResponse::default()
    }
}

/// An error in the configuration of a task.
pub(crate) fn config_problem(problem: TaskConfigProblem) -> wire::WireConfigProblem {
    let TaskConfigProblem { group, task, path, message, suggestion, of_driver } = problem;
    wire::WireConfigProblem { group, task, path, message, suggestion, of_driver }
}

/// The answer to a plan. `datacenter` is that of the node, `diff` the difference if the request
/// asks for it; `of_job` has warnings about parts of the job file that have no effect.
pub(crate) fn plan<'a>(
    plan: &'a JobPlan,
    datacenter: &str,
    diff: Option<JobDiff<'a>>,
    of_job: &[String],
) -> wire::JobPlanResponse<'a, &'a [DeviceExplanation]> {
    let JobPlan {
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
    wire::JobPlanResponse {
        annotations: Annotations { groups: groups.collect(), ..Annotations::default() },
        failed_tg_allocs: metric::failed_placements(waiting, datacenter),
        job_modify_index: *job_modify_index,
        diff,
        warnings: warnings_text(&[of_job, warnings].concat()).into(),
        index: *job_modify_index,
        changes: Cow::Borrowed(changes),
        waiting: plan.waiting_sentences(),
        devices,
        agent_warnings: Some(Cow::Borrowed(warnings)),
        ..wire::JobPlanResponse::default()
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
