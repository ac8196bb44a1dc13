//! Endpoints that a plugin or task may connect to: an address, a network or a name, each with a
//! port.
//!
//! ```text
//! 10.0.0.7:443   10.0.0.0/8:443   [fd00::/8]:443   api.example.com:443   127.0.0.1:*
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Longest host name, bytes (RFC 1035).
const NAME_BYTES_MAX: usize = 253;

/// An endpoint that may be connected to. It is a text in configurations and answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Endpoint {
    /// The machines that may be connected to.
    pub host: EndpointHost,
    /// The port; absent for any port, which is written `*`.
    pub port: Option<u16>,
}

/// The machines of an [`Endpoint`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointHost {
    /// Addresses whose first `prefix` bits are those of `address`.
    Network {
        /// Address of the network, or of a single machine.
        address: IpAddr,
        /// Number of leading bits that count; all bits for a single machine.
        prefix: u8,
    },
    /// All addresses that this name has when it is looked up. Lower case.
    Name(String),
}

/// Why a text is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    /// There is no port after the last colon.
    #[error("{given:?} has no port; write it after a colon, or * for any, as in \"{given}:443\"")]
    NoPort {
        /// The whole text that was given.
        given: String,
    },
    /// The port is not a number from 1 to 65535.
    #[error("{port:?} is not a port; write 1 to 65535, or * for any")]
    Port {
        /// The text in place of the port.
        port: String,
    },
    /// The length of the prefix is no number, or too large.
    #[error("/{prefix} is not the length of a network's prefix; write /0 to /{most}")]
    Prefix {
        /// The text in place of the length.
        prefix: String,
        /// Largest length for an address of this kind.
        most: u8,
    },
    /// The host is neither an address nor a name.
    #[error("{host:?} is neither an address, a network such as 10.0.0.0/8, nor a host name")]
    Host {
        /// The text in place of the host.
        host: String,
    },
    /// An IPv6 address stands without brackets, so that its end is not clear.
    #[error("write an IPv6 address in brackets, as in \"[{given}]:443\"")]
    Brackets {
        /// The whole text that was given.
        given: String,
    },
}

impl Endpoint {
    /// Whether this address may be connected to. Always `false` for an endpoint with a name.
    #[must_use]
    pub fn allows(&self, to: SocketAddr) -> bool {
        let EndpointHost::Network { address, prefix } = &self.host else { return false };
        self.allows_port(to.port()) && in_network(*address, *prefix, to.ip())
    }

    /// Whether this name may be looked up.
    #[must_use]
    pub fn allows_name(&self, name: &str) -> bool {
        let name = name.strip_suffix('.').unwrap_or(name);
        matches!(&self.host, EndpointHost::Name(known) if known.eq_ignore_ascii_case(name))
    }

    /// Whether this port may be connected to, on a machine that may be.
    #[must_use]
    pub fn allows_port(&self, port: u16) -> bool {
        self.port.is_none_or(|known| known == port)
    }
}

/// Bits of an address, first bit highest, and how many there are.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    }
}

fn in_network(network: IpAddr, prefix: u8, address: IpAddr) -> bool {
    // An IPv4 address that is written as IPv6 is the same machine.
    let ((network, width), (address, other)) =
        (bits(network.to_canonical()), bits(address.to_canonical()));
    let differ = network ^ address;
    width == other && (prefix == 0 || differ.leading_zeros() >= u32::from(prefix))
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let given = || text.chars().take(NAME_BYTES_MAX).collect::<String>();
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) =
                    rest.split_once(']').ok_or_else(|| EndpointError::Host { host: given() })?;
                let port = rest.strip_prefix(':');
                (host, port.ok_or_else(|| EndpointError::NoPort { given: given() })?)
            }
            None => {
                if text.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) {
                    return Err(EndpointError::Brackets { given: given() });
                }
                text.rsplit_once(':').ok_or_else(|| EndpointError::NoPort { given: given() })?
            }
        };
        Ok(Self { host: host_of(host)?, port: port_of(port)? })
    }
}

fn port_of(text: &str) -> Result<Option<u16>, EndpointError> {
    if text == "*" {
        return Ok(None);
    }
    let port = text.parse().ok().filter(|port| *port != 0 && !text.starts_with('+'));
    port.map(Some)
        .ok_or_else(|| EndpointError::Port { port: text.chars().take(NAME_BYTES_MAX).collect() })
}

