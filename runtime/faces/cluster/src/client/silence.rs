//! Stops allocations that end when no server answers for a time.

use std::future::pending;

use ostler_model::clock;
use ostler_model::limits::CLUSTER_TELL_TICK;

use super::ClusterClient;
use crate::disconnect::after_silence;

const UNHEARD: &str =
    "no server was heard for as long as stop_after_client_disconnect of its group allows";

pub(super) async fn run(client: &ClusterClient) {
    let (mut changes, mut heard) = (client.node.changes(), client.heard.subscribe());
    loop {
        changes.borrow_and_update();
        let silence = heard.borrow_and_update().elapsed();
        let allocs = client.node.silence_limits();
        let after = after_silence(silence, allocs.iter().map(|(alloc, time)| (alloc.id, *time)));
        for (alloc, _) in allocs.iter().filter(|(alloc, _)| after.due.contains(&alloc.id)) {
            if let Err(error) = client.node.stop(alloc, UNHEARD).await {
                tracing::warn!(alloc = %alloc.id, error, "not stopped yet");
            }
        }
        let due = async {
            match after.next {
                Some(next) => clock::sleep(next).await,
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            changed = changes.changed() => if changed.is_err() {
                return;
            },
            // This cannot fail, because the client holds the sender.
            _heard = heard.changed() => {}
            () = due => {}
        }
        // Many changes come at once, and a failed stop is tried again with the next one.
        clock::sleep(CLUSTER_TELL_TICK).await;
    }
}
