//! Chooses an offer for each of several requests, so that no instance is assigned twice.
//!
//! ```text
//!   request 1: offers, best first ─┐
//!   request 2: offers, best first ─┼─► depth first, the highest sum of scores; first found wins
//!   …                              ┘        │ of each group: can every request have its own ids?
//!                                           ▼
//!                                   ids by augmenting paths
//! ```
//! Taking the requests one after the other can fail where another order would not: the first may
//! take the only instance that the second can use.

use std::collections::{BTreeMap, VecDeque};

use super::offer::DeviceOffer;
use ostler_model::device::GroupKey;
use ostler_model::limits::DEVICE_COMBINATIONS_MAX;

/// One request and every way to serve it.
pub(super) struct RequestChoice<'a> {
    /// Number of the task. Requests of one task that ask for a NUMA node share the node.
    pub task: usize,
    /// Number of instances wanted.
    pub count: usize,
    /// The ways over all groups, best first.
    pub offers: Vec<DeviceOffer<'a>>,
}

/// The offer each request takes, and its ids.
pub(super) struct Solution<'a> {
    pub picks: Vec<(usize, Vec<&'a str>)>,
    pub score: i64,
}

/// The solution with the highest sum of scores. Among equal ones the first request gets its best
/// offer, then the second, and so on. `None` when there is no solution, or when none was found
/// within [`DEVICE_COMBINATIONS_MAX`] steps.
pub(super) fn best_solution<'a>(choices: &[RequestChoice<'a>]) -> Option<Solution<'a>> {
    let bounds = bounds(choices);
    let mut best: Option<(i64, Vec<usize>)> = None;
    // The offers taken so far, and the next one to try for the request after them.
    let (mut taken, mut next, mut score) = (Vec::<usize>::new(), 0, 0_i64);
    for _ in 0..DEVICE_COMBINATIONS_MAX {
        let depth = taken.len();
        let hopeful = bounds
            .get(depth)
            .is_some_and(|rest| best.as_ref().is_none_or(|(most, _)| score + rest > *most));
        if depth == choices.len() && hopeful {
            best = Some((score, taken.clone()));
        }
        let offer = choices.get(depth).and_then(|choice| choice.offers.get(next));
        match offer.filter(|_| hopeful) {
            Some(offer) => {
                taken.push(next);
                if fits(choices, &taken) {
                    score += offer.score;
                    next = 0;
                } else {
                    taken.pop();
                    next += 1;
                }
            }
            // There is no further offer here, so the request before takes its next offer.
            None => {
                let Some(before) = taken.pop() else { break };
                let left = choices.get(taken.len()).and_then(|c| c.offers.get(before));
                score -= left.map_or(0, |offer| offer.score);
                next = before + 1;
            }
        }
    }
    let (score, taken) = best?;
    let mut picks: Vec<(usize, Vec<&str>)> = taken.iter().map(|at| (*at, Vec::new())).collect();
    for members in groups(choices, &taken).into_values() {
        for (member, ids) in members.iter().zip(assign(choices, &taken, &members)?) {
            if let Some(pick) = picks.get_mut(*member) {
                pick.1 = ids;
            }
        }
    }
    Some(Solution { picks, score })
}

/// For each depth, the highest score that the requests from there on can add.
fn bounds(choices: &[RequestChoice<'_>]) -> Vec<i64> {
    let mut bounds = vec![0; choices.len() + 1];
    let mut sum = 0_i64;
    for (at, choice) in choices.iter().enumerate().rev() {
        sum += choice.offers.iter().map(|offer| offer.score).max().unwrap_or(0);
        if let Some(bound) = bounds.get_mut(at) {
            *bound = sum;
        }
    }
    bounds
}

fn offer_of<'c, 'a>(
    choices: &'c [RequestChoice<'a>],
    taken: &[usize],
    at: usize,
) -> Option<&'c DeviceOffer<'a>> {
    choices.get(at)?.offers.get(*taken.get(at)?)
}

