#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use super::*;
use ostler_model::clock::timeout;

/// Longer than any loaded machine needs.
const PATIENCE: Duration = Duration::from_secs(60);

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// A subscription whose watches are in place.
async fn watching(watcher: &ChangeWatcher, paths: &[&Path], subsystems: &[&str]) -> Subscription {
    let paths: Vec<String> = paths.iter().map(|path| text(path)).collect();
    let subsystems: Vec<String> = subsystems.iter().map(ToString::to_string).collect();
    let mut subscription = watcher.subscribe(&paths, &subsystems);
    heard(&mut subscription, "in place").await;
    subscription
}

async fn heard(subscription: &mut Subscription, what: &str) {
    assert!(timeout(PATIENCE, subscription.wait_for_change()).await.is_some(), "{what}");
}

/// Nothing is on its way: what `other` watches changes afterwards and is heard of.
async fn silent(subscription: &mut Subscription, other: &mut Subscription, file: &Path) {
    fs::write(file, "x").unwrap();
    heard(other, "the other one").await;
    let now = subscription.heard.borrow_and_update();
    assert_eq!(*now, subscription.seen, "nothing was heard");
}

#[tokio::test]
async fn a_file_that_changes_is_heard_of_and_one_that_nobody_watches_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let (mine, others) = (dir.path().join("mine"), dir.path().join("others"));
    fs::write(&mine, "1").unwrap();
    fs::write(&others, "1").unwrap();
    let watcher = ChangeWatcher::new();
    let mut first = watching(&watcher, &[&mine], &[]).await;
    let mut second = watching(&watcher, &[&others], &[]).await;
    fs::write(&mine, "2").unwrap();
    heard(&mut first, "written").await;
    silent(&mut first, &mut second, &others).await;
}

#[tokio::test]
async fn a_directory_tells_of_its_entries() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = ChangeWatcher::new();
    let mut subscription = watching(&watcher, &[dir.path()], &[]).await;
    let file = dir.path().join("device");
    fs::write(&file, "").unwrap();
    heard(&mut subscription, "made").await;
    fs::remove_file(&file).unwrap();
    heard(&mut subscription, "removed").await;
}

#[tokio::test]
async fn a_path_that_is_not_there_is_heard_of_when_it_appears_piece_by_piece() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/c");
    let watcher = ChangeWatcher::new();
    let mut subscription = watching(&watcher, &[&path], &[]).await;
    fs::create_dir(dir.path().join("a")).unwrap();
    heard(&mut subscription, "a").await;
    fs::create_dir(dir.path().join("a/b")).unwrap();
    heard(&mut subscription, "b").await;
    fs::write(&path, "1").unwrap();
    heard(&mut subscription, "c").await;
    fs::write(&path, "2").unwrap();
    heard(&mut subscription, "c itself").await;
    // All at once, and gone again.
    fs::remove_dir_all(dir.path().join("a")).unwrap();
    heard(&mut subscription, "removed").await;
    fs::create_dir_all(dir.path().join("a/b")).unwrap();
    heard(&mut subscription, "above it").await;
    fs::write(&path, "3").unwrap();
    heard(&mut subscription, "c again").await;
}

#[tokio::test]
async fn a_file_that_is_replaced_goes_on_being_watched() {
    let dir = tempfile::tempdir().unwrap();
    let (path, new) = (dir.path().join("config"), dir.path().join("new"));
    fs::write(&path, "1").unwrap();
    let watcher = ChangeWatcher::new();
    let mut subscription = watching(&watcher, &[&path], &[]).await;
    for round in 0..3 {
        fs::write(&new, "2").unwrap();
        fs::rename(&new, &path).unwrap();
        heard(&mut subscription, "replaced").await;
        fs::write(&path, format!("{round}")).unwrap();
        heard(&mut subscription, "the new one").await;
    }
}

#[tokio::test]
async fn a_burst_is_one_change() {
    let dir = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    let watcher = ChangeWatcher::new();
    let mut subscription = watching(&watcher, &[dir.path()], &[]).await;
    let mut second = watching(&watcher, &[other.path()], &[]).await;
    for number in 0..500 {
        fs::write(dir.path().join(number.to_string()), "").unwrap();
    }
    // The kernel's queue is in order: when the last is heard of, all before it were.
    fs::write(other.path().join("last"), "").unwrap();
    heard(&mut second, "the last").await;
    heard(&mut subscription, "the burst").await;
    silent(&mut subscription, &mut second, &other.path().join("x")).await;
    let rung = subscription.seen;
    assert!(rung < 250, "five hundred files were {rung} pieces of news");
}

