//! Devices are found by plugins, assigned to tasks, shown to them, and given back.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ostler_agent::SubmitError;
use ostler_model::device::{DeviceGroup, HealthState};
use tempfile::TempDir;

use crate::support::jobs::{assert_successful, batch, groups, shell, state, wasm};
use crate::support::system::eventually;
use crate::support::{TestAgent, parse};

/// A directory whose files are devices, and the configuration that grants it.
fn files(names: &[&str]) -> (TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    for name in names {
        std::fs::write(dir.path().join(name), format!("I am {name}\n")).unwrap();
    }
    let config = granted("files", "dir", dir.path());
    (dir, config)
}

pub fn granted(plugin: &str, key: &str, dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "plugin \"{plugin}\" {{\n config {{\n {key} = \"{dir}\"\n }}\n grants {{\n files \"{dir}\" \
         {{}}\n mounts \"{dir}\" {{}}\n }}\n }}\n"
    )
}

fn resources(request: &str) -> String {
    format!("resources {{\n cpu = 20\n memory = 32\n {request}\n }}")
}

fn file_devices(count: u32) -> String {
    resources(&format!("device \"ostler/file\" {{\n count = {count}\n }}"))
}

/// A greeter that shows the content of what it was assigned.
fn greeter(name: &str, count: u32) -> String {
    wasm(name, "guest:hello", &[], &file_devices(count))
}

