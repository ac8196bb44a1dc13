//! The one device plugin of the world.

use crate::plan::Mode;
use crate::world::World;
use ostler_device::source::{DeviceFingerprint, DeviceSource};
use ostler_health::refresh::NextCheck;
use ostler_model::device::{
    DeviceGroup, DeviceInstance, GroupKey, Health, HealthState, Reservation,
};
use ostler_model::ids::PluginName;
use ostler_model::ports::{BoxFuture, PluginCallError};
use ostler_model::resources::AllocatedDevice;

/// The plugin, over the world.
pub(crate) struct SimDevices {
    pub(crate) world: World,
    pub(crate) name: PluginName,
}

fn health(unhealthy: bool) -> Health {
    let state = if unhealthy { HealthState::Unhealthy } else { HealthState::Healthy };
    Health { state, reason: String::new() }
}

impl DeviceSource for SimDevices {
    fn name(&self) -> &PluginName {
        &self.name
    }

    fn fingerprint(&self) -> BoxFuture<'_, Result<DeviceFingerprint, PluginCallError>> {
        Box::pin(async move {
            if self.world.lock().device == Mode::Lies {
                let (groups, next) = (Vec::new(), NextCheck::default());
                return Ok(DeviceFingerprint { health: health(false), groups, next });
            }
            self.world.fault(|inner| inner.device).await?;
            let inner = self.world.lock();
            let instances = inner.instances.iter().map(|(id, one)| DeviceInstance {
                id: id.clone(),
                health: health(one.unhealthy),
                locality: None,
            });
            let group = DeviceGroup {
                key: GroupKey { vendor: "sim".into(), kind: "gpu".into(), name: "a".into() },
                plugin: self.name.clone(),
                instances: instances.collect(),
                attributes: Vec::new(),
            };
            let after = Some(std::time::Duration::from_secs(30));
            let next = NextCheck { after, ..NextCheck::default() };
            Ok(DeviceFingerprint { health: health(false), groups: vec![group], next })
        })
    }

    fn reserve<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<Reservation, PluginCallError>> {
        Box::pin(async move {
            self.world.pass(&format!("reserve {}", device.ids.join(","))).await;
            self.world.fault(|inner| inner.device).await?;
            let mut inner = self.world.lock();
            let boot = inner.boot;
            for id in &device.ids {
                let Some(one) = inner.instances.get_mut(id) else {
                    return Err(PluginCallError::NotFound(id.clone()));
                };
                (one.reserved, one.refused, one.reserved_in) = (true, false, boot);
            }
            let env = device.ids.iter().map(|id| (format!("SIM_{id}"), id.clone())).collect();
            Ok(Reservation { env, ..Reservation::default() })
        })
    }

    fn release<'a>(
        &'a self,
        device: &'a AllocatedDevice,
    ) -> BoxFuture<'a, Result<(), PluginCallError>> {
        Box::pin(async move {
            self.world.pass(&format!("release {}", device.ids.join(","))).await;
            // Who says that there is nothing has nothing to release.
            let lies = self.world.lock().device == Mode::Lies;
            if !lies {
                for id in &device.ids {
                    if let Some(one) = self.world.lock().instances.get_mut(id) {
                        one.refused = true;
                    }
                }
                self.world.fault(|inner| inner.device).await?;
            }
            let mut inner = self.world.lock();
            for id in &device.ids {
                if let Some(one) = inner.instances.get_mut(id) {
                    (one.reserved, one.refused) = (false, false);
                }
            }
            Ok(())
        })
    }
}
