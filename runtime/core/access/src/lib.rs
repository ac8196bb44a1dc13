//! The tokens of the API: who sent a request, and what the sender may do.
//!
//! ```text
//! acl block ─ secrets ─┐
//!                      ├─► TokenTable ─ bearer(secret) ─► Bearer: rights, until it is revoked or expires
//! state: KeptTokens ───┘     ▲
//!                            │ decide ─ on disk ─ apply
//!             create, update, delete, bootstrap (one at a time)
//! ```
//! Only the SHA-256 of a secret is kept, and each request is compared with all of them in constant
//! time. A token of the configuration can only be changed there. Start at `table.rs`.

mod secrets;
mod table;
mod tokens;

pub use secrets::SecretError;
pub use table::{NewToken, ShownToken, TokenChange, TokenError};
pub use tokens::{Bearer, CreatedToken, Tokens, TokensError};
