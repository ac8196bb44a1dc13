//! The jobs directory: every file in it runs.

use std::path::{Path, PathBuf};

use ostler_agent::{JobsDirEntry, StopOptions, SubmitError};
use ostler_model::alloc::ClientStatus;
use ostler_model::ids::JobId;
use ostler_model::saved::JobOrigin;

use super::{Served, job_id, service};
use crate::support::DataDir;
use crate::support::system::eventually;

/// A directory for job files and the configuration that names it.
fn directory() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let config = format!("jobs_dir = \"{}\"", dir.path().display());
    (dir, config)
}

/// As editors and tools for configuration do it.
fn put(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(dir.join(".new"), text).unwrap();
    std::fs::rename(dir.join(".new"), &path).unwrap();
    path
}

fn entry(served: &Served, path: &Path) -> Option<JobsDirEntry> {
    let report = served.agent.jobs_dir().unwrap();
    report.files.into_iter().find(|entry| entry.path == path)
}

fn version(served: &Served) -> Option<u64> {
    served.agent.control().job(&job_id()).map(|view| view.record.version)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_runs_follows_its_changes_survives_a_mistake_and_stops_when_it_goes() {
    let (dir, config) = directory();
    let served = Served::on(DataDir::new(), &config).await;
    let path = put(dir.path(), "web.hcl", &service("", ""));
    let first = served.until_running(1).await.remove(0);
    assert_eq!(
        served.agent.control().job(&job_id()).unwrap().record.origin,
        JobOrigin::File(path.clone())
    );

    put(dir.path(), "web.hcl", &service("count = 2", ""));
    served.until_running(2).await;
    assert_eq!(version(&served), Some(1));

    put(dir.path(), "web.hcl", "job \"web\" {");
    eventually("the mistake is told", || {
        entry(&served, &path).is_some_and(|entry| entry.problem.is_some())
    })
    .await;
    let told = entry(&served, &path).unwrap();
    assert_eq!(told.job, Some(job_id()));
    assert!(told.problem.unwrap().contains("web.hcl:1"));
    assert_eq!((served.until_running(2).await.len(), version(&served)), (2, Some(1)));

    std::fs::remove_file(&path).unwrap();
    served.until(first.allocation.id, ClientStatus::Complete).await;
    assert!(served.agent.control().job(&job_id()).unwrap().record.stopped);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_file_and_a_job_of_the_api_do_not_take_each_other_over() {
    let (dir, config) = directory();
    let served = Served::on(DataDir::new(), &config).await;
    let path = put(dir.path(), "web.hcl", &service("", ""));
    served.until_running(1).await;
    let taken = served.try_register(&service("count = 2", "")).await;
    assert!(matches!(&taken, Err(SubmitError::Origin { .. })));
    assert!(taken.unwrap_err().to_string().contains("web.hcl"));
    let stopped = served.agent.deregister(&job_id(), StopOptions::default()).await;
    assert!(matches!(stopped, Err(SubmitError::Origin { .. })));

    let other = service("", "").replace("job \"web\"", "job \"api\"");
    served.register(&other).await;
    let second = put(dir.path(), "api.hcl", &other);
    eventually("the file is refused", || {
        entry(&served, &second).is_some_and(|entry| entry.problem.is_some())
    })
    .await;
    let api = served.agent.control().job(&JobId::new("api").unwrap()).unwrap();
    assert_eq!((api.record.origin.clone(), api.record.version), (JobOrigin::Api, 0));
    assert_eq!(entry(&served, &path).unwrap().problem, None);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_is_emptied_or_taken_away_stops_nothing_and_it_is_said() {
    let (dir, config) = directory();
    let served = Served::on(DataDir::new(), &config).await;
    let second = service("", "").replace("job \"web\"", "job \"api\"");
    let paths = [put(dir.path(), "web.hcl", &service("", "")), put(dir.path(), "api.hcl", &second)];
    let ids: Vec<_> = served.until_running(2).await.iter().map(|view| view.allocation.id).collect();
    let kept = dir.path().with_extension("kept");
    let said = async |text: &str| {
        eventually(text, || {
            let problem = served.agent.jobs_dir().unwrap().problem;
            problem.is_some_and(|problem| problem.contains(text))
        })
        .await;
        assert_eq!(
            served.until_running(2).await.iter().map(|v| v.allocation.id).collect::<Vec<_>>(),
            ids
        );
    };
    // As an unmounted file system: another directory, which is empty.
    std::fs::rename(dir.path(), &kept).unwrap();
    std::fs::create_dir(dir.path()).unwrap();
    served.agent.rescan_jobs_dir();
    said("no longer has any job file").await;
    // As a removed mount point.
    std::fs::remove_dir(dir.path()).unwrap();
    served.agent.rescan_jobs_dir();
    said("cannot be read").await;
    std::fs::rename(&kept, dir.path()).unwrap();
    served.agent.rescan_jobs_dir();
    eventually("all is well again", || served.agent.jobs_dir().unwrap().problem.is_none()).await;
    // One of several files is removed by somebody.
    std::fs::remove_file(&paths[1]).unwrap();
    served.until_running(1).await;
    served.end().await;
}
