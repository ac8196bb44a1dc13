//! The device plugins that come with the agent, over fixture directories and programs.

use std::os::unix::fs::symlink;
use std::path::Path;

use ostler_agent::PluginStatus;
use ostler_guests::fixtures::DEVICE_MOCK;
use ostler_model::device::{DeviceGroup, HealthState};
use ostler_testing::programs::write_script;

use crate::support::TestAgent;
use crate::support::jobs::{assert_successful, batch, shell};
use crate::support::system::eventually;

/// Groups that a plugin reports now.
fn groups_of(agent: &TestAgent, plugin: &str) -> Vec<DeviceGroup> {
    let node = agent.handle.node();
    node.devices.iter().filter(|group| group.plugin.as_str() == plugin).cloned().collect()
}

fn ids(groups: &[DeviceGroup]) -> Vec<String> {
    groups.iter().flat_map(|group| group.instances.iter().map(|one| one.id.clone())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_mock_follows_its_script_while_the_agent_runs() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().display();
    let config = format!(
        r#"
        plugin "mock_device" {{
          config {{
            dir     = "{at}"
            journal = true
            check_after_ms = 1000
            groups = [{{
              vendor     = "acme"
              instances  = [{{ id = "a", numa_node = 1 }}]
              attributes = [{{ name = "memory", value = 2, unit = "GiB" }}]
            }}]
          }}
          grants {{
            files "{at}" {{
              write = true
            }}
          }}
        }}
        "#
    );
    let agent = TestAgent::with_config(&config).await;
    let found = groups_of(&agent, "mock_device");
    assert_eq!(ids(&found), ["a"]);
    assert_eq!(found[0].key.to_string(), "acme/device/mock");
    assert_eq!(found[0].attributes[0].attribute.unit.as_deref(), Some("GiB"));

    // By rename: a script that is half written would be an answer too.
    let script = |text: &str| {
        std::fs::write(dir.path().join("new"), text).unwrap();
        std::fs::rename(dir.path().join("new"), dir.path().join("script.json")).unwrap();
    };
    script(
        r#"{"check_after_ms": 1000, "journal": true, "groups": [{"count": 2}],
            "fingerprint": [{"do": "error", "message": "told to", "calls": [0, 1000000]}]}"#,
    );
    let plugin = || agent.handle.node().device_plugins["mock_device"].clone();
    eventually("the fault is seen", || plugin().state == HealthState::Unhealthy).await;
    assert!(plugin().reason.contains("told to"), "{}", plugin().reason);
    script(r#"{"check_after_ms": 1000, "journal": true, "groups": [{"count": 2}]}"#);
    eventually("new devices", || ids(&groups_of(&agent, "mock_device")) == ["0", "1"]).await;
    let journal = std::fs::read_to_string(dir.path().join("journal")).unwrap();
    assert!(journal.lines().filter(|line| *line == "fingerprint").count() >= 3, "{journal}");
    agent.stop().await;
}

/// Configuration of a plugin with one string of its own and directories it may read.
fn reading(plugin: &str, config: &str, dirs: &[&Path]) -> String {
    let granted =
        |dir: &&Path| format!("files \"{0}\" {{}}\n mounts \"{0}\" {{}}\n", dir.display());
    let files: String = dirs.iter().map(granted).collect();
    format!("plugin \"{plugin}\" {{\n config {{\n {config}\n }}\n grants {{\n {files} }}\n}}\n")
}

/// Write a file of a fixture tree, and its directories.
fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{text}\n")).unwrap();
}

/// Make a link of a fixture tree, and its directory.
fn link(root: &Path, path: &str, target: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink(target, path).unwrap();
}

