//! Devices that come and go while an agent runs: told of by the kernel, found by a plugin, assigned, kept.
//!
//! ```text
//! the tree of the test changes ─┐
//! a real event of the kernel ───┴─► watcher ─► plugin `pci` reads the tree ─► `ostler device list`
//! ```
//! The tree is made up, the events are not: writing to the `uevent` file of a device of this machine
//! makes the kernel tell everybody of its subsystem. The plugin would look by itself every minute
//! only, which is longer than these tests wait.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ostler_model::clock::timeout;
use ostler_node::watch::ChangeWatcher;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::devices::{granted, plug_in, pull_out, sysfs};
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{shell, with_guests};
use crate::support::needs::{Need, skipped};
use crate::support::system::{pid_in, runs, until};
use crate::support::{KEEPS, PATIENCE};

const FIRST: &str = "0000:3b:00.0";
const SECOND: &str = "0000:5e:00.0";
const NETWORK: &str = "0000:01:00.0";

/// Shorter than the interval on which the plugin is asked without events.
const SOON: Duration = Duration::from_secs(40);

/// A PCI device of this machine.
struct Kernel(PathBuf);

impl Kernel {
    /// Or why the kernel tells this test of nothing.
    async fn heard() -> Result<Self, String> {
        let devices = Path::new("/sys/bus/pci/devices");
        let mut there = std::fs::read_dir(devices).into_iter().flatten().flatten();
        let device =
            there.next().ok_or("this machine has no PCI device whose news could be told")?;
        let kernel = Self(device.path().join("uevent"));
        let watcher = ChangeWatcher::new();
        let mut pci = watcher.subscribe(&[], &["pci".to_owned()]);
        timeout(PATIENCE, pci.wait_for_change()).await.expect("the watch is in place");
        let degraded = watcher.report().degraded;
        if !degraded.is_empty() {
            return Err(format!("{degraded:?}"));
        }
        kernel.tell().map_err(|error| format!("{}: {error}", kernel.0.display()))?;
        match timeout(Duration::from_secs(5), pci.wait_for_change()).await {
            Some(()) => Ok(kernel),
            None => Err("the kernel does not tell this network namespace of devices".to_owned()),
        }
    }

    /// Make it tell of its subsystem.
    fn tell(&self) -> std::io::Result<()> {
        std::fs::write(&self.0, "change")
    }
}

/// An agent whose PCI devices are those of a made-up tree.
struct World {
    agent: AgentProcess,
    root: TempDir,
    kernel: Kernel,
}

impl World {
    /// Without the second card. `None`: skipped.
    async fn new() -> Option<Self> {
        let kernel = match Kernel::heard().await {
            Ok(kernel) => kernel,
            Err(why) => {
                skipped(Need::DeviceEvents, format!("devices that come and go: {why}"));
                return None;
            }
        };
        let root = sysfs();
        pull_out(root.path(), SECOND);
        let data = Home::new();
        let config = data.path().join("ostler.hcl");
        std::fs::write(&config, format!("{KEEPS}{}", granted("pci", "root", root.path()))).unwrap();
        let agent = AgentProcess::start_in(data, &["--config", config.to_str().unwrap()]).await;
        let world = Self { agent, root, kernel };
        // It is asked once more when its watch is in place; from then on only events count.
        until("the watch of the plugin is in place", async || world.asked().await >= 2).await;
        Some(world)
    }

    /// How often the plugin was asked what there is.
    async fn asked(&self) -> u64 {
        let told = self.agent.json(&["plugin", "status", "--json", "pci"]).await;
        let told = if told.is_array() { told[0].clone() } else { told };
        told["activity"]["calls"]["fingerprint"]["calls"].as_u64().unwrap()
    }

    /// What `ostler device list` says of a device.
    async fn device(&self, id: &str) -> Option<Value> {
        let groups = self.agent.json(&["device", "list", "--json"]).await;
        let mut all = groups.as_array().unwrap().iter();
        all.find_map(|group| {
            let mut instances = group["instances"].as_array().unwrap().iter();
            instances.find(|one| one["id"] == id).cloned()
        })
    }

