//! Decides where disks are served, to whom, and which request is for a disk. Pure.

use std::net::{IpAddr, SocketAddr};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE;
use blake2b_simd::{KEYBYTES, Params};
use ostler_api::routes::Route;
use ostler_model::config::HttpConfig;
use ostler_model::ids::AllocId;
use ostler_model::limits::DISK_SERVED_PORT;

/// Where disks are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DiskPlace {
    /// At this address; `advertised` is the address that other nodes get.
    At { bind: SocketAddr, advertised: String, tls: bool },
    /// They are not served, for this reason.
    Off(&'static str),
}

impl DiskPlace {
    /// Whether others on the network can read the disks and the tokens for them.
    pub(crate) const fn is_bare(&self) -> bool {
        matches!(self, Self::At { bind, tls: false, .. } if !bind.ip().is_loopback())
    }
}

/// Where to serve disks, on a node with this address. `tls` says whether this node has a
/// certificate to serve with; none if it has no TLS with its servers.
pub(crate) fn disk_place(config: &HttpConfig, node: IpAddr, tls: Option<bool>) -> DiskPlace {
    let asked = config.port.is_some() || config.address.is_some() || config.advertised.is_some();
    match tls {
        _ if config.port == Some(0) => return DiskPlace::Off("ports { http = 0 } says so"),
        Some(false) => {
            return DiskPlace::Off("tls has no cert_file and key_file to serve them with");
        }
        None if !asked => {
            return DiskPlace::Off(
                "the node has no tls block; ports { http = 4646 } serves them without",
            );
        }
        _ => {}
    }
    let ip = config.address.or(config.bind_addr).unwrap_or(node);
    let bind = SocketAddr::new(ip, config.port.unwrap_or(DISK_SERVED_PORT));
    let own = if ip.is_unspecified() { node } else { ip };
    let advertised = match &config.advertised {
        None => SocketAddr::new(own, bind.port()).to_string(),
        Some((host, port)) => {
            let port = port.unwrap_or(bind.port());
            if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
        }
    };
    DiskPlace::At { bind, advertised, tls: tls.is_some() }
}

/// The allocation whose disk a request is for; none if it is for something else.
pub(crate) fn requested_alloc(method: &str, path: &str) -> Option<AllocId> {
    let (before, after) = Route::ReadAllocSnapshot.path().split_once("{id}")?;
    let id = path.strip_prefix(before)?.strip_suffix(after)?;
    id.parse().ok().filter(|_| method == "GET")
}

