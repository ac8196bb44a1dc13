//! What the servers let people do here: see [`access`].

use ostler_model::causes;
use ostler_model::clock;
use ostler_model::limits::CLUSTER_ACCESS_WALL;

use super::ClusterNodes;
use crate::access;

impl ClusterNodes {
    /// May whoever shows this token, empty for none, run commands inside tasks of the namespace that see the
    /// node's own files?
    ///
    /// # Errors
    /// Why not; also when no server says so in time.
    pub async fn may_exec_on_node(&self, token: &str, namespace: &str) -> Result<(), String> {
        let asked = async {
            let client = self.client().await;
            let calls = client.line_of_its_own().await.map_err(|error| causes::chain(&error))?;
            let answer = access::may_exec_on_node(&calls, token, namespace).await;
            answer.map_err(|error| causes::chain(&error))
        };
        let late = || Err(format!("no server answered within {CLUSTER_ACCESS_WALL:?}"));
        clock::timeout(CLUSTER_ACCESS_WALL, asked).await.unwrap_or_else(late)
    }
}
