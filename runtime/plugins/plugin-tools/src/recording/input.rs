//! The arguments of a call, as they are kept and as a replay reads them.

use serde_json::Value;

use ostler_model::calls::DRIVER_FUNCTIONS;
use ostler_model::redact::Secrets;
use ostler_plugin::bindings::since_0_1::driver_export as drv;

/// The arguments of `start`.
type Start = (drv::TaskConfig,);

/// Take the secrets out of the arguments of a call, and learn them.
pub(super) fn redact_input(
    function: &str,
    input: &mut Vec<u8>,
    task_schema: Option<&Value>,
    secrets: &mut Secrets,
) {
    if function == "start" {
        let Ok((mut task,)) = postcard::from_bytes::<Start>(input) else {
            // Arguments that cannot be read cannot be redacted.
            input.clear();
            return;
        };
        task.config_json = secrets.redact_config(&task.config_json, task_schema);
        for variable in &mut task.env {
            secrets.redact_variable(&variable.name, &mut variable.value);
        }
        *input = postcard::to_stdvec(&(task,)).unwrap_or_default();
    } else if let Some((mut handle, rest)) = split_handle(function, input) {
        if let Ok(text) = std::str::from_utf8(&handle.data) {
            let clean = secrets.redact_config(text, None);
            handle.data = clean.into_bytes();
        }
        let mut bytes = postcard::to_stdvec(&handle).unwrap_or_default();
        bytes.extend_from_slice(&rest);
        *input = bytes;
    }
}

/// The handle that every call about a task but `start` begins with, and the bytes after it.
fn split_handle(function: &str, input: &[u8]) -> Option<(drv::Handle, Vec<u8>)> {
    if !DRIVER_FUNCTIONS.contains(&function) {
        return None;
    }
    let (handle, rest) = postcard::take_from_bytes::<drv::Handle>(input).ok()?;
    Some((handle, rest.to_vec()))
}
