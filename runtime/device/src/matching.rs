//! Which device instances a request gets, or why it gets none.
//!
//! ```text
//! groups ─ name? ─ constraints? ─ enough healthy and free instances? ─► offers, with their scores
//!                                                                          │ highest sum over all
//!            each refusal is kept, with its reason                         ▼ requests at once
//!                                                                  instances, first by id
//! ```
//! All instances of one request come from one group, and no instance is assigned twice. All requests of
//! an allocation are thought of together ([`choose_all`]): they are refused only when there is no
//! way to serve them all, not because the first took what only the second can use. Among the ways
//! that remain the highest sum of affinity weights wins, then the first by name. Pure.
//!
//! Names in constraints and affinities: `${device.vendor}`, `${device.type}`, `${device.model}`,
//! `${device.attr.<name>}`, `${device.ids}`, `${device.numa_node}`. A constraint on `${device.ids}`
//! also narrows which instances may be assigned: `set_contains` and `set_contains_any` to those listed,
//! any other operator to those whose own id meets it.
//!
//! `${device.numa_node}` is the NUMA node that all instances assigned to the request are on; unset when
//! they are on several or nobody knows. A request that names it gets instances of one node where
//! that meets a constraint (`is_set`: it must be one) or adds to the score (an affinity with
//! `is_set`: it should). All requests of a task that name it and are on one node are on the same.

mod explain;
mod offer;
mod rules;
mod solve;
mod unfit;

use std::borrow::Cow;

use super::ledger::{DeviceLedger, InstanceHolder};
use ostler_model::device::DeviceGroup;
use ostler_model::ids::{AllocId, TaskName};
use ostler_model::limits::DEVICE_REQUESTS_SEARCHED_MAX;
use ostler_model::resources::{AllocatedDevice, DeviceRequest};

pub use explain::{DeviceAffinity, DeviceCandidate, DeviceOutcome, Explained, explain};
pub use unfit::{NoDevice, Unfit, UnfitGroup};

use offer::Offer;
use solve::Choice;

/// One device request of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskRequest<'a> {
    /// The task.
    pub task: &'a TaskName,
    /// What it asks for.
    pub request: &'a DeviceRequest,
}

/// Choose instances for `request`. Nothing is claimed; see [`DeviceLedger::claim`].
///
/// The same groups, ledger and request give the same answer, in whatever order plugins report.
///
/// # Errors
/// [`NoDevice`] with the reason for every group.
pub fn choose(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    request: &DeviceRequest,
) -> Result<AllocatedDevice, NoDevice> {
    first(&sorted(groups), ledger, request, None).map(|pick| pick.device)
}

/// Choose instances for all requests of an allocation; an answer for each, in their order. Either
/// all can be claimed together, or at least one is an error. Errors are those of taking the requests
/// one after the other, what the earlier ones took counted as held by `alloc`.
///
/// Beyond [`DEVICE_REQUESTS_SEARCHED_MAX`] requests they are only taken one after the other.
#[must_use]
pub fn choose_all(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    alloc: AllocId,
    wanted: &[TaskRequest<'_>],
) -> Vec<Result<AllocatedDevice, NoDevice>> {
    let groups = sorted(groups);
    let turns = in_turn(&groups, ledger, alloc, wanted);
    let served = turns.iter().all(Result::is_ok);
    let score = turns.iter().flatten().map(|pick| pick.score).sum::<i64>();
    if !(wanted.len() == 1 && served) && wanted.len() <= DEVICE_REQUESTS_SEARCHED_MAX {
        let choices = choices(&groups, ledger, wanted);
        if let Some(solution) = solve::best(&choices).filter(|best| !served || best.score > score) {
            let picks = choices.iter().zip(solution.picks);
            let devices = picks.filter_map(|(choice, (at, ids))| {
                choice.offers.get(at).map(|offer| Ok(device(offer, &ids)))
            });
            return devices.collect();
        }
    }
    turns.into_iter().map(|turn| turn.map(|pick| pick.device)).collect()
}

/// A request served.
struct Pick {
    device: AllocatedDevice,
    score: i64,
    node: Option<u32>,
}

fn sorted(groups: &[DeviceGroup]) -> Vec<&DeviceGroup> {
    let mut sorted: Vec<&DeviceGroup> = groups.iter().collect();
    sorted.sort_by(|a, b| (&a.key, &a.plugin).cmp(&(&b.key, &b.plugin)));
    sorted
}

fn device(offer: &Offer<'_>, ids: &[&str]) -> AllocatedDevice {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    AllocatedDevice { group: offer.group.key.clone(), ids }
}

/// The best of all offers to one request.
fn first(
    groups: &[&DeviceGroup],
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    task_node: Option<u32>,
) -> Result<Pick, NoDevice> {
    let mut best: Option<Offer<'_>> = None;
    let mut candidates = Vec::new();
    for group in groups {
        match offer::of_group(group, ledger, request, task_node) {
            Ok(offers) => {
                let offer = offers.into_iter().next();
                best = match (best, offer) {
                    (Some(best), Some(offer)) if offer.score > best.score => Some(offer),
                    (best, offer) => best.or(offer),
                };
            }
            Err(why) => candidates.push(UnfitGroup { group: group.key.clone(), why }),
        }
    }
    let Some(mut best) = best else {
        let (request, count) = (request.name.clone(), request.count);
        return Err(NoDevice { request, count, candidates });
    };
    best.free.truncate(offer::count(request));
    Ok(Pick { device: device(&best, &best.free), score: best.score, node: best.node })
}

/// Each request takes the best that those before it have left.
fn in_turn(
    groups: &[&DeviceGroup],
    ledger: &DeviceLedger,
    alloc: AllocId,
    wanted: &[TaskRequest<'_>],
) -> Vec<Result<Pick, NoDevice>> {
    // Most allocations have one request, and need no copy.
    let mut ledger = Cow::Borrowed(ledger);
    let mut nodes: Vec<(&TaskName, u32)> = Vec::new();
    let mut picks = Vec::with_capacity(wanted.len());
    for (at, TaskRequest { task, request }) in wanted.iter().enumerate() {
        let of_task = nodes.iter().find(|(other, _)| other == task).map(|(_, node)| *node);
        let pick = first(groups, &ledger, request, of_task);
        let more = at + 1 < wanted.len();
        if let Some(pick) = pick.as_ref().ok().filter(|_| more) {
            nodes.extend(pick.node.map(|node| (*task, node)));
            let holder = InstanceHolder { alloc, task: (*task).clone() };
            // No error: it was chosen as free from this ledger.
            let _claimed = ledger.to_mut().claim(&holder, std::slice::from_ref(&pick.device));
        }
        picks.push(pick);
    }
    picks
}

fn choices<'a>(
    groups: &[&'a DeviceGroup],
    ledger: &DeviceLedger,
    wanted: &[TaskRequest<'_>],
) -> Vec<Choice<'a>> {
    let mut tasks: Vec<&TaskName> = Vec::new();
    let choices = wanted.iter().map(|TaskRequest { task, request }| {
        let at = tasks.iter().position(|known| known == task).unwrap_or_else(|| {
            tasks.push(*task);
            tasks.len() - 1
        });
        let all = groups.iter().filter_map(|g| offer::of_group(g, ledger, request, None).ok());
        let mut offers: Vec<Offer<'a>> = all.flatten().collect();
        offers.sort_by_key(|offer| std::cmp::Reverse(offer.score));
        Choice { task: at, count: offer::count(request), offers }
    });
    choices.collect()
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
