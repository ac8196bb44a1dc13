//! Reserves and releases, over several plugins and with plugins that fail.

use std::collections::BTreeSet;
use std::sync::Mutex as StdMutex;

use super::*;
use ostler_model::device::Health;
use ostler_model::limits::DEVICE_LOADED_WALL;

/// Notes what is released.
#[derive(Default)]
struct Notes {
    calls: StdMutex<Vec<String>>,
    refuse: StdMutex<bool>,
}

impl LedgerBook for Notes {
    fn keep<'a>(
        &'a self,
        holder: &'a InstanceHolder,
    ) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(format!("keep {}", holder.task));
            if *self.refuse.lock().unwrap() {
                return Err(PluginCallError::Recoverable("the disk is full".into()));
            }
            Ok(())
        })
    }

    fn clear_holder<'a>(&'a self, holder: &'a InstanceHolder) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            self.calls.lock().unwrap().push(format!("released {}", holder.task));
        })
    }
}

struct Two {
    bench: Bench,
    p: Fake,
    q: Fake,
    notes: Arc<Notes>,
}

impl Two {
    async fn new() -> Self {
        let notes = Arc::new(Notes::default());
        let bench = Bench::with_book(Some(Arc::clone(&notes) as Arc<dyn LedgerBook>));
        let p = Fake::new("p", vec![group("p", "a", &["0", "1"])]);
        let q = Fake::new("q", vec![group("q", "b", &["0", "1"])]);
        bench.add(&p).await;
        bench.add(&q).await;
        Self { bench, p, q, notes }
    }

    async fn reserve(&self, who: &InstanceHolder) -> Result<Reservation, PluginCallError> {
        let devices = [assigned("a", &["0"]), assigned("b", &["0"])];
        self.bench.manager.reserve(who.alloc, &who.task, &devices).await
    }

    async fn release(&self, who: &InstanceHolder) {
        self.bench.manager.release(who.alloc, &who.task).await;
    }

    fn calls(&self) -> Vec<String> {
        let of = |fake: &Fake| -> Vec<String> {
            let calls = fake.script().calls.clone();
            calls.into_iter().filter(|c| c.starts_with("re")).collect()
        };
        [of(&self.p), of(&self.q)].concat()
    }

    fn notes(&self) -> Vec<String> {
        self.notes.calls.lock().unwrap().clone()
    }

    fn prepared(&self) -> usize {
        self.p.script().prepared.len() + self.q.script().prepared.len()
    }

    fn state(&self) -> Option<(ClaimState, u32)> {
        self.bench.manager.claims().pop().map(|claim| (claim.state, claim.tries))
    }
}

