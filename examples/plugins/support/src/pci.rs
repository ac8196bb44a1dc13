//! PCI addresses.

/// An address as sysfs writes it, `0000:3b:00.0`, from what others write: `00000000:3B:00.0`,
/// `3b:00.0`. `None` for anything else.
pub fn normalise(text: &str) -> Option<String> {
    let mut parts = text.trim().rsplit(':');
    let (device, function) = parts.next()?.split_once('.')?;
    let bus = hex(parts.next()?, 2)?;
    let domain = parts.next().map_or(Some(0), |domain| hex(domain, 8))?;
    if parts.next().is_some() {
        return None;
    }
    let (device, function) = (hex(device, 2)?, hex(function, 1)?);
    Some(format!("{domain:04x}:{bus:02x}:{device:02x}.{function:x}"))
}

fn hex(text: &str, digits: usize) -> Option<u32> {
    let plain = text.chars().all(|digit| digit.is_ascii_hexdigit());
    (plain && text.len() <= digits).then(|| u32::from_str_radix(text, 16).ok())?
}

/// The last PCI address among the parts of a path in `/sys/devices`: the controller that something
/// hangs on. Only what is written as sysfs does counts.
pub fn last_address(parts: &[String]) -> Option<&str> {
    let is_address = |part: &&String| normalise(part).as_ref() == Some(*part);
    parts.iter().rev().find(is_address).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_usual_form_of_an_address_becomes_the_one_of_sysfs() {
        for given in ["00000000:3B:00.0", "0000:3b:00.0", "3B:00.0", " 0000:3b:00.0\n"] {
            assert_eq!(normalise(given).as_deref(), Some("0000:3b:00.0"), "{given}");
        }
        assert_eq!(normalise("00010000:01:1F.7").as_deref(), Some("10000:01:1f.7"));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for given in
            ["", "x", "3b", "3b:00", "0:0:0:0.0", "000000000:3b:00.0", "+1:00.0", "3b:00.10"]
        {
            assert_eq!(normalise(given), None, "{given}");
        }
    }

    #[test]
    fn the_controller_is_the_last_address_of_a_path() {
        let path = "../../../devices/pci0000:00/0000:00:1c.0/0000:04:00.0/nvme/nvme0";
        let parts: Vec<String> = path.split('/').map(str::to_owned).collect();
        assert_eq!(last_address(&parts), Some("0000:04:00.0"));
        assert_eq!(last_address(&["1-4:1.0".to_owned(), "3b:00.0".to_owned()]), None);
    }
}
