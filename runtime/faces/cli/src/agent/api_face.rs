//! The TCP listener of an agent's API, and what protects it.
//!
//! ```text
//! ports, addresses, bind_addr ─┬─ none of them ─► the socket alone
//!                              ├─ this machine ─► as it is configured, with a notice when it asks for no tokens
//!                              └─ beyond it ────► only with TLS and tokens
//! ```

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::connect::CliError;
use crate::output;
use ostler_agent::RAW_EXEC;
use ostler_api::server::{ApiTls, ApiTlsFiles, TcpListenOptions};
use ostler_model::causes;
use ostler_model::config::{AgentConfig, TlsConfig};

/// The port of Nomad's API.
const PORT: u16 = 4646;

/// The TCP listener that the configuration asks for: its address, certificate and host names.
#[derive(Debug, PartialEq, Eq)]
struct FaceConfig {
    at: SocketAddr,
    tls: Option<ApiTlsFiles>,
    hosts: Vec<String>,
}

/// The TCP listener that the configuration asks for, with its certificate read.
///
/// # Errors
/// When the configuration asks for something unsafe or without effect, or when a file of the
/// certificate cannot be used.
pub(super) fn load_tcp_face(config: &AgentConfig) -> Result<Option<TcpListenOptions>, CliError> {
    let Some(FaceConfig { at, tls, hosts }) = face_config(config).map_err(CliError::Wrong)? else {
        return Ok(None);
    };
    let tls = tls.map(ApiTls::read).transpose();
    let tls = tls.map_err(|error| CliError::Wrong(format!("tls: {}", causes::chain(&error))))?;
    if !config.acl.enabled {
        output::say(&format!(
            "the API at {at} requires no tokens: every program on this machine can use it, even isolated \
             tasks; acl {{ enabled = true }} changes that"
        ));
    }
    let raw_exec = config.plugins.get(RAW_EXEC).and_then(|block| block.enabled) == Some(true);
    if config.acl.enabled && raw_exec {
        output::say(
            "tasks of raw_exec run as the agent's user, who needs no token: whoever may submit jobs may do \
             everything; plugin \"raw_exec\" { enabled = false } changes that",
        );
    }
    Ok(Some(TcpListenOptions { at, tls, hosts }))
}

fn face_config(config: &AgentConfig) -> Result<Option<FaceConfig>, String> {
    let cluster = &config.cluster;
    let http = &cluster.http;
    if !cluster.servers.is_empty() {
        return if config.acl.enabled || !config.http_hosts.is_empty() {
            Err("acl and http_hosts: the API of a node of a cluster is only on its socket, where they have no \
                 effect; leave them out"
                .to_owned())
        } else {
            Ok(None)
        };
    }
    let given = http.port.is_some() || http.bind_addr.is_some() || http.address.is_some();
    let port = http.port.unwrap_or(PORT);
    if !given || port == 0 {
        let without = [
            ("tls", cluster.tls.is_some()),
            ("advertise", http.advertised.is_some()),
            ("http_hosts", !config.http_hosts.is_empty()),
        ];
        let without: Vec<_> =
            without.iter().filter(|(_, given)| *given).map(|(key, _)| *key).collect();
        return if without.is_empty() {
            Ok(None)
        } else {
            Err(format!(
                "no server is given and the API is not served over TCP, so {} would have no effect: give ports \
                 {{ http = \
                 {PORT} }}, or client {{ servers = […] }}, or leave this out",
                without.join(", ")
            ))
        };
    }
    let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let ip = http.address.or(http.bind_addr).unwrap_or(loopback);
    if cluster.tls.as_ref().is_some_and(|tls| !tls.http && tls.verify_https_client == Some(true)) {
        return Err("tls: verify_https_client = true has no effect with http = false".to_owned());
    }
    let tls = cluster.tls.as_ref().filter(|tls| tls.http).map(tls_files).transpose()?;
    if !ip.is_loopback() && (tls.is_none() || !config.acl.enabled) {
        return Err(format!(
            "the API at {ip} would be open to other machines: that needs TLS (tls {{ cert_file, key_file }}) and \
             tokens (acl {{ enabled = true }}); without them use 127.0.0.1"
        ));
    }
    let named = http.advertised.iter().map(|(host, _)| host.clone());
    let hosts = config.http_hosts.iter().cloned().chain(named).collect();
    Ok(Some(FaceConfig { at: SocketAddr::new(ip, port), tls, hosts }))
}

