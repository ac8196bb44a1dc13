//! Device plugin `hwmon`: the sensors of the node as the kernel's hardware monitoring shows them.
//! Temperatures, fans, power, voltages and currents are statistics.
//!
//! A chip can be assigned like any device: a task that steers fans or exports measurements asks for it
//! by `sensor`, has it to itself, and is shown its directory. A sensor that could not be assigned would
//! have to be told as unhealthy, which it is not.

use std::path::PathBuf;

use chip::Chip;
use ostler_sdk::device::prelude::*;
use plugin_support::groups;
use serde::Deserialize;

mod chip;
mod sensor;

const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "root": {
      "type": "string", "pattern": "^/", "default": "/sys",
      "description": "Granted directory where sysfs is mounted."
    },
    "ignored_ids": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Chips left out: names (acpitz) or places (0000:04:00.0)."
    }
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    root: PathBuf,
    ignored_ids: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        Self { root: PathBuf::from("/sys"), ignored_ids: vec![] }
    }
}

struct Hwmon;

impl DevicePlugin for Hwmon {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("hwmon", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let config: Config = host::config()?;
        let groups = chip::grouped(chip::list(&config)?).into_iter().map(|(name, chips)| {
            Group::new("linux", "sensor", name)
                .attributes(groups::shared(chips.iter().map(Chip::attributes)))
                .instances(chips.into_iter().map(|chip| chip.instance(&config.root)))
        });
        let found = Fingerprint::new(Health::healthy()).groups(groups);
        Ok(found.check_after(60_000).watch_subsystem("hwmon"))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let config: Config = host::config()?;
        let there = chip::list(&config)?;
        let mut reservation = Reservation::empty().env("HWMON_DEVICES", claim.ids.join(","));
        let mut dirs = vec![];
        for id in &claim.ids {
            let ours = (claim.vendor.as_str(), claim.type_.as_str()) == ("linux", "sensor");
            let found = there.iter().find(|chip| ours && chip.id == *id && chip.name == claim.name);
            let chip =
                found.ok_or_else(|| Error::not_found(format!("no sensor {id:?} of this group")))?;
            // Where it is on the node: native tasks see it there anyway.
            let dir = chip.dir.to_string_lossy().into_owned();
            reservation = reservation.mount(Mount::read_only(dir.as_str(), dir.as_str()));
            dirs.push(dir);
        }
        Ok(reservation.env("HWMON_DEVICE_DIRS", dirs.join(",")))
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let config: Config = host::config()?;
        let groups = chip::grouped(chip::list(&config)?).into_iter();
        let groups = groups.map(|(name, chips)| GroupStats {
            vendor: "linux".to_owned(),
            type_: "sensor".to_owned(),
            name,
            instances: chips.iter().map(Chip::measure).collect(),
        });
        Ok(groups.collect())
    }
}

ostler_sdk::export_device!(Hwmon);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
