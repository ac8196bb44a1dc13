//! What a debug bundle asks an agent for: facts about the machine, and profiles, which this agent
//! does not have.

use std::collections::BTreeMap;
use std::io::Read as _;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use super::error::RequestFailure;
use super::host;
use super::params::Params;
use super::reply;
use super::state::ApiState;
use ostler_model::clock;
use ostler_model::limits::{HOST_FILE_BYTES_MAX, MIB};

/// `/v1/agent/pprof/…`: an agent has no profiles.
pub(super) async fn refuse_profile() -> RequestFailure {
    RequestFailure::NoProfiles
}

/// `GET /v1/agent/host`: facts about the machine. The environment is not included, because it may
/// have secrets.
pub(super) async fn machine(
    State(api): ApiState,
    params: Params,
) -> Result<Response, RequestFailure> {
    let (used, _, _) = host::measure_usage(&api).await?;
    let files = clock::run_blocking(|| ["/etc/resolv.conf", "/etc/hosts"].map(beginning)).await;
    let [resolver, hosts] = files.map_err(|error| RequestFailure::Internal(error.to_string()))?;
    let node = api.agent.node();
    let text = |name: &str| node.attributes.get(name).map(ToString::to_string).unwrap_or_default();
    let system = ["os.name", "os.version", "kernel.name", "kernel.version", "cpu.arch"].map(text);
    let disks: BTreeMap<String, _> = used
        .disks
        .into_iter()
        .map(|disk| {
            let size = json!({ "DiskMB": disk.size / MIB, "UsedMB": disk.used / MIB });
            (disk.mountpoint.display().to_string(), size)
        })
        .collect();
    let interface = json!({
        "name": text("unique.network.interface"),
        "address": node.host_ip.to_string(),
    });
    let data = json!({
        "OS": system.join(" ").trim(),
        "Network": [interface],
        "ResolvConf": resolver,
        "Hosts": hosts,
        "Environment": {},
        "Disk": disks,
    });
    reply::json(&params, &json!({ "AgentID": node.id.to_string(), "HostData": data }))
}

/// The beginning of a file; empty if it cannot be read.
fn beginning(path: &str) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(path) {
        // The bytes that were read before an error are used.
        let _error = file.take(HOST_FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
