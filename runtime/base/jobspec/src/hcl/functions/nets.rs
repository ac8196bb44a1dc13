//! Functions of networks and their parts.

use std::net::IpAddr;

use ipnet::IpNet;

use super::super::value::ValKind;
use super::{Function, FunctionCall, FunctionError};

pub(super) const TABLE: &[(&str, Function)] = &[
    ("cidrhost", host),
    ("cidrnetmask", netmask),
    ("cidrsubnet", subnet),
    ("cidrsubnets", subnets),
];

/// The largest number of bits that a prefix may grow by in one call, as in Nomad.
const NEW_BITS_MAX: i64 = 32;

fn network(call: &FunctionCall<'_>) -> Result<IpNet, FunctionError> {
    let text = call.text(0)?;
    match text.parse::<IpNet>() {
        Ok(network) => Ok(network.trunc()),
        Err(_) => call.fail_at(
            0,
            format!("{} is not a network such as 10.1.0.0/16", super::quote_text(&text)),
        ),
    }
}

fn bits(network: IpNet) -> u128 {
    match network.network() {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    }
}

/// The address with these bits, in the family of `like`.
fn address(like: IpNet, bits: u128) -> Option<IpAddr> {
    match like {
        IpNet::V4(_) => u32::try_from(bits).ok().map(|bits| IpAddr::V4(bits.into())),
        IpNet::V6(_) => Some(IpAddr::V6(bits.into())),
    }
}

/// The number of addresses that `width` bits stand for; `None` when it does not fit.
fn size(width: u32) -> Option<u128> {
    1_u128.checked_shl(width)
}

fn host(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(2, 2)?;
    let (network, number) = (network(&call)?, call.whole(1)?);
    let width = u32::from(network.max_prefix_len() - network.prefix_len());
    let most = size(width).unwrap_or(u128::MAX);
    let number = if number < 0 {
        most.checked_sub(number.unsigned_abs().into())
    } else {
        Some(number.unsigned_abs().into()).filter(|number| *number < most)
    };
    let found = number.and_then(|number| address(network, bits(network) + number));
    match found {
        Some(address) => Ok(ValKind::literal(address.to_string())),
        None => call.fail_at(1, "the network has no such address"),
    }
}

fn netmask(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, 1)?;
    Ok(ValKind::literal(network(&call)?.netmask().to_string()))
}

fn subnet(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(3, 3)?;
    let (network, bits_more, number) = (network(&call)?, call.whole(1)?, call.whole(2)?);
    let prefix = prefix(&call, 1, network, bits_more)?;
    let width = u32::from(network.max_prefix_len() - prefix);
    let number = u128::try_from(number).ok();
    let fits = |number: &u128| {
        size(u32::try_from(bits_more).unwrap_or(0)).is_some_and(|most| *number < most)
    };
    let start = number.filter(fits).and_then(|number| number.checked_shl(width));
    match start.and_then(|start| address(network, bits(network) | start)) {
        Some(address) => Ok(ValKind::literal(format!("{address}/{prefix}"))),
        None => call.fail_at(2, "the network has no such part"),
    }
}

fn prefix(
    call: &FunctionCall<'_>,
    index: usize,
    network: IpNet,
    more: i64,
) -> Result<u8, FunctionError> {
    if !(0..=NEW_BITS_MAX).contains(&more) {
        return call
            .fail_at(index, format!("a prefix can be made longer by 0 to {NEW_BITS_MAX} bits"));
    }
    let prefix = u8::try_from(i64::from(network.prefix_len()) + more).ok();
    match prefix.filter(|prefix| *prefix <= network.max_prefix_len()) {
        Some(prefix) => Ok(prefix),
        None => call.fail_at(index, "the network is too small for this"),
    }
}

/// The parts of a network with these sizes, one after the other.
fn subnets(call: FunctionCall<'_>) -> Result<ValKind, FunctionError> {
    call.check_count(1, usize::MAX)?;
    let network = network(&call)?;
    let first = bits(network);
    let whole = size(u32::from(network.max_prefix_len() - network.prefix_len()));
    let (mut next, mut parts) = (Some(first), Vec::new());
    for index in 1..call.arguments.len() {
        let more = call.whole(index)?;
        if more < 1 {
            return call.fail_at(index, "a part must be smaller by at least one bit");
        }
        let prefix = prefix(&call, index, network, more)?;
        let size = size(u32::from(network.max_prefix_len() - prefix)).unwrap_or(u128::MAX);
        // Each part begins at a multiple of its size.
        let start = next.and_then(|next| next.checked_next_multiple_of(size));
        let inside = |start: &u128| {
            let end = (start - first).checked_add(size);
            whole.is_none_or(|whole| end.is_some_and(|end| end <= whole))
        };
        let Some(start) = start.filter(|start| *start >= first).filter(inside) else {
            return call.fail_at(index, "the network has no room for this part");
        };
        match address(network, start) {
            Some(address) => parts.push(ValKind::literal(format!("{address}/{prefix}"))),
            None => return call.fail_at(index, "the network has no room for this part"),
        }
        next = start.checked_add(size);
    }
    Ok(ValKind::list(parts, call.span))
}
