#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::super::tail::StreamFollower;
use super::super::{OutsideWriter, open_log_dir};
use super::*;

fn logs(path: &Path) -> TaskLogs {
    let dir = std::os::fd::OwnedFd::from(fs::File::open(path).unwrap()).into();
    TaskLogs::new(&dir, &TaskName::new("web").unwrap(), &LogConfig::default(), false)
}

/// A writer like that of another process, with files of `limit` bytes.
fn writer(stream: &LogStream, files_max: u32, limit: u64) -> OutsideWriter {
    let files = stream.files().unwrap();
    let dir = open_log_dir(&files.dir).unwrap().try_clone().unwrap();
    OutsideWriter::open(dir, files.prefix, files_max, limit).unwrap()
}

async fn read(follower: &mut StreamFollower, count: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < count {
        let next = ostler_model::clock::timeout(Duration::from_secs(20), follower.next(100)).await;
        bytes.extend(next.expect("seen in time").expect("open").bytes);
    }
    bytes
}

#[tokio::test]
async fn a_follower_sees_what_another_process_writes_over_rotations_and_ends_at_the_close() {
    let path = tempfile::tempdir().unwrap();
    let logs = logs(path.path());
    let mut follower = logs.stdout.follow(FollowFrom::Start);
    let mut writer = writer(&logs.stdout, 10, 8);
    for line in ["one\n", "two, and long\n", "three\n", "4\n", "five is long\n"] {
        writer.write(line.as_bytes());
        assert_eq!(read(&mut follower, line.len()).await, line.as_bytes());
    }
    writer.write(b"last");
    logs.close();
    assert_eq!(read(&mut follower, 4).await, b"last");
    assert_eq!(follower.next(10).await, None);
    assert_eq!(logs.stdout.written_bytes(), 39 + 4);
    assert!(fs::read_dir(path.path()).unwrap().count() > 3);
}

#[tokio::test]
async fn a_follower_that_comes_later_is_served_too_and_one_from_now_sees_only_what_comes() {
    let path = tempfile::tempdir().unwrap();
    let logs = logs(path.path());
    let mut writer = writer(&logs.stderr, 10, 8);
    writer.write(b"before\n");
    let mut first = logs.stderr.follow(FollowFrom::Start);
    assert_eq!(read(&mut first, 7).await, b"before\n");
    drop(first);
    let (mut now, mut start) =
        (logs.stderr.follow(FollowFrom::Now), logs.stderr.follow(FollowFrom::Start));
    writer.write(b"after\n");
    assert_eq!(read(&mut now, 6).await, b"after\n");
    assert_eq!(read(&mut start, 13).await, b"before\nafter\n");
    let shared = Arc::downgrade(&logs.stderr.shared);
    writer.write(b"end");
    drop(logs);
    assert_eq!(read(&mut now, 3).await, b"end");
    assert_eq!(now.next(10).await, None);
    assert_eq!(shared.upgrade().map(drop), None, "who looks does not keep the stream open");
}

#[tokio::test]
async fn files_pruned_between_two_looks_are_told_as_skipped_as_far_as_they_were_seen() {
    let path = tempfile::tempdir().unwrap();
    let logs = logs(path.path());
    let mut writer = writer(&logs.stdout, 3, 4);
    for line in ["0aa\n", "1aa\n", "2aa\n"] {
        writer.write(line.as_bytes());
    }
    let mut follower = logs.stdout.follow(FollowFrom::Start);
    assert_eq!(follower.next(4).await.unwrap().bytes, b"0aa\n");
    for line in ["3aa\n", "4aa\n", "5aa\n", "6aa\n"] {
        writer.write(line.as_bytes());
        logs.stdout.shared.scan_files();
    }
    logs.close();
    let (mut bytes, mut skipped) = (Vec::new(), 0);
    while let Some(chunk) = follower.next(100).await {
        bytes.extend(chunk.bytes);
        skipped += chunk.skipped_bytes;
    }
    assert_eq!((bytes, skipped), (b"4aa\n5aa\n6aa\n".to_vec(), 12));
}

#[tokio::test]
async fn a_stream_written_here_is_no_stream_of_another_process_any_more() {
    let path = tempfile::tempdir().unwrap();
    let logs = logs(path.path());
    let mut follower = logs.stdout.follow(FollowFrom::Start);
    logs.stdout.write(b"here\n");
    assert!(logs.stdout.files().is_none());
    assert_eq!(read(&mut follower, 5).await, b"here\n");
    logs.close();
    assert_eq!(follower.next(10).await, None);
}

#[tokio::test]
async fn what_a_sink_of_handed_over_files_takes_is_in_them_when_it_returns_and_is_followed() {
    let path = tempfile::tempdir().unwrap();
    let logs = logs(path.path());
    let sink = super::super::task_sink(logs.stdout.files().unwrap());
    let mut follower = logs.stdout.follow(FollowFrom::Start);
    for line in ["one\n", "two\n"] {
        sink.write(line.as_bytes());
        let text = fs::read_to_string(path.path().join("web.stdout.0")).unwrap();
        assert!(text.ends_with(line), "{text}");
        assert_eq!(read(&mut follower, line.len()).await, line.as_bytes());
    }
    logs.close();
    assert_eq!(follower.next(10).await, None);
}

#[test]
fn a_sink_whose_directory_is_gone_drops_what_it_is_given() {
    let path = tempfile::tempdir().unwrap();
    let files = logs(path.path()).stdout.files().unwrap();
    fs::remove_dir_all(path.path()).unwrap();
    let sink = super::super::task_sink(files);
    sink.write(b"lost\n");
    assert!(!path.path().exists());
}

#[tokio::test]
async fn of_a_flood_every_line_is_seen_and_so_is_one_that_comes_after_it() {
    let path = tempfile::tempdir().unwrap();
    let logs = logs(path.path());
    let mut writer = writer(&logs.stdout, 10, 1_000);
    let mut follower = logs.stdout.follow(FollowFrom::Start);
    for line in 0..50 {
        let line = format!("line {line:02}\n");
        writer.write(line.as_bytes());
        assert_eq!(read(&mut follower, line.len()).await, line.as_bytes());
    }
    // This scan finds nothing new, so notices are asked for again.
    while logs.stdout.shared.scan_for_followers() == Some(true) {}
    writer.write(b"later\n");
    assert_eq!(read(&mut follower, 6).await, b"later\n");
}
