#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use super::*;
use ostler_logs::TaskLogs;
use ostler_model::ids::AllocId;
use ostler_model::job::LogConfig;
use ostler_model::ports::ByteSink as _;
use ostler_model::rng::Rng;

fn logs(dir: &Path) -> TaskLogs {
    let dir = std::os::fd::OwnedFd::from(std::fs::File::open(dir).unwrap()).into();
    TaskLogs::new(&dir, &TaskName::new("web").unwrap(), &LogConfig::default(), false)
}

#[tokio::test]
async fn every_line_is_told_and_the_end_comes_after_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let logs = logs(dir.path());
    let (alloc, task) = (AllocId::new(Rng::from_seed(1).uuid()), TaskName::new("web").unwrap());
    let whose =
        OutputLine::empty_line(alloc, task, Arc::new(Label { text: "web".into(), number: 0 }));
    let (sender, mut reports) = mpsc::channel(1);
    let stream = Arc::clone(&logs.stdout);
    let telling = tokio::spawn(async move { send_lines(stream, whose, &sender).await });
    logs.stdout.write(b"one\ntwo\nthr");
    let mut told = Vec::new();
    for _ in 0..2 {
        match reports.recv().await {
            Some(RunReport::Output(line)) => told.push((line.bytes, line.complete)),
            other => told.push((format!("{other:?}").into_bytes(), false)),
        }
    }
    logs.stdout.write(b"ee");
    logs.close();
    while let Some(RunReport::Output(line)) = reports.recv().await {
        told.push((line.bytes, line.complete));
    }
    telling.await.unwrap();
    let expected = [(b"one".to_vec(), true), (b"two".to_vec(), true), (b"three".to_vec(), false)];
    assert_eq!(told, expected);
}
