//! The ids of evaluations and of scaling policies. They are made of what they stand for, so nothing is recorded.

use sha2::{Digest as _, Sha256};

use ostler_agent::RegisterOutcome;
use ostler_model::alloc::Allocation;
use ostler_model::ids::JobId;
use ostler_model::job::{Job, TaskGroup};

/// The seed of the id of an evaluation that will place the successor of a failed allocation.
const FOLLOWUP_SEED: &[u8] = b"ostler followup\0";

/// The seed of the id of an evaluation; the job and the index are hashed after it.
pub(super) const SEED: &[u8] = b"ostler evaluation\0";

/// The seed of the id of the evaluation of a registration that changed nothing.
pub(super) const UNCHANGED_SEED: &[u8] = b"ostler unchanged\0";
/// The seed of the id of the evaluation of what waits.
pub(super) const BLOCKED_SEED: &[u8] = b"ostler blocked\0";
/// The seed of the id of the scaling policy of a group.
const POLICY_SEED: &[u8] = b"ostler scaling\0";

/// The id of the evaluation of the change of a job at an index: a UUID, always the same.
pub(super) fn evaluation_id(job: &JobId, index: u64) -> String {
    id_of(SEED, job, index)
}

/// The id of the evaluation of a registration.
pub(super) fn id_of_registration(job: &JobId, registered: &RegisterOutcome) -> String {
    match registered.index {
        Some(index) => evaluation_id(job, index),
        None => id_of_unchanged(job, registered.job_modify_index),
    }
}

/// The id of the evaluation of a registration that found nothing to do for this version of a job.
pub(super) fn id_of_unchanged(job: &JobId, job_modify_index: u64) -> String {
    id_of(UNCHANGED_SEED, job, job_modify_index)
}

/// The id of the evaluation that will place the successor of an allocation.
pub(super) fn followup_id(alloc: &Allocation) -> String {
    uuid_of(&[FOLLOWUP_SEED, alloc.id.as_bytes()])
}

/// The id of the scaling policy of a group. It stays the same as long as the job exists.
pub(super) fn policy_id(job: &Job, create_index: u64, group: &TaskGroup) -> String {
    let (id, name) = (job.id.as_str().as_bytes(), group.name.as_str().as_bytes());
    uuid_of(&[POLICY_SEED, &create_index.to_le_bytes(), id, b"\0", name])
}

/// The id that belongs to a job and an index, of the kind that the seed stands for.
pub(super) fn id_of(seed: &[u8], job: &JobId, index: u64) -> String {
    uuid_of(&[seed, &index.to_le_bytes(), job.as_str().as_bytes()])
}

fn uuid_of(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    parts.iter().for_each(|part| hash.update(part));
    let digest: [u8; 32] = hash.finalize().into();
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, ..] = digest;
    let bytes = [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p];
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_id_of_an_evaluation_is_a_uuid_of_the_job_and_the_index_alone() {
        let (web, db) = (JobId::new("web").unwrap(), JobId::new("db").unwrap());
        assert_eq!(evaluation_id(&web, 7), evaluation_id(&web, 7));
        assert_eq!(evaluation_id(&web, 7).len(), 36);
        assert_eq!(
            evaluation_id(&web, 7).as_bytes().get(14),
            Some(&b'8'),
            "a UUID of one's own kind"
        );
        let others = [
            evaluation_id(&web, 8),
            evaluation_id(&db, 7),
            evaluation_id(&web, u64::MAX),
            id_of(UNCHANGED_SEED, &web, 7),
            id_of(BLOCKED_SEED, &web, 7),
        ];
        assert!(!others.contains(&evaluation_id(&web, 7)));
    }
}
