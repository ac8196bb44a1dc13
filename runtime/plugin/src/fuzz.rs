//! Entry points for fuzz targets (`runtime/fuzz/`) to private code of this crate. Nothing
//! else uses them.

use super::bindings::since_0_1::{device_export as dev, driver_export as drv};
use super::{convert, driver};
use ostler_model::clock::Timestamp;
use ostler_model::ids::PluginName;

/// Read bytes as answers of a plugin of each kind, and check them as the agent does.
pub fn answers(bytes: &[u8]) {
    if let Ok(found) = postcard::from_bytes::<drv::DriverFingerprint>(bytes) {
        let _checked = convert::driver_fingerprint(found);
    }
    if let (Ok(found), Ok(name)) =
        (postcard::from_bytes::<dev::DeviceFingerprint>(bytes), PluginName::new("fuzz"))
    {
        let _checked = convert::device_fingerprint(&name, found);
    }
    if let Ok(answer) = postcard::from_bytes::<dev::Reservation>(bytes) {
        let _checked = convert::reservation(answer);
    }
    if let Ok(groups) = postcard::from_bytes::<Vec<dev::GroupStats>>(bytes) {
        let _checked = convert::device_stats(groups, Timestamp::from_nanos(u64::MAX / 2));
    }
    if let Ok(error) = postcard::from_bytes(bytes) {
        let _text = convert::plugin_error(error).to_string();
    }
}

/// Read bytes as handles and as the answers that come with them.
pub fn handles(bytes: &[u8]) {
    if let Ok(started) = postcard::from_bytes::<drv::Started>(bytes) {
        let _checked = driver::parse_started("fuzz", started);
    }
    if let Ok(status) = postcard::from_bytes::<drv::Status>(bytes) {
        let _checked = driver::parse_inspected(status);
    }
    if let Ok(result) = postcard::from_bytes::<drv::ExitResult>(bytes) {
        let _checked = driver::parse_exit(result);
    }
}

pub use crate::host::trace::read_any;
