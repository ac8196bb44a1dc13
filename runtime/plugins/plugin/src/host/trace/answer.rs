//! Writes and reads answers of host functions: values, typed errors, and errors that end the call.

use wasmtime::component::ResourceTableError;
use wasmtime_wasi::p2::bindings::filesystem::types::ErrorCode;
use wasmtime_wasi::p2::{FsError, StreamError};

use super::wire::{Wire, WireReader, put_counted};
use ostler_model::limits::GUEST_ERROR_BYTES_MAX;
use ostler_sandbox::HostcallBudgetExceeded;

/// An answer of a host function that can be written into a trace and read from it.
pub(in crate::host) trait TraceAnswer: Sized {
    fn put(&self, out: &mut Vec<u8>);
    /// Read an answer; `None`: there is none of this type.
    fn get(reader: &mut WireReader<'_>) -> Option<Self>;
    /// An answer that ends the call.
    fn trap(error: wasmtime::Error) -> Self;
}

const VALUE: u8 = 0;
const TYPED: u8 = 1;
const CLOSED: u8 = 2;
const FAILED: u8 = 3;
const ENDED: u8 = 4;

impl<T: Wire> TraceAnswer for wasmtime::Result<T> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(value) => put_value(value, out),
            Err(error) => put_end(error, out),
        }
    }

    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            VALUE => Ok(T::get(reader)?),
            ENDED => Err(get_end(reader)?),
            _ => return None,
        })
    }

    fn trap(error: wasmtime::Error) -> Self {
        Err(error)
    }
}

impl<T: Wire> TraceAnswer for Result<T, FsError> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(value) => put_value(value, out),
            Err(error) => match error.downcast_ref() {
                Some(code) => {
                    out.push(TYPED);
                    code.put(out);
                }
                None => put_text_end(&error.to_string(), out),
            },
        }
    }

    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            VALUE => Ok(T::get(reader)?),
            TYPED => Err(ErrorCode::get(reader)?.into()),
            ENDED => Err(FsError::trap(get_end(reader)?)),
            _ => return None,
        })
    }

    fn trap(error: wasmtime::Error) -> Self {
        Err(FsError::trap(error))
    }
}

impl<T: Wire> TraceAnswer for Result<T, StreamError> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Ok(value) => put_value(value, out),
            Err(StreamError::Closed) => out.push(CLOSED),
            Err(StreamError::LastOperationFailed(error)) => {
                out.push(FAILED);
                put_counted(cut_text(&format!("{error:#}")).as_bytes(), out);
            }
            Err(StreamError::Trap(error)) => put_end(error, out),
        }
    }

    fn get(reader: &mut WireReader<'_>) -> Option<Self> {
        Some(match reader.u8()? {
            VALUE => Ok(T::get(reader)?),
            CLOSED => Err(StreamError::Closed),
            FAILED => {
                let text = reader.text()?;
                Err(StreamError::LastOperationFailed(wasmtime::Error::msg(text)))
            }
            ENDED => Err(StreamError::Trap(get_end(reader)?)),
            _ => return None,
        })
    }

    fn trap(error: wasmtime::Error) -> Self {
        Err(StreamError::Trap(error))
    }
}

fn put_value(value: &impl Wire, out: &mut Vec<u8>) {
    out.push(VALUE);
    value.put(out);
}

const BUDGET: u8 = 0;
const TABLE_FULL: u8 = 1;
const TEXT: u8 = 2;

/// The budgets that can run out. Traces hold their places in this list, so it may only
/// be appended to.
const BUDGETS: [&str; 2] = ["host calls", "bytes transferred"];

/// Write an error that ended the call: the kind where it matters later, and otherwise the text.
fn put_end(error: &wasmtime::Error, out: &mut Vec<u8>) {
    if let Some(HostcallBudgetExceeded { what, limit }) = error.downcast_ref()
        && let Some(place) = BUDGETS.iter().position(|one| one == what)
    {
        out.extend([ENDED, BUDGET, u8::try_from(place).unwrap_or(0)]);
        limit.put(out);
    } else if matches!(error.downcast_ref(), Some(ResourceTableError::Full)) {
        out.extend([ENDED, TABLE_FULL]);
    } else {
        put_text_end(&format!("{error:#}"), out);
    }
}

fn put_text_end(text: &str, out: &mut Vec<u8>) {
    out.extend([ENDED, TEXT]);
    put_counted(cut_text(text).as_bytes(), out);
}

fn get_end(reader: &mut WireReader<'_>) -> Option<wasmtime::Error> {
    Some(match reader.u8()? {
        BUDGET => {
            let what = BUDGETS.get(usize::from(reader.u8()?)).copied()?;
            HostcallBudgetExceeded { what, limit: reader.u64()? }.into()
        }
        TABLE_FULL => ResourceTableError::Full.into(),
        TEXT => wasmtime::Error::msg(reader.text()?),
        _ => return None,
    })
}

fn cut_text(text: &str) -> String {
    ostler_model::printable::truncate_text(text.to_owned(), GUEST_ERROR_BYTES_MAX)
}
