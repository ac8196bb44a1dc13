//! The device plugins that come with the agent, over fixture directories and programs.

use ostler::model::device::{DeviceGroup, HealthState};

use crate::support::TestAgent;
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
