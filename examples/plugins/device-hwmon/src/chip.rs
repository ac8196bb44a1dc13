//! One monitoring chip: a directory of `class/hwmon`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ostler_sdk::device::prelude::*;
use plugin_support::{groups, pci, sysfs};

use crate::Config;
use crate::sensor::{self, Kind, Sensor};

/// A chip with at least one sensor.
pub struct Chip {
    /// Name of its driver, which is that of its group: `coretemp`.
    pub name: String,
    /// Its place, which does not change over reboots as the number of its directory does.
    pub id: String,
    /// Its directory on the node, links followed.
    pub dir: PathBuf,
    controller: Option<String>,
    sensors: Vec<Sensor>,
    /// Ever longer names for its place.
    places: Vec<String>,
}

impl Chip {
    fn read(config: &Config, entry: &str) -> Result<Option<Self>> {
        let link = config.root.join("class/hwmon").join(entry);
        let parts = sysfs::link_parts(&link);
        let from_root = parts.iter().skip_while(|part| *part == "..");
        let dir: PathBuf = config.root.join(from_root.collect::<PathBuf>());
        let sensors = sensor::of(&sysfs::names(&dir)?);
        let name = sysfs::read(&dir.join("name")).and_then(|name| groups::name(&name));
        let Some(name) = name.filter(|_| !parts.is_empty() && !sensors.is_empty()) else {
            return Ok(None);
        };
        let controller = pci::last_address(&parts).map(str::to_owned);
        // `platform/coretemp.0/hwmon/hwmon2`: what the chip belongs to.
        let owner = parts.iter().rev().find(|part| !part.starts_with("hwmon"));
        let owner = owner.and_then(|part| groups::name(part)).unwrap_or_default();
        let place = controller.clone().unwrap_or_else(|| owner.clone());
        let places = vec![place.clone(), format!("{place}-{owner}"), format!("{place}-{entry}")];
        Ok(Some(Self { name, id: place, dir, controller, sensors, places }))
    }

    fn wanted(&self, config: &Config) -> bool {
        !config.ignored_ids.iter().any(|id| *id == self.name || *id == self.id)
    }

    /// How many sensors of each kind it has.
    pub fn attributes(&self) -> Vec<NamedAttribute> {
        let kinds: BTreeSet<Kind> = self.sensors.iter().map(|sensor| sensor.kind).collect();
        let count = |kind| self.sensors.iter().filter(|sensor| sensor.kind == kind).count();
        let attribute = |kind: Kind| {
            let count = i64::try_from(count(kind)).unwrap_or(i64::MAX);
            NamedAttribute::new(format!("{}_sensors", kind.name()), count)
        };
        kinds.into_iter().map(attribute).collect()
    }

    /// Where it is.
    pub fn instance(self, root: &Path) -> Instance {
        let instance = Instance::healthy(self.id);
        match self.controller {
            Some(controller) => {
                let device = root.join("bus/pci/devices").join(&controller);
                instance.at(Some(controller), sysfs::numa_node(&device))
            }
            None => instance,
        }
    }

    /// What its sensors measure; those that cannot now are absent. The hottest place is the
    /// summary, or else the first measurement.
    pub fn measure(&self) -> InstanceStats {
        let mut stats = InstanceStats::new(&self.id, None);
        let mut taken: BTreeSet<(Kind, String)> = BTreeSet::new();
        for sensor in &self.sensors {
            let Some(value) = sensor.measure(&self.dir) else {
                continue;
            };
            let Some(label) = self.free_name(sensor, &mut taken) else {
                continue;
            };
            let temperature = sensor.kind == Kind::Temperature;
            let hotter =
                |other: &StatValue| temperature && other.float_numerator < value.float_numerator;
            if stats.summary.as_ref().is_none_or(hotter) {
                let description = Some(format!("{}: {label}", sensor.kind.name()));
                stats.summary = Some(StatValue { description, ..value.clone() });
            }
            stats = stats.nested(&[sensor.kind.name(), &label], value);
        }
        stats
    }

    /// A name that no other sensor of the kind has: two measurements of one name would void all.
    fn free_name(&self, sensor: &Sensor, taken: &mut BTreeSet<(Kind, String)>) -> Option<String> {
        let stem = &sensor.stem;
        let label = sensor.label(&self.dir).unwrap_or_else(|| stem.clone());
        // With the stem before it a long one must be cut.
        let numbered = format!("{stem} {}", label.chars().take(50).collect::<String>());
        let mut names = [label, numbered, stem.clone()].into_iter();
        names.find(|name| taken.insert((sensor.kind, name.clone())))
    }
}

/// All chips that the configuration leaves in. A node without sensors has none.
pub fn list(config: &Config) -> Result<Vec<Chip>> {
    let mut chips = vec![];
    for entry in sysfs::names(&config.root.join("class/hwmon"))? {
        chips.extend(Chip::read(config, &entry)?.filter(|chip| chip.wanted(config)));
    }
    // Two chips of one controller: both get a longer name.
    for longer in 1..3 {
        let mut count: BTreeMap<(String, String), u32> = BTreeMap::new();
        for chip in &chips {
            *count.entry((chip.name.clone(), chip.id.clone())).or_default() += 1;
        }
        for chip in &mut chips {
            let twins = count.get(&(chip.name.clone(), chip.id.clone()));
            if let Some(place) = chip.places.get(longer)
                && twins.is_some_and(|twins| *twins > 1)
            {
                chip.id.clone_from(place);
            }
        }
    }
    Ok(chips)
}

/// Chips by name.
pub fn grouped(chips: Vec<Chip>) -> BTreeMap<String, Vec<Chip>> {
    let mut groups: BTreeMap<String, Vec<Chip>> = BTreeMap::new();
    for chip in chips {
        groups.entry(chip.name.clone()).or_default().push(chip);
    }
    groups.values_mut().for_each(|chips| chips.sort_by(|a, b| a.id.cmp(&b.id)));
    groups
}
