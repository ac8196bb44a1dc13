//! Random histories of one node: whatever comes and however the disk does, each request has one answer,
//! each place one allocation, and in the end nothing is under way.

use super::*;
use crate::tables::PlacedBy;

/// One history.
struct History {
    play: Play,
    rng: Rng,
    asked: Vec<RequestId>,
    seed: u64,
}

impl History {
    fn new(seed: u64) -> Self {
        let mut play = Play::new();
        play.rng = Rng::from_seed(seed ^ 0x5eed);
        play.ask(ControlRequest::Ready(Some(GcPolicy { max_allocs: 6, ..GcPolicy::default() })));
        Self { play, rng: Rng::from_seed(seed), asked: Vec::new(), seed }
    }

    fn pick<T: Clone>(&self, from: &[T]) -> T {
        from[usize::try_from(self.rng.number_below(from.len() as u64)).unwrap()].clone()
    }

    fn any_owner(&self) -> Option<AllocId> {
        let live = self.play.owners.values().filter(|owner| !owner.ended);
        let live: Vec<_> = live.map(|owner| owner.newest.id).collect();
        (!live.is_empty()).then(|| self.pick(&live))
    }

    fn step(&mut self) {
        let name = self.pick(&["a", "b", "c"]);
        match self.rng.number_below(14) {
            0..=2 => {
                let count = u32::try_from(self.rng.number_below(7)).unwrap();
                let job = changed(&job(name, count), self.pick(&["x", "y"]));
                let request = self.play.register(&job);
                self.asked.push(request);
            }
            3 => {
                let purge = self.rng.number_below(2) == 0;
                let request = self.play.stop(name, purge);
                self.asked.push(request);
            }
            4 => self.stop_one(),
            5 => {
                let only = self.any_owner().filter(|_| self.rng.number_below(2) == 0);
                let request = self.play.ask(ControlRequest::Collect(only));
                self.asked.push(request);
            }
            6 => self.play.disk = self.pick(&[Disk::Works, Disk::Works, Disk::Fails, Disk::Hangs]),
            7 => self.play.disk_answers(),
            8 => {
                if let Some(id) = self.play.removing.first().copied() {
                    let left = self.pick(&[
                        RemovalLeft::Everything,
                        RemovalLeft::Directory,
                        RemovalLeft::Records,
                        RemovalLeft::Unknown,
                    ]);
                    let why = NotRemoved { why: "busy".into(), left };
                    let result = if self.rng.number_below(3) == 0 { Err(why) } else { Ok(()) };
                    self.play.removal(id, result);
                }
                self.play.slow_removals = self.rng.number_below(2) == 0;
            }
            9 => self.play.pass(Duration::from_millis(self.rng.number_below(40_000))),
            10 | 11 => {
                // Some of them want the same port.
                let port = 8_000 + u16::try_from(self.rng.number_below(6)).unwrap();
                let alloc = assigned::placed(&job(name, 1), self.rng.next_u64(), port);
                let request = self.play.change(name, JobAction::Assign(vec![alloc]));
                self.asked.push(request);
            }
            _ => {
                if let Some(id) = self.any_owner() {
                    let status = self.pick(&[ClientStatus::Running, ClientStatus::Failed]);
                    let ended = status == ClientStatus::Failed;
                    self.play.report(id, status, ended);
                }
            }
        }
        self.check();
    }

    fn stop_one(&mut self) {
        let Some(alloc) = self.any_owner() else { return };
        let job = self.play.owners[&alloc].newest.job.id.clone();
        let asked = JobAction::StopAlloc { alloc, reason: "random".into() };
        let request =
            self.play.ask(ControlRequest::Change { job, asked, skip_shutdown_delay: false });
        self.asked.push(request);
    }

    /// At every moment: each place of a registered job has one allocation that is to run.
    fn check(&self) {
        let mut places = BTreeMap::new();
        for id in self.play.live() {
            // What was placed by a change that is taken back waits for what it would have replaced.
            if self.play.removing.contains(&id) {
                continue;
            }
            let entry = self.play.machine.tables().alloc(id).unwrap();
            if entry.placed_by == PlacedBy::Server {
                continue;
            }
            let alloc = &entry.allocation;
            let place = (alloc.job.id.clone(), alloc.group.clone(), alloc.index);
            let seed = self.seed;
            assert!(places.insert(place, alloc.id).is_none(), "seed {seed}: a place twice");
        }
    }

    /// The disk works again and everything comes to rest.
    fn end(&mut self) {
        let seed = self.seed;
        self.play.disk = Disk::Works;
        self.play.slow_removals = false;
        for _ in 0..200 {
            self.play.disk_answers();
            for id in self.play.removing.clone() {
                self.play.removal(id, Ok(()));
            }
            self.play.end_stopped();
            self.play.pass(20 * SECOND);
        }
        self.check();
        assert!(self.play.machine.is_quiet(), "seed {seed}: {:?}", self.play.machine);
        for request in &self.asked {
            assert!(self.play.is_answered(*request), "seed {seed}: {request} has no answer");
        }
        let held = self.play.machine.tables().admission().allocs();
        let live: BTreeSet<_> =
            self.play.owners.values().filter(|o| !o.ended).map(|o| o.newest.id).collect();
        assert_eq!(held, live, "seed {seed}: what is assigned is assigned to what runs");
        for owner in self.play.owners.values() {
            // Of one that was taken back only the directory is left.
            let Some(entry) = self.play.machine.tables().alloc(owner.newest.id) else {
                assert!(owner.ended, "seed {seed}: an owner of what is not known");
                continue;
            };
            let known = Some(entry.allocation.modify_index);
            assert_eq!(known, Some(owner.newest.modify_index), "seed {seed}: told of the newest");
        }
        let writes = self.play.writes;
        self.play.pass(3_600 * SECOND);
        assert_eq!(self.play.writes, writes, "seed {seed}: an idle node writes nothing");
    }
}

#[test]
fn whatever_happens_each_request_is_answered_once_and_the_node_comes_to_rest() {
    let last = if std::env::var_os("OSTLER_SOAK").is_some() { 2_000 } else { 500 };
    let seeds = match std::env::var("OSTLER_TEST_SEED") {
        Ok(seed) => seed.parse().unwrap()..=seed.parse().unwrap(),
        Err(_) => 0..=last,
    };
    for seed in seeds {
        let mut history = History::new(seed);
        for _ in 0..history.rng.number_below(60) {
            history.step();
        }
        history.end();
    }
}