fn host_of(text: &str) -> Result<EndpointHost, EndpointError> {
    let wrong = || EndpointError::Host { host: text.chars().take(NAME_BYTES_MAX).collect() };
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    if let Ok(address) = address.parse::<IpAddr>() {
        // An IPv4 address that is written as IPv6 would have another number of bits.
        let address = if prefix.is_none() { address.to_canonical() } else { address };
        let most = bits(address).1;
        let prefix = match prefix {
            None => most,
            Some(prefix) => {
                prefix.parse().ok().filter(|given| *given <= most).ok_or_else(|| {
                    EndpointError::Prefix { prefix: prefix.chars().take(8).collect(), most }
                })?
            }
        };
        return Ok(EndpointHost::Network { address, prefix });
    }
    let name = text.strip_suffix('.').unwrap_or(text);
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
    };
    // A text of digits and dots alone was meant as an address.
    let digits = name.chars().all(|c| c.is_ascii_digit() || c == '.');
    if prefix.is_some() || digits || name.len() > NAME_BYTES_MAX || !name.split('.').all(label) {
        return Err(wrong());
    }
    Ok(EndpointHost::Name(name.to_ascii_lowercase()))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            EndpointHost::Name(name) => write!(f, "{name}:")?,
            EndpointHost::Network { address, prefix } => {
                let network =
                    if *prefix == bits(*address).1 { String::new() } else { format!("/{prefix}") };
                match address {
                    IpAddr::V4(address) => write!(f, "{address}{network}:")?,
                    IpAddr::V6(address) => write!(f, "[{address}{network}]:")?,
                }
            }
        }
        match self.port {
            Some(port) => write!(f, "{port}"),
            None => f.write_str("*"),
        }
    }
}

impl TryFrom<String> for Endpoint {
    type Error = EndpointError;

    fn try_from(text: String) -> Result<Self, EndpointError> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> Self {
        endpoint.to_string()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_a_network_and_any_port_allow_what_they_say() {
        let allows =
            |endpoint_text: &str, to: &str| endpoint(endpoint_text).allows(to.parse().unwrap());
        assert!(allows("10.0.0.7:443", "10.0.0.7:443"));
        assert!(!allows("10.0.0.7:443", "10.0.0.7:444"));
        assert!(!allows("10.0.0.7:443", "10.0.0.8:443"));
        assert!(allows("10.0.0.0/8:443", "10.255.1.2:443"));
        assert!(!allows("10.0.0.0/8:443", "11.0.0.1:443"));
        assert!(allows("127.0.0.1:*", "127.0.0.1:9"));
        assert!(allows("0.0.0.0/0:80", "192.0.2.1:80"));
        assert!(!allows("0.0.0.0/0:80", "[2001:db8::1]:80"), "another family");
        assert!(allows("[fd00::/8]:443", "[fd12::1]:443"));
        assert!(!allows("[fd00::/8]:443", "[fe80::1]:443"));
        assert!(allows("10.0.0.0/8:443", "[::ffff:10.0.0.1]:443"), "the same machine");
        assert!(allows("[::ffff:10.0.0.1]:443", "10.0.0.1:443"), "the same machine");
    }

    #[test]
    fn a_name_allows_its_look_up_and_no_address_by_itself() {
        let api = endpoint("API.example.com:443");
        assert!(api.allows_name("api.example.com") && api.allows_name("Api.Example.com."));
        assert!(!api.allows_name("example.com") && !api.allows_name("evil-api.example.com"));
        assert!(!api.allows("192.0.2.1:443".parse().unwrap()));
        assert!(!endpoint("10.0.0.1:443").allows_name("10.0.0.1"));
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_what_to_write() {
        let error = |text: &str| text.parse::<Endpoint>().unwrap_err().to_string();
        for (text, part) in [
            ("10.0.0.1", "has no port"),
            ("example.com:", "is not a port"),
            ("example.com:0", "is not a port"),
            ("example.com:+80", "is not a port"),
            ("example.com:99999", "is not a port"),
            ("10.0.0.0/33:80", "/0 to /32"),
            ("[fd00::/129]:80", "/0 to /128"),
            ("fd00::1", "in brackets"),
            ("10.0.0.256:80", "neither an address"),
            ("*.example.com:80", "neither an address"),
            ("-a:80", "neither an address"),
            (":80", "neither an address"),
            ("[::1:80", "neither an address"),
            ("[::1]80", "has no port"),
            ("", "has no port"),
        ] {
            assert!(error(text).contains(part), "{text}: {}", error(text));
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_it_and_what_it_reads_it_writes(text in ".{0,40}") {
            if let Ok(read) = text.parse::<Endpoint>() {
                prop_assert_eq!(read.to_string().parse::<Endpoint>().unwrap(), read);
            }
        }

        #[test]
        fn a_network_is_written_as_it_is_read_and_holds_its_own_address(
            bits: u128, v6: bool, prefix in 0u8..=128, port: Option<u16>
        ) {
            let address =
                if v6 { IpAddr::V6(bits.into()) } else { IpAddr::V4((bits as u32).into()) };
            prop_assume!(address == address.to_canonical() && port != Some(0));
            let prefix = prefix.min(super::bits(address).1);
            let network = Endpoint { host: EndpointHost::Network { address, prefix }, port };
            prop_assert_eq!(&network.to_string().parse::<Endpoint>().unwrap(), &network);
            prop_assert!(network.allows(SocketAddr::new(address, port.unwrap_or(7))));
        }
    }
}