    /// Wait, less than the plugin's own interval, until this is said of a device.
    async fn soon(
        &self,
        what: &str,
        id: &str,
        like: impl Fn(Option<&Value>) -> bool,
    ) -> Option<Value> {
        let wait = async {
            loop {
                let device = self.device(id).await;
                if like(device.as_ref()) {
                    return device;
                }
            }
        };
        timeout(SOON, wait).await.unwrap_or_else(|| panic!("not soon: {what}"))
    }

    /// The devices change, and the kernel says so.
    fn change(&self, change: impl FnOnce(&Path)) {
        change(self.root.path());
        self.kernel.tell().unwrap();
    }
}

fn is(state: &'static str) -> impl Fn(Option<&Value>) -> bool {
    move |device| device.is_some_and(|device| device["health"]["state"] == state)
}

/// A service that wants `count` cards and writes its process's id.
fn wants(name: &str, count: u32, pid: &Path) -> String {
    let more = format!(
        "resources {{\n cpu = 20\n memory = 32\n device \"nvidia/display\" {{\n count = {count}\n }}\n }}"
    );
    let pid = pid.display();
    let script = format!("echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000");
    with_guests(&format!(
        "job \"{name}\" {{\n group \"g\" {{\n {}\n }}\n}}",
        shell("t", &script, &more)
    ))
}

#[tokio::test]
async fn a_device_that_is_plugged_in_is_assigned_and_one_that_is_pulled_out_stays_with_its_holder()
{
    let Some(world) = World::new().await else { return };
    assert_eq!(world.device(SECOND).await, None);
    world.change(|root| plug_in(root, SECOND));
    let there = world.soon("the card is there", SECOND, is("healthy")).await.unwrap();
    assert_eq!(there["holder"], Value::Null);

    let agent = &world.agent;
    let pid = agent.data.path().join("pid");
    agent.submit(&wants("holds", 2, &pid)).await.said(0, &[]);
    let (alloc, process) = (agent.alloc("holds").await, pid_in(&pid).await);
    let holder = json!({ "alloc": alloc, "task": "t", "job": "holds", "note": null });

    // One that is held and one that is not.
    world.change(|root| [SECOND, NETWORK].into_iter().for_each(|card| pull_out(root, card)));
    let gone = world.soon("the card is gone", SECOND, is("undetected")).await.unwrap();
    assert_eq!(gone["holder"], holder, "{gone:#}");
    assert_eq!(gone["health"]["reason"], "no plugin reports it now");
    world.soon("the other is gone", NETWORK, |device| device.is_none()).await;
    assert!(is("healthy")(world.device(FIRST).await.as_ref()), "nothing happened to the first");
    let view = agent.json(&["alloc", "status", "--json", &alloc]).await;
    assert_eq!(view["ClientStatus"], "running", "{view:#}");
    assert!(runs(process), "the task that holds it goes on");

    // It is nobody else's when it is back.
    world.change(|root| plug_in(root, SECOND));
    let back = world.soon("the card is back", SECOND, is("healthy")).await.unwrap();
    assert_eq!(back["holder"], holder, "{back:#}");
    let other = agent.data.path().join("other");
    let refused = agent.submit(&wants("other", 1, &other)).await;
    refused.said(0, &["waits until there is room", "is held by task t of allocation"]);
    agent.ask(&["job", "stop", "--purge", "other"]).await.said(0, &[]);
    assert!(runs(process));

    agent.ask(&["job", "stop", "holds"]).await.said(0, &[]);
    let free = |device: Option<&Value>| device.is_some_and(|device| device["holder"].is_null());
    for card in [FIRST, SECOND] {
        world.soon("it is free", card, free).await;
    }
    agent.submit(&wants("other", 1, &other)).await.said(0, &[]);
    assert!(runs(pid_in(&other).await));
}

#[tokio::test]
async fn a_burst_of_events_makes_the_plugin_be_asked_a_few_times_at_most() {
    let Some(world) = World::new().await else { return };
    let before = world.asked().await;
    world.change(|root| plug_in(root, SECOND));
    (0..200).for_each(|_| world.kernel.tell().unwrap());
    world.soon("the card is there", SECOND, is("healthy")).await;
    // Other tests make the kernel tell too, and a machine that is busy takes its time.
    let asked = world.asked().await - before;
    assert!((1..=20).contains(&asked), "asked {asked} times");
}
