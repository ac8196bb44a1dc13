//! Ways in for fuzz targets (`runtime/fuzz/`) to what is private here. Nothing else uses them.

use ostler_cluster::msgpack::{Value, ValueReader};
use ostler_model::limits::CLUSTER_ASKED_BYTES_MAX;

use crate::{bridge, exec};

/// What servers ask for that becomes a path of the agent's own API.
const METHODS: [&str; 7] = [
    "Agent.Monitor",
    "Allocations.Stats",
    "ClientStats.Stats",
    "FileSystem.List",
    "FileSystem.Logs",
    "FileSystem.Stat",
    "FileSystem.Stream",
];
/// What may be said in the query of such a path.
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

/// Bytes as requests of servers: as commands, what is typed into them, and paths. Whatever is asked for, a path
/// leads to where the method is answered, and says nothing that a server cannot ask for.
pub fn requests(bytes: &[u8]) {
    let mut reader = ValueReader::new(CLUSTER_ASKED_BYTES_MAX);
    reader.extend(bytes);
    while let Ok(Some(request)) = reader.take_next() {
        let _asked = (exec::asked(&request), exec::input(&request));
        for method in METHODS {
            let plain = paths(method, &Value::Map(Vec::new()));
            for (path, plain) in paths(method, &request).iter().zip(&plain) {
                debug_assert!(leads_to(path, plain), "{method}: {path}");
            }
        }
    }
}

fn paths(method: &str, request: &Value) -> Vec<String> {
    let read = bridge::read_from(method, request).map(|(path, _)| path);
    read.into_iter().chain(bridge::streamed(method, request)).collect()
}

/// Is this a path to the same place as `plain`, a path without anything asked for?
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
