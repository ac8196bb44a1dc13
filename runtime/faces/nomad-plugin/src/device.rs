//! The device service: which devices a plugin finds, how tasks use them, and what it measures.
//!
//! Nomad names devices by their ids alone. So an id is looked up in the groups of the newest
//! fingerprint, and an id that two groups have is refused. Nomad never says that a task no longer
//! uses a device, so nothing is released.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use prost_types::Timestamp as WireTime;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

use crate::controls::{Answers, stream_until_shutdown};
use crate::driver::{attribute, duration, wire_time};
use crate::proto::device as wire;
use crate::proto::device::device_plugin_server::DevicePlugin as DeviceService;
use crate::proto::structs;
use crate::server::ServedPlugin;
use ostler_agent::alone::LivePlugin;
use ostler_device::source::DeviceSource;
use ostler_health::refresh::{FingerprintOutcome, Refresher};
use ostler_model::clock;
use ostler_model::device::{DeviceGroup, HealthState, Reservation};
use ostler_model::limits::NOMAD_STATS_INTERVAL_MIN;
use ostler_model::ports::PluginCallError;
use ostler_model::resources::AllocatedDevice;
use ostler_model::rng::Rng;
use ostler_model::stats::{DeviceGroupStats, InstanceStats, StatObject, StatValue};
use ostler_node::watch::ChangeWatcher;

/// Answers the calls of the device service.
#[derive(Clone)]
pub(crate) struct DeviceSide {
    /// The plugin that is served.
    pub served: Arc<ServedPlugin>,
}

type DeviceGroups = Option<Arc<Vec<DeviceGroup>>>;

/// The devices of one plugin, as its newest fingerprint has them.
pub(crate) struct PluginDevices {
    source: Arc<dyn DeviceSource>,
    found: watch::Receiver<DeviceGroups>,
    /// Keeps the data directory claimed and the services running.
    pub(crate) live: Option<LivePlugin>,
}

impl PluginDevices {
    /// Ask the plugin for fingerprints from here on, in the background.
    pub(crate) fn follow(source: Arc<dyn DeviceSource>, live: Option<LivePlugin>) -> Self {
        let (told, found) = watch::channel(None);
        let (told, asked) = (Arc::new(told), Arc::clone(&source));
        tokio::spawn(async move {
            let refresher = Refresher::new(ChangeWatcher::new(), Rng::system());
            let meter = asked.meter();
            let ask = move || {
                let (source, told) = (Arc::clone(&asked), Arc::clone(&told));
                async move { refresh_groups(&*source, &told).await }
            };
            refresher.add(meter, ask).await;
            // The loop of the refresher ends with the process.
            std::future::pending::<()>().await;
        });
        Self { source, found, live }
    }

    /// The group that all these ids belong to, in the newest fingerprint.
    fn find_device(&self, ids: &[String]) -> Result<AllocatedDevice, Status> {
        let found = self.found.borrow().clone();
        let found = found.ok_or_else(|| Status::unavailable("no device was looked for yet"))?;
        resolve_ids(&found, ids)
    }
}

/// Ask for a fingerprint once, and tell whoever listens what is new.
async fn refresh_groups(
    source: &dyn DeviceSource,
    told: &watch::Sender<DeviceGroups>,
) -> FingerprintOutcome {
    match source.fingerprint().await {
        Ok(found) => {
            let outcome = FingerprintOutcome::from_health(&found.health, found.next);
            told.send_if_modified(|known| {
                let news = known.as_deref() != Some(&found.groups);
                *known = Some(Arc::new(found.groups));
                news
            });
            outcome
        }
        Err(error) => {
            tracing::warn!(plugin = %source.name(), %error, "device fingerprint failed");
            // The devices of the last fingerprint are shown as unhealthy.
            let reason = error.to_string();
            told.send_if_modified(|known| {
                let Some(groups) = known else { return false };
                let mut groups = (**groups).clone();
                let mut news = false;
                for instance in groups.iter_mut().flat_map(|group| &mut group.instances) {
                    news |= instance.health.state != HealthState::Unhealthy;
                    instance.health.state = HealthState::Unhealthy;
                    instance.health.reason.clone_from(&reason);
                }
                *known = Some(Arc::new(groups));
                news
            });
            FingerprintOutcome::Failed(reason)
        }
    }
}

