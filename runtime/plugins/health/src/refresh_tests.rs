#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::time::Instant;

use super::*;
use crate::policy::{FailurePolicy, PluginState, QuarantineFor};
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::limits::{WATCH_DEBOUNCE_MAX, WATCH_QUIET};

/// The times at which a plugin was asked, since the start, on virtual time.
#[derive(Clone)]
struct Times(Arc<Mutex<Vec<Duration>>>, Instant);

impl Times {
    fn all(&self) -> Vec<Duration> {
        self.0.lock().unwrap().clone()
    }

    /// The seconds between two questions.
    fn gaps(&self) -> Vec<f64> {
        self.all().windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64()).collect()
    }
}

struct Node {
    refresher: Refresher,
    watcher: ChangeWatcher,
    meter: Arc<PluginMeter>,
    times: Times,
}

fn every(after: Option<u64>, path: Option<&str>) -> FingerprintOutcome {
    let paths = path.map(str::to_owned).into_iter().collect();
    FingerprintOutcome::Answered(NextCheck {
        after: after.map(Duration::from_secs),
        paths,
        subsystems: Vec::new(),
    })
}

fn failed() -> FingerprintOutcome {
    FingerprintOutcome::Failed("broken".to_owned())
}

/// A plugin with these answers. `answer` gets the number of questions before.
async fn asked(answer: impl Fn(usize) -> FingerprintOutcome + Send + Sync + 'static) -> Node {
    let watcher = ChangeWatcher::without_thread().unwrap();
    let refresher = Refresher::new(watcher.clone(), Rng::from_seed(1));
    let meter = Arc::new(PluginMeter::new(
        "p",
        FailurePolicy::default(),
        Clock::fixed(Timestamp::from_nanos(1)),
    ));
    let times = Times(Arc::default(), Instant::now());
    let (noted, answer, count) = (times.clone(), Arc::new(answer), Arc::new(AtomicUsize::new(0)));
    let ask = move || {
        noted.0.lock().unwrap().push(noted.1.elapsed());
        let asked = answer(count.fetch_add(1, Ordering::SeqCst));
        async move { asked }
    };
    refresher.add(Arc::clone(&meter), ask).await;
    Node { refresher, watcher, meter, times }
}

