//! Explains the state of a job.

use std::collections::BTreeMap;

use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::saved::JobOrigin;
use ostler_model::time::Timestamp;
use ostler_model::words::count_noun;
use ostler_wire::{JobSummary, WireDeployment, WireJob};
use serde::Deserialize;

use crate::alloc::{self, AllocHistory};
use crate::blocked::{BlockedPlace, BlockedProblem, Holders};
use crate::commands;
use crate::exit::TaskFacts;
use crate::words::sentence;
use crate::{Explanation, SubjectKind};

/// The most allocations in trouble that are explained with their job.
const ALLOCS_MAX: usize = 3;
/// The most waiting places that are explained with their job.
const PLACES_MAX: usize = 3;

/// The records about a job.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobHistory<'a> {
    /// The job with its newest version.
    pub job: WireJob<'a>,
    /// Numbers of its allocations by task group.
    pub summary: JobSummary<'a>,
    /// Its allocations, in their short or their full form, each with its records.
    pub allocs: Vec<AllocHistory<'a>>,
    /// Its places that wait to be filled.
    pub blocked: Vec<BlockedPlace>,
    /// Its newest deployments, the newest first.
    pub deployments: Vec<WireDeployment<'a>>,
    /// The job of each allocation that holds what this job asks for, by the allocation's id.
    pub holders: BTreeMap<String, String>,
    /// The events of the job and its deployments, as far as the node keeps them.
    pub events: Vec<JobEvent>,
}

/// An event of a job or a deployment, as the agent reports it (`/v1/ostler/events`).
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct JobEvent {
    /// `job` or `deployment`; events of other topics are passed over.
    pub topic: String,
    /// The event in one word: `stopped`, `failed`.
    pub kind: String,
    /// Id of the deployment that the event is about.
    pub name: String,
    /// When it last happened, nanoseconds since 1970.
    pub last: Timestamp,
}

/// Explain the state of a job.
#[must_use]
pub fn explain(record: &JobHistory<'_>, now: Timestamp) -> Explanation {
    let job = &record.job;
    let given = file_of(job).map(|file| format!(", given by the file {file}")).unwrap_or_default();
    let name =
        format!("{}, version {}, namespace {}{given}", job.kind, job.facts.version, job.namespace);
    let mut told = Explanation::new(SubjectKind::Job, &*job.id, name);
    let mut said = vec![state_sentence(record)];
    if !job.facts.stop && asks_for_nothing(job) && file_of(job).is_none() {
        for group in record.summary.summary.keys() {
            let one = commands::scale_to_one(&job.id, group);
            told.advise(format!("{one} runs one of group {group}"));
        }
    }
    if job.facts.submit_time != Timestamp::default() {
        told.note(
            job.facts.submit_time,
            format!("version {} of the job was registered", job.facts.version),
        );
    }
    if let Some(at) = stop_time(record) {
        told.note(at, "the job was told to stop");
        told.since = Some(at);
    }
    explain_blocked(record, &mut said, &mut told);
    explain_deployment(record, &mut said, &mut told);
    note_failed_deployments(record, &mut told);
    explain_troubled_allocs(record, now, &mut said, &mut told);
    told.happened.sort_by_key(|one| one.at);
    told.because = said.iter().map(|text| sentence(text)).collect();
    told
}

/// Path of the file in the jobs directory that gives the job, where there is one.
#[must_use]
pub fn file_of(job: &WireJob<'_>) -> Option<String> {
    match &job.facts.origin {
        Some(JobOrigin::File(path)) => Some(path.display().to_string()),
        _ => None,
    }
}

/// The time when the job was told to stop, if it was and the time is on record.
fn stop_time(record: &JobHistory<'_>) -> Option<Timestamp> {
    let facts = &record.job.facts;
    let of = |event: &&JobEvent| event.topic == "job" && event.kind == "stopped";
    let last = record.events.iter().filter(of).map(|event| event.last).max();
    // An older event is about an earlier version, or an earlier job of the same name.
    last.filter(|at| facts.stop && *at >= facts.submit_time)
}

/// Note when the newest deployments failed.
fn note_failed_deployments(record: &JobHistory<'_>, told: &mut Explanation) {
    for one in record.deployments.iter().take(2).filter(|one| one.status == "failed") {
        let of = |event: &&JobEvent| {
            event.topic == "deployment" && event.kind == "failed" && event.name == one.id
        };
        if let Some(event) = record.events.iter().find(of) {
            let short = one.id.get(..8).unwrap_or(&one.id);
            told.note(
                event.last,
                format!(
                    "deployment {short} of version {} failed: {}",
                    one.job_version,
                    reason(&one.status_description)
                ),
            );
        }
    }
}