fn refusal(refused: Result<ostler_agent::JobHandle, SubmitError>) -> String {
    match refused {
        Err(error @ SubmitError::Refused(_)) => error.to_string(),
        Err(other) => panic!("refused for another reason: {other}"),
        Ok(_) => panic!("taken"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_reads_the_devices_it_was_assigned() {
    let (_dir, config) = files(&["left", "right"]);
    let agent = TestAgent::with_config(&config).await;
    let result = agent.run(&batch(&greeter("t", 2))).await;
    assert_successful(&result);
    let printed = agent.stdout(&result, "t");
    assert!(printed.contains("device /local/devices/left: I am left\n"), "{printed}");
    assert!(printed.contains("device /local/devices/right: I am right\n"), "{printed}");
    assert!(!agent.log(&result, "t", "stderr").contains("cannot read"));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_assigned_device_cannot_be_written_by_the_task() {
    let (dir, config) = files(&["one"]);
    let agent = TestAgent::with_config(&config).await;
    let args = ["write", "/local/devices/one", "changed"];
    let result = agent.run(&batch(&wasm("t", "guest:toolbox", &args, &file_devices(1)))).await;
    assert!(!result.is_successful());
    assert_eq!(std::fs::read_to_string(dir.path().join("one")).unwrap(), "I am one\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_native_task_is_refused_a_device_that_it_could_not_see() {
    let (_dir, config) = files(&["one"]);
    let agent = TestAgent::with_config(&config).await;
    let result = agent.run(&batch(&shell("t", "cat $FILE_DEVICE_PATHS", &file_devices(1)))).await;
    let told = &state(&result, "t").events;
    let said = |text: &str| told.iter().any(|event| event.message.contains(text));
    assert!(state(&result, "t").failed, "{told:#?}");
    assert!(said("cannot be shown to it as /local/devices/one"), "{told:#?}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tasks_get_different_devices_a_third_is_told_who_holds_them_and_gets_one_later() {
    let (_dir, config) = files(&["left", "right"]);
    let agent = TestAgent::with_config(&config).await;
    let holder = |name: &str| wasm(name, "guest:toolbox", &["spin"], &file_devices(1));
    let held = agent.handle.submit(parse(&batch(&[holder("a"), holder("b")].concat()))).await;
    let held = held.unwrap_or_else(|e| panic!("{e}"));
    let assigned = held.allocs()[0].allocation().devices.clone();
    let ids: Vec<&String> = assigned.values().flatten().flat_map(|device| &device.ids).collect();
    assert_eq!(ids, ["left", "right"]);

    let third = batch(&greeter("c", 1)).replacen("job \"j\"", "job \"later\"", 1);
    let said = refusal(agent.handle.submit(parse(&third)).await);
    for text in ["ostler/file", "2 healthy, 0 free", "left is held by", "right is held by"] {
        assert!(said.contains(text), "nothing of {text:?} in:\n{said}");
    }

    held.stop("make room").await;
    held.wait().await;
    // What an allocation held is free a moment after it is done.
    let job = parse(&third);
    let mut taken = None;
    let patience = ostler_model::clock::timeout(crate::support::PATIENCE, async {
        while taken.is_none() {
            taken = agent.handle.submit(job.clone()).await.ok();
        }
    });
    patience.await.expect("the device is free again");
    assert_successful(&taken.unwrap().wait().await);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_does_not_exist_is_refused_with_what_there_is() {
    let (_dir, config) = files(&["one"]);
    let agent = TestAgent::with_config(&config).await;
    let gpu = resources("device \"ostler/gpu\" {\n count = 1\n }");
    let said = refusal(agent.handle.submit(parse(&batch(&shell("t", "true", &gpu)))).await);
    assert!(said.contains("no plugin offers ostler/gpu; there is"), "{said}");
    assert!(said.contains("ostler/file/files"), "{said}");
    let said = refusal(agent.handle.submit(parse(&batch(&greeter("t", 2)))).await);
    assert!(said.contains("1 healthy, 1 free"), "{said}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_appears_and_one_that_goes_are_noticed() {
    let (dir, config) = files(&["one"]);
    let agent = TestAgent::with_config(&config).await;
    let names = || {
        let node = agent.handle.node();
        let files = node.devices.iter().find(|group| group.key.kind == "file");
        files
            .map(|g| g.instances.iter().map(|i| i.id.clone()).collect::<Vec<_>>())
            .unwrap_or_default()
    };
    assert_eq!(names(), ["one"]);
    std::fs::write(dir.path().join("two"), "new").unwrap();
    std::fs::remove_file(dir.path().join("one")).unwrap();
    eventually("two is there and one is not", || names() == vec!["two".to_owned()]).await;
    agent.stop().await;
}

/// The devices of [`sysfs`]: address, vendor, device, class, NUMA node.
const CARDS: &[[&str; 5]] = &[
    ["0000:3b:00.0", "10DE", "2331", "30200", "0"],
    ["0000:5e:00.0", "10DE", "2331", "30200", "1"],
    ["0000:01:00.0", "8086", "1521", "20000", "-1"],
];

/// A fake sysfs with two display controllers and a network card.
pub fn sysfs() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("bus/pci/devices")).unwrap();
    CARDS.iter().for_each(|[address, ..]| plug_in(root.path(), address));
    root
}

/// Where the tree has a device, and the link to it.
fn places(root: &Path, address: &str) -> [PathBuf; 2] {
    [root.join("devices/pci0000:00").join(address), root.join("bus/pci/devices").join(address)]
}

/// A device of [`sysfs`] is put in.
pub fn plug_in(root: &Path, address: &str) {
    let card = CARDS.iter().find(|card| card[0] == address).unwrap();
    let [_, vendor, device, class, numa] = card;
    let [dir, link] = places(root, address);
    std::fs::create_dir_all(&dir).unwrap();
    let driver = if *vendor == "10DE" { "DRIVER=nvidia\n" } else { "" };
    let uevent = format!("{driver}PCI_CLASS={class}\nPCI_ID={vendor}:{device}\n");
    std::fs::write(dir.join("uevent"), uevent).unwrap();
    std::fs::write(dir.join("numa_node"), format!("{numa}\n")).unwrap();
    symlink(format!("../../../devices/pci0000:00/{address}"), link).unwrap();
}

/// A device of [`sysfs`] is pulled out.
pub fn pull_out(root: &Path, address: &str) {
    let [dir, link] = places(root, address);
    std::fs::remove_file(link).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

fn pci_groups(agent: &TestAgent) -> Vec<DeviceGroup> {
    let node = agent.handle.node();
    node.devices.iter().filter(|group| group.plugin.as_str() == "pci").cloned().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn pci_devices_of_a_fake_tree_are_found_described_and_assigned() {
    let root = sysfs();
    let agent = TestAgent::with_config(&granted("pci", "root", root.path())).await;
    let found = pci_groups(&agent);
    let gpus = found.iter().find(|group| group.key.vendor == "nvidia");
    let gpus = gpus.unwrap_or_else(|| panic!("{found:#?}"));
    assert_eq!((gpus.key.name.as_str(), gpus.instances.len()), ("2331", 2));
    let numa: Vec<_> =
        gpus.instances.iter().map(|i| i.locality.as_ref().and_then(|l| l.numa_node)).collect();
    assert_eq!(numa, [Some(0), Some(1)]);
    assert!(gpus.instances.iter().all(|i| i.health.state == HealthState::Healthy));

    let key = format!("{}/{}", gpus.key.vendor, gpus.key.kind);
    let asking = |class: &str| {
        resources(&format!(
            "device \"{key}\" {{\n count = 1\n constraint {{\n attribute = \
             \"${{device.attr.class}}\"\n value = \"{class}\"\n }}\n constraint {{\n attribute = \
             \"${{device.attr.driver}}\"\n value = \"nvidia\"\n }}\n }}"
        ))
    };
    let show = "echo $PCI_DEVICES";
    let result = agent
        .run(&groups([
            shell("first", show, &asking("030200")),
            shell("second", show, &asking("030200")),
        ]))
        .await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "first"), "0000:3b:00.0\n");
    assert_eq!(agent.stdout(&result, "second"), "0000:5e:00.0\n");

    let wrong = batch(&shell("t", show, &asking("020000")));
    let said = refusal(agent.handle.submit(parse(&wrong)).await);
    assert!(said.contains("device.attr.class") && said.contains("030200"), "{said}");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pci_devices_of_this_machine_are_those_of_its_sysfs() {
    let agent = TestAgent::start().await;
    let entries = std::fs::read_dir("/sys/bus/pci/devices").map(|dir| {
        dir.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect::<Vec<_>>()
    });
    let mut there = entries.unwrap_or_default();
    there.sort();
    let found = pci_groups(&agent);
    let mut ids: Vec<_> =
        found.iter().flat_map(|g| g.instances.iter().map(|i| i.id.clone())).collect();
    ids.sort();
    assert_eq!(ids, there);
    agent.stop().await;
}
