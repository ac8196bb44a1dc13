//! A value whose newest state several followers see.
//!
//! It works as `tokio::sync::watch` with one bell instead of eight. The watch of tokio takes 350
//! bytes, and an allocation has seven of them with one or two followers each. Followers that wait
//! are woken in the order in which they began to wait, not in a random order, so that a simulation
//! plays the same each time.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use tokio::sync::Notify;

/// The end that changes the value. Clones share the value.
#[derive(Debug)]
pub struct Publisher<T>(Arc<SharedValue<T>>);

/// The end that follows the value. Each subscriber follows on its own.
#[derive(Debug)]
pub struct Subscriber<T> {
    shared: Arc<SharedValue<T>>,
    /// Number of the state that this subscriber saw last.
    seen: usize,
}

#[derive(Debug)]
struct SharedValue<T> {
    value: RwLock<T>,
    /// Number of the present state; it changes under the lock.
    number: AtomicUsize,
    senders: AtomicUsize,
    bell: Notify,
}

/// Every publisher is gone, so the value is final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the value can no longer change")]
pub struct PublisherGone;

/// The value. It does not change while this reference is held, so do not hold the reference
/// over a wait.
#[derive(Debug)]
pub struct Ref<'a, T> {
    value: RwLockReadGuard<'a, T>,
    changed: bool,
}

impl<T> Ref<'_, T> {
    /// Does the value differ from the one that the subscriber saw before?
    #[must_use]
    pub const fn has_changed(&self) -> bool {
        self.changed
    }
}

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A value and its first subscriber, who counts as having seen the value.
#[must_use]
pub fn channel<T>(value: T) -> (Publisher<T>, Subscriber<T>) {
    let sender = Publisher::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> SharedValue<T> {
    fn read(&self) -> RwLockReadGuard<'_, T> {
        // The value stays usable after a panic of whoever changed it.
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> usize {
        self.number.load(Ordering::Acquire)
    }
}

impl<T> Publisher<T> {
    /// A value without subscribers.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(SharedValue {
            value: RwLock::new(value),
            number: AtomicUsize::new(0),
            senders: AtomicUsize::new(1),
            bell: Notify::new(),
        }))
    }

    /// A new subscriber, who counts as having seen the present value.
    #[must_use]
    pub fn subscribe(&self) -> Subscriber<T> {
        Subscriber { shared: Arc::clone(&self.0), seen: self.0.number() }
    }

    /// The present value.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        Ref { value: self.0.read(), changed: true }
    }

    /// Change the value. Subscribers are woken when `change` returns true; that answer is returned.
    pub fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        let changed = change(&mut value);
        if changed {
            self.0.number.fetch_add(1, Ordering::Release);
        }
        drop(value);
        if changed {
            self.0.bell.notify_waiters();
        }
        changed
    }

    /// Change the value and wake the subscribers.
    pub fn send_modify(&self, change: impl FnOnce(&mut T)) {
        self.send_if_modified(|value| {
            change(value);
            true
        });
    }

    /// Replace the value and wake the subscribers; returns the value before.
    pub fn send_replace(&self, mut other: T) -> T {
        self.send_modify(|value| std::mem::swap(value, &mut other));
        other
    }
}

impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Publisher<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.bell.notify_waiters();
        }
    }
}

impl<T> Subscriber<T> {
    /// The present value.
    #[must_use]
    pub fn borrow(&self) -> Ref<'_, T> {
        let value = self.shared.read();
        Ref { value, changed: self.shared.number() != self.seen }
    }

    /// The present value; it counts as seen from now on.
    pub fn borrow_and_update(&mut self) -> Ref<'_, T> {
        let value = self.shared.read();
        let number = self.shared.number();
        let changed = std::mem::replace(&mut self.seen, number) != number;
        Ref { value, changed }
    }

    /// Mark the present value as seen.
    pub fn mark_unchanged(&mut self) {
        self.seen = self.shared.number();
    }

    /// Wait until the value differs from the one that was seen last, and mark it as seen. The wait
    /// may be cancelled.
    ///
    /// # Errors
    /// When the value was seen and every publisher is gone.
    pub async fn changed(&mut self) -> Result<(), PublisherGone> {
        loop {
            // The bell comes before the look, so that no change is missed. The count of publishers
            // comes before the number, because the last publisher may change the value and then go.
            let heard = self.shared.bell.notified();
            let gone = self.shared.senders.load(Ordering::Acquire) == 0;
            let number = self.shared.number();
            if std::mem::replace(&mut self.seen, number) != number {
                return Ok(());
            }
            if gone {
                return Err(PublisherGone);
            }
            heard.await;
        }
    }

    /// Wait until the value satisfies `such`, borrow it and mark it as seen.
    ///
    /// # Errors
    /// When the value does not satisfy `such` and every publisher is gone.
    pub async fn wait_for(
        &mut self,
        such: impl Fn(&T) -> bool,
    ) -> Result<Ref<'_, T>, PublisherGone> {
        let shared = &*self.shared;
        loop {
            // The same order as in [`Subscriber::changed`].
            let heard = shared.bell.notified();
            let gone = shared.senders.load(Ordering::Acquire) == 0;
            if let Some(value) = borrow_if(shared, &mut self.seen, &such) {
                return Ok(value);
            }
            if gone {
                return Err(PublisherGone);
            }
            heard.await;
        }
    }
}

