//! Entry points for fuzz targets (`runtime/tools/fuzz/`) to private code of this crate. Nothing
//! else uses them.

use prost::Message as _;

use crate::proto::driver as wire;
use crate::values;

/// A schema with each form that configurations are converted by.
const SCHEMA: &str = r##"{"type": "object", "properties": {
    "command": {"type": "string"},
    "args": {"type": "array", "items": {"type": "string"}},
    "again": {"$ref": "#"},
    "many": {"type": "array", "items": {"$ref": "#"}}
}}"##;

/// Read bytes as the configuration of a task or a plugin, as a task to start, and as a
/// task to recover.
pub fn tasks(bytes: &[u8]) {
    let _either = values::configuration(bytes, SCHEMA);
    let handle = wire::TaskHandle::decode(bytes);
    let kept = handle.as_ref().map_or(bytes, |handle| handle.driver_state.as_slice());
    let _kept = crate::driver::fuzz_record(kept);
    let of_handle = handle.ok().and_then(|handle| handle.config);
    for task in wire::TaskConfig::decode(bytes).into_iter().chain(of_handle) {
        crate::driver::fuzz_task(task, SCHEMA);
    }
}
