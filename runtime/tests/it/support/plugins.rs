//! Plugins of a test agent, and what plugins need without an agent around them.

use std::path::Path;
use std::sync::Arc;

use ostler_agent::{PluginEntry, PluginStatus};
use ostler_model::clock::Clock;
use ostler_model::rng::Rng;
use ostler_plugin::host::HostServices;
use ostler_process::{ProcessHost, ProcessOptions, Supervision};
use ostler_sandbox::{Sandbox, SandboxConfig};
use ostler_wasm_task::WasmTaskHost;

use super::{DataDir, OSTLER, TestAgent};

/// Put a script of the mock device plugin, two devices with these faults, in place of the one before,
/// in one step.
pub fn script(dir: &Path, faults: &str) {
    let text = format!(
        r#"{{"check_after_ms": 1000, "watch_paths": ["{}"], "groups": [{{"count": 2}}],
            "fingerprint": [{faults}]}}"#,
        dir.display()
    );
    std::fs::write(dir.join("new"), text).unwrap();
    std::fs::rename(dir.join("new"), dir.join("script.json")).unwrap();
}

#[track_caller]
pub fn entry<'a>(agent: &'a TestAgent, name: &str) -> &'a PluginEntry {
    let found = agent.handle.plugins().iter().find(|entry| entry.name == name);
    found.unwrap_or_else(|| panic!("no plugin {name} in {:#?}", agent.handle.plugins()))
}

/// Why the plugin is refused.
#[track_caller]
pub fn refusal<'a>(agent: &'a TestAgent, name: &str) -> &'a str {
    match &entry(agent, name).status {
        PluginStatus::Refused(reason) => reason,
        other => panic!("plugin {name} is {other:?}"),
    }
}

/// What host functions stand on. To be called on the control runtime.
pub fn host_services(data: &DataDir) -> HostServices {
    let control = tokio::runtime::Handle::current();
    let mut config = SandboxConfig::new(data.path().join("code")).unwrap();
    config.compiler = OSTLER.into();
    let (clock, rng) = (Clock::system(), Rng::system());
    let sandbox = Arc::new(Sandbox::new(config).unwrap());
    let processes = ProcessHost::new(ProcessOptions {
        control: control.clone(),
        kill_with_agent: true,
        supervision: Some(Supervision {
            program: OSTLER.into(),
            records: data.path().join("exits"),
        }),
        cgroup_parent: None,
        clock: clock.clone(),
    });
    let wasm_tasks =
        WasmTaskHost::new(Arc::clone(&sandbox), control.clone(), clock.clone(), rng.clone(), None);
    HostServices {
        sandbox,
        processes: processes.unwrap(),
        wasm_tasks: Arc::new(wasm_tasks.unwrap()),
        clock,
        rng,
        control,
    }
}
