#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::pin::Pin;
use std::sync::mpsc;

use ostler_model::access::TokenId;

use super::*;

fn token(number: u128) -> RequestCaller {
    RequestCaller::Token(TokenId::new(uuid::Uuid::from_u128(number)))
}

impl ComputePool {
    /// Take all threads that a caller may have, until the result is dropped.
    pub(in crate::server) async fn busy_with(
        &self,
        caller: RequestCaller,
    ) -> Vec<Pin<Box<impl Future<Output = Result<(), RequestFailure>>>>> {
        let (began, begun) = mpsc::channel();
        let mut taken = Vec::new();
        for _ in 0..API_COMPUTING_OF_ONE_MAX {
            let began = began.clone();
            let mut asked = Box::pin(self.run(caller, move |wanted| {
                began.send(()).unwrap();
                while !wanted.is_cancelled() {
                    std::thread::yield_now();
                }
            }));
            assert!(futures_util::poll!(&mut asked).is_pending());
            begun.recv().unwrap();
            taken.push(asked);
        }
        taken
    }
}

#[test]
fn callers_have_turns_and_nobody_has_all_threads() {
    let mut turns = Turns::default();
    for number in 0..9 {
        assert!(turns.add(token(1), number, API_COMPUTING_WAITING_MAX));
    }
    assert!(
        turns.add(token(2), 20, API_COMPUTING_WAITING_MAX)
            && turns.add(RequestCaller::Operator, 30, API_COMPUTING_WAITING_MAX)
    );
    assert_eq!(turns.take(), Some((RequestCaller::Operator, 30)));
    assert_eq!(turns.take(), Some((token(1), 0)));
    assert_eq!(turns.take(), Some((token(2), 20)));
    assert_eq!(turns.take(), Some((token(1), 1)));
    assert_eq!(turns.take(), None, "those of others have as many as they may");
    assert!(turns.add(RequestCaller::Operator, 31, API_COMPUTING_WAITING_MAX));
    assert_eq!(turns.take(), Some((RequestCaller::Operator, 31)));
    turns.finish_one(token(2));
    assert_eq!(turns.take(), None, "one token has as many as it may");
    turns.finish_one(token(1));
    assert_eq!(turns.take(), Some((token(1), 2)));
}

#[test]
fn what_waits_of_one_caller_is_bounded_and_what_it_does_not_wait_for_makes_room() {
    let mut turns = Turns::default();
    for number in 0..API_COMPUTING_WAITING_MAX {
        assert!(turns.add(RequestCaller::Near, number, API_COMPUTING_WAITING_MAX));
    }
    assert!(!turns.add(RequestCaller::Near, 0, API_COMPUTING_WAITING_MAX));
    assert!(turns.add(token(1), 0, API_COMPUTING_WAITING_MAX));
    turns.forget(RequestCaller::Near, |number| *number == 0);
    assert!(turns.add(RequestCaller::Near, 1, API_COMPUTING_WAITING_MAX));
    assert_eq!(turns.waiting(), API_COMPUTING_WAITING_MAX + 1);
}

#[tokio::test]
async fn work_whose_asker_has_gone_is_told_so_and_others_are_answered_meanwhile() {
    let computing = ComputePool::new();
    let (began, begun) = mpsc::channel();
    let (told, ended) = mpsc::channel();
    let endless = (0..API_COMPUTING_OF_ONE_MAX).map(|_| {
        let (began, told) = (began.clone(), told.clone());
        computing.run(RequestCaller::Near, move |wanted| {
            began.send(()).unwrap();
            while !wanted.is_cancelled() {
                std::thread::yield_now();
            }
            told.send(()).unwrap();
        })
    });
    let mut endless: Vec<_> = endless.map(Box::pin).collect();
    for asked in &mut endless {
        assert!(futures_util::poll!(asked).is_pending());
        begun.recv().unwrap();
    }
    // One caller gets no more threads at once, another one gets one.
    let mut waits = Box::pin(computing.run(RequestCaller::Near, |_| 1));
    assert!(futures_util::poll!(&mut waits).is_pending());
    assert_eq!(computing.run(token(1), |_| 2).await.unwrap(), 2);
    assert_eq!(computing.run(RequestCaller::Operator, |_| 3).await.unwrap(), 3);
    drop(endless);
    assert_eq!(waits.await.unwrap(), 1);
    for _ in 0..API_COMPUTING_OF_ONE_MAX {
        ended.recv().unwrap();
    }
}

#[tokio::test]
async fn work_that_panics_costs_its_own_request() {
    let computing = ComputePool::new();
    for _ in 0..2 * API_COMPUTING_THREADS {
        let failed = computing.run(RequestCaller::Near, |_| panic!("for a test")).await;
        assert!(matches!(failed, Err(RequestFailure::Internal(_))));
    }
    assert_eq!(computing.run(RequestCaller::Near, |_| 1).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_given_up() {
    let computing = ComputePool::new();
    let (told, ended) = mpsc::channel();
    let asked = computing.run(RequestCaller::Near, move |wanted| {
        while !wanted.is_cancelled() {
            std::thread::yield_now();
        }
        told.send(()).unwrap();
    });
    assert!(matches!(asked.await, Err(RequestFailure::TooMuch)));
    // The work has ended, or was never started.
    let _either = ended.recv();
}

#[tokio::test]
async fn more_answers_than_requests_may_wait_and_none_is_refused() {
    let computing = ComputePool::new();
    let many = API_COMPUTING_WAITING_MAX * 3;
    let answers =
        (0..many).map(|_| computing.answer(token(1), || Ok(super::super::reply::empty_answer())));
    let answers = futures_util::future::join_all(answers).await;
    assert!(answers.into_iter().all(|answer| answer.is_ok()));
}
