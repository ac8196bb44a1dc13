//! What a task brings along, over a restart of the agent.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use ostler_model::artifact::{
    ArtifactError, ArtifactMode, ArtifactOutcome, ArtifactRequest, Artifacts, FetchProgress,
    PinnedFile, StagedArtifact, TaskArtifact,
};

/// Fetches the same file each time, and counts.
struct Counting {
    staging: tempfile::TempDir,
    fetched: AtomicUsize,
}

impl Artifacts for Counting {
    fn fetch(
        &self,
        _ask: ArtifactRequest,
        _progress: FetchProgress,
    ) -> BoxFuture<'_, Result<StagedArtifact, ArtifactError>> {
        let number = self.fetched.fetch_add(1, Ordering::SeqCst);
        let path = self.staging.path().join(number.to_string());
        std::fs::write(&path, "tool").unwrap();
        let outcome = ArtifactOutcome::Below("tool".to_owned());
        Box::pin(async move { Ok(StagedArtifact { path, outcome, held: Box::new(()) }) })
    }

    fn fetch_module(
        &self,
        _ask: ArtifactRequest,
        _progress: FetchProgress,
    ) -> BoxFuture<'_, Result<Arc<dyn PinnedFile>, ArtifactError>> {
        Box::pin(async { Err(ArtifactError::permanent("no module")) })
    }
}

fn bench() -> Bench {
    let artifact = TaskArtifact {
        source: "http://127.0.0.1/tool".to_owned(),
        options: Default::default(),
        headers: Default::default(),
        mode: ArtifactMode::Any,
        destination: "local".to_owned(),
    };
    let restart = fixtures::restart(3, SECOND);
    let bench = Bench::new(Task { artifacts: vec![artifact], restart, ..web() });
    bench.node.script("web", vec![native(Script::runs()); 3]);
    bench
}

fn agent(bench: &Bench, fetcher: &Arc<Counting>) -> TaskHandle {
    let artifacts = Some(Arc::clone(fetcher) as Arc<dyn Artifacts>);
    let scope = bench.scope_on(NodeContext { artifacts, ..bench.context() });
    TaskHandle::restore(scope, bench.gate.subscribe(), Arc::default(), bench.recorded())
}

async fn until_restarted(handle: &TaskHandle) {
    until(handle, |s| s.restarts == 1 && s.status == TaskStatus::Running).await;
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_is_made_anew_gets_what_the_task_brings_along_and_one_that_stayed_has_it()
{
    for gone in [true, false] {
        let mut bench = bench();
        let staging = tempfile::tempdir().unwrap();
        let fetcher = Arc::new(Counting { staging, fetched: AtomicUsize::new(0) });
        let dir = bench.context().alloc_root.join(bench.allocation.id.to_string());
        let tool = || std::fs::read_to_string(dir.join("web/local/tool")).ok();
        let handle = agent(&bench, &fetcher);
        until_running(&handle).await;
        assert_eq!((tool().as_deref(), fetcher.fetched.load(Ordering::SeqCst)), (Some("tool"), 1));
        handle.shutdown().await;
        handle.wait_gone().await;
        bench.reopen();
        if gone {
            let run = bench.recorded().local.unwrap().run.unwrap().id;
            bench.node.end_planted(&run, 1);
            std::fs::remove_dir_all(&dir).unwrap();
            // As the allocation does before it runs its tasks.
            AllocDir::create(&bench.context().alloc_root, bench.allocation.id).unwrap();
        }
        let handle = agent(&bench, &fetcher);
        if !gone {
            until(&handle, |s| has(s, "Recovered")).await;
            handle.restart("asked").await.unwrap();
        }
        until_restarted(&handle).await;
        let fetched = fetcher.fetched.load(Ordering::SeqCst);
        assert_eq!((tool().as_deref(), fetched), (Some("tool"), if gone { 2 } else { 1 }));
    }
}
