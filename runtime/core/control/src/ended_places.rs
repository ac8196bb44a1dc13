//! The places of a job whose allocations are over, kept for as long as the job has this version.
//! Pure.
//!
//! An allocation that is over may be collected at any time. Its place was filled and is done, so it
//! must not count as empty afterwards: the decision about placements reads these places too. They
//! are kept in blocks of neighbouring places, one record each. So collecting many allocations of a
//! group writes few records, and collecting one writes a small record.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use ostler_model::ids::GroupName;
use ostler_model::limits::ENDED_PLACES_PER_RECORD;
use ostler_model::planted::planted;
use ostler_model::saved::{EndedPlace, EndedPlaces, JobRecord};

/// The ended places of one version of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndedPlaceIndex {
    create_index: u64,
    version: u64,
    places: BTreeMap<GroupName, BTreeMap<u32, EndedPlace>>,
}

/// Number of the block that a place belongs to.
#[must_use]
pub const fn block_of(index: u32) -> u32 {
    index / ENDED_PLACES_PER_RECORD
}

/// Indexes of the places in a block.
#[must_use]
pub const fn indexes_of(block: u32) -> RangeInclusive<u32> {
    let first = block.saturating_mul(ENDED_PLACES_PER_RECORD);
    first..=first.saturating_add(ENDED_PLACES_PER_RECORD - 1)
}

impl EndedPlaceIndex {
    /// Are these the places of this version of this job? A job that was purged and came again is
    /// another one.
    #[must_use]
    pub const fn is_of(&self, record: &JobRecord) -> bool {
        self.create_index == record.create_index && self.version == record.version
    }

    /// Has the allocation of this place ended?
    #[must_use]
    pub fn has_ended(&self, group: &GroupName, index: u32) -> bool {
        let known = self.places.get(group).is_some_and(|places| places.contains_key(&index));
        known && !planted("ended-place-forgotten")
    }

    /// Every ended place, with its group.
    pub fn iter(&self) -> impl Iterator<Item = (&GroupName, &EndedPlace)> {
        self.places.iter().flat_map(|(group, places)| places.values().map(move |one| (group, one)))
    }

    /// Enter places of the job's present version. Those of another version are forgotten.
    pub fn enter(
        &mut self,
        record: &JobRecord,
        group: &GroupName,
        places: impl IntoIterator<Item = (u32, EndedPlace)>,
    ) {
        if !self.is_of(record) {
            let (create_index, version) = (record.create_index, record.version);
            *self = Self { create_index, version, places: BTreeMap::new() };
        }
        self.places.entry(group.clone()).or_default().extend(places);
    }

    /// The record of one block.
    #[must_use]
    pub fn block(&self, group: &GroupName, block: u32) -> EndedPlaces {
        let first = block.saturating_mul(ENDED_PLACES_PER_RECORD);
        let last = first.saturating_add(ENDED_PLACES_PER_RECORD - 1);
        let there = self.places.get(group).into_iter().flat_map(|all| all.range(first..=last));
        EndedPlaces {
            create_index: self.create_index,
            version: self.version,
            places: there.map(|(index, place)| (*index, place.clone())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use ostler_model::alloc::ClientStatus;
    use ostler_model::ids::{AllocId, JobId};
    use ostler_model::job::{Job, JobKind};
    use ostler_model::rng::Rng;
    use ostler_model::saved::JobOrigin;
    use ostler_model::time::Timestamp;
    use ostler_testing::fixtures;

    fn record(create_index: u64, version: u64) -> JobRecord {
        let task = fixtures::task("t").unwrap();
        let alloc = fixtures::allocation(JobKind::Batch, vec![task], &Rng::from_seed(1)).unwrap();
        let job = Job { id: JobId::new("j").unwrap(), ..(*alloc.job).clone() };
        JobRecord {
            job: std::sync::Arc::new(job),
            version,
            submitted_at: Timestamp::default(),
            create_index,
            modify_index: 0,
            job_modify_index: 0,
            stopped: false,
            origin: JobOrigin::Api,
            stable: false,
        }
    }

    fn place(n: u128) -> EndedPlace {
        EndedPlace {
            alloc: AllocId::new(uuid::Uuid::from_u128(n)),
            status: ClientStatus::Complete,
            restarts: 0,
            ended_at: Timestamp::default(),
        }
    }

    #[test]
    fn places_are_those_of_one_version_and_another_one_begins_anew() {
        let (group, first, second) = (GroupName::new("g").unwrap(), record(5, 0), record(5, 1));
        let mut ended = EndedPlaceIndex::default();
        ended.enter(&first, &group, [(3, place(1))]);
        assert!(ended.has_ended(&group, 3) && ended.is_of(&first));
        assert!(!ended.is_of(&second) && !ended.is_of(&record(6, 0)), "a purged one's namesake");
        ended.enter(&second, &group, [(4, place(2))]);
        assert!(ended.has_ended(&group, 4) && !ended.has_ended(&group, 3));
    }

    #[test]
    fn a_block_holds_the_places_of_its_range_and_comes_back_from_its_record() {
        let (group, record) = (GroupName::new("g").unwrap(), record(5, 2));
        let most = ENDED_PLACES_PER_RECORD;
        let mut ended = EndedPlaceIndex::default();
        let indexes = [0, most - 1, most, most + 7, 9 * most];
        ended.enter(&record, &group, indexes.map(|index| (index, place(u128::from(index)))));
        let of = |block| ended.block(&group, block).places.into_keys().collect::<Vec<_>>();
        assert_eq!(of(0), [0, most - 1]);
        assert_eq!(of(1), [most, most + 7]);
        assert_eq!((of(2), of(9)), (vec![], vec![9 * most]));
        let mut again = EndedPlaceIndex::default();
        for block in [0, 1, 9] {
            again.enter(&record, &group, ended.block(&group, block).places);
        }
        assert_eq!(again, ended);
        assert!(indexes.iter().all(|index| of(block_of(*index)).contains(index)));
    }
}
