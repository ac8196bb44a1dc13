//! What goes when something is over, and what is left of an agent that left.

use ostler_agent::StopOptions;
use ostler_model::alloc::ClientStatus;
use tokio::runtime::Handle;

use super::{Served, job_id, service};
use crate::support::DataDir;
use crate::support::system::eventually;

/// A batch job of this name whose one task ends at once.
fn brief(name: &str) -> String {
    let job =
        service("", "").replace("job \"web\" {", &format!("job \"{name}\" {{\n type = \"batch\""));
    job.replace("exec sleep 1000", "exit 0")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_most_allocations_there_may_be_hold_as_soon_as_one_is_placed() {
    let config = "gc {\n max_allocs = 3\n interval = \"24h\"\n disk_usage_threshold = 100\n \
                  inode_usage_threshold = 100\n}";
    let served = Served::on(DataDir::new(), config).await;
    let mut ended = Vec::new();
    for name in ["a", "b", "c"] {
        let id = served.register(&brief(name)).await.placed[0];
        served.until(id, ClientStatus::Complete).await;
        eventually("it is over", || served.view(id).phase.has_ended()).await;
        ended.push(id);
    }
    assert_eq!(served.agent.control().allocs().len(), 3);
    served.register(&service("", "")).await;
    eventually("the oldest is gone", || served.agent.control().alloc(ended[0]).is_none()).await;
    assert_eq!(served.agent.control().allocs().len(), 3);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_collected_right_after_a_stop_leaves_nothing_behind() {
    for purge in [false, true] {
        let served = Served::start().await;
        served.register(&service("count = 3", "")).await;
        served.until_running(3).await;
        let options = StopOptions { purge, ..StopOptions::default() };
        served.agent.deregister(&job_id(), options).await.unwrap();
        served.agent.control().collect(None).await.unwrap();
        assert!(served.agent.control().allocs().is_empty(), "purge: {purge}");
        let dirs = std::fs::read_dir(served.data.path().join("allocs")).unwrap();
        assert_eq!(dirs.count(), 0, "purge: {purge}");
        served.end().await;
    }
    let served = Served::start().await;
    let id = served.register(&service("", "")).await.placed[0];
    served.until_running(1).await;
    served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
    assert_eq!(served.agent.control().collect(Some(id)).await.unwrap().allocs, [id]);
    served.end().await;
}

#[test]
fn nothing_of_an_agent_is_left_in_the_runtime_when_it_has_left() {
    // A runtime of its own: tasks of other tests are not counted.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let jobs = tempfile::tempdir().unwrap();
        std::fs::write(jobs.path().join("b.hcl"), brief("b")).unwrap();
        let config = format!("jobs_dir = \"{}\"", jobs.path().display());
        let served = Served::on(DataDir::new(), &config).await;
        let placed = served.register(&service("count = 2", "")).await.placed;
        for id in placed {
            served.until(id, ClientStatus::Running).await;
        }
        served.agent.deregister(&job_id(), StopOptions::default()).await.unwrap();
        let data = served.leave().await;
        let left = Handle::current().metrics().num_alive_tasks();
        assert_eq!(left, 0, "tasks run on");
        drop(data);
    });
}
