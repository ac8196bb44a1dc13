//! The tokens of the API: whose a request is, and what it may do.
//!
//! ```text
//! acl block ─ secrets ─┐
//!                      ├─► Table ─ bearer(secret) ─► Bearer: rights, until it is revoked or expires
//! state: KeptTokens ───┘     ▲
//!                            │ decide ─ on disk ─ apply
//!             create, update, delete, bootstrap (one at a time)
//! ```
//! Of a secret only its SHA-256 is kept, and each request is compared with all of them in the same time. A
//! token of the configuration is changed there alone.

mod secrets;
mod table;
mod tokens;

pub use secrets::SecretError;
pub use table::{NewToken, ShownToken, TokenChange, TokenError};
pub use tokens::{Bearer, Created, Tokens, TokensError};
