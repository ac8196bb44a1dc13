//! A bounded queue that takes memory by what waits in it.
//!
//! A channel of tokio has room for 32 messages and some cache lines of its own from the beginning: the
//! four that each allocation has took three KiB, and nearly always nothing waits in them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The way in. Clones share it.
#[derive(Debug)]
pub struct Sender<T>(Arc<Queue<T>>);

/// The way out. When it is dropped nothing is taken any more.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Queue<T>>);

#[derive(Debug)]
struct Queue<T> {
    most: usize,
    inner: Mutex<Inner<T>>,
    /// Something came, or nothing will come any more.
    bell: Notify,
    /// There is room, or nothing is taken any more.
    room: Notify,
}

#[derive(Debug)]
struct Inner<T> {
    waiting: VecDeque<T>,
    senders: usize,
    open: bool,
}

/// A queue in which at most `most` messages wait.
#[must_use]
pub fn channel<T>(most: usize) -> (Sender<T>, Receiver<T>) {
    let inner = Mutex::new(Inner { waiting: VecDeque::new(), senders: 1, open: true });
    let queue = Arc::new(Queue { most, inner, bell: Notify::new(), room: Notify::new() });
    (Sender(Arc::clone(&queue)), Receiver(queue))
}

impl<T> Queue<T> {
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        // Whole after a panic: every change is one call.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message that was not taken.
#[derive(Debug, PartialEq, Eq)]
pub enum NotTaken<T> {
    /// As many wait as may.
    Full(T),
    /// The receiver is gone.
    Gone(T),
}

impl<T> Sender<T> {
    /// Put a message in if there is room.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn try_send(&self, message: T) -> Result<(), NotTaken<T>> {
        let mut inner = self.0.lock();
        if !inner.open {
            return Err(NotTaken::Gone(message));
        }
        if inner.waiting.len() >= self.0.most {
            return Err(NotTaken::Full(message));
        }
        inner.waiting.push_back(message);
        drop(inner);
        self.0.bell.notify_one();
        Ok(())
    }

    /// Put a message in as soon as there is room.
    ///
    /// # Errors
    /// The message, when the receiver is gone.
    pub async fn send(&self, mut message: T) -> Result<(), T> {
        loop {
            // Made before it is looked: what comes between wakes it.
            let room = self.0.room.notified();
            message = match self.try_send(message) {
                Ok(()) => return Ok(()),
                Err(NotTaken::Gone(message)) => return Err(message),
                Err(NotTaken::Full(message)) => message,
            };
            room.await;
        }
    }

    /// Is the receiver gone?
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.0.lock().open
    }

    /// Wait until the receiver is gone.
    pub async fn closed(&self) {
        loop {
            let changed = self.0.room.notified();
            if !self.0.lock().open {
                return;
            }
            changed.await;
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        let mut inner = self.0.lock();
        inner.senders = inner.senders.saturating_add(1);
        drop(inner);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        inner.senders = inner.senders.saturating_sub(1);
        let last = inner.senders == 0;
        drop(inner);
        if last {
            self.0.bell.notify_one();
        }
    }
}

impl<T> Receiver<T> {
    /// The next message; `None` when there is none and nobody can send one. May be cancelled.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            // Before it is looked: whoever was the last left nothing behind unseen.
            let alone = self.0.lock().senders == 0;
            let message = self.try_recv();
            if message.is_some() || alone {
                return message;
            }
            // A ring since the look is kept for this.
            self.0.bell.notified().await;
        }
    }

    /// The next message that is there already.
    pub fn try_recv(&mut self) -> Option<T> {
        let mut inner = self.0.lock();
        let message = inner.waiting.pop_front()?;
        drop(inner);
        self.0.room.notify_waiters();
        Some(message)
    }

    /// Take nothing more; what waits can still be received.
    pub fn close(&mut self) {
        self.0.lock().open = false;
        self.0.room.notify_waiters();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.close();
        // Answers wait in them for whoever asked.
        let waiting = std::mem::take(&mut self.0.lock().waiting);
        drop(waiting);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn messages_come_in_order_and_no_more_wait_than_may() {
        let (sender, mut receiver) = channel(2);
        assert!(receiver.recv().now_or_never().is_none());
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        assert_eq!(sender.try_send(3), Err(NotTaken::Full(3)));
        assert_eq!(receiver.recv().now_or_never(), Some(Some(1)));
        sender.try_send(3).unwrap();
        assert_eq!(
            [receiver.try_recv(), receiver.try_recv(), receiver.try_recv()],
            [Some(2), Some(3), None]
        );
    }

    #[tokio::test]
    async fn who_waits_for_room_goes_on_when_there_is_some() {
        let (sender, mut receiver) = channel(1);
        let all: Vec<_> = (0..50)
            .map(|number| {
                let sender = sender.clone();
                tokio::spawn(async move { sender.send(number).await })
            })
            .collect();
        drop(sender);
        let mut heard = Vec::new();
        while let Some(number) = receiver.recv().await {
            heard.push(number);
        }
        heard.sort_unstable();
        assert_eq!(heard, (0..50).collect::<Vec<_>>());
        for one in all {
            one.await.unwrap().unwrap();
        }
    }

    #[test]
    fn the_receiver_hears_when_the_last_sender_is_gone_and_gets_what_waits_first() {
        let (sender, mut receiver) = channel(2);
        let other = sender.clone();
        other.try_send(1).unwrap();
        drop((sender, other));
        assert_eq!(receiver.recv().now_or_never(), Some(Some(1)));
        assert_eq!(receiver.recv().now_or_never(), Some(None));
    }

    #[tokio::test]
    async fn a_receiver_that_is_gone_takes_nothing_and_lets_go_of_what_waited() {
        struct Counted(Arc<AtomicUsize>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let dropped = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = channel(1);
        assert!(sender.try_send(Counted(Arc::clone(&dropped))).is_ok());
        let blocked = sender.clone();
        let waits = tokio::spawn({
            let dropped = Arc::clone(&dropped);
            async move { blocked.send(Counted(dropped)).await.is_err() }
        });
        assert!(sender.closed().now_or_never().is_none());
        drop(receiver);
        sender.closed().await;
        assert!(waits.await.unwrap(), "it was waiting for room");
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
    }
}
