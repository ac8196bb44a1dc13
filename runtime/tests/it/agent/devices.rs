//! Devices of an agent that serves: measured, released late, and released by the next agent.

use ostler_agent::StopOptions;
use ostler_model::stats::DeviceGroupStats;

use super::*;

/// The mock plugin, in a directory with its script and its journal.
struct Mock {
    dir: tempfile::TempDir,
}

/// One group of one device with a measurement, asked often; `more` is added to the script.
fn script(more: &str) -> String {
    format!(
        r#"{{ "journal": true, "check_after_ms": 1000,
             "groups": [{{ "count": 1,
               "stats": [{{ "path": ["load", "now"], "int_numerator": 7, "unit": "%" }}] }}]
             {more} }}"#
    )
}

impl Mock {
    fn new(more: &str) -> Self {
        let mock = Self { dir: tempfile::tempdir().unwrap() };
        mock.say(more);
        mock
    }

    /// From the next call on.
    fn say(&self, more: &str) {
        let new = self.dir.path().join("new");
        std::fs::write(&new, script(more)).unwrap();
        std::fs::rename(new, self.dir.path().join("script.json")).unwrap();
    }

    fn config(&self) -> String {
        let dir = self.dir.path().display();
        format!(
            "device_stats_interval = \"1s\"\nplugin \"mock_device\" {{\n config {{\n dir = \
             \"{dir}\"\n }}\n grants {{\n files \"{dir}\" {{ write = true }}\n }}\n }}\n"
        )
    }

    async fn serve(&self, data: DataDir) -> Served {
        let served = Served::on(data, &self.config()).await;
        let agent = served.agent.clone();
        eventually("the device is there", || {
            agent.node().devices.iter().any(|d| d.key.vendor == "mock")
        })
        .await;
        served
    }

    fn count(&self, call: &str) -> usize {
        let journal = std::fs::read_to_string(self.dir.path().join("journal")).unwrap_or_default();
        journal.lines().filter(|line| line.starts_with(call)).count()
    }
}

fn job(name: &str) -> String {
    let request =
        "resources {\n cpu = 20\n memory = 32\n device \"mock/device\" {\n count = 1\n }\n }";
    let task = wasm("t", "guest:toolbox", &["sleep", "1000000"], request);
    with_guests(&format!("job \"{name}\" {{\n group \"g\" {{\n {task}\n }}\n}}"))
}

async fn stop(served: &Served, name: &str, alloc: AllocId) {
    let job = JobId::new(name).unwrap();
    served.agent.deregister(&job, StopOptions::default()).await.unwrap();
    served.until(alloc, ClientStatus::Complete).await;
}

fn held(served: &Served) -> usize {
    served.agent.control().device_holders().holders().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_assigned_again_only_when_its_plugin_was_told_even_if_that_takes_two_agents() {
    let mock =
        Mock::new(r#", "release": [{ "do": "error", "kind": "recoverable", "message": "busy" }]"#);
    let served = mock.serve(DataDir::new()).await;
    let first = served.register(&job("first")).await.placed[0];
    served.until(first, ClientStatus::Running).await;
    stop(&served, "first", first).await;
    eventually("a release was refused", || {
        let claims = served.agent.device_claims();
        let error = claims.first().and_then(|claim| claim.last_error.as_deref());
        error.is_some_and(|error| error.contains("busy"))
    })
    .await;
    let waits = served.waits(&job("second")).await;
    assert!(waits.contains("held by"), "{waits}");

    let data = served.leave().await;
    let served = mock.serve(data).await;
    assert_eq!(held(&served), 1, "the next agent knows of it");
    mock.say("");
    eventually("it is released", || held(&served) == 0).await;
    let releases = mock.count("release");
    let second = served.register(&job("second")).await.placed[0];
    served.until(second, ClientStatus::Running).await;
    assert_eq!(mock.count("release"), releases, "and then no more");
    stop(&served, "second", second).await;
    eventually("the second is released at once", || mock.count("release") == releases + 1).await;
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_over_a_restart_is_released_once_when_it_ends() {
    let mock = Mock::new("");
    let served = mock.serve(DataDir::new()).await;
    let alloc = served.register(&job("first")).await.placed[0];
    served.until(alloc, ClientStatus::Running).await;
    let data = served.leave().await;
    assert_eq!(mock.count("release"), 0);
    let served = mock.serve(data).await;
    assert_eq!(held(&served), 1);
    served.until_running(1).await;
    stop(&served, "first", alloc).await;
    eventually("it is free", || held(&served) == 0).await;
    assert_eq!(mock.count("release"), 1);
    served.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn statistics_are_of_what_runs_and_stale_when_the_plugin_fails() {
    let mock = Mock::new("");
    let served = mock.serve(DataDir::new()).await;
    let alloc = served.register(&job("first")).await.placed[0];
    served.until(alloc, ClientStatus::Running).await;
    let stats = || served.agent.alloc_device_stats(alloc).unwrap();
    eventually("it is measured", || stats().iter().any(|group| !group.instances.is_empty())).await;
    let path = ["load".to_owned(), "now".to_owned()];
    let value = |stats: &[DeviceGroupStats]| {
        stats[0].instances["0"].stats.get(&path).and_then(|value| value.int_numerator)
    };
    assert_eq!((stats().len(), value(&stats()), stats()[0].stale.clone()), (1, Some(7), None));
    let mocks = || {
        let mut all = served.agent.device_stats();
        all.retain(|group| group.key.vendor == "mock");
        all
    };
    assert_eq!((mocks().len(), value(&mocks())), (1, Some(7)));

    mock.say(r#", "stats": [{ "do": "trap" }]"#);
    eventually("it is stale", || stats()[0].stale.is_some()).await;
    assert_eq!(value(&stats()), Some(7), "the last value is shown on");
    mock.say("");
    eventually("it is fresh again", || stats()[0].stale.is_none()).await;

    stop(&served, "first", alloc).await;
    assert_eq!(stats(), vec![], "only what runs counts");
    assert_eq!(mocks().len(), 1);
    assert!(served.agent.alloc_device_stats(AllocId::new(uuid::Uuid::nil())).is_none());
    served.end().await;
}
