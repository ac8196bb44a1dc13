//! How plugins do, as the agent tells: watches, counts, strikes, and drivers that come and go.

use ostler_agent::{PluginStatus, PluginStatusReport};
use ostler_guests::fixtures::HOSTILE_DEVICE;
use ostler_health::meter::PluginActivity;
use ostler_health::policy::PluginState;
use ostler_model::clock::timeout;
use ostler_model::device::HealthState;

use crate::support::needs::{Need, skipped};
use crate::support::system::eventually;
use crate::support::{PATIENCE, TestAgent};

fn report(agent: &TestAgent, name: &str) -> PluginStatusReport {
    let reports = agent.handle.plugin_status(name);
    reports.into_iter().next().unwrap_or_else(|| panic!("nothing is known of {name}"))
}

fn activity(agent: &TestAgent, name: &str) -> PluginActivity {
    report(agent, name).activity.unwrap_or_else(|| panic!("{name} is not in use"))
}

fn fingerprints(agent: &TestAgent, name: &str) -> u64 {
    activity(agent, name).calls.get("fingerprint").map_or(0, |stats| stats.calls)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_plugin_tells_what_its_calls_cost() {
    let agent = TestAgent::with_config("plugin \"wasm\" {\n enabled = false\n}\n").await;
    for name in ["exec", "mock_driver", "files"] {
        let activity = activity(&agent, name);
        assert_eq!(activity.state, PluginState::Running, "{name}");
        assert_eq!((activity.strikes, activity.failures_in_a_row), (0, 0), "{name}");
        assert_eq!(activity.last_error, None, "{name}");
        assert!(activity.last_ok.is_some() && activity.cpu_nanos > 0, "{name}");
        for call in ["describe", "fingerprint"] {
            let stats = activity.calls[call];
            assert!(stats.calls >= 1 && stats.failed == 0, "{name}: {stats:?}");
            assert!(stats.p50_nanos > 0 && stats.p99_nanos >= stats.p50_nanos, "{name}: {stats:?}");
        }
    }
    // It is given its configuration, and answers with a device.
    let stats = activity(&agent, "files").calls["fingerprint"];
    assert!(stats.bytes_in > 20 && stats.bytes_out > 20, "{stats:?}");
    let off = report(&agent, "wasm");
    assert_eq!((off.status, off.activity), (PluginStatus::Disabled, None));
    assert!(agent.handle.plugin_status("no such").is_empty());
    let all: Vec<String> =
        agent.handle.plugins_status().into_iter().map(|report| report.block).collect();
    let listed: Vec<String> =
        agent.handle.plugins().iter().map(|entry| entry.name.clone()).collect();
    assert_eq!(all, listed);
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_traps_has_strikes_backs_off_and_harms_no_other() {
    let config = format!(
        r#"
        plugin "hostile" {{
          file = "{HOSTILE_DEVICE}"
          config {{
            mode = "trap"
          }}
          failure {{
            retry_first = "100ms"
            retry_max   = "200ms"
            strikes_max = 64
          }}
        }}
        "#
    );
    let agent = TestAgent::with_config(&config).await;
    eventually("three strikes", || activity(&agent, "hostile").strikes >= 3).await;
    let hostile = activity(&agent, "hostile");
    assert_eq!(hostile.state, PluginState::BackingOff);
    assert!(hostile.failures_in_a_row >= 2, "{hostile:?}");
    let stats = hostile.calls["fingerprint"];
    assert!(stats.failed >= 3 && stats.failed <= stats.calls, "{stats:?}");
    let error = hostile.last_error.unwrap();
    assert!(error.reason.contains("fingerprint"), "{error:?}");
    assert!(hostile.next_check.is_some());
    for name in ["exec", "files"] {
        assert_eq!(activity(&agent, name).strikes, 0, "{name}");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_shuts_down_is_undetected_from_its_next_answer_on() {
    let config = r#"
      plugin "mock" {
        config {
          shutdown_periodic_after    = true
          shutdown_periodic_duration = 3
        }
      }
    "#;
    let agent = TestAgent::with_config(config).await;
    let state = || agent.handle.node().drivers["mock_driver"].health.state;
    // On a machine so slow that the three seconds are over already there is nothing to see.
    let first = state();
    assert!(first != HealthState::Unhealthy, "{first:?}");
    eventually("the driver is undetected", || state() == HealthState::Undetected).await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_watches_is_asked_again_when_its_watch_is_in_place_and_when_it_fires() {
    let agent = TestAgent::start().await;
    // Its interval is a minute, so that a second answer within less was asked for by the watch.
    let again = timeout(PATIENCE.min(std::time::Duration::from_secs(50)), async {
        eventually("asked again", || fingerprints(&agent, "pci") >= 2).await;
    });
    if !agent.handle.watch_report().degraded.is_empty() {
        skipped(Need::DeviceEvents, format!("{:?}", agent.handle.watch_report().degraded));
        return;
    }
    assert!(again.await.is_some());
    let device = std::fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten().next();
    let Some(device) = device.map(|device| device.path().join("uevent")) else {
        skipped(Need::DeviceEvents, "no PCI device here");
        return;
    };
    if let Err(error) = std::fs::write(&device, "change") {
        skipped(Need::DeviceEvents, format!("{}: {error}", device.display()));
        return;
    }
    let fired = timeout(std::time::Duration::from_secs(40), async {
        eventually("asked once more", || fingerprints(&agent, "pci") >= 3).await;
    });
    if fired.await.is_none() {
        skipped(Need::DeviceEvents, "the kernel does not tell this network namespace of devices");
    }
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_file_that_appears_is_found_and_one_that_goes_is_gone() {
    let agent = TestAgent::start().await;
    let dir = agent.data.path().join("devices");
    let has = |id: &str| {
        let node = agent.handle.node();
        node.devices.iter().any(|group| group.instances.iter().any(|one| one.id == id))
    };
    std::fs::write(dir.join("plugged"), "x").unwrap();
    eventually("it is found", || has("plugged")).await;
    std::fs::remove_file(dir.join("plugged")).unwrap();
    eventually("it is gone", || !has("plugged")).await;
    agent.stop().await;
}
