//! A bounded queue whose memory grows with what waits in it.
//!
//! A channel of tokio reserves room for 32 messages and some cache lines of its own from the
//! beginning. The four channels of an allocation took three KiB that way, and nearly always nothing
//! waits in them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The sending end. Clones share the queue.
#[derive(Debug)]
pub struct QueueSender<T>(Arc<SharedQueue<T>>);

/// The receiving end. After it is dropped the queue takes no message any more.
#[derive(Debug)]
pub struct QueueReceiver<T>(Arc<SharedQueue<T>>);

#[derive(Debug)]
struct SharedQueue<T> {
    most: usize,
    inner: Mutex<QueueState<T>>,
    /// Rings when a message came, and when the last sender went.
    bell: Notify,
    /// Rings when there is room, and when the receiver went.
    room: Notify,
}

#[derive(Debug)]
struct QueueState<T> {
    waiting: VecDeque<T>,
    senders: usize,
    open: bool,
}

/// A queue in which at most `most` messages wait.
#[must_use]
pub fn channel<T>(most: usize) -> (QueueSender<T>, QueueReceiver<T>) {
    let inner = Mutex::new(QueueState { waiting: VecDeque::new(), senders: 1, open: true });
    let queue = Arc::new(SharedQueue { most, inner, bell: Notify::new(), room: Notify::new() });
    (QueueSender(Arc::clone(&queue)), QueueReceiver(queue))
}

impl<T> SharedQueue<T> {
    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        // The state is whole after a panic, because every change is one call.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why the queue did not take a message; gives the message back.
#[derive(Debug, PartialEq, Eq)]
pub enum QueueSendError<T> {
    /// The queue is full.
    Full(T),
    /// The receiver is gone.
    Gone(T),
}

impl<T> QueueSender<T> {
    /// Put a message in if there is room.
    ///
    /// # Errors
    /// [`QueueSendError`], with the message, when the queue is full or the receiver is gone.
    pub fn try_send(&self, message: T) -> Result<(), QueueSendError<T>> {
        let mut inner = self.0.lock();
        if !inner.open {
            return Err(QueueSendError::Gone(message));
        }
        if inner.waiting.len() >= self.0.most {
            return Err(QueueSendError::Full(message));
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
            // Made before the try, so that room that comes in between wakes this sender.
            let room = self.0.room.notified();
            message = match self.try_send(message) {
                Ok(()) => return Ok(()),
                Err(QueueSendError::Gone(message)) => return Err(message),
                Err(QueueSendError::Full(message)) => message,
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

impl<T> Clone for QueueSender<T> {
    fn clone(&self) -> Self {
        let mut inner = self.0.lock();
        inner.senders = inner.senders.saturating_add(1);
        drop(inner);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for QueueSender<T> {
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

impl<T> QueueReceiver<T> {
    /// The next message; `None` when there is none and nobody can send one. May be cancelled.
    pub async fn recv(&mut self) -> Option<T> {
        loop {
            // Read before the look, so that what the last sender left behind is seen.
            let alone = self.0.lock().senders == 0;
            let message = self.try_recv();
            if message.is_some() || alone {
                return message;
            }
            // `Notify` stores a ring that comes between the look and this line.
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

impl<T> Drop for QueueReceiver<T> {
    fn drop(&mut self) {
        self.close();
        // Messages may hold the reply channels of askers, so they are dropped now.
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
        assert_eq!(sender.try_send(3), Err(QueueSendError::Full(3)));
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