/// Can the newest offer be taken together with the earlier ones?
fn fits(choices: &[RequestChoice<'_>], taken: &[usize]) -> bool {
    let newest = taken.len().saturating_sub(1);
    let (Some(choice), Some(offer)) = (choices.get(newest), offer_of(choices, taken, newest))
    else {
        return false;
    };
    let others = || choices.iter().enumerate().take(newest);
    let elsewhere = others().any(|(at, other)| {
        let node = offer_of(choices, taken, at).and_then(|offer| offer.node);
        other.task == choice.task && node.is_some() && offer.node.is_some() && node != offer.node
    });
    let same =
        |at: usize| offer_of(choices, taken, at).is_some_and(|o| o.group.key == offer.group.key);
    let members: Vec<usize> =
        others().map(|(at, _)| at).filter(|at| same(*at)).chain([newest]).collect();
    !elsewhere && (members.len() == 1 || assign(choices, taken, &members).is_some())
}

/// The requests, grouped by the device group they take from.
fn groups<'a>(
    choices: &[RequestChoice<'a>],
    taken: &[usize],
) -> BTreeMap<&'a GroupKey, Vec<usize>> {
    let mut groups: BTreeMap<_, Vec<usize>> = BTreeMap::new();
    for at in 0..taken.len() {
        if let Some(offer) = offer_of(choices, taken, at) {
            groups.entry(&offer.group.key).or_default().push(at);
        }
    }
    groups
}

/// Ids for each of the requests `members`, which take from one group. `None` when there are not
/// enough ids for all of them.
fn assign<'a>(
    choices: &[RequestChoice<'a>],
    taken: &[usize],
    members: &[usize],
) -> Option<Vec<Vec<&'a str>>> {
    let wishes: Vec<(usize, &[&'a str])> = members
        .iter()
        .map(|at| Some((choices.get(*at)?.count, &*offer_of(choices, taken, *at)?.free)))
        .collect::<Option<_>>()?;
    // The request with the fewest ids to choose from goes first: where the lists contain each
    // other, no request is then in the way of another.
    let mut order: Vec<usize> = (0..wishes.len()).collect();
    order.sort_by_key(|at| wishes.get(*at).map_or(0, |(_, free)| free.len()));
    let mut owners: BTreeMap<&'a str, usize> = BTreeMap::new();
    for at in order {
        let (count, free) = wishes.get(at)?;
        let unowned: Vec<&'a str> =
            free.iter().filter(|id| !owners.contains_key(*id)).take(*count).copied().collect();
        let missing = count.saturating_sub(unowned.len());
        owners.extend(unowned.into_iter().map(|id| (id, at)));
        for _ in 0..missing {
            augment(&wishes, &mut owners, at)?;
        }
    }
    let mut ids = vec![Vec::new(); wishes.len()];
    for (id, at) in owners {
        ids.get_mut(at)?.push(id);
    }
    Some(ids)
}

/// Find one more id for the request `start`: other requests move to ids that are still free.
fn augment<'a>(
    wishes: &[(usize, &[&'a str])],
    owners: &mut BTreeMap<&'a str, usize>,
    start: usize,
) -> Option<()> {
    let mut asked: BTreeMap<&'a str, usize> = BTreeMap::new();
    let mut gives: BTreeMap<usize, &'a str> = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for id in wishes.get(at)?.1.iter().copied() {
            if asked.contains_key(id) || owners.get(id) == Some(&at) {
                continue;
            }
            asked.insert(id, at);
            match owners.get(id).copied() {
                Some(owner) if owner != start && !gives.contains_key(&owner) => {
                    gives.insert(owner, id);
                    queue.push_back(owner);
                }
                Some(_) => {}
                None => {
                    let (mut id, mut to) = (id, at);
                    loop {
                        owners.insert(id, to);
                        if to == start {
                            return Some(());
                        }
                        id = gives.get(&to)?;
                        to = *asked.get(id)?;
                    }
                }
            }
        }
    }
    None
}
