#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::fs;
use std::path::Path;

use cap_std::ambient_authority;

use super::super::rotate::RotatingWriter;
use super::super::stream::{LogStream, TaskLogs};
use super::*;
use ostler_model::job::LogConfig;
use ostler_model::ports::{ByteSink as _, LogDir};

fn dir(path: &Path) -> Dir {
    Dir::open_ambient_dir(path, ambient_authority()).unwrap()
}

fn log_dir(path: &Path) -> LogDir {
    std::os::fd::OwnedFd::from(File::open(path).unwrap()).into()
}

fn task() -> TaskName {
    TaskName::new("web").unwrap()
}

fn stream(path: &Path, files_max: u32, limit: u64) -> Arc<LogStream> {
    let files = LogFiles::new(&dir(path), &task(), StreamKind::Stdout).unwrap();
    let writer = RotatingWriter::open(files.clone(), files_max, limit).unwrap();
    Arc::new(LogStream::new(files, Some(writer)))
}

/// The rest of a stream: its bytes, and the number of skipped ones.
async fn rest(follower: &mut StreamFollower) -> (Vec<u8>, u64) {
    let (mut bytes, mut skipped) = (Vec::new(), 0);
    while let Some(chunk) = follower.next(usize::MAX).await {
        bytes.extend_from_slice(&chunk.bytes);
        skipped += chunk.skipped_bytes;
    }
    (bytes, skipped)
}

#[tokio::test]
async fn fifty_megabytes_pass_through_a_follower_unchanged_while_files_rotate() {
    const TOTAL: usize = 50 << 20;
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 1_000, 1 << 20);
    let mut follower = stream.follow(FollowFrom::Start);
    let writer = tokio::task::spawn_blocking(move || {
        let (mut line, mut sum, mut written, mut number) = (Vec::new(), 0_u64, 0, 0_u64);
        while written < TOTAL {
            line.clear();
            line.extend_from_slice(format!("{number} ").as_bytes());
            line.resize(line.len() + usize::try_from(number % 5_000).unwrap(), b'x');
            line.push(b'\n');
            sum = line
                .iter()
                .fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
            stream.write(&line);
            written += line.len();
            number += 1;
        }
        assert_eq!(stream.dropped_bytes(), 0);
        stream.close();
        (sum, written)
    });
    let (mut sum, mut read) = (0_u64, 0);
    while let Some(chunk) = follower.next(64 << 10).await {
        assert_eq!(chunk.skipped_bytes, 0);
        sum = chunk
            .bytes
            .iter()
            .fold(sum, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(*byte)));
        read += chunk.bytes.len();
    }
    assert_eq!((sum, read), writer.await.unwrap());
    assert!(fs::read_dir(path.path()).unwrap().count() >= 48);
}

#[tokio::test]
async fn a_follower_waits_at_the_end_and_goes_on_over_rotations() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 10, 8);
    let mut follower = stream.follow(FollowFrom::Start);
    for text in ["one\n", "two, long\n", "three\n", "4\n"] {
        let idle = tokio::select! {
            biased;
            chunk = follower.next(100) => Some(chunk),
            () = tokio::task::yield_now() => None,
        };
        assert_eq!(idle, None, "nothing is there before {text:?}");
        stream.write(text.as_bytes());
        let mut got = Vec::new();
        while got.len() < text.len() {
            got.extend(follower.next(3).await.unwrap().bytes);
        }
        assert_eq!(got, text.as_bytes());
    }
    stream.close();
    assert_eq!(follower.next(100).await, None);
    stream.write(b"too late");
    assert_eq!(follower.next(100).await, None);
}

#[tokio::test]
async fn a_follower_from_now_sees_only_what_comes() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 10, 8);
    stream.write(b"old\nolder\noldest\n");
    let mut follower = stream.follow(FollowFrom::Now);
    stream.write(b"new\n");
    stream.close();
    assert_eq!(rest(&mut follower).await, (b"new\n".to_vec(), 0));
}