fn tls_files(tls: &TlsConfig) -> Result<ApiTlsFiles, String> {
    let Some((certificate, key)) = tls.own.clone() else {
        return Err("tls needs cert_file and key_file: the certificate of the API".to_owned());
    };
    let clients = tls.ca_file.clone().filter(|_| tls.verify_https_client == Some(true));
    Ok(ApiTlsFiles { certificate, key, clients })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;

    const TLS: &str = "tls {\n cert_file = \"/c.pem\"\n key_file = \"/k.pem\"\n}\n";
    const ACL: &str = "acl { enabled = true }\n";

    fn of(text: &str) -> Result<Option<FaceConfig>, String> {
        face_config(
            &ostler_jobspec::parse_agent_config(text.as_bytes(), Path::new("o.hcl")).unwrap(),
        )
    }

    fn at(text: &str) -> String {
        of(text).unwrap().unwrap().at.to_string()
    }

    #[test]
    fn the_api_is_over_tcp_only_where_that_is_said_and_on_this_machine_unless_more_is() {
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("ports { http = 0 }"), Ok(None));
        assert_eq!(of(ACL), Ok(None));
        assert_eq!(at("ports { http = 8080 }"), "127.0.0.1:8080");
        assert_eq!(at("bind_addr = \"127.0.0.2\""), "127.0.0.2:4646");
        assert_eq!(at("addresses { http = \"::1\" }"), "[::1]:4646");
    }

    #[test]
    fn beyond_this_machine_it_needs_tls_and_tokens() {
        let wide = "bind_addr = \"0.0.0.0\"\n";
        for lacking in [wide.to_owned(), format!("{wide}{TLS}"), format!("{wide}{ACL}")] {
            let error = of(&lacking).unwrap_err();
            assert!(error.contains("needs TLS") && error.contains("0.0.0.0"), "{error}");
        }
        let wanted = of(&format!("{wide}{TLS}{ACL}")).unwrap().unwrap();
        assert_eq!((wanted.at.port(), wanted.tls.unwrap().clients), (4646, None));
        let plain = "tls {\n http = false\n cert_file = \"/c.pem\"\n key_file = \"/k.pem\"\n}\n";
        assert!(of(&format!("{wide}{ACL}{plain}")).is_err(), "TLS that is switched off is none");
    }

    #[test]
    fn what_would_have_no_effect_is_refused() {
        let error = of(TLS).unwrap_err();
        assert!(error.contains("tls would have no effect"), "{error}");
        let error = of("http_hosts = [\"a\"]\nadvertise { http = \"b\" }").unwrap_err();
        assert!(error.contains("advertise, http_hosts would have no effect"), "{error}");
        let error = of(&format!("client {{ servers = [\"a\"] }}\n{ACL}")).unwrap_err();
        assert!(error.contains("node of a cluster"), "{error}");
        let error = of("ports { http = 1 }\ntls { ca_file = \"/ca.pem\" }").unwrap_err();
        assert!(error.contains("cert_file and key_file"), "{error}");
    }

    #[test]
    fn names_by_which_it_is_asked_for_are_those_given_and_the_advertised_one() {
        let text = "ports { http = 1 }\nhttp_hosts = [\"a.example\"]\nadvertise { http = \"b.example:80\" }";
        assert_eq!(of(text).unwrap().unwrap().hosts, ["a.example", "b.example"]);
    }
}
