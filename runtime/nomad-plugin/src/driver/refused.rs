//! Errors as Nomad reads them. Of a start it wants to know whether trying again may help: that travels
//! beside the text.

use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

use crate::proto::rpc;
use crate::proto::structs::RecoverableError;
use ostler_model::ports::PluginCallError;

/// Type of the detail.
const RECOVERABLE: &str =
    "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";

/// What Nomad calls a task that it asks about in vain.
pub(crate) fn unknown_task() -> Status {
    Status::not_found("task not found for given id")
}

/// A start that failed.
pub(crate) fn start(message: String, recoverable: bool) -> Status {
    let detail = RecoverableError { recoverable }.encode_to_vec();
    let detail = Any { type_url: RECOVERABLE.to_owned(), value: detail };
    let code = Code::FailedPrecondition;
    let status =
        rpc::Status { code: i32::from(code), message: message.clone(), details: vec![detail] };
    Status::with_details(code, message, status.encode_to_vec().into())
}

/// A driver that did not start a task.
pub(crate) fn start_call(error: &PluginCallError) -> Status {
    start(error.to_string(), error.recoverable())
}

/// A driver that did not do something else.
pub(crate) fn call(error: &PluginCallError) -> Status {
    let text = error.to_string();
    match error {
        PluginCallError::NotFound(_) => unknown_task(),
        PluginCallError::Unsupported(_) => Status::unimplemented(text),
        PluginCallError::InvalidConfig(_) => Status::invalid_argument(text),
        PluginCallError::PermissionDenied(_) | PluginCallError::NotGranted(_) => {
            Status::permission_denied(text)
        }
        _ => Status::unknown(text),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn whether_to_try_again_is_read_beside_the_text() {
        for recoverable in [true, false] {
            let status = start("no room".to_owned(), recoverable);
            let read = rpc::Status::decode(status.details()).unwrap();
            assert_eq!((read.code, read.message.as_str()), (9, "no room"));
            assert_eq!(read.details[0].type_url, RECOVERABLE);
            let detail = RecoverableError::decode(&*read.details[0].value).unwrap();
            assert_eq!(detail.recoverable, recoverable);
        }
    }
}
