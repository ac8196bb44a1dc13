//! Asks the servers what a client may do here; see [`access`].

use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::CLUSTER_ACCESS_WALL;

use super::ClusterNodes;
use crate::access;

impl ClusterNodes {
    /// Check that the bearer of this token may run commands inside tasks of the namespace that see
    /// the node's own files. An empty token stands for none.
    ///
    /// # Errors
    /// Why the bearer may not, or that no server answered in time.
    pub async fn may_exec_on_node(&self, token: &str, namespace: &str) -> Result<(), String> {
        let asked = async {
            let client = self.client().await;
            let calls = client.open_own_stream().await.map_err(|error| causes::chain(&error))?;
            let answer = access::may_exec_on_node(&calls, token, namespace).await;
            answer.map_err(|error| causes::chain(&error))
        };
        let late = || Err(format!("no server answered within {CLUSTER_ACCESS_WALL:?}"));
        clock::timeout(CLUSTER_ACCESS_WALL, asked).await.unwrap_or_else(late)
    }
}
