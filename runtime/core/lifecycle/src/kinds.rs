//! The calls that run beside an owner, and the kind of each.

use tokio::task::{AbortHandle, Id};

/// The kind of each call that runs. It takes no memory while none runs, because an agent has
/// thousands of owners at rest.
#[derive(Debug)]
pub(crate) struct CallKinds<K>(Vec<(K, AbortHandle)>);

impl<K> Default for CallKinds<K> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K> CallKinds<K> {
    /// Remember the kind of a call that has begun.
    pub(crate) fn insert(&mut self, kind: K, call: AbortHandle) {
        self.0.reserve_exact(1);
        self.0.push((kind, call));
    }

    /// Forget a call that has ended; returns its kind.
    pub(crate) fn remove(&mut self, call: Id) -> Option<K> {
        let at = self.0.iter().position(|(_, known)| known.id() == call)?;
        // The order stays, because calls are aborted in the order in which they began.
        let (kind, _) = self.0.remove(at);
        if self.0.is_empty() {
            self.0 = Vec::new();
        }
        Some(kind)
    }

    /// Abort the calls whose kind satisfies `such`.
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
        let mut kinds = CallKinds::default();
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
