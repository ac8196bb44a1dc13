//! Errors as Nomad reads them. Where a start fails, Nomad wants to know whether trying again may
//! help; this travels beside the text.

use prost::Message as _;
use prost_types::Any;
use tonic::{Code, Status};

use crate::proto::rpc;
use crate::proto::structs::RecoverableError;
use ostler_model::ports::PluginCallError;

/// Type name of the detail that says whether to try again.
const RECOVERABLE: &str =
    "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError";

/// The status of a call about a task that is not known, in Nomad's own words.
pub(crate) fn unknown_task() -> Status {
    Status::not_found("task not found for given id")
}

/// The status of a start that failed.
pub(crate) fn start_status(message: String, recoverable: bool) -> Status {
    let detail = RecoverableError { recoverable }.encode_to_vec();
    let detail = Any { type_url: RECOVERABLE.to_owned(), value: detail };
    let code = Code::FailedPrecondition;
    let status =
        rpc::Status { code: i32::from(code), message: message.clone(), details: vec![detail] };
    Status::with_details(code, message, status.encode_to_vec().into())
}

/// The status of a start that the driver refused.
pub(crate) fn start_call_status(error: &PluginCallError) -> Status {
    start_status(error.to_string(), error.is_recoverable())
}

/// The status of any other call that the driver refused.
pub(crate) fn call_status(error: &PluginCallError) -> Status {
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
            let status = start_status("no room".to_owned(), recoverable);
            let read = rpc::Status::decode(status.details()).unwrap();
            assert_eq!((read.code, read.message.as_str()), (9, "no room"));
            assert_eq!(read.details[0].type_url, RECOVERABLE);
            let detail = RecoverableError::decode(&*read.details[0].value).unwrap();
            assert_eq!(detail.recoverable, recoverable);
        }
    }
}
