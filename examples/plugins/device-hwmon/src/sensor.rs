//! The sensors of a chip: files named `temp1_input`, `temp1_label`, `temp1_crit` ….

use std::collections::BTreeMap;
use std::path::Path;

use ostler_sdk::types::StatValue;
use plugin_support::{groups, sysfs};

/// What a sensor measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Degrees Celsius.
    Temperature,
    /// Revolutions in a minute.
    Fan,
    /// Watts.
    Power,
    /// Volts.
    Voltage,
    /// Amperes.
    Current,
    /// Joules.
    Energy,
    /// Percent.
    Humidity,
}

impl Kind {
    const ALL: [Self; 7] = [
        Self::Temperature,
        Self::Fan,
        Self::Power,
        Self::Voltage,
        Self::Current,
        Self::Energy,
        Self::Humidity,
    ];

    /// How its files begin.
    fn prefix(self) -> &'static str {
        match self {
            Self::Temperature => "temp",
            Self::Fan => "fan",
            Self::Power => "power",
            Self::Voltage => "in",
            Self::Current => "curr",
            Self::Energy => "energy",
            Self::Humidity => "humidity",
        }
    }

    /// Name of its object among the statistics, and of the attribute that counts its sensors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Temperature => "temperature",
            Self::Fan => "fan",
            Self::Power => "power",
            Self::Voltage => "voltage",
            Self::Current => "current",
            Self::Energy => "energy",
            Self::Humidity => "humidity",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Temperature => "°C",
            Self::Fan => "RPM",
            Self::Power => "W",
            Self::Voltage => "V",
            Self::Current => "A",
            Self::Energy => "J",
            Self::Humidity => "%",
        }
    }

    /// How many of what the kernel writes make one of the unit.
    fn scale(self) -> f64 {
        match self {
            Self::Fan => 1.0,
            Self::Temperature | Self::Voltage | Self::Current | Self::Humidity => 1e3,
            Self::Power | Self::Energy => 1e6,
        }
    }

    /// Files that tell how much there can be, best first.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Self::Temperature => &["crit", "max"],
            Self::Power => &["cap", "max"],
            Self::Fan | Self::Current => &["max"],
            Self::Voltage | Self::Energy | Self::Humidity => &[],
        }
    }
}

/// One sensor and what files it has.
#[derive(Debug)]
pub struct Sensor {
    /// What it measures.
    pub kind: Kind,
    /// `temp1`.
    pub stem: String,
    files: Vec<String>,
}

/// Most sensors of one chip that are told of: the agent takes twice as many measurements.
const SENSORS_MAX: usize = 256;

/// The sensors that these files of a chip's directory belong to, by kind and number.
pub fn of(files: &[String]) -> Vec<Sensor> {
    let mut found: BTreeMap<(Kind, u32), Vec<String>> = BTreeMap::new();
    for (stem, file) in files.iter().filter_map(|name| name.split_once('_')) {
        let sensor = Kind::ALL.into_iter().find_map(|kind| {
            let number = stem.strip_prefix(kind.prefix())?;
            Some((kind, number.parse().ok()?))
        });
        if let Some(sensor) = sensor {
            found.entry(sensor).or_default().push(file.to_owned());
        }
    }
    let sensors = found.into_iter().map(|((kind, number), files)| Sensor {
        kind,
        stem: format!("{}{number}", kind.prefix()),
        files,
    });
    sensors.filter(|sensor| sensor.input().is_some()).take(SENSORS_MAX).collect()
}

impl Sensor {
    /// File with the measurement.
    fn input(&self) -> Option<&str> {
        let has = |name: &&str| self.files.iter().any(|file| file == name);
        ["input", "average"].into_iter().find(has)
    }

    fn read(&self, dir: &Path, file: &str) -> Option<f64> {
        let there = self.files.iter().any(|name| name == file);
        let path = dir.join(format!("{}_{file}", self.stem));
        let number: i64 = there.then(|| sysfs::read_number(&path))??;
        #[expect(clippy::cast_precision_loss, reason = "no sensor has sixteen digits")]
        Some(number as f64 / self.kind.scale())
    }

    /// What people call it.
    pub fn label(&self, dir: &Path) -> Option<String> {
        self.files.iter().any(|file| file == "label").then_some(())?;
        groups::name(&sysfs::read(&dir.join(format!("{}_label", self.stem)))?)
    }

    /// Measure. `None` where the kernel cannot now, or says that the sensor is broken.
    pub fn measure(&self, dir: &Path) -> Option<StatValue> {
        if self.read(dir, "fault").is_some_and(|fault| fault > 0.0) {
            return None;
        }
        let value = self.read(dir, self.input()?)?;
        let limit = self.kind.limits().iter().find_map(|file| self.read(dir, file));
        let description = match limit {
            Some(_) => format!("{}, of the highest allowed", self.kind.name()),
            None => self.kind.name().to_owned(),
        };
        Some(StatValue {
            float_denominator: limit.filter(|limit| *limit > 0.0),
            ..StatValue::float(value, self.kind.unit(), &description)
        })
    }
}
