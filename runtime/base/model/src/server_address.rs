//! Addresses of servers: `HOST[:PORT]`, with a name, an IPv4 address or an IPv6 address in
//! brackets.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// Default port at which servers take calls.
pub const RPC_PORT: u16 = 4647;
/// Longest name of a machine, bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

/// The address of a server, as it was given.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerAddress {
    /// Name or address of the machine; an IPv6 address without brackets.
    pub host: String,
    /// Port at which the server takes calls.
    pub port: u16,
}

/// Why a text is no address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not the address of a server: {why}; write HOST or HOST:PORT, with an IPv6 address in brackets"
)]
pub struct NotServerAddress {
    given: String,
    why: &'static str,
}

impl FromStr for ServerAddress {
    type Err = NotServerAddress;

    fn from_str(text: &str) -> Result<Self, NotServerAddress> {
        parse(text).map_err(|why| NotServerAddress { given: text.chars().take(64).collect(), why })
    }
}

fn parse(text: &str) -> Result<ServerAddress, &'static str> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']').ok_or("its bracket is not closed")?;
            host.parse::<Ipv6Addr>().map_err(|_| "what is in brackets is not an IPv6 address")?;
            let port = match after {
                "" => None,
                _ => Some(after.strip_prefix(':').ok_or("a colon must follow the bracket")?),
            };
            (host, port)
        }
        None if text.parse::<Ipv6Addr>().is_ok() => (text, None),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let port = match port {
        None => RPC_PORT,
        Some(port) if port.starts_with("//") => return Err("it begins with a scheme"),
        Some(port) => {
            // Parsing a number would also accept a sign.
            let digits = port.bytes().all(|byte| byte.is_ascii_digit());
            let port = port.parse().ok().filter(|port| digits && *port > 0);
            port.ok_or("what follows its first colon is not a port from 1 to 65535")?
        }
    };
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:".contains(&byte);
    if host.is_empty() || host.len() > NAME_BYTES_MAX || !host.bytes().all(known) {
        return Err("its host is neither a name nor an address");
    }
    Ok(ServerAddress { host: host.to_owned(), port })
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_read_with_and_without_a_port() {
        for (given, shown) in [
            ("nomad.example.com", "nomad.example.com:4647"),
            ("10.0.0.7:14647", "10.0.0.7:14647"),
            ("[fd00::1]:1", "[fd00::1]:1"),
            ("[fd00::1]", "[fd00::1]:4647"),
            ("fd00::1", "[fd00::1]:4647"),
        ] {
            let address: ServerAddress = given.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(address.to_string().parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (given, why) in [
            ("", "neither a name"),
            (":4647", "neither a name"),
            ("host:", "port"),
            ("host:0", "port"),
            ("host:70000", "port"),
            ("http://host:4647", "scheme"),
            ("host:+4647", "port"),
            ("a b", "neither a name"),
            ("[fd00::1", "not closed"),
            ("[host]:1", "not an IPv6"),
            ("[fd00::1]1", "colon"),
        ] {
            let error = given.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains(why), "{given}: {error}");
        }
    }
}
