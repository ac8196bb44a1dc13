//! What an agent writes to its state file, and what it finds there at its next start.

use std::path::Path;

use ostler_agent::{Agent, AgentHandle};
use ostler_device::ledger::DeviceLedger;
use ostler_model::alloc::ClientStatus;
use ostler_model::device::HealthState;
use ostler_model::ids::{PluginName, TaskName};
use ostler_model::plugin::PluginKind;
use ostler_model::saved::{
    DeviceManagerState, DriverManagerState, NodeRegistration, PluginHandle, SavedAllocState,
};
use ostler_model::task::{TaskState, TaskStatus};
use ostler_state::records::{
    AllocStateKey, DeviceLedgerKey, DeviceManagerKey, DriverManagerKey, NodeRegistrationKey,
    PluginHandleKey, TaskStateKey,
};
use ostler_state::{KeyPrefix, StateStore};

use crate::support::binary::command;
use crate::support::jobs::{assert_successful, batch, shell, wasm};
use crate::support::system::{eventually, pid_in, runs};
use crate::support::{DataDir, PATIENCE, TestAgent, options, parse};

const FILE: &str = "state.redb";

async fn agent(data: &DataDir, config: &str) -> AgentHandle {
    let config =
        ostler_jobspec::parse_agent_config(config.as_bytes(), Path::new("/test/ostler.hcl"))
            .unwrap();
    Agent::start(options(data.path(), config)).await.unwrap()
}

fn store(data: &DataDir) -> StateStore {
    let store = StateStore::open(&data.path().join(FILE)).unwrap();
    assert!(store.open_report().quarantined.is_empty());
    store
}

fn name(text: &str) -> PluginName {
    PluginName::new(text).unwrap()
}

/// Make the file `one` the one device of the built-in device plugin.
fn one_device(data: &DataDir) {
    let dir = data.path().join("devices");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("one"), "I am one\n").unwrap();
}

const DEVICE: &str =
    "resources {\n cpu = 20\n memory = 32\n device \"ostler/file\" {\n count = 1\n }\n }";

#[tokio::test(flavor = "multi_thread")]
async fn a_node_keeps_its_id_over_starts_and_over_the_loss_of_its_state_file() {
    let data = DataDir::new();
    let first = agent(&data, "name = \"before\"").await;
    let id = first.node().id;
    first.shutdown().await;
    drop(first);
    let registered: NodeRegistration =
        store(&data).get(&NodeRegistrationKey::of()).unwrap().unwrap();
    assert_eq!((registered.id, registered.name.as_str()), (id, "before"));

    let second = agent(&data, "name = \"after\"").await;
    assert_eq!(second.node().id, id);
    assert!(
        second.notices().iter().all(|notice| !notice.contains("node")),
        "{:?}",
        second.notices()
    );
    second.shutdown().await;
    drop(second);
    let again: NodeRegistration = store(&data).get(&NodeRegistrationKey::of()).unwrap().unwrap();
    assert_eq!(again, NodeRegistration { name: "after".into(), ..registered.clone() });

    std::fs::remove_file(data.path().join(FILE)).unwrap();
    let third = agent(&data, "").await;
    assert_eq!(third.node().id, id);
    third.shutdown().await;
    drop(third);
    let anew: NodeRegistration = store(&data).get(&NodeRegistrationKey::of()).unwrap().unwrap();
    assert_eq!(anew.id, id);
    assert!(anew.registered_at > registered.registered_at);
}