/// Whether the token shows that the servers let its bearer fetch the disk. They make it from the
/// allocation's id and the secret that they and this node share. The comparison takes the same time
/// whatever differs.
pub(crate) fn may_have(token: &str, alloc: AllocId, secret: &str) -> bool {
    let key = secret.as_bytes();
    if key.is_empty() || key.len() > KEYBYTES {
        return false;
    }
    let right = Params::new().key(key).hash(alloc.to_string().as_bytes());
    // This comparison takes constant time.
    URL_SAFE.decode(token).is_ok_and(|given| right == *given.as_slice())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use ostler_model::rng::Rng;
    use proptest::prelude::{any, prop, prop_assert, proptest};

    use super::*;

    const ALLOC: &str = "8ba85cef-0000-4000-8000-000000000000";
    const SECRET: &str = "11111111-2222-4333-8444-555555555555";
    /// The token for these two, made by another program: BLAKE2b of 64 bytes with a key, in base64
    /// for URLs.
    const TOKEN: &str = "I6_TY9RGrTZrmILQEx53aCYhvUm_Hy2uAHFncnbU8ebM\
                         SDTGS57ymK_g6gzgm8DnNkSFRsYB1usCgLj759vvDQ==";

    fn token(alloc: AllocId, secret: &str) -> String {
        let hash = Params::new().key(secret.as_bytes()).hash(alloc.to_string().as_bytes());
        URL_SAFE.encode(hash.as_bytes())
    }

    fn node() -> IpAddr {
        "10.0.0.7".parse().unwrap()
    }

    fn at(config: &HttpConfig, tls: Option<bool>) -> (String, String, bool) {
        match disk_place(config, node(), tls) {
            DiskPlace::At { bind, advertised, tls } => (bind.to_string(), advertised, tls),
            DiskPlace::Off(why) => (String::new(), why.to_owned(), false),
        }
    }

    #[test]
    fn disks_are_served_with_tls_and_without_it_only_where_that_is_said() {
        let silent = HttpConfig::default();
        let own = || ("10.0.0.7:4646".to_owned(), "10.0.0.7:4646".to_owned());
        let (bind, advertised) = own();
        assert_eq!(at(&silent, Some(true)), (bind, advertised, true));
        assert!(at(&silent, None).1.contains("has no tls block"));
        assert!(at(&silent, Some(false)).1.contains("no cert_file"));
        let asked = HttpConfig { port: Some(4646), ..silent.clone() };
        let (bind, advertised) = own();
        assert_eq!(at(&asked, None), (bind, advertised, false));
        assert!(at(&asked, Some(false)).1.contains("no cert_file"), "never in plain beside TLS");
        let off = HttpConfig { port: Some(0), ..silent };
        assert!(at(&off, Some(true)).1.contains("says so"));
        assert!(at(&off, None).1.contains("says so"));
    }

    #[test]
    fn only_what_is_served_beyond_the_machine_without_tls_is_bare() {
        let on = |address: &str, tls| {
            let port = Some(4646);
            let address = address.parse().ok();
            disk_place(&HttpConfig { port, address, ..HttpConfig::default() }, node(), tls)
                .is_bare()
        };
        for loopback in ["127.0.0.1", "127.3.0.1", "::1"] {
            assert!(!on(loopback, None), "{loopback}");
        }
        for address in ["0.0.0.0", "::", "10.0.0.7"] {
            assert!(on(address, None), "{address}");
            assert!(!on(address, Some(true)), "{address}");
        }
        assert!(!disk_place(&HttpConfig::default(), node(), None).is_bare(), "nothing is served");
    }

    #[test]
    fn what_is_advertised_is_what_others_reach() {
        let any_address = HttpConfig { bind_addr: "0.0.0.0".parse().ok(), ..HttpConfig::default() };
        let here = at(&any_address, Some(true));
        assert_eq!((here.0.as_str(), here.1.as_str()), ("0.0.0.0:4646", "10.0.0.7:4646"));
        let own = HttpConfig {
            port: Some(5000),
            address: "::1".parse().ok(),
            advertised: Some(("edge.example".to_owned(), None)),
            ..any_address.clone()
        };
        let here = at(&own, None);
        assert_eq!((here.0.as_str(), here.1.as_str()), ("[::1]:5000", "edge.example:5000"));
        let six = HttpConfig { advertised: Some(("fe80::1".to_owned(), Some(81))), ..own };
        assert_eq!(at(&six, None).1, "[fe80::1]:81");
    }

    #[test]
    fn only_the_snapshot_of_an_allocation_is_answered() {
        let path = |rest: &str| format!("/v1/client/allocation/{ALLOC}{rest}");
        assert_eq!(requested_alloc("GET", &path("/snapshot")), ALLOC.parse().ok());
        for (method, path) in [
            ("PUT", path("/snapshot")),
            ("GET", path("/stats")),
            ("GET", path("/exec")),
            ("GET", path("")),
            ("GET", path("/snapshot/")),
            ("GET", format!("/v1/client/fs/logs/{ALLOC}")),
            ("GET", "/v1/client/allocation/../../etc/passwd/snapshot".to_owned()),
            ("GET", "/v1/client/allocation//snapshot".to_owned()),
            ("GET", "/".to_owned()),
        ] {
            assert_eq!(requested_alloc(method, &path), None, "{method} {path}");
        }
    }

    #[test]
    fn the_token_of_the_servers_is_known() {
        let alloc: AllocId = ALLOC.parse().unwrap();
        assert!(may_have(TOKEN, alloc, SECRET));
        assert!(!may_have(TOKEN, alloc, "11111111-2222-4333-8444-555555555556"));
        assert!(!may_have(TOKEN, AllocId::new(Rng::from_seed(1).uuid()), SECRET));
        assert!(!may_have(&TOKEN[..86], alloc, SECRET));
        assert!(!may_have("", alloc, SECRET));
        let none = URL_SAFE.encode(blake2b_simd::blake2b(ALLOC.as_bytes()).as_bytes());
        assert!(!may_have(&none, alloc, ""), "a node without a secret serves nobody");
    }

    proptest! {
        #[test]
        fn no_other_token_will_do(given in prop::collection::vec(any::<u8>(), 0..80), flip in 0_usize..64, bit in 0_u8..8) {
            let alloc: AllocId = ALLOC.parse().unwrap();
            prop_assert!(!may_have(&URL_SAFE.encode(&given), alloc, SECRET));
            prop_assert!(!may_have(&String::from_utf8_lossy(&given), alloc, SECRET));
            let right = token(alloc, SECRET);
            prop_assert!(may_have(&right, alloc, SECRET));
            let mut bytes = URL_SAFE.decode(&right).unwrap();
            if let Some(byte) = bytes.get_mut(flip) {
                *byte ^= 1 << bit;
            }
            prop_assert!(!may_have(&URL_SAFE.encode(bytes), alloc, SECRET));
        }
    }
}
