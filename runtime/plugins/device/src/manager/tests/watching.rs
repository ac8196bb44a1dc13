//! Fingerprints and statistics of plugins that work, fail, hang, lie and come back.

use super::*;
use ostler_model::device::Health;

#[tokio::test(start_paused = true)]
async fn a_plugin_that_fails_turns_its_own_devices_unhealthy_until_it_is_back() {
    let bench = Bench::new();
    let (p, q) = (
        Fake::new("p", vec![group("p", "a", &["0"])]),
        Fake::new("q", vec![group("q", "b", &["0"])]),
    );
    bench.add(&p).await;
    bench.add(&q).await;
    p.script().fingerprint = Reply::traps();
    bench.pass(11 * SECOND).await;
    let shown = bench.shown();
    assert_eq!((shown[0].0.as_str(), shown[0].2), ("a", HealthState::Unhealthy));
    assert!(shown[0].3.contains("it trapped"), "{}", shown[0].3);
    assert_eq!(shown[1].2, HealthState::Healthy);
    let plugins = bench.node.current().device_plugins.clone();
    assert_eq!(plugins[&plugin("p")].state, HealthState::Unhealthy);
    assert_eq!(plugins[&plugin("q")].state, HealthState::Healthy);
    p.script().fingerprint = Reply::Well;
    bench.pass(5 * SECOND).await;
    assert_eq!(bench.states()[0].1, HealthState::Healthy);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_is_unhealthy_and_holds_up_nobody() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    let q = Fake::new("q", vec![group("q", "b", &["0"])]);
    p.script().fingerprint = Reply::Hang;
    let slow = tokio::spawn(bench.manager.add(p.clone()).unwrap());
    clock::timeout(SECOND, bench.add(&q)).await.expect("q does not wait for p");
    assert_eq!(bench.states(), [("b".to_owned(), HealthState::Healthy)]);
    bench.pass(DEVICE_CALL_WALL_MAX + SECOND).await;
    let health = bench.node.current().device_plugins[&plugin("p")].clone();
    assert_eq!(health.state, HealthState::Unhealthy);
    assert!(health.reason.contains("no answer within"), "{}", health.reason);
    slow.await.unwrap();
    p.script().fingerprint = Reply::Well;
    bench.pass(DEVICE_CALL_WALL_MAX + 10 * SECOND).await;
    assert_eq!(bench.states().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nothing_for_a_plugin_here_is_undetected_and_asked_for_again() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    p.script().health = undetected("no card");
    bench.add(&p).await;
    let health = bench.node.current().device_plugins[&plugin("p")].clone();
    assert_eq!((health.state, health.reason.as_str()), (HealthState::Undetected, "no card"));
    bench.pass(30 * SECOND).await;
    assert_eq!((p.count("fingerprint"), p.count("stats")), (1, 0));
    p.script().health = healthy();
    bench.pass(31 * SECOND).await;
    assert_eq!(bench.states(), [("a".to_owned(), HealthState::Healthy)]);
}

#[tokio::test(start_paused = true)]
async fn a_fingerprint_that_ends_with_not_found_is_an_error_as_any_other() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    p.script().fingerprint = Reply::No(PluginCallError::NotFound("no card".into()));
    bench.pass(11 * SECOND).await;
    assert_eq!(bench.states(), [("a".to_owned(), HealthState::Unhealthy)]);
    let health = bench.node.current().device_plugins[&plugin("p")].clone();
    assert_eq!(health.state, HealthState::Unhealthy);
    assert!(health.reason.contains("no card"), "{}", health.reason);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_says_it_is_unhealthy_keeps_its_devices_and_its_measurements_are_old() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(5 * SECOND).await;
    assert_eq!(bench.manager.all_stats()[0].stale, None);
    p.script().health = Health { state: HealthState::Unhealthy, reason: "being updated".into() };
    bench.pass(6 * SECOND).await;
    let shown = bench.shown();
    assert_eq!((shown[0].2, shown[0].3.as_str()), (HealthState::Unhealthy, "being updated"));
    let stale = bench.manager.all_stats()[0].stale.clone();
    assert!(stale.as_ref().is_some_and(|why| why.contains("being updated")), "{stale:?}");
    let refused = bench.manager.fit(&[assigned("a", &["0"])]).unwrap_err();
    assert!(refused.to_string().contains("is unhealthy: being updated"), "{refused}");
    p.script().health = healthy();
    bench.pass(11 * SECOND).await;
    assert_eq!(bench.states(), [("a".to_owned(), HealthState::Healthy)]);
}