#[tokio::test(flavor = "multi_thread")]
async fn plugins_are_remembered_and_one_that_changed_is_told_at_the_next_start() {
    let data = DataDir::new();
    one_device(&data);
    let first = agent(&data, "").await;
    let shown: Vec<_> = first.plugins().to_vec();
    first.shutdown().await;
    drop(first);
    let state = store(&data);
    let exec: PluginHandle = state.get(&PluginHandleKey::of(name("exec"))).unwrap().unwrap();
    let entry = shown.iter().find(|entry| entry.name == "exec").unwrap();
    assert_eq!(Some(&exec.digest), entry.digest.as_ref());
    assert_eq!((exec.kind, exec.source.as_str()), (PluginKind::Driver, "built-in"));
    let drivers: DriverManagerState = state.get(&DriverManagerKey::of()).unwrap().unwrap();
    assert_eq!(drivers.drivers[&name("exec")].digest, exec.digest);
    assert_eq!(drivers.drivers[&name("exec")].health, HealthState::Healthy);
    assert!(!drivers.drivers.contains_key(&name("files")));
    let devices: DeviceManagerState = state.get(&DeviceManagerKey::of()).unwrap().unwrap();
    assert_eq!(devices.plugins[&name("files")].groups[0].instances, ["one"]);

    // As if it had been another one: only the record says what it was.
    let other = PluginHandle { digest: "ab".repeat(32), version: "0.0.9".into(), ..exec.clone() };
    state.put(&PluginHandleKey::of(name("exec")), &other).await.unwrap();
    let stranger = PluginHandle { block: "stranger".into(), ..exec.clone() };
    state.put(&PluginHandleKey::of(name("stranger")), &stranger).await.unwrap();
    state.close().await;
    drop(state);

    let second = agent(&data, "").await;
    let told: Vec<_> =
        second.notices().iter().filter(|notice| notice.contains("changed")).cloned().collect();
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].starts_with("plugin exec changed") && told[0].contains("0.0.9"), "{told:?}");
    second.shutdown().await;
    drop(second);
    let state = store(&data);
    let now: PluginHandle = state.get(&PluginHandleKey::of(name("exec"))).unwrap().unwrap();
    assert_eq!(now, exec);
    assert_eq!(state.get::<PluginHandle>(&PluginHandleKey::of(name("stranger"))).unwrap(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_with_nothing_new_writes_no_record_of_plugins_managers_or_node() {
    let data = DataDir::new();
    let first = agent(&data, "").await;
    first.shutdown().await;
    drop(first);
    let second = agent(&data, "").await;
    second.shutdown().await;
    let stats = second.state_stats();
    assert_eq!((stats.writes, stats.commits), (0, 0), "{stats:?}");
    assert!(stats.unchanged > 5, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_on_record_while_it_is_held_and_free_at_the_next_start() {
    let data = DataDir::new();
    one_device(&data);
    let files = tempfile::tempdir().unwrap();
    let (job, pid_file) = (files.path().join("job.hcl"), files.path().join("pid"));
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000", pid_file.display());
    let holder = wasm("t", "guest:toolbox", &["sleep", "1000000"], DEVICE);
    std::fs::write(&job, batch(&(shell("s", &script, "") + &holder))).unwrap();
    let begin = ["run", "--raw-exec", "--data-dir"].map(std::ffi::OsStr::new);
    let args = begin.into_iter().chain([data.path().as_os_str(), job.as_os_str()]);
    let mut killed = command(args).spawn().unwrap();
    let task = pid_in(&pid_file).await;
    killed.start_kill().unwrap();
    killed.wait().await.unwrap();
    eventually("the task dies with its agent", || !runs(task)).await;
    let state = store(&data);
    let ledger: DeviceLedger = state.get(&DeviceLedgerKey::of()).unwrap().unwrap();
    let holders: Vec<_> = ledger.holders().collect();
    assert_eq!(holders.len(), 1);
    assert_eq!((holders[0].instance.as_str(), holders[0].holder.task.as_str()), ("one", "t"));
    state.close().await;
    drop(state);

    let next = agent(&data, "").await;
    let told = || next.control().device_holders() == DeviceLedger::default();
    eventually("its plugin was told", told).await;
    next.shutdown().await;
    drop(next);
    let ledger: DeviceLedger = store(&data).get(&DeviceLedgerKey::of()).unwrap().unwrap();
    assert_eq!(ledger, DeviceLedger::default());
}

/// Owners of allocations let the file go when they have ended.
async fn eventually_opened(data: &DataDir) -> StateStore {
    let opened = || StateStore::open(&data.path().join(FILE)).is_ok();
    eventually("the state file is free", opened).await;
    store(data)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submit_that_is_given_up_leaves_no_record_and_holds_nothing() {
    let data = DataDir::new();
    one_device(&data);
    let agent = agent(&data, "").await;
    let job = batch(&wasm("t", "guest:hello", &[], DEVICE));
    {
        let mut submit = Box::pin(agent.submit(parse(&job)));
        // It is in the middle of its writes when it is dropped.
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(submit.as_mut().poll(context).is_ready())
        });
        assert!(!polled.await, "the writes take more than one look");
    }
    // The one device is free again, once the records are removed.
    let second = async {
        loop {
            match agent.submit(parse(&job)).await {
                Ok(job) => break job.wait().await,
                Err(error) => {
                    let said = error.to_string();
                    assert!(said.contains("held") || said.contains("runs already"), "{said}");
                }
            }
            tokio::task::yield_now().await;
        }
    };
    let result =
        ostler_model::clock::timeout(PATIENCE, second).await.expect("the device becomes free");
    assert_successful(&result);
    agent.shutdown().await;
    drop(agent);
    let state = eventually_opened(&data).await;
    let records = state.scan(&KeyPrefix::Allocs).unwrap();
    assert!(!records.is_empty());
    for record in records {
        assert_eq!(record.key.alloc(), Some(result.allocs[0].id), "{}", record.key);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_of_an_allocation_is_on_record_when_its_end_is_told() {
    let test = TestAgent::start().await;
    let result = test.run(&batch(&shell("t", "exit 0", ""))).await;
    let file = test.handle.data_dir().join(FILE);
    let data = test.leave().await;
    let state = StateStore::open(&file).unwrap();
    let saved: SavedAllocState =
        state.get(&AllocStateKey::of(result.allocs[0].id)).unwrap().unwrap();
    assert_eq!(saved.client_status, ClientStatus::Complete);
    drop(data);
}

/// Two waits for the disk: the intent (with the allocation and the device ledger), then the process
/// with its handle. What else there is to tell of a start shares their commits, or the next one.
#[tokio::test(flavor = "multi_thread")]
async fn a_native_start_waits_for_the_disk_twice() {
    let test = TestAgent::start().await;
    let before = test.handle.state_stats();
    let job = batch(&shell("t", "exec sleep 1000", ""));
    let job = test.handle.submit(parse(&job)).await.unwrap();
    let mut state = job.allocs()[0].state();
    let running = state.wait_for(|s| s.tasks.values().all(|t| t.status == TaskStatus::Running));
    ostler_model::clock::timeout(PATIENCE, running).await.unwrap().unwrap();
    let now = test.handle.state_stats();
    let waited = (now.puts - now.later) - (before.puts - before.later);
    assert_eq!(waited, 2, "{before:?} {now:?}");
    job.stop("enough").await;
    job.wait().await;
    test.stop().await;
}

/// Also when the directory of the allocation is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_ended_is_not_touched_by_the_next_start() {
    let test = TestAgent::start().await;
    let result = test.run(&batch(&shell("t", "exit 0", ""))).await;
    assert_successful(&result);
    let data = test.leave().await;
    std::fs::remove_dir_all(data.path().join("allocs")).unwrap();
    let next = agent(&data, "").await;
    assert!(next.notices().iter().all(|notice| !notice.contains("allocation")));
    next.shutdown().await;
    let stats = next.state_stats();
    assert_eq!(stats.writes, 0, "{stats:?}");
    drop(next);
    let key = TaskStateKey::of(result.allocs[0].id, TaskName::new("t").unwrap());
    let after: TaskState = store(&data).get(&key).unwrap().unwrap();
    assert_eq!(Some(&after), result.allocs[0].state.tasks.get("t").map(|task| &**task));
}
