//! The calls that run beside an owner, and what each of them is.

use tokio::task::{AbortHandle, Id};

/// What is known of each call. Nothing in memory while none runs: an owner at rest is one of thousands.
#[derive(Debug)]
pub(crate) struct Kinds<K>(Vec<(K, AbortHandle)>);

impl<K> Default for Kinds<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K> Kinds<K> {
    /// A call was begun.
    pub(crate) fn insert(&mut self, kind: K, call: AbortHandle) {
        self.0.reserve_exact(1);
        self.0.push((kind, call));
    }

    /// It has ended; what it was.
    pub(crate) fn remove(&mut self, call: Id) -> Option<K> {
        let at = self.0.iter().position(|(_, known)| known.id() == call)?;
        // The order stays: calls are aborted in the order in which they were begun.
        let (kind, _) = self.0.remove(at);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
        Some(kind)
    }

    /// Abort the calls of such a kind.
    pub(crate) fn abort(&self, such: impl Fn(&K) -> bool) {
        for (_, call) in self.0.iter().filter(|(kind, _)| such(kind)) {
            call.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn calls_are_aborted_by_kind_and_forgotten_when_they_ended() {
        let mut calls = tokio::task::JoinSet::new();
        let mut kinds = Kinds::default();
        for kind in [1, 2, 1] {
            let call = calls.spawn(std::future::pending::<()>());
            kinds.insert(kind, call);
        }
        kinds.abort(|kind| *kind == 1);
        for _ in 0..2 {
            let ended = calls.join_next().await.map(|ended| ended.map_err(|error| error.id()));
            let Some(Err(id)) = ended else { panic!("it was aborted") };
            assert_eq!(kinds.remove(id), Some(1));
            assert_eq!(kinds.remove(id), None);
        }
        assert_eq!(kinds.0.len(), 1);
        kinds.abort(|_| true);
        let ended = calls.join_next_with_id().await.map(|ended| ended.map_err(|error| error.id()));
        let Some(Err(id)) = ended else { panic!("it was aborted") };
        assert_eq!((kinds.remove(id), kinds.0.capacity()), (Some(2), 0));
    }
}
