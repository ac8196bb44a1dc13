//! Allocations that a server placed.

use super::*;
use crate::tables::PlacedBy;
use ostler_model::resources::AllocatedPort;

/// An allocation as a server places it, with a port of the node.
pub(super) fn placed(job: &Job, seed: u64, port: u16) -> Allocation {
    let rng = Rng::from_seed(seed);
    let alloc = fixtures::allocation(ostler_model::job::JobKind::Service, vec![task("t")], &rng);
    let id = AllocId::new(rng.uuid());
    let label = "http".to_owned();
    let ports = vec![AllocatedPort {
        label,
        value: port,
        to: port,
        host_ip: "127.0.0.1".into(),
        task: None,
    }];
    let job = Arc::new(job.clone());
    Allocation { id, job, group: "g".parse().unwrap(), ports, ..alloc.unwrap() }
}

fn assign(play: &mut Play, allocs: &[&Allocation]) -> DecidedChange {
    let allocs: Vec<_> = allocs.iter().map(|alloc| (*alloc).clone()).collect();
    let request = play.change("web", JobAction::Assign(allocs));
    play.changed(request).unwrap()
}

fn stop(play: &mut Play, alloc: AllocId) -> DecidedChange {
    let reason = "the server says so".to_owned();
    let request = play.change("web", JobAction::StopAlloc { alloc, reason });
    play.changed(request).unwrap()
}

#[test]
fn what_a_server_places_runs_is_on_record_as_its_own_and_makes_no_job() {
    let mut play = Play::new();
    let (one, two) = (placed(&job("web", 1), 1, 8001), placed(&job("web", 1), 2, 8002));
    let change = assign(&mut play, &[&one, &two]);
    assert_eq!(change.placed.len(), 2);
    assert_eq!(play.live().len(), 2, "both are of one place, and none is too much");
    for id in [one.id, two.id] {
        assert!(play.records.contains_key(&format!("alloc {id}")));
        assert!(play.records.contains_key(&format!("assigned {id}")));
    }
    assert_eq!(play.status("web"), None, "no job is registered");
    play.report(one.id, ClientStatus::Failed, true);
    play.pass(100 * SECOND);
    assert_eq!(play.live(), [two.id], "nothing is put in its place");
    assert_eq!(play.removed, [], "and it stays until the server has heard of its end");
    assert!(play.machine.is_quiet());
}

#[test]
fn it_is_not_collected_before_servers_know_how_it_ended_however_full_the_disk_is() {
    let mut play = Play::new();
    let policy = GcPolicy { interval: 60 * SECOND, ..GcPolicy::default() };
    play.fs = Some(FsUse { disk_used: 95, disk_total: 100, ..FsUse::default() });
    play.ask(ControlRequest::Ready(Some(policy)));
    let one = placed(&job("web", 1), 1, 8001);
    assign(&mut play, &[&one]);
    stop(&mut play, one.id);
    play.report(one.id, ClientStatus::Complete, true);
    play.pass(600 * SECOND);
    assert_eq!(play.removed, []);
    play.feed(ControlEvent::EndsTold(vec![one.id]));
    play.pass(60 * SECOND);
    assert_eq!(play.removed, [one.id]);
}

#[test]
fn the_same_again_changes_nothing_and_a_newer_version_is_told() {
    let mut play = Play::new();
    let one = placed(&job("web", 1), 1, 8001);
    assign(&mut play, &[&one]);
    let writes = play.writes;
    assert_eq!(assign(&mut play, &[&one]).done_index(), None);
    assert_eq!(play.writes, writes);
    let next = Allocation { job: Arc::new(job("web", 3)), job_version: 1, ..one.clone() };
    assert_eq!(assign(&mut play, &[&next]).updated_allocs(), [one.id]);
    let owner = &play.owners[&one.id];
    assert_eq!((owner.told, owner.newest.job_version), (1, 1));
    assert_eq!(owner.newest.ports, one.ports);
    assert_eq!(assign(&mut play, &[&one]).done_index(), None, "an older answer of a server");
    assert_eq!(play.owners[&one.id].told, 1);
}

