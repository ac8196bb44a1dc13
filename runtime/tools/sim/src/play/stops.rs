//! What was told to stop ends within the sum of its deadlines, where nothing is broken meanwhile.
//!
//! The time counts from the stop, or from the end of the last fault of driver, device plugin and disk,
//! or from the start of the agent, whichever is last. What has the place of another that is to stop is
//! over only after that one.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::world::World;
use ostler_control::{AllocView, ControlHandle};
use ostler_model::alloc::DesiredStatus;
use ostler_model::clock;
use ostler_model::ids::AllocId;
use ostler_model::limits::{
    DRIVER_CALL_WALL_MAX, GC_DESTROY_WALL_MAX, HOOK_WALL_MAX, KILL_GRACE, STATE_LASTING_PAUSES,
    STATE_WRITE_WALL_MAX,
};

use super::agent::KILL_TIMEOUT;

/// The sum of all deadlines on the way from a stop to the end of an allocation.
pub(crate) fn bound() -> Duration {
    let write = STATE_WRITE_WALL_MAX + STATE_LASTING_PAUSES.iter().sum::<Duration>();
    // Its recovery, the driver's kill and the host's own, what a start spawned last.
    let kills = KILL_TIMEOUT + 4 * KILL_GRACE;
    // The exit is read, the run is forgotten.
    let calls = 2 * DRIVER_CALL_WALL_MAX;
    // Before the kill, after the run, at the end of the task and of the allocation.
    let hooks = 4 * HOOK_WALL_MAX;
    // The end of the run, of the task and of the allocation.
    kills + calls + hooks + 3 * write
}

/// The same to its removal.
pub(crate) fn removal_bound() -> Duration {
    bound() + GC_DESTROY_WALL_MAX
}

/// Until when it is to have ended; none: something is broken.
fn due(since: Duration, well_since: Option<Duration>) -> Option<Duration> {
    Some(since.max(well_since?) + bound())
}

/// When each allocation was told to stop, as far as this agent saw it.
type Told = BTreeMap<AllocId, Duration>;

/// Since when it counts: from the last stop of those whose place it has.
fn since(told: &Told, previous: &BTreeMap<AllocId, AllocId>, id: AllocId) -> Option<Duration> {
    let places = std::iter::successors(Some(id), |id| previous.get(id).copied());
    // Nobody has the place of himself; a chain is as long as there are allocations at most.
    places.take(previous.len() + 1).filter_map(|id| told.get(&id).copied()).max()
}

/// Look at every stop of one agent, for as long as its runtime lives.
pub(crate) async fn watch(world: World, control: ControlHandle) {
    let mut changes = control.changes();
    let (mut told, mut previous) = (Told::new(), BTreeMap::new());
    loop {
        let now = world.time();
        let allocs = control.allocs();
        // A change that the disk refused was taken back.
        for view in allocs.iter().filter(|view| view.allocation.desired == DesiredStatus::Run) {
            told.remove(&view.allocation.id);
        }
        let stops = allocs.iter().filter(|view| view.allocation.desired == DesiredStatus::Stop);
        let stops: Vec<&AllocView> = stops.collect();
        for view in &stops {
            let alloc = &view.allocation;
            told.entry(alloc.id).or_insert(now);
            previous.extend(alloc.previous.map(|before| (alloc.id, before)));
        }
        let well_since = world.lock().well_since;
        let mut next = now + bound();
        for view in stops.iter().filter(|view| !view.phase.has_ended()) {
            let id = view.allocation.id;
            let due = since(&told, &previous, id).and_then(|since| due(since, well_since));
            let Some(due) = due else { continue };
            if now >= due {
                let (status, phase) = (view.state.client_status, view.phase);
                world.lock().break_with(format!(
                    "allocation {} was told to stop, nothing is broken, and after {:?} it is \
                     {phase:?}: {status:?}",
                    id.short(),
                    bound()
                ));
                return;
            }
            next = next.min(due);
        }
        let wait = next.saturating_sub(now);
        if let Some(Err(_)) = clock::timeout(wait, changes.changed()).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::rng::Rng;

    #[test]
    fn a_stop_is_measured_from_the_end_of_the_last_fault() {
        let at = Duration::from_secs;
        assert_eq!(due(at(7), Some(at(3))), Some(at(7) + bound()));
        assert_eq!(due(at(7), Some(at(9))), Some(at(9) + bound()));
        assert_eq!(due(at(7), None), None);
    }

    #[test]
    fn what_has_the_place_of_another_is_measured_from_the_stop_of_that_one() {
        let ids = [1, 2, 3].map(|n| AllocId::new(Rng::from_seed(n).uuid()));
        let [first, second, third] = ids;
        let previous = BTreeMap::from([(third, second), (second, first)]);
        let at = Duration::from_secs;
        let told = Told::from([(first, at(9)), (third, at(4))]);
        assert_eq!(since(&told, &previous, third), Some(at(9)));
        assert_eq!(since(&told, &previous, first), Some(at(9)));
        assert_eq!(since(&told, &previous, second), Some(at(9)));
        assert_eq!(since(&Told::from([(third, at(4))]), &previous, second), None);
    }
}
