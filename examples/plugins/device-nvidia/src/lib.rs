//! Device plugin `nvidia`: NVIDIA graphics cards, as `nvidia-smi` tells of them.
//!
//! ```text
//! command: nvidia-smi --query-gpu=… ─► table ─► cards ─► groups by model, health, statistics
//! /proc/driver/nvidia/gpus/ADDRESS/information ─► number of the device node; who a lost card was
//! /sys/bus/pci/devices/ADDRESS/numa_node       ─► place in the machine
//! ```
//!
//! Where there is no program, driver or card, the plugin is undetected, which is no failure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use card::{Card, Information};
use ostler_sdk::device::prelude::*;
use plugin_support::groups;
use query::Refused;
use serde::Deserialize;

mod card;
mod measure;
mod query;
mod table;

const SCHEMA: &str = r#"{
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "program": {
      "type": "string", "pattern": "^/", "default": "/usr/bin/nvidia-smi",
      "description": "The granted program."
    },
    "ignored_gpu_ids": {
      "type": "array", "items": {"type": "string", "minLength": 1},
      "description": "Cards left out, by GPU id (GPU-…)."
    },
    "fingerprint_period": {
      "type": "string", "default": "1m", "description": "How often to look for cards."
    },
    "ecc_uncorrected_max": {
      "type": "integer", "minimum": 0, "default": 0,
      "description": "A card with more memory errors that could not be corrected is unhealthy."
    },
    "nodes": {
      "enum": ["minor", "index", "none"], "default": "minor",
      "description": "Device nodes assigned with a card: the one the driver's directory in /proc names, the one of the index that nvidia-smi counts by, or none."
    },
    "proc": {
      "type": "string", "pattern": "^/", "default": "/proc/driver/nvidia",
      "description": "Granted directory of the driver."
    },
    "sysfs": {
      "type": "string", "pattern": "^/", "default": "/sys",
      "description": "Granted directory where sysfs is mounted."
    }
  }
}"#;

/// The `config` of the agent's `plugin` block.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Config {
    program: String,
    ignored_gpu_ids: Vec<String>,
    #[serde(deserialize_with = "ostler_sdk::config::duration")]
    fingerprint_period: Duration,
    ecc_uncorrected_max: u64,
    nodes: Nodes,
    proc: PathBuf,
    sysfs: PathBuf,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            program: "/usr/bin/nvidia-smi".to_owned(),
            ignored_gpu_ids: vec![],
            fingerprint_period: Duration::from_secs(60),
            ecc_uncorrected_max: 0,
            nodes: Nodes::Minor,
            proc: PathBuf::from("/proc/driver/nvidia"),
            sysfs: PathBuf::from("/sys"),
        }
    }
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Nodes {
    Minor,
    Index,
    None,
}

struct Nvidia;

impl DevicePlugin for Nvidia {
    fn describe() -> DeviceInfo {
        DeviceInfo::new("nvidia", env!("CARGO_PKG_VERSION")).config_schema(SCHEMA)
    }

    fn fingerprint() -> Result<Fingerprint> {
        let config: Config = host::config()?;
        let period = u64::try_from(config.fingerprint_period.as_millis()).unwrap_or(u64::MAX);
        let again = |found: Fingerprint| found.check_after(period).watch_subsystem("pci");
        let mut models: BTreeMap<String, Vec<Found>> = BTreeMap::new();
        let cards = match look(&config) {
            // A driver that is loaded later is found as soon as a card that is plugged in.
            Err(Refused::Undetected(why)) => {
                return Ok(again(Fingerprint::new(Health::undetected(why))));
            }
            cards => cards?,
        };
        for (card, found) in cards {
            models.entry(card.model).or_default().push(found);
        }
        let groups = models.into_iter().map(|(model, found)| {
            // A lost card says nothing of itself; the others still do.
            let attributes = found.iter().filter_map(|found| found.attributes.clone());
            let attributes = groups::shared(attributes);
            let group = Group::new("nvidia", "gpu", model).attributes(attributes);
            group.instances(found.into_iter().map(|found| found.instance))
        });
        Ok(again(Fingerprint::new(Health::healthy()).groups(groups)))
    }

