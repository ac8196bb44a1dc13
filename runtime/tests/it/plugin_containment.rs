//! A plugin that fails, hangs or lies costs its own devices until it does so no more, and nobody
//! else anything.

use ostler_health::meter::PluginActivity;
use ostler_health::policy::PluginState;
use ostler_model::device::HealthState;

use crate::support::TestAgent;
use crate::support::plugins::script;
use crate::support::system::eventually;

/// Faults of a fingerprint; whether the call failed (the others are the plugin's own words).
const FAULTS: [(&str, bool); 9] = [
    ("error", false),
    ("trap", true),
    ("stack_overflow", true),
    ("spin", true),
    ("sleep", true),
    ("memory_bomb", true),
    ("duplicate_ids", true),
    ("huge_answer", true),
    ("nan", true),
];

fn activity(agent: &TestAgent, name: &str) -> PluginActivity {
    let report = agent.handle.plugin_status(name).into_iter().next();
    report.and_then(|report| report.activity).unwrap_or_else(|| panic!("{name} is not in use"))
}

/// Health of the plugin and of its devices, when they agree.
fn health(agent: &TestAgent) -> Option<HealthState> {
    let node = agent.handle.node();
    let plugin = node.device_plugins["mock_device"].state;
    let own = node.devices.iter().filter(|group| group.plugin.as_str() == "mock_device");
    let instances: Vec<_> = own.flat_map(|group| &group.instances).collect();
    let agree = instances.len() == 2 && instances.iter().all(|one| one.health.state == plugin);
    agree.then_some(plugin)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plugin_that_fails_hangs_or_lies_comes_back_when_it_does_and_harms_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    script(dir.path(), "");
    let config = format!(
        r#"
        plugin "mock_device" {{
          config {{
            dir = "{at}"
          }}
          grants {{
            files "{at}" {{}}
          }}
          limits {{
            call_wall = "1s"
          }}
          failure {{
            retry_first = "100ms"
            retry_max   = "300ms"
            strikes_max = 64
          }}
        }}
        "#,
        at = dir.path().display()
    );
    let agent = TestAgent::with_config(&config).await;
    let mock = || activity(&agent, "mock_device");
    assert_eq!(health(&agent), Some(HealthState::Healthy));
    for (fault, strikes) in FAULTS {
        let before = mock().strikes;
        script(dir.path(), &format!(r#"{{"do": "{fault}"}}"#));
        eventually(fault, || health(&agent) == Some(HealthState::Unhealthy)).await;
        eventually(fault, || mock().state == PluginState::BackingOff).await;
        let failing = mock();
        assert_eq!(failing.strikes > before, strikes, "{fault}: {failing:?}");
        assert!(failing.last_error.is_some() && failing.next_check.is_some(), "{fault}");
        script(dir.path(), "");
        eventually(fault, || health(&agent) == Some(HealthState::Healthy)).await;
        eventually(fault, || mock().state == PluginState::Running).await;
        assert_eq!(mock().failures_in_a_row, 0, "{fault}");
    }
    for other in ["exec", "files", "pci"] {
        let activity = activity(&agent, other);
        assert_eq!((activity.state, activity.strikes), (PluginState::Running, 0), "{other}");
    }
    agent.stop().await;
}