/// Mark the present value as seen, and borrow it if it satisfies `such`.
fn borrow_if<'a, T>(
    shared: &'a SharedValue<T>,
    seen: &mut usize,
    such: impl Fn(&T) -> bool,
) -> Option<Ref<'a, T>> {
    let value = shared.read();
    let number = shared.number();
    let changed = std::mem::replace(seen, number) != number;
    such(&value).then_some(Ref { value, changed })
}

impl<T> Clone for Subscriber<T> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_follower_sees_the_newest_value_once() {
        let (sender, mut receiver) = channel(0);
        assert!(receiver.changed().now_or_never().is_none(), "the first was seen");
        sender.send_replace(1);
        assert_eq!(sender.send_replace(2), 1);
        let mut later = receiver.clone();
        assert_eq!(receiver.changed().now_or_never(), Some(Ok(())));
        assert_eq!((*receiver.borrow(), receiver.borrow().has_changed()), (2, false));
        assert!(receiver.changed().now_or_never().is_none());
        assert!(later.borrow().has_changed(), "each follows by itself");
        assert!(later.borrow_and_update().has_changed());
        assert!(later.changed().now_or_never().is_none());
        assert!(!sender.subscribe().borrow().has_changed());
    }

    #[test]
    fn what_is_no_change_is_not_told() {
        let (sender, mut receiver) = channel(0);
        assert!(!sender.send_if_modified(|_| false));
        assert!(receiver.changed().now_or_never().is_none());
        assert!(sender.send_if_modified(|value| {
            *value = 1;
            true
        }));
        receiver.mark_unchanged();
        assert!(receiver.changed().now_or_never().is_none());
    }

    #[test]
    fn the_last_value_is_seen_before_the_end() {
        let (sender, mut receiver) = channel(0);
        let other = sender.clone();
        drop(sender);
        assert!(receiver.changed().now_or_never().is_none(), "one can still change it");
        other.send_replace(1);
        drop(other);
        assert_eq!(receiver.changed().now_or_never(), Some(Ok(())));
        assert_eq!(receiver.changed().now_or_never(), Some(Err(PublisherGone)));
        assert_eq!(
            receiver.wait_for(|value| *value == 1).now_or_never().unwrap().map(|v| *v),
            Ok(1)
        );
        assert!(receiver.wait_for(|value| *value == 2).now_or_never().unwrap().is_err());
    }

    #[tokio::test]
    async fn who_waits_is_woken_in_order_by_a_change_and_by_the_end() {
        let (sender, receiver) = channel(0);
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        let waits = |number: usize| {
            let (mut receiver, said) = (receiver.clone(), said.clone());
            async move {
                while receiver.changed().await.is_ok() {
                    said.send((number, *receiver.borrow())).unwrap();
                }
                said.send((number, u32::MAX)).unwrap();
            }
        };
        let mut all = tokio::task::JoinSet::new();
        for number in 0..9 {
            all.spawn(waits(number));
        }
        tokio::task::yield_now().await;
        let mut next = async |value| {
            for number in 0..9 {
                assert_eq!(heard.recv().await, Some((number, value)));
            }
        };
        sender.send_replace(7);
        next(7).await;
        drop(sender);
        next(u32::MAX).await;
        all.join_all().await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn no_change_is_missed_between_threads() {
        let (sender, mut receiver) = channel(0_u32);
        let all = tokio::spawn(async move {
            let mut last = 0;
            while receiver.changed().await.is_ok() {
                let now = *receiver.borrow();
                assert!(now >= last);
                last = now;
            }
            last
        });
        for number in 1..=20_000 {
            sender.send_replace(number);
        }
        drop(sender);
        assert_eq!(all.await.unwrap(), 20_000);
    }
}
