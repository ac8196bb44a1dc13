//! Reads the output of CNI plugins: a result, or an error. They are foreign programs, so their
//! output is bounded and checked here. Pure.

use std::net::IpAddr;

use serde_json::Value;

use ostler_model::limits::{CNI_TEXT_BYTES_MAX, DNS_TEXTS_MAX, NAME_BYTES_MAX};
use ostler_model::printable::printable_line;
use ostler_model::saved::{DnsConfig, NetworkStatus};

/// The longest text of an error that is passed on, in bytes.
const ERROR_BYTES_MAX: usize = 512;

/// Why an output is no valid answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CniAnswerError {
    /// The output was cut.
    #[error("it is longer than {CNI_TEXT_BYTES_MAX} bytes")]
    TooLong,
    /// The output is no JSON, or no object.
    #[error("it is not a JSON object: {0}")]
    Json(String),
    /// The result has no address.
    #[error("it has no interface with an address")]
    NoAddress,
}

/// Read a result, which is then given to the next plugin.
///
/// # Errors
/// When it is none.
pub fn result(text: &[u8], truncated: bool) -> Result<Value, CniAnswerError> {
    if truncated || text.len() > CNI_TEXT_BYTES_MAX {
        return Err(CniAnswerError::TooLong);
    }
    let answer: Value =
        serde_json::from_slice(text).map_err(|error| CniAnswerError::Json(error.to_string()))?;
    if answer.is_object() { Ok(answer) } else { Err(CniAnswerError::Json("something else".into())) }
}

/// The network of an allocation according to the last result: the first interface in its namespace
/// that has an address, or else the first address.
///
/// # Errors
/// When it has none.
pub fn status(result: &Value) -> Result<NetworkStatus, CniAnswerError> {
    let empty = Vec::new();
    let list = |name: &str| result.get(name).and_then(Value::as_array).unwrap_or(&empty).iter();
    let interfaces: Vec<&Value> = list("interfaces").collect();
    let addresses: Vec<(IpAddr, Option<&Value>)> = list("ips")
        .filter_map(|ip| {
            let address = ip.get("address")?.as_str()?.split('/').next()?.parse().ok()?;
            let of = ip.get("interface").and_then(Value::as_u64);
            let of = of.and_then(|at| interfaces.get(usize::try_from(at).ok()?).copied());
            Some((address, of))
        })
        .collect();
    let inside = |of: &Value| {
        of.get("sandbox").and_then(Value::as_str).is_some_and(|sandbox| !sandbox.is_empty())
    };
    let chosen = addresses
        .iter()
        .find(|(ip, of)| of.is_some_and(inside) && !ip.is_loopback())
        .or_else(|| addresses.first());
    let (address, of) = chosen.ok_or(CniAnswerError::NoAddress)?;
    let same = |other: Option<&Value>| match (of, other) {
        (Some(of), Some(other)) => std::ptr::eq(*of, other),
        (None, None) => true,
        _ => false,
    };
    let sixth = addresses.iter().find(|(ip, of)| ip.is_ipv6() && same(*of));
    let name = of.and_then(|of| of.get("name")).and_then(Value::as_str).unwrap_or_default();
    Ok(NetworkStatus {
        interface_name: printable_line(name.to_owned(), NAME_BYTES_MAX),
        address: address.to_string(),
        address_ipv6: sixth.map(|(ip, _)| ip.to_string()).unwrap_or_default(),
        dns: result.get("dns").and_then(dns),
    })
}

fn dns(given: &Value) -> Option<DnsConfig> {
    let texts = |name: &str| -> Vec<String> {
        let all = given.get(name).and_then(Value::as_array);
        let plain = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_graphic());
        let texts = all.into_iter().flatten().filter_map(Value::as_str).filter(plain);
        texts
            .map(|text| printable_line(text.to_owned(), NAME_BYTES_MAX))
            .take(DNS_TEXTS_MAX)
            .collect()
    };
    let mut servers = texts("nameservers");
    servers.retain(|server| server.parse::<IpAddr>().is_ok());
    let dns = DnsConfig { servers, searches: texts("search"), options: texts("options") };
    (dns != DnsConfig::default()).then_some(dns)
}

/// The error text of a plugin that failed.
#[must_use]
pub fn failure(stdout: &[u8], stderr: &[u8]) -> String {
    let said: Option<Value> = serde_json::from_slice(stdout).ok();
    let text = |name: &str| {
        let text = said.as_ref()?.get(name)?.as_str()?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    };
    let text = match (text("msg"), text("details")) {
        (Some(message), Some(details)) => format!("{message} ({details})"),
        (Some(message), None) => message,
        (None, _) => {
            let said = if stderr.is_empty() { stdout } else { stderr };
            String::from_utf8_lossy(said).trim().to_owned()
        }
    };
    if text.is_empty() {
        "it printed nothing".to_owned()
    } else {
        printable_line(text, ERROR_BYTES_MAX)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_address_is_that_of_an_interface_in_the_namespace() {
        let answer = json!({
            "cniVersion": "0.4.0",
            "interfaces": [
                {"name": "nomad", "mac": "00:00"},
                {"name": "veth1", "mac": "00:01"},
                {"name": "eth0", "mac": "00:02", "sandbox": "/run/netns/x"},
            ],
            "ips": [
                {"version": "4", "interface": 0, "address": "172.26.64.1/20"},
                {"version": "4", "interface": 2, "address": "172.26.64.7/20", "gateway": "172.26.64.1"},
            ],
            "dns": {"nameservers": ["192.0.2.53", "not an address"], "search": ["a b", "example.com"]},
        });
        let found = status(&answer).unwrap();
        assert_eq!(
            (found.interface_name.as_str(), found.address.as_str()),
            ("eth0", "172.26.64.7")
        );
        let dns = found.dns.unwrap();
        assert_eq!(
            (dns.servers, dns.searches),
            (vec!["192.0.2.53".into()], vec!["example.com".into()])
        );
    }

    #[test]
    fn without_an_interface_of_the_namespace_it_is_the_first_address() {
        let answer = json!({"ips": [{"address": "10.0.0.9/8", "interface": 77}, {"address": "x"}]});
        let found = status(&answer).unwrap();
        assert_eq!((found.interface_name.as_str(), found.address.as_str()), ("", "10.0.0.9"));
        assert_eq!(status(&json!({"ips": []})), Err(CniAnswerError::NoAddress));
        assert_eq!(status(&json!({"ips": [{"address": 7}]})), Err(CniAnswerError::NoAddress));
    }

    #[test]
    fn a_plugin_that_fails_says_why_in_json_or_on_standard_error() {
        let said = br#"{"code": 11, "msg": "no addresses left", "details": "range 10.0.0.0/30"}"#;
        assert_eq!(failure(said, b""), "no addresses left (range 10.0.0.0/30)");
        assert_eq!(failure(br#"{"msg": "x"}"#, b"y"), "x");
        assert_eq!(failure(b"", b"not found\n"), "not found");
        assert_eq!(failure(b"", b""), "it printed nothing");
        assert!(failure(b"", &[b'x'; 100_000]).len() < 2 * ERROR_BYTES_MAX);
    }

    proptest! {
        #[test]
        fn nothing_that_is_said_breaks_it(text in any::<Vec<u8>>()) {
            if let Ok(said) = result(&text, false) {
                let _any = status(&said);
            }
            let _any = failure(&text, &text);
        }
    }
}