fn resolve_ids(found: &[DeviceGroup], ids: &[String]) -> Result<AllocatedDevice, Status> {
    let wrong = |text: String| Err(Status::invalid_argument(text));
    let mut groups = BTreeSet::new();
    for id in ids {
        let has = |group: &&DeviceGroup| group.instances.iter().any(|one| one.id == *id);
        let mut of = found.iter().filter(has);
        match (of.next(), of.next()) {
            (Some(group), None) => groups.insert(group.key.clone()),
            (Some(one), Some(other)) => {
                return wrong(format!(
                    "device {id:?} is one of {} and one of {}: which one is meant is ambiguous",
                    one.key, other.key
                ));
            }
            (None, _) => return Err(Status::not_found(format!("there is no device {id:?}"))),
        };
    }
    let mut groups = groups.into_iter();
    match (groups.next(), groups.next()) {
        (Some(group), None) => Ok(AllocatedDevice { group, ids: ids.to_vec() }),
        (None, _) => wrong("no device was named".to_owned()),
        (Some(one), Some(other)) => {
            wrong(format!("devices of two groups are reserved together: {one} and {other}"))
        }
    }
}

fn call_status(error: &PluginCallError) -> Status {
    match error {
        PluginCallError::NotFound(_) => Status::not_found(error.to_string()),
        PluginCallError::NotGranted(_) | PluginCallError::PermissionDenied(_) => {
            Status::permission_denied(error.to_string())
        }
        _ => Status::unknown(error.to_string()),
    }
}

#[tonic::async_trait]
impl DeviceService for DeviceSide {
    type FingerprintStream = Answers<wire::FingerprintResponse>;
    type StatsStream = Answers<wire::StatsResponse>;

    async fn fingerprint(
        &self,
        _request: Request<wire::FingerprintRequest>,
    ) -> Result<Response<Self::FingerprintStream>, Status> {
        let found = WatchStream::new(self.served.devices().await?.found.clone());
        let said = found.filter_map(|found| {
            let said = found.map(|groups| wire::FingerprintResponse {
                device_group: groups.iter().map(group).collect(),
            });
            std::future::ready(said.map(Ok))
        });
        Ok(stream_until_shutdown(said, self.served.left.clone()))
    }

    async fn reserve(
        &self,
        request: Request<wire::ReserveRequest>,
    ) -> Result<Response<wire::ReserveResponse>, Status> {
        let devices = self.served.devices().await?;
        let device = devices.find_device(&request.into_inner().device_ids)?;
        let reserved =
            devices.source.reserve(&device).await.map_err(|error| call_status(&error))?;
        Ok(Response::new(wire::ReserveResponse { container_res: Some(reservation(reserved)) }))
    }

    async fn stats(
        &self,
        request: Request<wire::StatsRequest>,
    ) -> Result<Response<Self::StatsStream>, Status> {
        let devices = self.served.devices().await?;
        let interval = duration(request.into_inner().collection_interval);
        let measured = stats_stream(devices, interval.max(NOMAD_STATS_INTERVAL_MIN));
        Ok(stream_until_shutdown(measured.map(Ok), self.served.left.clone()))
    }
}

/// Measure at each interval. The stream of a plugin that never measures stays open and says
/// nothing, because Nomad would ask again after its end.
fn stats_stream(
    devices: Arc<PluginDevices>,
    interval: std::time::Duration,
) -> impl Stream<Item = wire::StatsResponse> + Send {
    stream::unfold((devices, true), move |(devices, mut first)| async move {
        loop {
            if !std::mem::take(&mut first) {
                clock::sleep(interval).await;
            }
            match devices.source.stats().await {
                Ok(groups) => {
                    let groups = groups.into_iter().map(group_stats).collect();
                    return Some((wire::StatsResponse { groups }, (devices, false)));
                }
                Err(PluginCallError::Unsupported(_)) => std::future::pending().await,
                Err(error) => tracing::warn!(%error, "devices were not measured"),
            }
        }
    })
}

fn group(group: &DeviceGroup) -> wire::DeviceGroup {
    let devices = group.instances.iter().map(|one| wire::DetectedDevice {
        id: one.id.clone(),
        healthy: one.health.state == HealthState::Healthy,
        health_description: one.health.reason.clone(),
        hw_locality: one.locality.as_ref().and_then(|locality| {
            let pci_bus_id = locality.pci_bus_id.clone()?;
            Some(wire::DeviceLocality { pci_bus_id })
        }),
    });
    let attributes = group.attributes.iter();
    let attributes = attributes.map(|one| (one.name.clone(), attribute(one.attribute.clone())));
    wire::DeviceGroup {
        vendor: group.key.vendor.clone(),
        device_type: group.key.kind.clone(),
        device_name: group.key.name.clone(),
        devices: devices.collect(),
        attributes: attributes.collect(),
    }
}

