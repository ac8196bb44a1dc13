//! Processors: `cpu.arch`, `cpu.numcores`, `cpu.modelname`, `cpu.frequency` (MHz),
//! `cpu.totalcompute` (MHz), and `cpu.usablecompute`, the part of it that jobs may have. Nothing is
//! kept back for the node, so the two are the same. `cpu.reservablecores` does not depend on the
//! machine alone: see [`crate::NodeView::set_cores`].

use std::path::Path;

use super::{Facts, add_number, add_text, read, read_line};

/// MHz assumed for a core whose frequency is not known (many virtual machines on ARM), as Nomad
/// does, so that jobs can be placed at all.
const CORE_MHZ_DEFAULT: u64 = 1_000;

pub(super) fn fingerprint(root: &Path, facts: &mut Facts) {
    add_text(facts, "cpu.arch", Some(architecture()));
    let Some(info) = read(root, "proc/cpuinfo") else {
        return;
    };
    let values = |key: &'static str| {
        info.lines().filter_map(move |line| {
            let (name, value) = line.split_once(':')?;
            (name.trim() == key).then(|| value.trim())
        })
    };
    let cores = u64::try_from(values("processor").count()).ok().filter(|count| *count > 0);
    let model = values("model name").next();
    let now_mhz = values("cpu MHz").filter_map(whole_mhz).max();
    let frequency = highest_mhz(root).or_else(|| model.and_then(nominal_mhz)).or(now_mhz);
    let per_core = frequency.unwrap_or(CORE_MHZ_DEFAULT);
    add_number(facts, "cpu.numcores", cores);
    add_text(facts, "cpu.modelname", model);
    add_number(facts, "cpu.frequency", frequency);
    let compute = cores.and_then(|cores| cores.checked_mul(per_core));
    add_number(facts, "cpu.totalcompute", compute);
    add_number(facts, "cpu.usablecompute", compute);
}

/// The architecture by the name Nomad uses for it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// Nominal highest frequency of the first core. It is steady, unlike the present frequency.
fn highest_mhz(root: &Path) -> Option<u64> {
    let khz = read_line(root, "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq")?;
    khz.parse::<u64>().ok().map(|khz| khz / 1_000).filter(|mhz| *mhz > 0)
}

/// `Example CPU @ 2.60GHz` → 2600.
fn nominal_mhz(model: &str) -> Option<u64> {
    let (whole, hundredths) = model.rsplit_once("@ ")?.1.strip_suffix("GHz")?.split_once('.')?;
    let hundredths = hundredths.get(..2).filter(|_| hundredths.len() == 2)?;
    let mhz = whole.parse::<u64>().ok()?.checked_mul(1_000)?;
    mhz.checked_add(hundredths.parse::<u64>().ok()?.checked_mul(10)?).filter(|mhz| *mhz > 0)
}

/// `2599.998` → 2599.
fn whole_mhz(text: &str) -> Option<u64> {
    text.split('.').next()?.parse().ok().filter(|mhz| *mhz > 0)
}
