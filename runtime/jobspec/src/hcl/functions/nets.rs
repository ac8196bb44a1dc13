//! Parts of networks.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::value::Kind;
use super::{Call, Function, Wrong};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("cidrhost", host),
    ("cidrnetmask", netmask),
    ("cidrsubnet", subnet),
    ("cidrsubnets", subnets),
];

/// Bits that a prefix may get in one call, as in Nomad.
const NEW_BITS_MAX: i64 = 32;

fn network(call: &Call<'_>) -> Result<IpNet, Wrong> {
    let text = call.text(0)?;
    match text.parse::<IpNet>() {
        Ok(network) => Ok(network.trunc()),
        Err(_) => {
            call.wrong_at(0, format!("{} is no network such as 10.1.0.0/16", super::shown(&text)))
        }
    }
}

fn bits(network: IpNet) -> u128 {
    match network.network() {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The address of these bits, of the family of `like`.
fn address(like: IpNet, bits: u128) -> Option<IpAddr> {
    match like {
        IpNet::V4(_) => u32::try_from(bits).ok().map(|bits| IpAddr::V4(bits.into())),
        IpNet::V6(_) => Some(IpAddr::V6(bits.into())),
    }
}

/// How many addresses `width` bits are; none when it does not fit.
fn size(width: u32) -> Option<u128> {
    1_u128.checked_shl(width)
}

fn host(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(2, 2)?;
    let (network, number) = (network(&call)?, call.whole(1)?);
    let width = u32::from(network.max_prefix_len() - network.prefix_len());
    let most = size(width).unwrap_or(u128::MAX);
    let number = match number < 0 {
        true => most.checked_sub(number.unsigned_abs().into()),
        false => Some(number.unsigned_abs().into()).filter(|number| *number < most),
    };
    let found = number.and_then(|number| address(network, bits(network) + number));
    match found {
        Some(address) => Ok(Kind::literal(address.to_string())),
        None => call.wrong_at(1, "the network has no such address"),
    }
}

fn netmask(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, 1)?;
    Ok(Kind::literal(network(&call)?.netmask().to_string()))
}

fn subnet(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(3, 3)?;
    let (network, bits_more, number) = (network(&call)?, call.whole(1)?, call.whole(2)?);
    let prefix = prefix(&call, 1, network, bits_more)?;
    let width = u32::from(network.max_prefix_len() - prefix);
    let number = u128::try_from(number).ok();
    let fits = |number: &u128| {
        size(u32::try_from(bits_more).unwrap_or(0)).is_some_and(|most| *number < most)
    };
    let start = number.filter(fits).and_then(|number| number.checked_shl(width));
    match start.and_then(|start| address(network, bits(network) | start)) {
        Some(address) => Ok(Kind::literal(format!("{address}/{prefix}"))),
        None => call.wrong_at(2, "the network has no such part"),
    }
}

fn prefix(call: &Call<'_>, index: usize, network: IpNet, more: i64) -> Result<u8, Wrong> {
    if !(0..=NEW_BITS_MAX).contains(&more) {
        return call
            .wrong_at(index, format!("a prefix is made longer by 0 to {NEW_BITS_MAX} bits"));
    }
    let prefix = u8::try_from(i64::from(network.prefix_len()) + more).ok();
    match prefix.filter(|prefix| *prefix <= network.max_prefix_len()) {
        Some(prefix) => Ok(prefix),
        None => call.wrong_at(index, "the network is too small for this"),
    }
}

/// Parts of these sizes, one after the other.
fn subnets(call: Call<'_>) -> Result<Kind, Wrong> {
    call.takes(1, usize::MAX)?;
    let network = network(&call)?;
    let first = bits(network);
    let whole = size(u32::from(network.max_prefix_len() - network.prefix_len()));
    let (mut next, mut parts) = (Some(first), Vec::new());
    for index in 1..call.arguments.len() {
        let more = call.whole(index)?;
        if more < 1 {
            return call.wrong_at(index, "a part is smaller by at least one bit");
        }
        let prefix = prefix(&call, index, network, more)?;
        let size = size(u32::from(network.max_prefix_len() - prefix)).unwrap_or(u128::MAX);
        // Each begins at a multiple of its size.
        let start = next.and_then(|next| next.checked_next_multiple_of(size));
        let inside = |start: &u128| {
            let end = (start - first).checked_add(size);
            whole.is_none_or(|whole| end.is_some_and(|end| end <= whole))
        };
        let Some(start) = start.filter(|start| *start >= first).filter(inside) else {
            return call.wrong_at(index, "the network has no room for this part");
        };
        match address(network, start) {
            Some(address) => parts.push(Kind::literal(format!("{address}/{prefix}"))),
            None => return call.wrong_at(index, "the network has no room for this part"),
        }
        next = start.checked_add(size);
    }
    Ok(Kind::list(parts, call.span))
}
