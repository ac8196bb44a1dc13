//! Functions for hashes and UUIDs.

use md5::Md5;
use ostler_model::rng::Rng;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};
use std::fmt::Write as _;
use uuid::Uuid;

use super::super::value::ValKind;
use super::{Function, FunctionCall, FunctionError};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("bcrypt", bcrypt),
    ("md5", digest::<Md5>),
    ("rsadecrypt", rsa_decrypt),
    ("sha1", digest::<Sha1>),
    ("sha256", digest::<Sha256>),
    ("sha512", digest::<Sha512>),
    ("uuidv4", uuid_v4),
    ("uuidv5", uuid_v5),
];

/// The cost of `bcrypt` without a second argument, and the largest cost. A cost of 12 takes a quarter of a second,
/// and each further one takes twice as long.
const BCRYPT_COST: (i64, i64) = (10, 12);
/// The bytes that a `bcrypt` of the least cost, 4, counts as; it takes a millisecond. So a file may have a dozen
/// without a second argument, and three of the highest cost.
const BCRYPT_BYTES: usize = 32 * 1024;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn digest<D: Digest>(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    Ok(ValKind::literal(hex(&D::digest(call.text(0)?.as_bytes()))))
}

fn bcrypt(mut call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 2)?;
    let text = call.text(0)?;
    let cost = match call.arguments.len() {
        2 => call.whole(1)?,
        _ => BCRYPT_COST.0,
    };
    if !(4..=BCRYPT_COST.1).contains(&cost) {
        return call.fail_at(1, format!("bcrypt has a cost of 4 to {} here", BCRYPT_COST.1));
    }
    let doubled = u32::try_from(cost - 4).unwrap_or(u32::MAX);
    call.pay(BCRYPT_BYTES.saturating_mul(2_usize.saturating_pow(doubled)))?;
    let mut salt = [0; 16];
    Rng::system().fill(&mut salt);
    match bcrypt::hash_with_salt(text, u32::try_from(cost).unwrap_or(10), salt) {
        Ok(parts) => Ok(ValKind::literal(parts.format_for_version(bcrypt::Version::TwoA))),
        Err(error) => call.fail(error.to_string()),
    }
}

fn rsa_decrypt(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.fail("rsadecrypt is valid in Nomad, not supported by Ostler: a private key does not belong into a job file; give the plain value by -var or NOMAD_VAR_")
}

fn uuid_v4(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(0, 0)?;
    Ok(ValKind::literal(Rng::system().uuid().to_string()))
}

/// The UUID of a name in a name space, which is `dns`, `url`, `oid`, `x500` or any UUID.
fn uuid_v5(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (space, name) = (call.text(0)?, call.text(1)?);
    let space = match space.as_str() {
        "dns" => Uuid::NAMESPACE_DNS,
        "url" => Uuid::NAMESPACE_URL,
        "oid" => Uuid::NAMESPACE_OID,
        "x500" => Uuid::NAMESPACE_X500,
        other => match Uuid::parse_str(other) {
            Ok(space) => space,
            Err(_) => return call.fail_at(0, "this is dns, url, oid, x500 or a UUID"),
        },
    };
    let hash = Sha1::new().chain_update(space.as_bytes()).chain_update(name.as_bytes()).finalize();
    let mut bytes = [0; 16];
    for (to, from) in bytes.iter_mut().zip(hash) {
        *to = from;
    }
    Ok(ValKind::literal(uuid::Builder::from_sha1_bytes(bytes).into_uuid().to_string()))
}
