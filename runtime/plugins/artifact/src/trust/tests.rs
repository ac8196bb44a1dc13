#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod decisions;
mod file;
mod signatures;

#[path = "../../../../tests/it/support/signer.rs"]
mod signer;

use std::path::Path;

use super::*;
use ostler_jobspec::parse_trust_file;
use ostler_model::trust::TrustFile;
use signer::Signer;

fn trust(text: &str) -> TrustFile {
    parse_trust_file(text.as_bytes(), Path::new("trust.hcl")).unwrap_or_else(|e| panic!("{e}"))
}

fn key_block(name: &str, signer: &Signer, more: &str) -> String {
    format!("key \"{name}\" {{\n  public_key = \"{}\"\n{more}\n}}\n", signer.public_key())
}
