//! Which device instances a request gets, or why it gets none.
//!
//! ```text
//! groups ─ name? ─ constraints? ─ enough healthy and free instances? ─► offers, with their scores
//!                                                                          │ highest sum over all
//!            each refusal is kept, with its reason                         ▼ requests at once
//!                                                                  instances, first by id
//! ```
//! All instances of one request come from one group, and no instance is assigned twice. All
//! requests of an allocation are matched together ([`choose_all`]): they are refused only when
//! there is no way to serve them all, not because the first one took what only the second can use.
//! Of the possible ways the one with the highest sum of affinity weights wins, then the first by
//! name. Pure.
//!
//! Names in constraints and affinities: `${device.vendor}`, `${device.type}`, `${device.model}`,
//! `${device.attr.<name>}`, `${device.ids}`, `${device.numa_node}`. A constraint on `${device.ids}`
//! also narrows which instances may be assigned: `set_contains` and `set_contains_any` to those listed,
//! any other operator to those whose own id meets it.
//!
//! `${device.numa_node}` is the NUMA node of all instances assigned to the request. It is unset
//! when they are on several nodes or the node is not known. A request that names it gets instances
//! of one node where that meets a constraint (`is_set`: it must be one) or adds to the score (an
//! affinity with `is_set`: it should be one). All requests of a task that name it and are on one
//! node are on the same node.

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

pub use explain::{DeviceAffinity, DeviceCandidate, DeviceOutcome, RequestExplanation, explain};
pub use unfit::{NoDevice, UnfitGroup, UnfitReason};

use offer::DeviceOffer;
use solve::RequestChoice;

/// One device request of a task.
#[derive(Clone, Copy, Debug)]
pub struct TaskRequest<'a> {
    /// Name of the task that asks.
    pub task: &'a TaskName,
    /// The device block of the job file.
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
    best_pick(&sort_groups(groups), ledger, request, None).map(|pick| pick.device)
}

/// Choose instances for all requests of an allocation. There is an answer for each request, in
/// their order. Either all can be claimed together, or at least one is an error. Errors are those
/// of taking the requests one after the other, where instances of earlier requests count as held by
/// `alloc`.
///
/// Beyond [`DEVICE_REQUESTS_SEARCHED_MAX`] requests they are only taken one after the other.
#[must_use]
pub fn choose_all(
    groups: &[DeviceGroup],
    ledger: &DeviceLedger,
    alloc: AllocId,
    wanted: &[TaskRequest<'_>],
) -> Vec<Result<AllocatedDevice, NoDevice>> {
    let groups = sort_groups(groups);
    let turns = pick_in_turn(&groups, ledger, alloc, wanted);
    let served = turns.iter().all(Result::is_ok);
    let score = turns.iter().flatten().map(|pick| pick.score).sum::<i64>();
    if !(wanted.len() == 1 && served) && wanted.len() <= DEVICE_REQUESTS_SEARCHED_MAX {
        let choices = choices(&groups, ledger, wanted);
        if let Some(solution) =
            solve::best_solution(&choices).filter(|best| !served || best.score > score)
        {
            let picks = choices.iter().zip(solution.picks);
            let devices = picks.filter_map(|(choice, (at, ids))| {
                choice.offers.get(at).map(|offer| Ok(allocated_device(offer, &ids)))
            });
            return devices.collect();
        }
    }
    turns.into_iter().map(|turn| turn.map(|pick| pick.device)).collect()
}

/// The instances chosen for one request.
struct Pick {
    device: AllocatedDevice,
    score: i64,
    node: Option<u32>,
}

fn sort_groups(groups: &[DeviceGroup]) -> Vec<&DeviceGroup> {
    let mut sorted: Vec<&DeviceGroup> = groups.iter().collect();
    sorted.sort_by(|a, b| (&a.key, &a.plugin).cmp(&(&b.key, &b.plugin)));
    sorted
}

fn allocated_device(offer: &DeviceOffer<'_>, ids: &[&str]) -> AllocatedDevice {
    let ids = ids.iter().map(|id| (*id).to_owned()).collect();
    AllocatedDevice { group: offer.group.key.clone(), ids }
}

/// The best of all offers to one request.
fn best_pick(
    groups: &[&DeviceGroup],
    ledger: &DeviceLedger,
    request: &DeviceRequest,
    task_node: Option<u32>,
) -> Result<Pick, NoDevice> {
    let mut best: Option<DeviceOffer<'_>> = None;
    let mut candidates = Vec::new();
    for group in groups {
        match offer::offers_of_group(group, ledger, request, task_node) {
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
    Ok(Pick { device: allocated_device(&best, &best.free), score: best.score, node: best.node })
}

/// Serve the requests one after the other: each gets the best of what is left.
fn pick_in_turn(
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
        let pick = best_pick(groups, &ledger, request, of_task);
        let more = at + 1 < wanted.len();
        if let Some(pick) = pick.as_ref().ok().filter(|_| more) {
            nodes.extend(pick.node.map(|node| (*task, node)));
            let holder = InstanceHolder { alloc, task: (*task).clone() };
            // It cannot fail: the instances were chosen as free from this ledger.
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
) -> Vec<RequestChoice<'a>> {
    let mut tasks: Vec<&TaskName> = Vec::new();
    let choices = wanted.iter().map(|TaskRequest { task, request }| {
        let at = tasks.iter().position(|known| known == task).unwrap_or_else(|| {
            tasks.push(*task);
            tasks.len() - 1
        });
        let all =
            groups.iter().filter_map(|g| offer::offers_of_group(g, ledger, request, None).ok());
        let mut offers: Vec<DeviceOffer<'a>> = all.flatten().collect();
        offers.sort_by_key(|offer| std::cmp::Reverse(offer.score));
        RequestChoice { task: at, count: offer::count(request), offers }
    });
    choices.collect()
}

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