#[tokio::test(start_paused = true)]
async fn hardware_that_comes_back_is_noticed_at_once_and_so_is_the_first_that_comes() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    p.script().health = undetected("no card");
    bench.add(&p).await;
    assert_eq!(bench.watcher.watched(), ["module", "pci", "usb"], "it has not said what to watch");
    p.script().health = healthy();
    p.script().watch = vec!["acme_bus".to_owned()];
    bench.pass(2 * SECOND).await;
    bench.watcher.ring_all();
    bench.pass(SECOND).await;
    assert_eq!(bench.states(), [("a".to_owned(), HealthState::Healthy)]);
    assert_eq!(bench.watcher.watched(), ["acme_bus"]);

    p.script().health = undetected("no card");
    p.script().watch.clear();
    bench.pass(11 * SECOND).await;
    assert_eq!(bench.states(), []);
    assert_eq!(bench.watcher.watched(), ["acme_bus", "module", "pci", "usb"]);
    let subscribed = bench.watcher.entered();
    bench.pass(200 * SECOND).await;
    assert_eq!(bench.watcher.entered(), subscribed, "it goes on watching the same");
    p.script().health = healthy();
    bench.watcher.ring_all();
    bench.pass(SECOND).await;
    assert_eq!(bench.states(), [("a".to_owned(), HealthState::Healthy)]);
}

#[tokio::test(start_paused = true)]
async fn a_group_of_two_plugins_goes_to_the_second_as_soon_as_the_first_drops_it() {
    let bench = Bench::new();
    let (p, q) = (
        Fake::new("p", vec![group("p", "a", &["0"])]),
        Fake::new("q", vec![group("q", "a", &["1"])]),
    );
    bench.add(&p).await;
    bench.add(&q).await;
    assert_eq!(bench.shown()[0].1, "p");
    p.script().fingerprint = Reply::traps();
    bench.pass(11 * SECOND).await;
    assert_eq!(bench.shown()[0].1, "p", "failing is not dropping");
    p.script().fingerprint = Reply::Well;
    p.script().groups.clear();
    bench.pass(4 * SECOND).await;
    assert_eq!(bench.shown()[0].1, "q");
    assert_eq!(bench.node.current().devices[0].instances[0].id, "1");
}