fn asking(device: &str) -> String {
    format!("resources {{\n cpu = 20\n memory = 32\n device \"{device}\" {{\n count = 1\n }}\n }}")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_plugin_checks_its_configuration_before_it_runs() {
    let plugins = ["files", "hwmon", "mock_device", "nvidia", "pci", "usb"];
    let block = |name: &&str| {
        format!("plugin \"{name}\" {{\n config {{\n dir = \"/x\"\n nonsense = 1\n }}\n }}\n")
    };
    let agent = TestAgent::with_config(&plugins.iter().map(block).collect::<String>()).await;
    for name in plugins {
        let entry = agent.handle.plugins().iter().find(|entry| entry.name == name).unwrap();
        let PluginStatus::Refused(reason) = &entry.status else { panic!("{name}: {entry:?}") };
        assert!(reason.contains("nonsense"), "{name}: {reason}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_usb_device_of_a_fixture_tree_is_assigned_with_its_node() {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    let device = "devices/pci0000:00/0000:00:14.0/usb1/1-4";
    let uevent = "DEVTYPE=usb_device\nDEVNAME=bus/usb/001/004\nPRODUCT=403/6001/600\nTYPE=0/0/0";
    file(root, &format!("{device}/uevent"), uevent);
    file(root, &format!("{device}/serial"), "A50285BI");
    file(root, &format!("{device}/speed"), "12");
    link(root, "bus/usb/devices/1-4", &format!("../../../{device}"));
    file(root, &format!("{device}/1-4:1.0/uevent"), "INTERFACE=255/255/255");
    file(root, &format!("{device}/1-4:1.0/ttyUSB0/tty/ttyUSB0/uevent"), "DEVNAME=ttyUSB0");
    link(root, "bus/usb/devices/1-4:1.0", &format!("../../../{device}/1-4:1.0"));
    file(root, "bus/pci/devices/0000:00:14.0/numa_node", "1");

    let config = format!("root = \"{}\"", root.display());
    let agent = TestAgent::with_config(&reading("usb", &config, &[root])).await;
    let found = groups_of(&agent, "usb");
    assert_eq!(ids(&found), ["A50285BI"]);
    assert_eq!(found[0].key.to_string(), "0403/usb/6001");
    let place = found[0].instances[0].locality.as_ref().unwrap();
    assert_eq!((place.pci_bus_id.as_deref(), place.numa_node), (Some("0000:00:14.0"), Some(1)));
    let task = shell("t", "echo $USB_DEVICES $USB_DEVICE_NODES", &asking("0403/usb"));
    let result = agent.run(&batch(&task)).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "A50285BI /dev/bus/usb/001/004\n");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sensor_of_a_fixture_tree_is_assigned_with_its_directory() {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    let chip = "devices/platform/coretemp.0/hwmon/hwmon2";
    file(root, &format!("{chip}/name"), "coretemp");
    file(root, &format!("{chip}/temp1_input"), "61000");
    link(root, "class/hwmon/hwmon2", &format!("../../{chip}"));

    let config = format!("root = \"{}\"", root.display());
    let agent = TestAgent::with_config(&reading("hwmon", &config, &[root])).await;
    let found = groups_of(&agent, "hwmon");
    assert_eq!(ids(&found), ["coretemp.0"]);
    let task = shell("t", "cat $HWMON_DEVICE_DIRS/temp1_input", &asking("linux/sensor/coretemp"));
    let result = agent.run(&batch(&task)).await;
    assert_successful(&result);
    assert_eq!(agent.stdout(&result, "t"), "61000\n");
    agent.stop().await;
}

/// A program in place of nvidia-smi. It prints what the plugin's own fixtures have, by the columns
/// it is asked for, or fails as `state` beside it says.
fn nvidia_smi(dir: &Path) -> std::path::PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples/plugins/device-nvidia/fixtures")
        .canonicalize()
        .unwrap();
    let (fixtures, state) = (fixtures.display(), dir.join("state"));
    let script = format!(
        "#!/bin/sh\n\
         if [ -e {state} ]; then /bin/cat {fixtures}/no-driver.txt; exit 9; fi\n\
         case \"$1 $2\" in\n\
         --query-gpu=*utilization.gpu*csv,noheader,nounits) /bin/cat {fixtures}/h100.stats.csv ;;\n\
         --query-gpu=*csv,noheader,nounits) /bin/cat {fixtures}/h100.fingerprint.csv ;;\n\
         *) echo unexpected; exit 2 ;;\n\
         esac\n",
        state = state.display()
    );
    let program = dir.join("nvidia-smi");
    write_script(&program, &script).unwrap();
    program
}

#[tokio::test(flavor = "multi_thread")]
async fn cards_told_of_by_a_granted_program_are_found_assigned_and_gone_with_their_driver() {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    let program = nvidia_smi(root);
    let information = |minor: u32| format!("Model: \t\t NVIDIA H100\nDevice Minor: \t {minor}");
    file(root, "proc/gpus/0000:19:00.0/information", &information(5));
    file(root, "proc/gpus/0000:af:00.0/information", &information(6));
    file(root, "sys/bus/pci/devices/0000:19:00.0/numa_node", "0");
    file(root, "sys/bus/pci/devices/0000:af:00.0/numa_node", "1");
    let config = format!(
        r#"
        plugin "nvidia" {{
          config {{
            program            = "{program}"
            proc               = "{root}/proc"
            sysfs              = "{root}/sys"
            fingerprint_period = "1s"
          }}
          grants {{
            command "{program}" {{
              args = [["--query-gpu=*", "--format=csv,noheader,nounits"]]
            }}
            files "{root}/proc" {{}}
            files "{root}/sys" {{}}
          }}
        }}
        "#,
        program = program.display(),
        root = root.display()
    );
    let agent = TestAgent::with_config(&config).await;
    let found = groups_of(&agent, "nvidia");
    let [cards] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!(cards.key.to_string(), "nvidia/gpu/NVIDIA H100 80GB HBM3");
    let numa: Vec<_> =
        cards.instances.iter().map(|i| i.locality.as_ref().and_then(|l| l.numa_node)).collect();
    assert_eq!(numa, [Some(0), Some(1)]);

    let wants = "resources {\n cpu = 20\n memory = 32\n device \"nvidia/gpu\" {\n count = 1\n \
         constraint {\n attribute = \"${device.attr.memory}\"\n operator = \">=\"\n \
         value = \"79 GiB\"\n }\n }\n }";
    let result = agent.run(&batch(&shell("t", "echo $NVIDIA_VISIBLE_DEVICES", wants))).await;
    assert_successful(&result);
    let assigned = agent.stdout(&result, "t");
    assert_eq!(assigned, format!("{}\n", cards.instances[0].id));

    std::fs::write(root.join("state"), "no driver").unwrap();
    let plugin = || agent.handle.node().device_plugins["nvidia"].clone();
    eventually("the driver is missed", || plugin().state == HealthState::Undetected).await;
    let reason = plugin().reason;
    assert!(reason.starts_with("the driver is not loaded"), "{reason}");
    assert_eq!(groups_of(&agent, "nvidia"), []);
    std::fs::remove_file(root.join("state")).unwrap();
    eventually("the driver is back", || plugin().state == HealthState::Healthy).await;
    assert_eq!(ids(&groups_of(&agent, "nvidia")).len(), 2);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_cards_has_the_nvidia_plugin_undetected_and_not_failed() {
    let config = "plugin \"nvidia\" {\n config {\n program = \"/nowhere/nvidia-smi\"\n }\n grants \
         {\n command \"/nowhere/nvidia-smi\" { args = [[\"**\"]] }\n files \"/nowhere\" {}\n }\n }\n";
    let agent = TestAgent::with_config(config).await;
    let plugin = agent.handle.node().device_plugins["nvidia"].clone();
    assert_eq!(plugin.state, HealthState::Undetected, "{plugin:?}");
    assert_eq!(plugin.reason, "/nowhere/nvidia-smi is missing");
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_devices_of_a_large_node_fit_into_the_budget_of_one_call() {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path();
    for number in 0..400_u32 {
        let address = format!("0000:{:02x}:{:02x}.0", number / 32, number % 32);
        let device = format!("devices/pci0000:00/{address}");
        let uevent = "DRIVER=x\nPCI_CLASS=20000\nPCI_ID=8086:1521\nPCI_SUBSYS_ID=8086:0001";
        file(root, &format!("{device}/uevent"), uevent);
        file(root, &format!("{device}/numa_node"), "0");
        link(root, &format!("bus/pci/devices/{address}"), &format!("../../../{device}"));
    }
    let config = format!("root = \"{}\"", root.display());
    let agent = TestAgent::with_config(&reading("pci", &config, &[root])).await;
    let plugin = agent.handle.node().device_plugins["pci"].clone();
    assert_eq!(ids(&groups_of(&agent, "pci")).len(), 400, "{plugin:?}");
    agent.stop().await;
}

/// Faults of the mock's fingerprint, and what is said of each.
const FAULTS: &[(&str, &str)] = &[
    ("trap", "trapped"),
    ("stack_overflow", "stack of 512 KiB overflowed"),
    ("spin", "did not answer within"),
    ("sleep", "did not answer within"),
    ("memory_bomb", "memory limit of 64 MiB"),
    ("host_call_flood", "host calls in one call"),
    ("undetected_groups", "are reported although health is undetected"),
    ("duplicate_ids", "is listed twice"),
    ("duplicate_groups", "is listed twice"),
    ("duplicate_attributes", "is listed twice"),
    ("empty_vendor", "group.vendor: is empty"),
    ("empty_type", "group.type: is empty"),
    ("empty_name", "group.name: is empty"),
    ("empty_id", "instance id: is empty"),
    ("long_id", "has 5000 bytes"),
    ("control_characters", "do not show"),
    ("too_many_groups", "entries; at most 256"),
    ("too_many_instances", "entries; at most 4096"),
    ("too_many_attributes", "entries; at most 512"),
    ("nan", "not a finite number"),
    ("infinite", "not a finite number"),
    ("unknown_unit", "unit \"parsec\" is not known"),
    ("unit_on_text", "cannot have the unit"),
    ("huge_text", "has 5000 bytes"),
    ("huge_answer", "bytes"),
];

#[tokio::test(flavor = "multi_thread")]
async fn every_fault_of_the_mock_is_contained_and_said_for_what_it_is() {
    let block = |(fault, _): &(&str, &str)| {
        format!(
            r#"
            plugin "{fault}" {{
              file = "{DEVICE_MOCK}"
              config {{
                name        = "{fault}"
                groups      = [{{ vendor = "{fault}", count = 1 }}]
                fingerprint = [{{ do = "{fault}" }}]
              }}
              grants {{
                files "/nowhere" {{}}
              }}
              limits {{
                call_wall = "2s"
              }}
            }}
            "#
        )
    };
    let sound = r#"
        plugin "mock_device" {
          config {
            groups = [{ count = 1 }]
          }
        }
        "#;
    let config = FAULTS.iter().map(block).collect::<String>() + sound;
    let agent = TestAgent::with_config(&config).await;
    let node = agent.handle.node();
    for (fault, said) in FAULTS {
        let plugin = &node.device_plugins[*fault];
        assert_eq!(plugin.state, HealthState::Unhealthy, "{fault}");
        assert!(plugin.reason.contains(said), "{fault}: {}", plugin.reason);
        assert_eq!(groups_of(&agent, fault), [], "{fault}");
    }
    assert_eq!(ids(&groups_of(&agent, "mock_device")), ["0"]);
    agent.stop().await;
}
