//! Carries what a driver says of a task to the task's owner.
//!
//! ```text
//! events.emit ─► sink of this run ─► queue of this task ─► runner ─► event `Driver`
//!                  │ full: dropped, counted; told with the next that fits
//! ```
//! Each task has a queue of its own and a sink never waits: an owner that does not read delays no
//! driver and no other task. After the owner has gone nothing is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::events::driver_note;
use crate::queue;
use ostler_model::event::TaskEvent;
use ostler_model::ports::DriverEventSink;
use ostler_model::time::Timestamp;

/// A note on a task; boxed, as requests are.
pub type DriverNote = Box<TaskNote>;

/// See [`DriverNote`].
#[derive(Debug)]
pub enum TaskNote {
    /// From the driver: a message and its annotations.
    Driver(String, Vec<(String, String)>),
    /// From a hook that prepares the task.
    Hook(TaskEvent),
}

impl TaskNote {
    /// The event that the note becomes.
    #[must_use]
    pub fn event(self, now: Timestamp) -> TaskEvent {
        match self {
            Self::Driver(message, details) => driver_note(now, &message, details),
            Self::Hook(event) => event,
        }
    }
}

/// Send an event of a task while the task is prepared. An owner whose queue is full
/// misses the event.
pub fn tell(notes: Option<&queue::QueueSender<DriverNote>>, event: TaskEvent) {
    if let Some(notes) = notes {
        let _full = notes.try_send(Box::new(TaskNote::Hook(event)));
    }
}

/// Annotation of the first message after some were dropped; its value is their number.
pub const LOST: &str = "driver_messages_lost";

/// The sink for the messages of one run's driver.
#[must_use]
pub fn sink(notes: queue::QueueSender<DriverNote>) -> DriverEventSink {
    let lost = AtomicU64::new(0);
    Arc::new(move |message, mut details| {
        let before = lost.swap(0, Ordering::SeqCst);
        if before > 0 {
            details.push((LOST.to_owned(), before.to_string()));
        }
        if notes.try_send(Box::new(TaskNote::Driver(message, details))).is_err() {
            lost.fetch_add(before + 1, Ordering::SeqCst);
        }
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use super::*;

    const ROOM: usize = 4;

    fn say(sink: &DriverEventSink, number: usize) {
        sink(number.to_string(), Vec::new());
    }

    fn read(queue: &mut queue::QueueReceiver<DriverNote>) -> Vec<DriverNote> {
        std::iter::from_fn(|| queue.try_recv()).collect()
    }

    fn messages(notes: &[DriverNote]) -> Vec<&str> {
        notes.iter().map(|note| parts(note).0).collect()
    }

    fn parts(note: &DriverNote) -> (&str, &[(String, String)]) {
        let TaskNote::Driver(message, details) = &**note else { panic!("a driver said it") };
        (message, details)
    }

    #[test]
    fn messages_come_in_order_and_a_task_that_does_not_read_delays_no_other() {
        let (stuck, mut stuck_queue) = queue::channel(ROOM);
        let (reading, mut reading_queue) = queue::channel(ROOM);
        let (stuck, reading) = (sink(stuck), sink(reading));
        let mut heard = Vec::new();
        for number in 0..100 {
            say(&stuck, number);
            say(&reading, number);
            heard.extend(read(&mut reading_queue));
        }
        let all: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        assert_eq!(messages(&heard), all);
        assert_eq!(messages(&read(&mut stuck_queue)), ["0", "1", "2", "3"]);
    }

    #[test]
    fn how_many_were_dropped_is_told_with_the_next_that_fits() {
        let (sender, mut queue) = queue::channel(ROOM);
        let sink = sink(sender);
        for number in 0..10 {
            say(&sink, number);
        }
        assert!(read(&mut queue).iter().all(|note| parts(note).1.is_empty()));
        say(&sink, 10);
        say(&sink, 11);
        let later = read(&mut queue);
        assert_eq!(messages(&later), ["10", "11"]);
        assert_eq!(parts(&later[0]).1, [(LOST.to_owned(), "6".to_owned())]);
        assert!(parts(&later[1]).1.is_empty());
    }

    #[test]
    fn who_has_gone_takes_nothing_that_is_said_afterwards() {
        let (sender, mut queue) = queue::channel(ROOM);
        let sink = sink(sender);
        say(&sink, 0);
        queue.close();
        say(&sink, 1);
        assert_eq!(messages(&read(&mut queue)), ["0"]);
        drop(queue);
        say(&sink, 2);
    }
}