    fn reserve(claim: Claim) -> Result<Reservation> {
        let config: Config = host::config()?;
        let there = look(&config)?;
        let mut nodes = BTreeSet::new();
        for id in &claim.ids {
            let found = there.iter().find(|(card, _)| card.uuid == *id && card.model == claim.name);
            let (card, found) =
                found.ok_or_else(|| Error::not_found(format!("no card {id:?} of this model")))?;
            let health = &found.instance.health;
            if health.state != HealthState::Healthy {
                return Err(Error::recoverable(format!("{id} is unhealthy: {}", health.reason)));
            }
            nodes.extend(node_of(card, &config)?);
        }
        let ids = claim.ids.join(",");
        // The one is read by container runtimes, the other by programs that run without one.
        let mut reservation = Reservation::empty()
            .env("NVIDIA_VISIBLE_DEVICES", ids.as_str())
            .env("CUDA_VISIBLE_DEVICES", ids);
        if config.nodes != Nodes::None {
            nodes.insert("nvidiactl".to_owned());
            if card::has_module(&config.sysfs, "nvidia_uvm") {
                nodes.insert("nvidia-uvm".to_owned());
                nodes.insert("nvidia-uvm-tools".to_owned());
            }
        }
        for name in nodes {
            let path = format!("/dev/{name}");
            let permissions = "rw".to_owned();
            let node = DeviceNode { host_path: path.clone(), task_path: path, permissions };
            reservation = reservation.device_node(node);
        }
        Ok(reservation)
    }

    fn stats() -> Result<Vec<GroupStats>> {
        let config: Config = host::config()?;
        let answer = match query::run(&config.program, &query::STATS) {
            // Nothing there, nothing to measure.
            Err(Refused::Undetected(_)) => return Ok(vec![]),
            answer => answer?,
        };
        let mut models: BTreeMap<String, Vec<InstanceStats>> = BTreeMap::new();
        for row in answer.table()?.rows {
            if let Some(card) = Card::of(&row, &config)?
                && !config.ignored_gpu_ids.contains(&card.uuid)
            {
                let measured = measure::card(&row, card.uuid)?;
                models.entry(card.model).or_default().push(measured);
            }
        }
        let group = |(name, instances)| GroupStats {
            vendor: "nvidia".to_owned(),
            type_: "gpu".to_owned(),
            name,
            instances,
        };
        Ok(models.into_iter().map(group).collect())
    }
}

/// A card as a fingerprint tells of it.
struct Found {
    instance: Instance,
    /// Absent for a card that no longer answers.
    attributes: Option<Vec<NamedAttribute>>,
}

/// All cards that the configuration leaves in, those that are lost included where it can be told
/// who they were.
fn look(config: &Config) -> Result<Vec<(Card, Found)>, Refused> {
    let answer = query::run(&config.program, &query::FINGERPRINT)?;
    let table = answer.table()?;
    let mut cards: Vec<(Card, Found)> = vec![];
    for row in &table.rows {
        let Some(card) = Card::of(row, config)? else {
            log::warn(row.says("the card reports no UUID; it is left out"));
            continue;
        };
        if cards.iter().any(|(other, _)| other.uuid == card.uuid) {
            return Err(row.error(&format!("{} is listed twice", card.uuid)).into());
        }
        let health = card::health(row, config)?;
        let place = card.place(config);
        let instance = Instance { id: card.uuid.clone(), health, locality: place };
        cards.push((card, Found { instance, attributes: Some(card::attributes(row)?) }));
    }
    for line in table.lost {
        let said = table::cut(line);
        let known = Information::of_lost(config, line)
            .filter(|card| cards.iter().all(|(other, _)| other.uuid != card.uuid));
        let Some(card) = known else {
            log::warn(format!("{said}; left out"));
            continue;
        };
        let health = Health::unhealthy(said);
        let instance = Instance { id: card.uuid.clone(), health, locality: card.place(config) };
        cards.push((card, Found { instance, attributes: None }));
    }
    cards.retain(|(card, _)| !config.ignored_gpu_ids.contains(&card.uuid));
    Ok(cards)
}

/// Name of the device node of a card. A wrong one would assign somebody else's card.
fn node_of(card: &Card, config: &Config) -> Result<Option<String>> {
    let bus = card.bus.as_deref().unwrap_or("an unknown address");
    let number = match config.nodes {
        Nodes::None => return Ok(None),
        Nodes::Index => card.index,
        Nodes::Minor => Information::read(config, bus).minor().map(i64::from),
    };
    let number = number.ok_or_else(|| {
        let dir = config.proc.display();
        Error::fatal(format!(
            "{dir}/gpus/{bus}/information does not name the device node of {}; grant \
             `files \"{dir}\" {{}}`, or set nodes = \"index\" or nodes = \"none\"",
            card.uuid
        ))
    })?;
    Ok(Some(format!("nvidia{number}")))
}

ostler_sdk::export_device!(Nvidia);

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
mod tests;