#[tokio::test]
async fn who_unsubscribed_leaves_nothing_behind_and_the_other_of_the_same_path_stays() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = ChangeWatcher::new();
    let first = watching(&watcher, &[dir.path()], &[]).await;
    let mut second = watching(&watcher, &[dir.path()], &[]).await;
    assert_eq!(watcher.report().subscriptions, 2);
    drop(first);
    assert_eq!(watcher.report().subscriptions, 1);
    fs::write(dir.path().join("x"), "").unwrap();
    heard(&mut second, "the one that stayed").await;
    drop(second);
    // The thread closes what nobody wants.
    let gone = async {
        while watcher.report().kernel_watches > 0 {
            ostler_model::clock::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(timeout(PATIENCE, gone).await.is_some());
}

#[tokio::test]
async fn lost_events_count_as_everything_changed() {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let limit: usize = limit.trim().parse().unwrap();
    if limit > 100_000 {
        println!("skipped: the queue of this kernel holds {limit} events");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (quiet, noisy) = (dir.path().join("quiet"), dir.path().join("noisy"));
    fs::create_dir(&quiet).unwrap();
    fs::create_dir(&noisy).unwrap();
    let watcher = ChangeWatcher::new();
    let mut quiet = watching(&watcher, &[&quiet], &[]).await;
    let _noisy = watching(&watcher, &[&noisy], &[]).await;
    let shared = watcher.ensure_thread().unwrap();
    // The thread stops at the list, so that the kernel's queue fills.
    let held = shared.lock_subscriptions();
    for _ in 0..limit {
        // Made and removed: equal events that follow each other would be one.
        fs::write(noisy.join("x"), "").unwrap();
        fs::remove_file(noisy.join("x")).unwrap();
    }
    drop(held);
    heard(&mut quiet, "what had no event of its own").await;
    assert!(watcher.report().overflows > 0);
}

#[tokio::test]
async fn a_path_that_may_not_be_watched_is_said_once_and_harms_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let watcher = ChangeWatcher::new();
    let long = dir.path().join("x".repeat(300));
    let mut subscription = watching(&watcher, &[&long, dir.path()], &[]).await;
    let report = watcher.report();
    assert_eq!(report.degraded.len(), 1, "{report:?}");
    assert!(report.degraded[&text(&long)].contains("not watched"), "{report:?}");
    fs::write(dir.path().join("x"), "").unwrap();
    heard(&mut subscription, "the other path").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_watched_never_changes() {
    let watcher = ChangeWatcher::new();
    let mut none = watcher.subscribe(&[], &[]);
    assert!(timeout(Duration::from_secs(3_600), none.wait_for_change()).await.is_none());
    assert!(
        timeout(Duration::from_secs(3_600), Subscription::nothing().wait_for_change())
            .await
            .is_none()
    );
    assert_eq!(watcher.report(), WatchReport::default(), "no thread for nothing");
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_half_way_loses_nothing() {
    let watcher = ChangeWatcher::without_thread().unwrap();
    let mut subscription = watcher.subscribe(&["/x".to_owned()], &[]);
    watcher.ring_all();
    assert!(
        timeout(WATCH_QUIET / 2, subscription.wait_for_change()).await.is_none(),
        "not debounced yet"
    );
    assert!(timeout(WATCH_QUIET * 2, subscription.wait_for_change()).await.is_some());
    assert!(timeout(WATCH_QUIET * 20, subscription.wait_for_change()).await.is_none(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_path_that_never_rests_is_told_of_at_the_bound() {
    let watcher = ChangeWatcher::without_thread().unwrap();
    let mut subscription = watcher.subscribe(&["/x".to_owned()], &[]);
    let ringing = async {
        loop {
            watcher.ring_all();
            ostler_model::clock::sleep(WATCH_QUIET / 2).await;
        }
    };
    tokio::select! {
        told = timeout(WATCH_DEBOUNCE_MAX + WATCH_QUIET, subscription.wait_for_change()) => {
            assert!(told.is_some());
        }
        () = ringing => {}
    }
}

/// The `uevent` file of a device that is always there: writing to it makes the kernel tell of it.
const DEVICE: &str = "/sys/devices/virtual/mem/null/uevent";

#[tokio::test]
async fn the_kernels_news_of_a_subsystem_are_heard() {
    let watcher = ChangeWatcher::new();
    let mut mem = watching(&watcher, &[], &["mem"]).await;
    if !watcher.report().degraded.is_empty() {
        println!("skipped: {:?}", watcher.report().degraded);
        return;
    }
    if let Err(error) = fs::write(DEVICE, "change") {
        println!("skipped: {DEVICE}: {error}");
        return;
    }
    // Containers with a network of their own are told of nothing, or of everything.
    if timeout(Duration::from_secs(5), mem.wait_for_change()).await.is_none() {
        println!("skipped: the kernel does not tell this network namespace of devices");
        return;
    }
    let other = watching(&watcher, &[], &["no-such-subsystem"]).await;
    let before = other.seen;
    fs::write(DEVICE, "change").unwrap();
    heard(&mut mem, "again").await;
    assert_eq!(*other.heard.borrow(), before, "news of another subsystem");
}

#[test]
fn a_message_that_the_kernel_did_not_send_is_passed_over() {
    use rustix::net::netlink::SocketAddrNetlink;
    let Ok(socket) = super::kernel::open() else {
        println!("skipped: no netlink here");
        return;
    };
    let own = SocketAddrNetlink::try_from(rustix::net::getsockname(&socket).unwrap()).unwrap();
    let Ok(sender) = super::kernel::open() else { return };
    let forged = b"add@/devices/x\0ACTION=add\0DEVPATH=/devices/x\0SUBSYSTEM=forged\0";
    let to = SocketAddrNetlink::new(own.pid(), 0);
    let sent = rustix::net::sendto(&sender, forged, rustix::net::SendFlags::empty(), &to);
    if let Err(error) = sent {
        println!("skipped: this process may not send such a message: {error}");
        return;
    }
    let heard = super::kernel::read(&socket);
    assert!(!heard.subsystems.contains(&"forged".to_owned()), "{heard:?}");
}
