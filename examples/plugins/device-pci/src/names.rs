//! Names of PCI vendors and classes. Numbers from the PCI ID specification.

/// A short name for well-known vendors, four hexadecimal digits for the others.
pub fn vendor(id: u16) -> String {
    let name = match id {
        0x1002 | 0x1022 => "amd",
        0x106b => "apple",
        0x10de => "nvidia",
        0x10ec => "realtek",
        0x1234 => "qemu",
        0x1414 => "microsoft",
        0x144d => "samsung",
        0x14e4 => "broadcom",
        0x15ad => "vmware",
        0x15b3 => "mellanox",
        0x15b7 => "sandisk",
        0x177d => "cavium",
        0x19e5 => "huawei",
        0x1ae0 => "google",
        0x1af4 | 0x1b36 => "redhat",
        0x1c5c => "hynix",
        0x1d0f => "amazon",
        0x1d22 => "baidu",
        0x8086 => "intel",
        _ => return format!("{id:04x}"),
    };
    name.to_owned()
}

/// Name of the base class: the highest of the three bytes.
pub fn class(class: u32) -> &'static str {
    match class >> 16 {
        0x01 => "storage",
        0x02 => "network",
        0x03 => "display",
        0x04 => "multimedia",
        0x05 => "memory",
        0x06 => "bridge",
        0x07 => "communication",
        0x08 => "system",
        0x09 => "input",
        0x0a => "docking",
        0x0b => "processor",
        0x0c => "serial-bus",
        0x0d => "wireless",
        0x0e => "intelligent-io",
        0x0f => "satellite",
        0x10 => "encryption",
        0x11 => "signal-processing",
        0x12 => "accelerator",
        0x13 => "instrumentation",
        _ => "other",
    }
}
