//! Entry points for fuzz targets (`runtime/tools/fuzz/`) to private code. Nothing else uses them.

use ostler_cluster::msgpack::{Value, ValueReader};
use ostler_model::limits::CLUSTER_ASKED_BYTES_MAX;

use crate::{bridge, exec};

/// The methods of servers that become paths of the agent's own API.
const METHODS: [&str; 7] = [
    "Agent.Monitor",
    "Allocations.Stats",
    "ClientStats.Stats",
    "FileSystem.List",
    "FileSystem.Logs",
    "FileSystem.Stat",
    "FileSystem.Stream",
];
/// The keys that the query of such a path may have.
const KEYS: [&str; 10] = [
    "follow",
    "limit",
    "log_json",
    "log_level",
    "offset",
    "origin",
    "path",
    "plain",
    "task",
    "type",
];

/// Read bytes as requests of servers: as commands, as input for them, and as paths. Whatever the
/// request, its path must lead to the handler of its method, and have only keys that a server can
/// set.
pub fn requests(bytes: &[u8]) {
    let mut reader = ValueReader::new(CLUSTER_ASKED_BYTES_MAX);
    reader.extend(bytes);
    while let Ok(Some(request)) = reader.take_next() {
        let _asked = (exec::parse_request(&request), exec::parse_input(&request));
        for method in METHODS {
            let plain = paths(method, &Value::Map(Vec::new()));
            for (path, plain) in paths(method, &request).iter().zip(&plain) {
                debug_assert!(leads_to(path, plain), "{method}: {path}");
            }
        }
    }
}

fn paths(method: &str, request: &Value) -> Vec<String> {
    let read = bridge::read_request(method, request).map(|(asked, ..)| asked.target().to_owned());
    let stream = bridge::stream_request(method, request).map(|asked| asked.target().to_owned());
    read.into_iter().chain(stream).collect()
}

/// Whether a path leads to the same handler as `plain`, the path of an empty request.
fn leads_to(path: &str, plain: &str) -> bool {
    let place = |path: &str| path.split('?').next().map(|path| path.matches('/').count());
    let mut query = path.split('?').skip(1);
    let keys = query.next().unwrap_or_default().split('&').filter(|one| !one.is_empty());
    let known = |one: &str| one.split_once('=').is_some_and(|(key, _)| KEYS.contains(&key));
    let plain_text = path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    place(path) == place(plain) && query.next().is_none() && keys.clone().all(known) && plain_text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_elsewhere_or_says_more_is_told_apart() {
        let plain = "/v1/client/fs/ls/?path=";
        assert!(leads_to("/v1/client/fs/ls/a?path=x", plain));
        for other in [
            "/v1/client/fs/ls/a/b?path=x",
            "/v1/client/fs/ls/a?path=x&user=root",
            "/v1/client/fs/ls/a?path=x#y",
            "/v1/client/fs/ls/a?path=x?y",
            "/v1/client/fs/ls/a?path=x y",
        ] {
            assert!(!leads_to(other, plain), "{other}");
        }
    }
}
