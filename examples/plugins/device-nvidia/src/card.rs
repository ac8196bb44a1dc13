//! One card: who it is, what it can do, how it is.

use std::path::Path;

use ostler_sdk::device::prelude::*;
use plugin_support::{groups, pci, sysfs};

use crate::Config;
use crate::table::{Row, cut};

/// Who a card is.
pub struct Card {
    /// Does not change over reboots or slots: `GPU-…`.
    pub uuid: String,
    /// Name of its group: the model.
    pub model: String,
    /// `0000:3b:00.0`.
    pub bus: Option<String>,
    /// Number nvidia-smi counts it by.
    pub index: Option<i64>,
}

impl Card {
    /// Who the card of this line is. `None` for one that cannot even tell that.
    ///
    /// # Errors
    /// An id or address that is none.
    pub fn of(row: &Row<'_>, config: &Config) -> Result<Option<Self>> {
        let bus = match row.text("pci.bus_id") {
            Some(text) => match pci::normalise(text) {
                Some(bus) => Some(bus),
                None => return Err(row.error(&format!("{:?} is not a PCI address", cut(text)))),
            },
            None => None,
        };
        let told = bus.as_deref().map(|bus| Information::read(config, bus));
        let uuid = match row.text("uuid") {
            Some(uuid) if is_uuid(uuid) => uuid.to_owned(),
            Some(other) => return Err(row.error(&format!("{:?} is not a GPU ID", cut(other)))),
            None => match told.as_ref().and_then(Information::uuid) {
                Some(uuid) => uuid,
                None => return Ok(None),
            },
        };
        let model = row.text("name").and_then(groups::name);
        let model = model.or_else(|| told.as_ref().and_then(Information::model));
        let mut model = model.unwrap_or_else(|| "unknown".to_owned());
        // A card that is cut up is no longer what its model says, so it is no longer in that group.
        if row.text("mig.mode.current") == Some("Enabled") {
            model.push_str(" MIG");
        }
        Ok(Some(Self { uuid, model, bus, index: row.whole("index")? }))
    }

    /// Its place in the machine.
    pub fn place(&self, config: &Config) -> Option<Locality> {
        let bus = self.bus.clone()?;
        let device = config.sysfs.join("bus/pci/devices").join(&bus);
        let numa_node = sysfs::numa_node(&device).or_else(|| sysfs::only_numa_node(&config.sysfs));
        Some(Locality { pci_bus_id: Some(bus), numa_node })
    }
}

fn is_uuid(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    text.len() <= 64
        && text.strip_prefix("GPU-").is_some_and(|id| !id.is_empty())
        && text.chars().all(plain)
}

/// What the driver's directory in `/proc` says of a card. It still does when nvidia-smi cannot.
pub struct Information(String);

impl Information {
    /// Of the card at this address; empty where it cannot be read.
    pub fn read(config: &Config, bus: &str) -> Self {
        let path = config.proc.join("gpus").join(bus).join("information");
        Self(sysfs::read(&path).unwrap_or_default())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| Some(line.strip_prefix(key)?.strip_prefix(':')?.trim()))
    }

    /// Number of `/dev/nvidiaN`.
    pub fn minor(&self) -> Option<u32> {
        self.get("Device Minor")?.parse().ok()
    }

    fn uuid(&self) -> Option<String> {
        self.get("GPU UUID").filter(|uuid| is_uuid(uuid)).map(str::to_owned)
    }

    fn model(&self) -> Option<String> {
        groups::name(self.get("Model")?)
    }

    /// The card that a line about a lost one means.
    pub fn of_lost(config: &Config, line: &str) -> Option<Card> {
        // "… for GPU3: 0000:04:00.0: Unknown Error", "… for GPU0000:25:00.0: Unknown Error".
        let words = line.split([' ', ',']).map(|word| word.trim_end_matches(':'));
        let mut addresses = words.filter_map(|word| {
            pci::normalise(word).or_else(|| pci::normalise(word.strip_prefix("GPU")?))
        });
        let bus = addresses.next()?;
        let told = Self::read(config, &bus);
        Some(Card { uuid: told.uuid()?, model: told.model()?, bus: Some(bus), index: None })
    }
}

/// Usable or not.
///
/// # Errors
/// An error count that is no number.
pub fn health(row: &Row<'_>, config: &Config) -> Result<Health> {
    if let Some((column, said)) = row.broken().next() {
        return Ok(Health::unhealthy(format!("nvidia-smi reports {said:?} for {column}")));
    }
    let errors = row.whole("ecc.errors.uncorrected.volatile.total")?.unwrap_or(0);
    let most = config.ecc_uncorrected_max;
    if u64::try_from(errors).is_ok_and(|errors| errors > most) {
        return Ok(Health::unhealthy(format!(
            "{errors} memory errors that could not be corrected since the driver was loaded; at \
             most {most} are allowed (ecc_uncorrected_max)"
        )));
    }
    if row.text("remapped_rows.failure") == Some("Yes") {
        let why = "a faulty row of its memory could not be remapped";
        return Ok(Health::unhealthy(why));
    }
    // What the driver wants done before more work is given to the card: Reset, Reboot, Drain …
    match row.text("gpu_recovery_action") {
        None | Some("None") => Ok(Health::healthy()),
        Some(action) => {
            let action = cut(action);
            Ok(Health::unhealthy(format!("the driver asks for a recovery of the card: {action}")))
        }
    }
}

/// What it can do. Names as in Nomad's plugin for the same cards.
///
/// # Errors
/// A number that is none.
pub fn attributes(row: &Row<'_>) -> Result<Vec<NamedAttribute>> {
    let mut attributes = vec![];
    for (name, column, unit) in [
        ("memory", "memory.total", "MiB"),
        ("cores_clock", "clocks.max.sm", "MHz"),
        ("memory_clock", "clocks.max.memory", "MHz"),
    ] {
        let number = row.whole(column)?;
        attributes.extend(number.map(|number| NamedAttribute::new(name, number).unit(unit)));
    }
    let power = row.fraction("power.limit")?;
    attributes.extend(power.map(|watts| NamedAttribute::new("power", watts).unit("W")));
    let generation = row.whole("pcie.link.gen.max")?;
    if let Some(lanes) = row.whole("pcie.link.width.max")?
        && let Some(speed) = generation.and_then(lane_speed)
        && let Some(speed) = speed.checked_mul(lanes)
    {
        attributes.push(NamedAttribute::new("pci_bandwidth", speed).unit("MB/s"));
    }
    for (name, column) in [
        ("driver_version", "driver_version"),
        ("compute_capability", "compute_cap"),
        ("mig_mode", "mig.mode.current"),
        ("ecc_mode", "ecc.mode.current"),
        ("persistence_mode", "persistence_mode"),
        ("display_state", "display_active"),
    ] {
        let text = row.text(column).and_then(groups::name);
        attributes.extend(text.map(|text| NamedAttribute::new(name, text)));
    }
    Ok(attributes)
}

/// Megabytes a second that one lane carries one way, by generation of PCI Express, line code
/// taken off.
fn lane_speed(generation: i64) -> Option<i64> {
    match generation {
        1 => Some(250),
        2 => Some(500),
        3 => Some(985),
        4 => Some(1969),
        5 => Some(3938),
        6 => Some(7563),
        _ => None,
    }
}

/// Whether a kernel module is loaded, as far as sysfs is granted.
pub fn has_module(sysfs_root: &Path, module: &str) -> bool {
    sysfs::names(&sysfs_root.join("module").join(module)).is_ok_and(|names| !names.is_empty())
}