#[tokio::test]
async fn bytes_pruned_before_they_were_read_are_reported() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 2, 4);
    let mut follower = stream.follow(FollowFrom::Start);
    stream.write(b"0aa\n");
    assert_eq!(follower.next(2).await.unwrap().bytes, b"0a");
    for line in 1..=5 {
        stream.write(format!("{line}aa\n").as_bytes());
    }
    stream.close();
    // The open file is read to its end although it was pruned; files 1, 2 and 3 are lost.
    assert_eq!(
        follower.next(100).await.unwrap(),
        Chunk { bytes: b"a\n".to_vec(), skipped_bytes: 0 }
    );
    assert_eq!(
        follower.next(100).await.unwrap(),
        Chunk { bytes: b"4aa\n".to_vec(), skipped_bytes: 12 }
    );
    assert_eq!(rest(&mut follower).await, (b"5aa\n".to_vec(), 0));
}

#[tokio::test]
async fn a_slow_follower_loses_nothing_uncounted_however_the_writer_runs() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 2, 64);
    let mut follower = stream.follow(FollowFrom::Start);
    let writer = Arc::clone(&stream);
    let writing = tokio::task::spawn_blocking(move || {
        for number in 0..20_000_u32 {
            writer.write(format!("{number:09}\n").as_bytes());
        }
        writer.close();
    });
    let (bytes, skipped) = rest(&mut follower).await;
    writing.await.unwrap();
    assert_eq!(bytes.len() as u64 + skipped, 200_000);
    assert!(bytes.ends_with(b"000019999\n"));
    let numbers: Vec<_> =
        bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    assert!(numbers.is_sorted(), "order is kept over gaps");
}

#[tokio::test]
async fn a_follower_ends_when_the_stream_is_dropped() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 2, 100);
    let mut follower = stream.follow(FollowFrom::Start);
    stream.write(b"last words");
    drop(stream);
    assert_eq!(rest(&mut follower).await, (b"last words".to_vec(), 0));
}

#[tokio::test]
async fn the_files_of_an_ended_task_are_read_in_order_and_links_among_them_are_not_followed() {
    let path = tempfile::tempdir().unwrap();
    for (index, text) in [(9, "nine\n"), (10, "ten\n"), (12, "twelve\n")] {
        fs::write(path.path().join(format!("web.stderr.{index}")), text).unwrap();
    }
    std::os::unix::fs::symlink("/etc/passwd", path.path().join("web.stderr.11")).unwrap();
    let mut follower =
        StreamFollower::of_files(&dir(path.path()), &task(), StreamKind::Stderr).unwrap();
    assert_eq!(rest(&mut follower).await, (b"nine\nten\ntwelve\n".to_vec(), 0));
    let mut none =
        StreamFollower::of_files(&dir(path.path()), &task(), StreamKind::Stdout).unwrap();
    assert_eq!(none.next(1).await, None);
}

#[tokio::test]
async fn both_streams_of_a_task_go_to_files_of_their_own_and_go_on_after_a_restart() {
    let path = tempfile::tempdir().unwrap();
    for text in ["first\n", "second\n"] {
        let logs = TaskLogs::new(&log_dir(path.path()), &task(), &LogConfig::default(), false);
        logs.stdout.write(text.as_bytes());
        logs.stderr.write(text.to_uppercase().as_bytes());
        assert_eq!(logs.stdout.dropped_bytes(), 0);
        logs.close();
    }
    let text = |name: &str| fs::read_to_string(path.path().join(name)).unwrap();
    assert_eq!(text("web.stdout.0"), "first\nsecond\n");
    assert_eq!(text("web.stderr.0"), "FIRST\nSECOND\n");
}

#[tokio::test]
async fn disabled_logs_make_no_files_and_take_every_byte() {
    let path = tempfile::tempdir().unwrap();
    let config = LogConfig { disabled: true, ..LogConfig::default() };
    let logs = TaskLogs::new(&log_dir(path.path()), &task(), &config, false);
    let mut follower = logs.stdout.follow(FollowFrom::Start);
    logs.stdout.write(b"gone");
    logs.close();
    assert_eq!(follower.next(10).await, None);
    assert_eq!(fs::read_dir(path.path()).unwrap().count(), 0);
}

