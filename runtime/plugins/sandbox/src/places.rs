//! Room for guests that live long. A guest that finds no room waits, and its owner is told why.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::CallError;
use super::pooling::PoolReport;

/// The places of one pool. They are given in the order in which they are asked for.
#[derive(Debug)]
pub(super) struct GuestPlaces {
    free: Arc<Semaphore>,
    total: u32,
    /// What a person can do to have more places.
    remedy: Arc<str>,
}

/// Room for one guest. Dropping it gives the room back, so it must be dropped after
/// the guest's store.
#[derive(Debug)]
pub struct GuestPlace {
    _held: OwnedSemaphorePermit,
}

impl GuestPlaces {
    pub(super) fn new(pool: &PoolReport) -> Self {
        let free = Arc::new(Semaphore::new(pool.got as usize));
        Self { free, total: pool.got, remedy: pool.remedy().into() }
    }

    /// Take a place for a guest that needs this many slots. The wait has no bound, and dropping the
    /// future ends it. `say` is called once with the reason if there is a wait.
    pub(super) fn take(
        &self,
        slots: u32,
        say: impl FnOnce(String) + Send + 'static,
    ) -> impl Future<Output = Result<GuestPlace, CallError>> + Send + 'static {
        let (free, total, remedy) = (Arc::clone(&self.free), self.total, Arc::clone(&self.remedy));
        async move {
            let none = |message: String| CallError::PoolExhausted { message };
            if slots > total {
                let text = format!("it needs {slots} places and this process has {total}");
                return Err(none(format!("{text}; {remedy}")));
            }
            let held = match Arc::clone(&free).try_acquire_many_owned(slots) {
                Ok(held) => held,
                Err(_full) => {
                    let used = (total as usize).saturating_sub(free.available_permits());
                    say(format!(
                        "waits for a place: {used} of {total} for WASM tasks are taken; \
                                 it starts when one of them ends; {remedy}"
                    ));
                    let held = free.acquire_many_owned(slots).await;
                    held.map_err(|_closed| none("the sandbox ends".to_owned()))?
                }
            };
            Ok(GuestPlace { _held: held })
        }
    }

    /// How many slots are taken.
    pub(super) fn count_taken(&self) -> u32 {
        let free = u32::try_from(self.free.available_permits()).unwrap_or(u32::MAX);
        self.total.saturating_sub(free)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Mutex;

    use futures_util::FutureExt as _;

    use super::*;
    use crate::pooling::PoolLowered;
    use ostler_engine::EngineKind;

    fn places(got: u32) -> GuestPlaces {
        let lowered = Some(PoolLowered::MapCount { limit: 9_000 });
        GuestPlaces::new(&PoolReport { kind: EngineKind::Task, want: 10, got, lowered })
    }

    fn hushed(_: String) {}

    #[test]
    fn a_guest_for_which_there_is_room_hears_of_no_wait() {
        let places = places(2);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&heard);
        let place = places.take(2, move |text| said.lock().unwrap().push(text));
        let _place = place.now_or_never().unwrap().unwrap();
        assert!(heard.lock().unwrap().is_empty());
        assert_eq!(places.count_taken(), 2);
    }

    #[test]
    fn who_comes_when_all_are_taken_waits_is_told_why_and_starts_when_one_ends() {
        let places = places(2);
        let [first, _second] = [1, 1].map(|n| places.take(n, hushed).now_or_never().unwrap());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let said = Arc::clone(&heard);
        let mut third = Box::pin(places.take(1, move |text| said.lock().unwrap().push(text)));
        assert!((&mut third).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        let texts = heard.lock().unwrap().clone();
        let [text] = texts.as_slice() else { unreachable!("said once: {texts:?}") };
        assert!(text.contains("2 of 2") && text.contains("vm.max_map_count"), "{text}");
        drop(first);
        assert!(third.now_or_never().unwrap().is_ok());
    }

    #[test]
    fn a_wait_that_is_given_up_leaves_its_turn_to_the_next() {
        let places = places(1);
        let first = places.take(1, hushed).now_or_never().unwrap();
        let mut second = Box::pin(places.take(1, hushed));
        let mut third = Box::pin(places.take(1, hushed));
        assert!((&mut second).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        drop(second);
        drop(first);
        assert!(third.now_or_never().unwrap().is_ok());
    }

    #[test]
    fn a_guest_of_several_memories_is_not_overtaken_by_small_ones() {
        let places = places(3);
        let first = places.take(2, hushed).now_or_never().unwrap();
        let mut large = Box::pin(places.take(3, hushed));
        let mut small = Box::pin(places.take(1, hushed));
        assert!((&mut large).now_or_never().is_none());
        assert!((&mut small).now_or_never().is_none());
        drop(first);
        assert!((&mut small).now_or_never().is_none());
        let large = large.now_or_never().unwrap().unwrap();
        drop(large);
        assert!(small.now_or_never().unwrap().is_ok());
    }

    #[test]
    fn a_process_without_places_refuses_instead_of_keeping_guests_waiting() {
        let refused = places(0).take(1, hushed).now_or_never().unwrap().unwrap_err();
        assert!(matches!(&refused, CallError::PoolExhausted { .. }), "{refused}");
    }
}