#[test]
fn a_stop_stays_whatever_an_older_answer_says() {
    let mut play = Play::new();
    let one = placed(&job("web", 1), 1, 8001);
    assign(&mut play, &[&one]);
    assert_eq!(stop(&mut play, one.id).stopped_allocs(), [one.id]);
    let newer = Allocation { job_version: 1, ..one.clone() };
    assert_eq!(assign(&mut play, &[&newer]).done_index(), None);
    play.end_stopped();
    assert_eq!(assign(&mut play, &[&newer]).done_index(), None);
    assert_eq!(play.live(), []);
    let never = Allocation { desired: DesiredStatus::Stop, ..placed(&job("web", 1), 2, 8002) };
    assert_eq!(assign(&mut play, &[&never]).done_index(), None, "nothing is here to be stopped");
}

#[test]
fn what_another_one_holds_is_refused_by_name_until_it_is_free() {
    let mut play = Play::new();
    let (one, two) = (placed(&job("web", 1), 1, 8001), placed(&job("web", 1), 2, 8001));
    let other = placed(&job("web", 1), 3, 8003);
    assign(&mut play, &[&one]);
    let change = assign(&mut play, &[&two, &other]);
    assert_eq!(change.placed.len(), 1, "what does fit is not held up");
    let (id, why) = &change.refused[0];
    assert!(*id == two.id && why.contains("8001"), "{why}");
    stop(&mut play, one.id);
    play.end_stopped();
    assert_eq!(assign(&mut play, &[&two]).refused, []);
    assert_eq!(play.live().len(), 2);
}

#[test]
fn an_id_of_a_jobs_own_allocation_is_refused() {
    let mut play = Play::new();
    play.register(&job("web", 1));
    let own = play.live()[0];
    let strange = Allocation { id: own, ..placed(&job("web", 1), 1, 8001) };
    let change = assign(&mut play, &[&strange]);
    assert_eq!(change.refused[0].0, own);
    assert_eq!(play.live(), [own]);
}

#[test]
fn on_a_disk_that_fails_none_of_them_stays() {
    let mut play = Play::new();
    play.disk = Disk::Fails;
    let one = placed(&job("web", 1), 1, 8001);
    let request = play.change("web", JobAction::Assign(vec![one.clone()]));
    assert!(play.changed(request).is_err());
    assert_eq!(play.live(), []);
    play.disk = Disk::Works;
    assert_eq!(assign(&mut play, &[&one]).placed.len(), 1, "its port is free again");
}

#[test]
fn after_a_restart_they_are_the_servers_still() {
    let mut play = Play::new();
    let (one, two) = (placed(&job("web", 1), 1, 8001), placed(&job("web", 1), 2, 8002));
    let stopped = Allocation { desired: DesiredStatus::Stop, ..two };
    let over = ostler_model::saved::SavedAllocState { finished: true, ..Default::default() };
    let allocs = vec![(Arc::new(one.clone()), None), (Arc::new(stopped.clone()), Some(over))];
    let assigned = BTreeSet::from([one.id, stopped.id]);
    let restored = RestoredNode { allocs, assigned, own: true, ..RestoredNode::default() };
    play.ask(ControlRequest::Restore(Box::new(restored)));
    let placed_by = |id| play.machine.tables().alloc(id).map(|entry| entry.placed_by);
    assert_eq!(placed_by(one.id), Some(PlacedBy::Server));
    assert_eq!(placed_by(stopped.id), Some(PlacedBy::Server), "it is no purged job's");
    assert_eq!(play.removed, []);
    assert_eq!(play.live(), [one.id]);
    assert_eq!(assign(&mut play, &[&one]).done_index(), None);
}