async fn lines(stream: &LogStream) -> Vec<StreamLine> {
    let mut lines = LineFollower::new(stream.follow(FollowFrom::Start));
    let mut all = Vec::new();
    while let Some(line) = lines.next().await {
        all.push(line);
    }
    all
}

fn line(bytes: &[u8], complete: bool) -> StreamLine {
    StreamLine { bytes: bytes.to_vec(), complete, skipped_bytes: 0 }
}

#[tokio::test]
async fn lines_come_whole_and_the_unfinished_last_one_at_the_end() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 10, 5);
    stream.write(b"\na\r\nbcdefghi\n\nrest");
    stream.close();
    assert_eq!(
        lines(&stream).await,
        [
            line(b"", true),
            line(b"a\r", true),
            line(b"bcdefghi", true),
            line(b"", true),
            line(b"rest", false)
        ]
    );
}

#[tokio::test]
async fn an_over_long_line_comes_in_bounded_pieces() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 10, 10 << 20);
    let long = vec![b'x'; LINE_BYTES_MAX * 2 + 7];
    stream.write(&long);
    stream.write(b"\nshort\n");
    stream.write(&vec![b'y'; LINE_BYTES_MAX]);
    stream.write(b"\n");
    stream.close();
    let piece = vec![b'x'; LINE_BYTES_MAX];
    assert!(
        lines(&stream).await
            == [
                line(&piece, false),
                line(&piece, false),
                line(b"xxxxxxx", true),
                line(b"short", true),
                line(&vec![b'y'; LINE_BYTES_MAX], true),
            ]
    );
}

#[tokio::test]
async fn a_line_torn_by_a_gap_is_not_joined_with_what_follows() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 1, 4);
    let mut lines = LineFollower::new(stream.follow(FollowFrom::Start));
    stream.write(b"ab");
    // The first bytes are held, because the line is not finished.
    assert!(
        ostler_model::clock::timeout(std::time::Duration::from_millis(200), lines.next())
            .await
            .is_none()
    );
    stream.write(
        &[&vec![b'x'; ostler_model::limits::LOG_LINE_SEEK_BYTES + 2][..], b"lost\n", b"kept\n"]
            .concat(),
    );
    stream.close();
    let mut all = Vec::new();
    while let Some(line) = lines.next().await {
        all.push(line);
    }
    let last = all.last().unwrap();
    assert_eq!(last, &StreamLine { bytes: b"kept".to_vec(), complete: true, skipped_bytes: 5 });
    assert!(all[0].bytes.starts_with(b"abxx") && !all[0].complete);
}

#[tokio::test]
async fn a_follower_passes_over_what_it_is_told_to_over_all_files_and_no_more() {
    let path = tempfile::tempdir().unwrap();
    let stream = stream(path.path(), 10, 100);
    let text: String = (0..50).map(|number| format!("{number:05}\n")).collect();
    for line in text.as_bytes().chunks(6) {
        stream.write(line);
    }
    for skip in [0, 1, 99, 100, 150, 299] {
        let mut follower = stream.follow(FollowFrom::Start);
        assert_eq!(follower.skip(skip), skip);
        let chunk = follower.next(1).await.unwrap();
        let at = usize::try_from(skip).unwrap();
        assert_eq!((chunk.bytes[0], chunk.skipped_bytes), (text.as_bytes()[at], 0), "{skip}");
    }
    let mut live = stream.follow(FollowFrom::Start);
    assert_eq!(live.skip(u64::MAX), 300, "what is there now");
    stream.write(b"more");
    assert_eq!(live.next(usize::MAX).await.unwrap().bytes, b"more");
    // The files before end with a line, two bytes beyond the limit.
    assert_eq!(live.file_position(), ("web.stdout.2".to_owned(), 304 - 2 * 102));
    stream.close();
    let of_files =
        || StreamFollower::of_files(&dir(path.path()), &task(), StreamKind::Stdout).unwrap();
    assert_eq!(of_files().skip(u64::MAX), 304);
    let mut tail = of_files();
    assert_eq!(tail.skip(300), 300);
    assert_eq!(rest(&mut tail).await, (b"more".to_vec(), 0));
}
