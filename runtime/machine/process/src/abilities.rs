//! What isolation is possible on this node, as a process of one thread finds out by trying.

use std::os::fd::AsFd as _;

use tokio::io::AsyncReadExt as _;

use super::isolate::Abilities;
use super::supervise::ZygoteClient;
use super::{SUPERVISOR_WAIT_MAX, child};
use ostler_model::clock;
use ostler_model::limits::ZYGOTE_TRIES_MAX;

/// Most bytes of the answer that says what isolation is possible.
const PROBE_BYTES_MAX: u64 = 64 * 1024;

/// Let the zygote try which parts of isolation work.
pub(super) async fn probe_abilities(line: Option<ZygoteClient>) -> Abilities {
    let Some(line) = line else {
        return Abilities::none("this agent has no process to isolate tasks with");
    };
    for _ in 0..ZYGOTE_TRIES_MAX {
        let asking = line.clone();
        let asked = tokio::task::spawn_blocking(move || {
            let (answer, answer_end) = child::pipe()?;
            asking.probe(answer_end.as_fd())?;
            std::io::Result::Ok(answer)
        });
        let answer = async {
            let answer = asked.await.map_err(std::io::Error::other)??;
            let answer = tokio::net::unix::pipe::Receiver::from_owned_fd(answer)?;
            let mut bytes = Vec::new();
            answer.take(PROBE_BYTES_MAX).read_to_end(&mut bytes).await?;
            postcard::from_bytes(&bytes).map_err(std::io::Error::other)
        };
        match line.await_answer(clock::timeout(SUPERVISOR_WAIT_MAX, answer)).await {
            Some(Some(Ok(abilities))) => return abilities,
            Some(Some(Err(error))) => {
                return Abilities::none(&format!("it could not be determined: {error}"));
            }
            Some(None) => break,
            // The zygote hung and was replaced.
            None => {}
        }
    }
    Abilities::none("it could not be determined in time")
}
