//! Entry points for fuzz targets (`runtime/tools/fuzz/`) to private code of this crate. Nothing
//! else uses them.

use super::convert::{self, DriverFingerprint};
use super::functions::{AnswerSource, CallAnswer};
use ostler_device::source::DeviceFingerprint;
use ostler_model::clock::{Clock, Timestamp};
use ostler_model::device::Reservation;
use ostler_model::ids::PluginName;
use ostler_model::ports::{InspectResult, StartedTask};
use ostler_model::session::ExecPlan;
use ostler_model::stats::DeviceGroupStats;
use ostler_model::task::ExitResult;

/// Read bytes as an answer, and check it as the agent does.
fn check<T: CallAnswer>(bytes: &[u8]) {
    let clock = Clock::fixed(Timestamp::from_nanos(u64::MAX / 2));
    if let (Ok(given), Ok(plugin)) = (postcard::from_bytes(bytes), PluginName::new("fuzz")) {
        let _checked = T::check(given, &AnswerSource { plugin: &plugin, clock: &clock });
    }
}

/// Read bytes as the answers of the rows of a table.
macro_rules! check_rows {
    ($(
        $(#[$doc:meta])+
        $method:ident $function:literal $call:ident $arguments:tt -> $answer:ty;
    )+) => {
        [$(check::<$answer>),+]
    };
}

/// Read bytes as fingerprints and as answers of device plugins.
pub fn answers(bytes: &[u8]) {
    check::<DriverFingerprint>(bytes);
    ostler_model::device_calls!(check_rows).iter().for_each(|check| check(bytes));
    if let Ok(error) = postcard::from_bytes(bytes) {
        let _text = convert::plugin_error(error).to_string();
    }
}

/// Read bytes as answers of drivers about tasks, handles among them.
pub fn handles(bytes: &[u8]) {
    ostler_model::driver_calls!(check_rows).iter().for_each(|check| check(bytes));
}

pub use crate::host::trace::read_any;