fn reservation(given: Reservation) -> wire::ContainerReservation {
    let mounts = given.mounts.into_iter().map(|mount| wire::Mount {
        task_path: mount.task_path,
        host_path: mount.host_path,
        read_only: mount.read_only,
    });
    let devices = given.device_nodes.into_iter().map(|node| wire::DeviceSpec {
        task_path: node.task_path,
        host_path: node.host_path,
        permissions: node.permissions,
    });
    wire::ContainerReservation {
        envs: given.env.into_iter().collect(),
        mounts: mounts.collect(),
        devices: devices.collect(),
    }
}

fn group_stats(given: DeviceGroupStats) -> wire::DeviceGroupStats {
    let instances = given.instances.iter();
    wire::DeviceGroupStats {
        instance_stats: instances.map(|(id, one)| (id.clone(), instance_stats(one))).collect(),
        vendor: given.key.vendor,
        r#type: given.key.kind,
        name: given.key.name,
    }
}

fn instance_stats(given: &InstanceStats) -> wire::DeviceStats {
    let timestamp: WireTime = wire_time(given.taken_at);
    wire::DeviceStats {
        summary: given.summary.as_ref().map(value),
        stats: Some(object(&given.stats)),
        timestamp: Some(timestamp),
    }
}

/// Convert nested measurements. The depth is that of the plugin's answer, which is bounded.
fn object(given: &StatObject) -> structs::StatObject {
    let nested: BTreeMap<_, _> =
        given.nested.iter().map(|(name, one)| (name.clone(), object(one))).collect();
    let attributes = given.attributes.iter().map(|(name, one)| (name.clone(), value(one)));
    structs::StatObject { nested: nested.into_iter().collect(), attributes: attributes.collect() }
}

fn value(given: &StatValue) -> structs::StatValue {
    structs::StatValue {
        float_numerator_val: given.float_numerator,
        float_denominator_val: given.float_denominator,
        int_numerator_val: given.int_numerator,
        int_denominator_val: given.int_denominator,
        string_val: given.text.clone(),
        bool_val: given.boolean,
        unit: given.unit.clone().unwrap_or_default(),
        desc: given.description.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use ostler_model::device::{DeviceInstance, GroupKey, Health};
    use ostler_model::ids::PluginName;

    fn device_groups(groups: &[(&str, &[&str])]) -> Vec<DeviceGroup> {
        let groups = groups.iter().map(|(name, ids)| DeviceGroup {
            key: GroupKey {
                vendor: "acme".to_owned(),
                kind: "gpu".to_owned(),
                name: (*name).to_owned(),
            },
            plugin: PluginName::new("p").unwrap(),
            instances: ids
                .iter()
                .map(|id| DeviceInstance {
                    id: (*id).to_owned(),
                    health: Health::default(),
                    locality: None,
                })
                .collect(),
            attributes: Vec::new(),
        });
        groups.collect()
    }

    #[test]
    fn an_id_names_a_device_of_one_group_and_no_other() {
        let found = device_groups(&[("a", &["1", "2", "both"]), ("b", &["3", "both"])]);
        let ask = |ids: &[&str]| {
            let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
            resolve_ids(&found, &ids).map(|device| device.group.name)
        };
        assert_eq!(ask(&["1", "2"]).unwrap(), "a");
        assert_eq!(ask(&["3"]).unwrap(), "b");
        for (ids, code) in [
            (&["both"][..], tonic::Code::InvalidArgument),
            (&["1", "3"], tonic::Code::InvalidArgument),
            (&[], tonic::Code::InvalidArgument),
            (&["4"], tonic::Code::NotFound),
        ] {
            assert_eq!(ask(ids).unwrap_err().code(), code, "{ids:?}");
        }
    }

    #[test]
    fn what_was_not_measured_is_absent_and_not_zero() {
        let measured = StatValue { int_numerator: Some(0), ..StatValue::default() };
        let said = value(&measured);
        assert_eq!((said.int_numerator_val, said.float_numerator_val), (Some(0), None));
        assert_eq!(value(&StatValue::default()), structs::StatValue::default());
    }
}