async fn pass(secs: f64) {
    sleep(Duration::from_secs_f64(secs)).await;
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_asked_on_the_interval_it_wants() {
    let node = asked(|_| every(Some(30), None)).await;
    pass(100.0).await;
    assert_eq!(node.times.all().len(), 4);
    assert!(
        node.times.gaps().iter().all(|gap| (gap - 30.0).abs() < 0.01),
        "{:?}",
        node.times.gaps()
    );
    node.refresher.shutdown().await;
    pass(100.0).await;
    assert_eq!(node.times.all().len(), 4, "not after the shutdown");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_without_interval_and_watch_is_asked_once_and_can_be_stopped() {
    let node = asked(|_| every(None, None)).await;
    pass(100_000.0).await;
    assert_eq!(node.times.all().len(), 1);
    node.refresher.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_change_asks_before_the_interval_is_over_and_the_interval_begins_anew() {
    let node = asked(|_| every(Some(100), Some("/x"))).await;
    pass(40.0).await;
    node.watcher.ring_all();
    pass(99.0).await;
    assert_eq!(node.times.all().len(), 2, "{:?}", node.times.all());
    let quiet = WATCH_QUIET.as_secs_f64();
    assert!((node.times.gaps()[0] - 40.0 - quiet).abs() < 0.01, "{:?}", node.times.gaps());
    pass(2.0).await;
    assert_eq!(node.times.all().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_only_watches_is_asked_at_each_change_and_a_burst_is_one() {
    let node = asked(|_| every(None, Some("/x"))).await;
    for _ in 0..3 {
        pass(1_000.0).await;
        for _ in 0..20 {
            node.watcher.ring_all();
            pass(0.01).await;
        }
    }
    pass(1_000.0).await;
    assert_eq!(node.times.all().len(), 4, "{:?}", node.times.all());
}

#[tokio::test(start_paused = true)]
async fn a_path_that_never_rests_cannot_make_a_plugin_be_asked_without_pause() {
    let node = asked(|_| every(Some(1_000), Some("/x"))).await;
    for _ in 0..10_000 {
        node.watcher.ring_all();
        pass(0.01).await;
    }
    let gap = (WATCH_ASK_GAP + WATCH_DEBOUNCE_MAX).as_secs_f64();
    let gaps = node.times.gaps();
    assert!(gaps.len() > 40 && gaps.iter().all(|is| (is - gap).abs() < 0.02), "{gaps:?}");
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_with_jitter_and_an_answer_ends_it() {
    let node = asked(|count| if count < 9 { failed() } else { every(Some(30), None) }).await;
    pass(2_000.0).await;
    let gaps = node.times.gaps();
    let bounds = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 120.0, 120.0];
    for (gap, bound) in gaps.iter().zip(bounds) {
        assert!(*gap >= bound / 2.0 - 0.01 && *gap <= bound + 0.01, "{gap} of {bound}");
    }
    let jittered = gaps.iter().zip(bounds).filter(|(gap, bound)| (**gap - bound).abs() > 0.05);
    assert!(jittered.count() > 5, "{gaps:?}");
    assert!((gaps[9] - 30.0).abs() < 0.01, "{gaps:?}");
    assert_eq!(node.meter.report().state, PluginState::Running);
    assert_eq!(node.meter.report().last_error.unwrap().reason, "broken");
}

#[tokio::test(start_paused = true)]
async fn a_change_shortens_a_back_off_but_not_without_end() {
    let answer = |count| if count == 0 { every(Some(30), Some("/x")) } else { failed() };
    let node = asked(answer).await;
    // This is until the back-off has reached its longest.
    pass(1_000.0).await;
    assert_eq!(node.meter.report().state, PluginState::BackingOff);
    let before = node.times.all().len();
    for _ in 0..100 {
        node.watcher.ring_all();
        pass(1.0).await;
    }
    let asked = node.times.all().len() - before;
    assert!((8..=11).contains(&asked), "asked {asked} times in 100 s");
}

#[tokio::test(start_paused = true)]
async fn what_is_watched_is_what_the_newest_answer_says() {
    let node = asked(|count| every(None, if count < 2 { Some("/x") } else { None })).await;
    let subscriptions = || node.watcher.report().subscriptions;
    assert_eq!(subscriptions(), 1);
    pass(10.0).await;
    node.watcher.ring_all();
    pass(10.0).await;
    assert_eq!((node.times.all().len(), subscriptions()), (2, 1), "the same watch stays");
    assert_eq!(node.watcher.entered(), 1, "and is not made anew");
    node.watcher.ring_all();
    pass(10.0).await;
    assert_eq!((node.times.all().len(), subscriptions()), (3, 0), "and then none");
    node.refresher.shutdown().await;
}

/// The answer that there is nothing for the plugin, without a time to ask again.
fn nothing_here() -> FingerprintOutcome {
    FingerprintOutcome::Undetected(NextCheck::default())
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_finds_nothing_goes_on_watching_what_it_watched_and_is_asked_again() {
    let answer = |count| if count == 0 { every(Some(9), Some("/x")) } else { nothing_here() };
    let node = asked(answer).await;
    pass(30.0).await;
    assert_eq!(node.times.all().len(), 2, "{:?}", node.times.all());
    node.watcher.ring_all();
    pass(1.0).await;
    assert_eq!(node.times.all().len(), 3, "a change of what it watched");
    pass(61.0).await;
    assert_eq!(node.times.all().len(), 4, "and without one");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_finds_nothing_and_says_what_to_watch_is_heard() {
    let FingerprintOutcome::Answered(said) = every(Some(1_000), Some("/y")) else { unreachable!() };
    let node = asked(move |_| FingerprintOutcome::Undetected(said.clone())).await;
    assert_eq!(node.watcher.watched_paths(), [std::path::Path::new("/y")]);
    pass(999.0).await;
    assert_eq!(node.times.all().len(), 1, "its own interval counts");
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_at_first_is_waited_for_with_a_bound_and_asked_again() {
    let refresher = Refresher::new(ChangeWatcher::without_thread().unwrap(), Rng::from_seed(1));
    let clock = Clock::fixed(Timestamp::from_nanos(1));
    let meter = Arc::new(PluginMeter::new("p", FailurePolicy::default(), clock));
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let ask = move || {
        let before = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if before == 0 {
                std::future::pending::<()>().await;
            }
            every(Some(30), None)
        }
    };
    let start = Instant::now();
    refresher.add(Arc::clone(&meter), ask).await;
    assert!(start.elapsed() < FIRST_FINGERPRINT_WAIT + Duration::from_secs(1));
    assert_eq!(meter.report().state, PluginState::BackingOff);
    pass(2.0).await;
    assert_eq!(count.load(Ordering::SeqCst), 2);
    assert_eq!(meter.report().state, PluginState::Running);
}

/// A plugin whose fingerprint traps `traps` times and then answers. Its clock follows virtual time.
struct Trapping {
    clock: Clock,
    meter: Arc<PluginMeter>,
    watcher: ChangeWatcher,
    times: Times,
    _refresher: Refresher,
}

impl Trapping {
    async fn new(traps: usize, policy: FailurePolicy) -> Self {
        let watcher = ChangeWatcher::without_thread().unwrap();
        let refresher = Refresher::new(watcher.clone(), Rng::from_seed(1));
        let clock = Clock::fixed(Timestamp::from_nanos(1_000_000_000));
        let meter = Arc::new(PluginMeter::new("p", policy, clock.clone()));
        let times = Times(Arc::default(), Instant::now());
        let (asked, noted) = (Arc::clone(&meter), times.clone());
        let ask = move || {
            // Like a plugin in use, it is not called when it must not be.
            let answer = match asked.admit("fingerprint", None) {
                Err(refused) => FingerprintOutcome::Failed(refused.to_string()),
                Ok(()) => {
                    noted.0.lock().unwrap().push(noted.1.elapsed());
                    if noted.all().len() <= traps {
                        asked.record_failure("fingerprint", None, &"trapped");
                        failed()
                    } else {
                        every(Some(30), Some("/x"))
                    }
                }
            };
            async move { answer }
        };
        refresher.add(Arc::clone(&meter), ask).await;
        Self { clock, meter, watcher, times, _refresher: refresher }
    }

    async fn pass(&self, secs: u64) {
        for _ in 0..secs * 10 {
            self.clock.advance(Duration::from_millis(100));
            pass(0.1).await;
        }
    }

    fn state(&self) -> PluginState {
        self.meter.report().state
    }

    fn asked(&self) -> usize {
        self.times.all().len()
    }
}

fn three_strikes(quarantine: QuarantineFor) -> FailurePolicy {
    FailurePolicy { strikes_max: 3, quarantine, ..FailurePolicy::default() }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_in_quarantine_is_not_called_whatever_changes_and_tried_once_when_it_is_over() {
    let minute = QuarantineFor::Time(Duration::from_secs(60));
    let plugin = Trapping::new(4, three_strikes(minute)).await;
    plugin.pass(5).await;
    assert_eq!((plugin.asked(), plugin.state()), (3, PluginState::Quarantined));
    for _ in 0..50 {
        plugin.watcher.ring_all();
        plugin.pass(1).await;
    }
    assert_eq!(plugin.asked(), 3);
    // The probe traps too, so the wait is twice as long, and then the plugin answers.
    plugin.pass(10).await;
    assert_eq!((plugin.asked(), plugin.state()), (4, PluginState::Quarantined));
    plugin.pass(110).await;
    assert_eq!(plugin.asked(), 4);
    plugin.pass(15).await;
    assert_eq!((plugin.asked(), plugin.state()), (5, PluginState::Running));
    plugin.pass(31).await;
    assert_eq!(plugin.asked(), 6, "from here on as any other");
}

#[tokio::test(start_paused = true)]
async fn a_quarantine_that_a_person_lifts_is_over_at_once() {
    let plugin = Trapping::new(3, three_strikes(QuarantineFor::Manual)).await;
    plugin.pass(10_000).await;
    assert_eq!((plugin.asked(), plugin.state()), (3, PluginState::Quarantined));
    assert!(plugin.meter.admit("start", None).is_err() && plugin.meter.admit("kill", None).is_ok());
    assert!(plugin.meter.lift() && !plugin.meter.lift());
    plugin.pass(1).await;
    assert_eq!((plugin.asked(), plugin.state()), (4, PluginState::Running));
    assert!(plugin.meter.admit("start", None).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_whose_place_was_taken_is_never_asked_again() {
    let node =
        asked(|count| if count == 0 { every(Some(1_000), None) } else { FingerprintOutcome::Over })
            .await;
    node.meter.request_check();
    pass(1.0).await;
    assert_eq!(node.times.all().len(), 2);
    node.meter.request_check();
    pass(10_000.0).await;
    assert_eq!(node.times.all().len(), 2);
}