#[tokio::test(start_paused = true)]
async fn statistics_are_collected_on_the_interval_and_of_own_devices_only() {
    let bench = Bench::new();
    let (p, q) = (
        Fake::new("p", vec![group("p", "a", &["0"])]),
        Fake::new("q", vec![group("q", "b", &["0"])]),
    );
    (p.script().value, q.script().value) = (7, 8);
    q.script().also =
        vec![("a".into(), "0".into()), ("b".into(), "9".into()), ("c".into(), "0".into())];
    bench.add(&p).await;
    bench.add(&q).await;
    bench.pass(SECOND).await;
    assert_eq!(bench.stat("a", "0"), Some((7, None)));
    assert_eq!(bench.stat("b", "0"), Some((8, None)));
    assert_eq!((bench.stat("b", "9"), bench.stat("c", "0")), (None, None));
    assert_eq!(bench.manager.all_stats().len(), 2);
    p.script().value = 9;
    bench.pass(5 * SECOND).await;
    assert_eq!(bench.stat("a", "0"), Some((9, None)));
    assert_eq!(p.count("stats"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_does_not_measure_is_asked_once() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    p.script().stats = Reply::No(PluginCallError::Unsupported("no".into()));
    bench.add(&p).await;
    bench.pass(100 * SECOND).await;
    assert_eq!(p.count("stats"), 1);
    assert!(p.count("fingerprint") > 5);
    assert_eq!(bench.stat("a", "0"), None);
}

#[tokio::test(start_paused = true)]
async fn statistics_are_stale_while_their_plugin_fails_and_fresh_when_it_is_back() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(SECOND).await;
    assert_eq!(bench.stat("a", "0"), Some((0, None)));
    p.script().stats = Reply::traps();
    bench.pass(5 * SECOND).await;
    let (value, stale) = bench.stat("a", "0").expect("the last value is shown on");
    assert!(value == 0 && stale.as_deref().is_some_and(|why| why.contains("it trapped")));
    // Fails on for ten minutes: asked less and less.
    p.forget();
    bench.pass(600 * SECOND).await;
    assert!((4..=10).contains(&p.count("stats")), "{}", p.count("stats"));
    (p.script().stats, p.script().value) = (Reply::Well, 3);
    bench.pass(120 * SECOND).await;
    assert_eq!(bench.stat("a", "0"), Some((3, None)));
}

#[tokio::test(start_paused = true)]
async fn statistics_are_fresh_soon_after_a_plugin_that_failed_at_everything_is_well_again() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(SECOND).await;
    // Statistics back off for two minutes, the last time from 520 s on, before a fingerprint fails, too.
    p.script().stats = Reply::traps();
    bench.pass(530 * SECOND).await;
    p.script().fingerprint = Reply::traps();
    bench.pass(20 * SECOND).await;
    (p.script().fingerprint, p.script().stats, p.script().value) = (Reply::Well, Reply::Well, 3);
    bench.pass(30 * SECOND).await;
    assert_eq!(bench.stat("a", "0"), Some((3, None)));
}

#[tokio::test(start_paused = true)]
async fn statistics_are_stale_while_the_fingerprint_fails() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(SECOND).await;
    p.script().fingerprint = Reply::traps();
    bench.pass(10 * SECOND).await;
    p.forget();
    assert!(bench.stat("a", "0").expect("shown on").1.is_some());
    bench.pass(5 * SECOND).await;
    assert_eq!(p.count("stats"), 0, "a plugin that cannot say what it has is not asked for more");
    p.script().fingerprint = Reply::Well;
    bench.pass(20 * SECOND).await;
    assert_eq!(bench.stat("a", "0"), Some((0, None)));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_that_hangs_over_its_statistics_is_stale_and_goes_on_being_fingerprinted() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(SECOND).await;
    p.script().stats = Reply::Hang;
    bench.pass(22 * SECOND).await;
    let stale = bench.stat("a", "0").expect("shown on").1;
    assert!(stale.expect("old").contains("last measured"), "before the call is given up");
    bench.pass(DEVICE_CALL_WALL_MAX).await;
    let stale = bench.stat("a", "0").expect("shown on").1;
    assert!(stale.expect("failed").contains("no answer within"));
    assert_eq!(bench.states()[0].1, HealthState::Healthy);
    assert!(p.count("fingerprint") > 5);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_changes_hands_or_goes_takes_its_statistics_with_it() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(SECOND).await;
    assert!(bench.stat("a", "0").is_some());
    p.script().stats = Reply::Hang;
    p.script().groups = vec![group("p", "b", &["0"])];
    bench.pass(10 * SECOND).await;
    assert_eq!(bench.manager.all_stats(), vec![]);
}

#[tokio::test(start_paused = true)]
async fn a_second_plugin_of_one_name_is_not_taken() {
    let bench = Bench::new();
    bench.add(&Fake::new("p", vec![])).await;
    assert!(bench.manager.add(Fake::new("p", vec![])).is_none());
}

#[tokio::test(start_paused = true)]
async fn a_shut_down_manager_asks_no_more() {
    let bench = Bench::new();
    let p = Fake::new("p", vec![group("p", "a", &["0"])]);
    bench.add(&p).await;
    bench.pass(SECOND).await;
    bench.manager.shutdown().await;
    p.forget();
    bench.pass(100 * SECOND).await;
    assert_eq!(p.script().calls, Vec::<String>::new());
}
