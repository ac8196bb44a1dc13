//! The arguments of a call, as they are kept and as a replay reads them.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use ostler_model::ports::TaskConfig;
use ostler_model::redact::Secrets;
use ostler_model::task::DriverHandle;
use ostler_plugin::bindings::since_0_1::driver_export as drv;

/// The first argument of a call to a driver. No argument after it has secrets by its form.
trait FirstArgument {
    /// Its type in the contract.
    type Contract: Serialize + DeserializeOwned;

    /// Take its secrets out, and learn them.
    fn redact(given: &mut Self::Contract, task_schema: Option<&Value>, secrets: &mut Secrets);
}

impl FirstArgument for TaskConfig {
    type Contract = drv::TaskConfig;

    fn redact(task: &mut drv::TaskConfig, task_schema: Option<&Value>, secrets: &mut Secrets) {
        task.config_json = secrets.redact_config(&task.config_json, task_schema);
        for variable in &mut task.env {
            secrets.redact_variable(&variable.name, &mut variable.value);
        }
    }
}

impl FirstArgument for DriverHandle {
    type Contract = drv::Handle;

    fn redact(handle: &mut drv::Handle, _task_schema: Option<&Value>, secrets: &mut Secrets) {
        if let Ok(text) = std::str::from_utf8(&handle.data) {
            handle.data = secrets.redact_config(text, None).into_bytes();
        }
    }
}

/// Take the secrets out of the arguments of a call, and learn them.
pub(super) fn redact_input(
    function: &str,
    input: &mut Vec<u8>,
    task_schema: Option<&Value>,
    secrets: &mut Secrets,
) {
    macro_rules! redact_row {
        ($(
            $(#[$doc:meta])+
            $method:ident $function:literal $call:ident(
                $first:ident: $type:ty $(, $argument:ident: $more:ty)*
            ) -> $answer:ty;
        )+) => {
            match function {
                $($function => redact_first::<$type>(input, task_schema, secrets),)+
                _ => {}
            }
        };
    }
    ostler_model::driver_calls!(redact_row);
}

fn redact_first<A: FirstArgument>(
    input: &mut Vec<u8>,
    task_schema: Option<&Value>,
    secrets: &mut Secrets,
) {
    let Ok((mut first, rest)) = postcard::take_from_bytes::<A::Contract>(input) else {
        // Arguments that cannot be read cannot be redacted.
        input.clear();
        return;
    };
    A::redact(&mut first, task_schema, secrets);
    let mut bytes = postcard::to_stdvec(&first).unwrap_or_default();
    bytes.extend_from_slice(rest);
    *input = bytes;
}