#[tokio::test(start_paused = true)]
async fn what_all_plugins_say_goes_to_the_task_and_each_is_released_once() {
    let two = Two::new().await;
    let who = holder(1, "t");
    let reserved = two.reserve(&who).await.unwrap();
    let expected = [("p".to_owned(), "0".to_owned()), ("q".to_owned(), "0".to_owned())];
    assert_eq!(reserved.env, expected);
    assert_eq!(two.state(), Some((ClaimState::Reserved, 0)));
    assert_eq!(two.reserve(&who).await.unwrap(), reserved, "the same before each start");
    two.release(&who).await;
    two.release(&who).await;
    assert_eq!(two.calls().iter().filter(|call| call.starts_with("release")).count(), 2);
    assert_eq!(two.notes(), ["keep t", "released t"]);
    assert_eq!(two.bench.manager.end_alloc(who.alloc), BTreeSet::new());
    assert_eq!(two.prepared(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_is_waited_for_while_plugins_are_being_loaded_and_no_longer() {
    let bench = Bench::new();
    let loading = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        bench.node.update(|node| node.loading = names);
    };
    loading(&["p", "q"]);
    let reserve = |seed, group: &str| {
        let (manager, who, devices) =
            (bench.manager.clone(), holder(seed, "t"), [assigned(group, &["0"])]);
        tokio::spawn(async move { manager.reserve(who.alloc, &who.task, &devices).await })
    };
    let reserving = reserve(1, "a");
    clock::sleep(SECOND).await;
    assert!(!reserving.is_finished(), "its plugin may come");
    bench.add(&Fake::new("p", vec![group("p", "a", &["0"])])).await;
    assert!(reserving.await.unwrap().is_ok(), "though others are being loaded");

    let never = reserve(2, "b");
    clock::sleep(SECOND).await;
    loading(&[]);
    let error = never.await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("no plugin reports the device group"), "{error}");
    loading(&["q"]);
    let begun = clock::Stopwatch::start();
    assert!(reserve(3, "b").await.unwrap().is_err());
    assert!(begun.elapsed() <= DEVICE_LOADED_WALL + SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_one_plugin_releases_what_the_other_reserved() {
    let two = Two::new().await;
    two.q.script().reserve.push_back(Reply::no());
    let error = two.reserve(&holder(1, "t")).await.unwrap_err();
    assert_eq!(error.to_string(), "no");
    assert_eq!(two.calls(), ["reserve a", "release a", "reserve b"]);
    assert_eq!(two.state(), Some((ClaimState::Claimed, 0)));
    assert!(two.reserve(&holder(1, "t")).await.is_ok(), "the claim is there still");
}

#[tokio::test(start_paused = true)]
async fn what_would_hide_what_another_plugin_shows_is_refused_and_both_are_released() {
    let two = Two::new().await;
    two.p.script().mounts = vec![("/srv/p", "/shared/p")];
    for (host, task) in [("/srv/q", "/shared"), ("/srv/q", "/shared/p"), ("/srv/q", "/local")] {
        two.q.script().mounts = vec![(host, task)];
        let error = two.reserve(&holder(1, "t")).await.unwrap_err();
        assert!(matches!(error, PluginCallError::NotGranted(_)), "{task}: {error:?}");
        assert!(error.to_string().contains("what plugin q answers for acme/gpu/b"), "{error}");
        assert_eq!(two.prepared(), 0, "what was reserved with an answer that is not taken, too");
    }
    two.q.script().mounts = vec![("/srv/q", "/shared/q"), ("/srv/q", "/shared/q")];
    let reserved = two.reserve(&holder(1, "t")).await.unwrap();
    let shown: Vec<_> = reserved.mounts.iter().map(|mount| mount.task_path.as_str()).collect();
    assert_eq!(shown, ["/shared/p", "/shared/q"], "one thing is there once");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_its_plugin_calls_unhealthy_is_fit_for_no_start_until_it_is_well() {
    let two = Two::new().await;
    let held = [assigned("b", &["0"]), assigned("a", &["1"])];
    let fit = || two.bench.manager.fit(&held).map_err(|error| error.to_string());
    assert_eq!(fit(), Ok(()));
    let ill = |id: usize, state, reason: &str| {
        let health = Health { state, reason: reason.to_owned() };
        two.p.script().groups[0].instances[id].health = health;
    };
    ill(0, HealthState::Unhealthy, "another's");
    ill(1, HealthState::Unhealthy, "the fan stopped");
    two.bench.pass(11 * SECOND).await;
    let said = "device acme/gpu/a instance 1, which the task holds, is unhealthy: the fan stopped";
    assert_eq!(fit(), Err(said.to_owned()));
    assert!(two.bench.manager.fit(&held).unwrap_err().is_recoverable());
    two.p.script().fingerprint = Reply::traps();
    two.bench.pass(11 * SECOND).await;
    assert_eq!(fit(), Ok(()), "of a plugin that fails nothing is known: it is asked");
    two.p.script().fingerprint = Reply::Well;
    ill(1, HealthState::Undetected, "");
    two.bench.pass(20 * SECOND).await;
    assert!(fit().unwrap_err().contains("is not detected: no reason given"), "{:?}", fit());
    ill(1, HealthState::Healthy, "");
    two.bench.pass(11 * SECOND).await;
    assert_eq!(fit(), Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_device_pulled_out_unnoticed_may_come_back_and_its_task_is_started_then() {
    let two = Two::new().await;
    let gone = PluginCallError::NotFound("no card".into());
    two.q.script().reserve.push_back(Reply::No(gone));
    let error = two.reserve(&holder(1, "t")).await.unwrap_err();
    assert!(error.is_recoverable(), "{error}");
    let said = "plugin q does not find instance 0 of the device group acme/gpu/b now: no card";
    assert_eq!(error.to_string(), said);
    assert_eq!(two.calls(), ["reserve a", "release a", "reserve b"], "nothing is held of it");
    assert!(two.reserve(&holder(1, "t")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_of_a_plugin_before_the_ledger_is_on_disk() {
    let two = Two::new().await;
    *two.notes.refuse.lock().unwrap() = true;
    let error = two.reserve(&holder(1, "t")).await.unwrap_err();
    assert!(error.is_recoverable() && error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(two.calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_reserve_that_hangs_has_an_end_and_is_released_since_it_may_have_worked() {
    let two = Two::new().await;
    two.q.script().reserve.push_back(Reply::Hang);
    let error = two.reserve(&holder(1, "t")).await.unwrap_err();
    assert!(error.to_string().contains("no answer within"), "{error}");
    assert_eq!(two.calls(), ["reserve a", "release a", "reserve b", "release b"]);
}

#[tokio::test(start_paused = true)]
async fn tasks_that_hang_in_one_plugin_leave_the_other_to_others() {
    let two = Two::new().await;
    two.p.script().reserve = (0..20).map(|_| Reply::Hang).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..20 {
        let manager = two.bench.manager.clone();
        tasks.spawn(async move {
            let who = holder(100 + number, "t");
            manager.reserve(who.alloc, &who.task, &[assigned("a", &["0"])]).await.is_err()
        });
    }
    clock::sleep(SECOND).await;
    assert_eq!(two.p.count("reserve"), DEVICE_CALLS_MAX, "the others wait for it in the agent");
    let who = holder(1, "t");
    let other = [assigned("b", &["0"])];
    let other = two.bench.manager.reserve(who.alloc, &who.task, &other);
    assert!(clock::timeout(SECOND, other).await.expect("not held up").is_ok());
    assert!(tasks.join_all().await.into_iter().all(|failed| failed));
}

#[tokio::test(start_paused = true)]
async fn a_kill_over_a_reserve_that_hangs_releases_everything() {
    let two = Two::new().await;
    two.q.script().reserve.push_back(Reply::Hang);
    let who = holder(1, "t");
    assert!(clock::timeout(SECOND, two.reserve(&who)).await.is_none(), "killed meanwhile");
    clock::timeout(SECOND, two.release(&who)).await.expect("a kill is not held up");
    assert_eq!(two.calls(), ["reserve a", "release a", "reserve b", "release b"]);
    assert_eq!((two.prepared(), two.notes()), (0, vec!["keep t".into(), "released t".into()]));
}

#[tokio::test(start_paused = true)]
async fn a_release_is_tried_until_the_plugin_is_back_and_only_then_released() {
    let two = Two::new().await;
    let who = holder(1, "t");
    two.reserve(&who).await.unwrap();
    two.p.script().release = (0..3).map(|_| Reply::traps()).collect();
    clock::timeout(SECOND / 2, two.release(&who)).await.expect("the task does not wait for it");
    assert_eq!(two.state(), Some((ClaimState::Releasing, 1)));
    assert_eq!(two.bench.manager.end_alloc(who.alloc), BTreeSet::from([who.task.clone()]));
    assert_eq!(two.notes(), ["keep t"]);
    two.bench.pass(2 * SECOND).await;
    assert_eq!(two.state(), Some((ClaimState::Releasing, 2)));
    let shown = two.bench.manager.claims();
    assert!(shown[0].last_error.as_deref().is_some_and(|error| error.contains("it trapped")));
    two.bench.pass(10 * SECOND).await;
    assert_eq!(two.notes(), ["keep t", "released t"]);
    assert_eq!((two.prepared(), two.state()), (0, None));
    assert_eq!(two.q.count("release"), 1, "what was released is not released again");
    assert_eq!(two.bench.manager.end_alloc(who.alloc), BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn a_release_that_never_works_is_given_up_and_released() {
    let two = Two::new().await;
    let who = holder(1, "t");
    two.reserve(&who).await.unwrap();
    two.p.script().release = (0..100).map(|_| Reply::traps()).collect();
    two.release(&who).await;
    two.bench.pass(600 * SECOND).await;
    assert_eq!(two.notes(), ["keep t", "released t"]);
    assert!((5..20).contains(&two.p.count("release")), "{}", two.p.count("release"));
}

#[tokio::test(start_paused = true)]
async fn the_plugin_that_reserved_gets_the_release_whoever_has_the_group_by_then() {
    let two = Two::new().await;
    let who = holder(1, "t");
    two.reserve(&who).await.unwrap();
    two.q.script().groups.push(group("q", "a", &["0", "1"]));
    two.p.script().groups.clear();
    two.bench.pass(25 * SECOND).await;
    assert_eq!(two.bench.shown()[0].1, "q");
    two.release(&who).await;
    assert_eq!((two.p.count("release a"), two.q.count("release a")), (1, 0));
    assert_eq!(two.prepared(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_device_that_vanished_stays_with_its_task_and_is_reserved_for_nobody() {
    let two = Two::new().await;
    let who = holder(1, "t");
    two.reserve(&who).await.unwrap();
    two.p.script().groups = vec![group("p", "a", &["1"])];
    two.bench.pass(11 * SECOND).await;
    let error = two.reserve(&holder(2, "t")).await.unwrap_err();
    assert!(error.is_recoverable(), "{error}");
    assert!(error.to_string().contains("instance 0 of the device group acme/gpu/a"), "{error}");
    let error = two.reserve(&who).await.unwrap_err();
    assert!(error.is_recoverable(), "its next start waits: {error}");
    assert_eq!(two.p.count("release"), 0, "nothing is taken from it");
    two.release(&who).await;
    assert_eq!(two.prepared(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_restored_task_whose_plugin_is_not_there_yet_keeps_its_devices() {
    let two = Two::new().await;
    let who = holder(1, "t");
    let devices = [assigned("a", &["0"]), assigned("late", &["0"])];
    two.bench.manager.restore_claim(who.clone(), &devices);
    assert_eq!(two.state(), Some((ClaimState::Reserved, 0)));
    let replayed = two.bench.manager.reserve(who.alloc, &who.task, &devices).await;
    assert!(replayed.unwrap_err().to_string().contains("no plugin reports"));
    assert_eq!(two.p.count("release"), 0);
    let late = Fake::new("late", vec![group("late", "late", &["0"])]);
    two.bench.add(&late).await;
    assert!(two.bench.manager.reserve(who.alloc, &who.task, &devices).await.is_ok());
    two.release(&who).await;
    assert_eq!((two.p.count("release"), late.count("release")), (1, 1));
    assert_eq!(two.notes(), ["released t"], "its entry was on disk already");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_an_allocation_releases_what_the_tasks_did_not() {
    let two = Two::new().await;
    let (one, other) = (holder(1, "one"), holder(1, "other"));
    two.reserve(&one).await.unwrap();
    two.release(&one).await;
    two.bench.manager.restore_claim(other.clone(), &[assigned("a", &["1"])]);
    let owing = two.bench.manager.end_alloc(one.alloc);
    assert_eq!(owing, BTreeSet::from([other.task.clone()]));
    clock::sleep(SECOND).await;
    assert_eq!(two.notes(), ["keep one", "released one", "released other"]);
    assert_eq!(two.bench.manager.end_alloc(one.alloc), BTreeSet::new());
    assert_eq!(two.bench.manager.claims(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_manager_that_stops_leaves_a_release_to_the_next_one() {
    let two = Two::new().await;
    let who = holder(1, "t");
    two.reserve(&who).await.unwrap();
    two.p.script().release = (0..100).map(|_| Reply::traps()).collect();
    two.release(&who).await;
    clock::timeout(SECOND, two.bench.manager.shutdown()).await.expect("it does not wait for it");
    assert_eq!(two.notes(), ["keep t"], "the entry stays");
}