/// The state of the job in one sentence.
fn state_sentence(record: &JobHistory<'_>) -> String {
    let job = &record.job;
    let total = record.summary.total();
    let live = total.running.saturating_add(total.starting);
    if job.facts.stop {
        return match live {
            0 => "it was stopped, and nothing of it runs".to_owned(),
            live => format!(
                "it was stopped, and {} of it still {}",
                count_noun(live, "allocation"),
                if live == 1 { "ends" } else { "end" }
            ),
        };
    }
    let waits = total.queued;
    let mut parts = Vec::new();
    for (count, what) in [
        (total.running, "running"),
        (total.starting, "not running yet"),
        (waits, "waiting to be placed"),
        (total.failed, "failed"),
        (total.complete, "complete"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    let parts = parts.join(", ");
    match &*job.facts.status {
        _ if live == 0 && asks_for_nothing(job) => {
            "nothing of it should run: the counts of its groups are 0".to_owned()
        }
        // Allocations that failed before may have been run again.
        "dead" if place_count(job) > 0 && completed_count(record) >= place_count(job) => {
            format!(
                "its work is done: {} ended well",
                count_noun(completed_count(record), "allocation")
            )
        }
        "dead" if total.failed == 0 && total.complete > 0 => match completed_count(record) {
            0 => "nothing of it runs or will run".to_owned(),
            done => format!("its work is done: {} ended well", count_noun(done, "allocation")),
        },
        "dead" => format!("it is dead, nothing of it runs or will run: {parts}"),
        status if parts.is_empty() => format!("it is {status} and has no allocations"),
        status => format!("it is {status}: {parts}"),
    }
}

/// The number of allocations it asks for.
fn place_count(job: &WireJob<'_>) -> u64 {
    job.task_groups.iter().map(|group| u64::from(group.count)).sum()
}

/// Do all of its groups have the count 0?
fn asks_for_nothing(job: &WireJob<'_>) -> bool {
    !job.task_groups.is_empty() && job.task_groups.iter().all(|group| group.count == 0)
}

/// The number of allocations that did their work. Those that were told to stop did not, nor did
/// those that were replaced.
fn completed_count(record: &JobHistory<'_>) -> u64 {
    let whole = record.allocs.iter().filter(|one| {
        one.alloc.client_status == ClientStatus::Complete
            && one.alloc.desired_status == DesiredStatus::Run
            && one.alloc.version() == record.job.facts.version
    });
    let kept = u64::try_from(whole.count()).unwrap_or(u64::MAX);
    kept.saturating_add(record.job.facts.places.complete)
}

fn explain_blocked(record: &JobHistory<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    if record.blocked.is_empty() && !record.job.facts.status_description.is_empty() {
        said.push(record.job.facts.status_description.to_string());
    }
    let holders = Holders { own: &record.job.id, jobs: &record.holders };
    for place in record.blocked.iter().take(PLACES_MAX) {
        let problems: Vec<String> =
            place.problems.iter().map(BlockedProblem::reason_text).collect();
        let when = if place.soon {
            "is filled when what goes for it has ended"
        } else {
            "cannot be filled"
        };
        said.push(format!(
            "place {}[{}] {when}: {}",
            place.group,
            place.index,
            problems.join("; ")
        ));
        if !place.soon {
            place
                .problems
                .iter()
                .flat_map(|one| one.advice(&holders))
                .for_each(|next| told.advise(next));
        }
    }
    let more = record.blocked.len().saturating_sub(PLACES_MAX);
    if more > 0 {
        said.push(format!(
            "{} more {} too",
            count_noun(more, "place"),
            if more == 1 { "waits" } else { "wait" }
        ));
    }
}

fn explain_deployment(record: &JobHistory<'_>, said: &mut Vec<String>, told: &mut Explanation) {
    let Some(newest) = record.deployments.first() else { return };
    let file = file_of(&record.job);
    let again = TaskFacts { file: file.as_deref(), ..TaskFacts::default() }.run_corrected();
    let short = newest.id.get(..8).unwrap_or(&newest.id);
    let (healthy, wanted, unhealthy) = newest.task_groups.values().fold((0, 0, 0), |sum, group| {
        (sum.0 + group.healthy_allocs, sum.1 + group.desired_total, sum.2 + group.unhealthy_allocs)
    });
    let counts = format!("{healthy} of {wanted} healthy");
    match &*newest.status {
        "running" if newest.status_description.contains("manual promotion") => {
            said.push(format!(
                "deployment {short} of version {} waits for its canaries to be promoted",
                newest.job_version
            ));
            told.advise(format!(
                "{} lets the rest follow, {} gives it up",
                commands::promote(short),
                commands::fail_deployment(short)
            ));
        }
        "running" if record.blocked.is_empty() => {
            let ill =
                if unhealthy > 0 { format!(", {unhealthy} unhealthy") } else { String::new() };
            let by = newest
                .task_groups
                .values()
                .filter_map(|group| Timestamp::parse(&group.require_progress_by));
            let by = by
                .min()
                .map(|at| format!("; it fails where nothing more is healthy by {at}"))
                .unwrap_or_default();
            said.push(format!(
                "deployment {short} of version {} goes on: {counts}{ill}{by}",
                newest.job_version
            ));
        }
        "paused" => {
            said.push(format!(
                "deployment {short} of version {} was paused: {counts}",
                newest.job_version
            ));
            told.advise(format!("{} lets it go on", commands::resume_deployment(short)));
        }
        "failed" => {
            said.push(format!(
                "deployment {short} of version {} failed: {}",
                newest.job_version,
                reason(&newest.status_description)
            ));
            let version = newest.job_version;
            let old = record.allocs.iter().map(|one| &one.alloc).any(|alloc| {
                alloc.version() < version && alloc.client_status == ClientStatus::Running
            });
            told.advise(match (version, old) {
                (0, _) => format!("correct the job, and {again}"),
                (_, false) => format!("correct the new version, and {again}"),
                (_, true) => {
                    format!("correct the new version, and {again}; what is healthy of the old one runs on")
                }
            });
        }
        _ => {}
    }
    // A version that came back has a deployment of its own, after the one that failed.
    if let Some(failed) = record.deployments.get(1).filter(|before| before.status == "failed")
        && newest.status != "failed"
        && failed.status_description.contains("rolling back")
    {
        let short = failed.id.get(..8).unwrap_or(&failed.id);
        said.push(format!(
            "version {} was reverted automatically: deployment {short} failed ({}), and version {} is what the \
             job was before",
            failed.job_version,
            reason(&failed.status_description),
            newest.job_version
        ));
        told.advise(format!(
            "correct what version {} changed ({} shows the versions whole), and {}",
            failed.job_version,
            commands::job_versions(&record.job.id),
            again
        ));
    }
}

/// The reason in the description of a deployment, as the end of a sentence.
fn reason(description: &str) -> String {
    let text = description.split(" - ").next().unwrap_or(description);
    match text {
        "Failed due to progress deadline" => {
            "nothing more became healthy before its progress_deadline".to_owned()
        }
        "Failed due to unhealthy allocations" => "its allocations were unhealthy".to_owned(),
        "Deployment marked as failed" => "it was marked as failed".to_owned(),
        other => other.to_owned(),
    }
}

/// Is an allocation of the job in trouble, so that it is explained with the job?
#[must_use]
pub fn is_in_trouble(
    job: &WireJob<'_>,
    deployments: &[WireDeployment<'_>],
    one: &AllocHistory<'_>,
) -> bool {
    let alloc = &one.alloc;
    let reverted = deployments.get(1).filter(|before| before.status == "failed");
    let reverted = reverted.map(|before| before.job_version);
    let restarts: u64 = alloc.task_states.values().map(|task| task.restarts).sum();
    match alloc.client_status {
        ClientStatus::Failed | ClientStatus::Pending => alloc.version() == job.facts.version,
        ClientStatus::Running => {
            alloc.healthy() == Some(false) || restarts > 0 || one.failing_checks().next().is_some()
        }
        ClientStatus::Complete => {
            reverted == Some(alloc.version()) && alloc.healthy() == Some(false)
        }
    }
}

/// Explain the allocations in trouble, the newest first.
fn explain_troubled_allocs(
    record: &JobHistory<'_>,
    now: Timestamp,
    said: &mut Vec<String>,
    told: &mut Explanation,
) {
    let all = record.allocs.iter();
    let mut all: Vec<_> =
        all.filter(|one| is_in_trouble(&record.job, &record.deployments, one)).collect();
    all.sort_by_key(|one| std::cmp::Reverse(one.alloc.create_time));
    for record in all.iter().take(ALLOCS_MAX) {
        let short = record.alloc.id.short();
        let one = alloc::explain(record, now);
        let because = one.because.join(" ");
        let because = because.strip_prefix("It ").unwrap_or(&because);
        said.push(format!("allocation {short} {because}"));
        // The reader has this explanation already.
        let this = commands::explain(&told.id);
        let others = one.next.iter().filter(|next| !next.contains(&this));
        others.for_each(|next| told.advise(next.clone()));
        let last = || one.happened.last().map(|last| (last.at, last.text.clone()));
        if let Some((at, text)) = alloc::turning_point(&record.alloc).or_else(last) {
            told.note(at, format!("allocation {short}: {text}"));
        }
    }
    let more = all.len().saturating_sub(ALLOCS_MAX);
    if more > 0 {
        said.push(format!(
            "{} more of it in trouble: {}",
            count_noun(more, "allocation"),
            commands::job_status(&record.job.id)
        ));
    }
}
