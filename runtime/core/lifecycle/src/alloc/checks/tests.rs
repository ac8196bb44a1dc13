#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use tokio::net::TcpListener;

use super::*;
use crate::alloc::health::CheckId;
use ostler_model::job::{Check, CheckKind, CheckRestart};
use ostler_probe::CheckTarget;

/// Far beyond what anything here takes: a test that waits so long has failed.
const PATIENCE: Duration = Duration::from_secs(20);
const SECOND: Duration = Duration::from_secs(1);

fn means(places: usize) -> CheckMeans {
    CheckMeans {
        places: Arc::new(Semaphore::new(places)),
        tasks: Weak::new(),
        clock: Clock::fixed(Timestamp::from_nanos(5)),
        rng: Rng::from_seed(1),
    }
}

fn check(name: &str, interval: Duration) -> Check {
    Check::new(name.to_owned(), CheckKind::Tcp, interval, PATIENCE)
}

fn asked(check: Check, question: Result<Question, String>) -> AskedCheck {
    let id = CheckId { task: None, service: "s".to_owned(), port: None, check: check.name.clone() };
    let (check, started) = (Arc::new(check), Timestamp::from_nanos(1));
    let name = check.name.clone();
    AskedCheck { id, check, service: "s".to_owned(), name, question, started }
}

/// One that has nothing to ask, which needs no network.
fn failing(name: &str, interval: Duration) -> AskedCheck {
    asked(check(name, interval), Err("nothing to ask".to_owned()))
}

fn tcp(name: &str, port: u16) -> AskedCheck {
    let target = CheckTarget { host: "127.0.0.1".to_owned(), port };
    asked(check(name, SECOND), Ok(Question::Network { kind: CheckKind::Tcp, target }))
}

/// Virtual seconds since the test began at which answers come.
#[expect(clippy::disallowed_methods, reason = "the test's own time, which tokio holds still")]
async fn times(checks: &mut Checks, count: usize) -> Vec<(String, f64)> {
    let began = tokio::time::Instant::now();
    let mut times = Vec::new();
    for _ in 0..count {
        let answered = checks.next().await;
        let number = answered.number;
        let name =
            checks.running.iter().find(|r| r.number == number).unwrap().asked.id.check.clone();
        checks.take(answered);
        times.push((name, began.elapsed().as_secs_f64()));
    }
    times
}

#[tokio::test(start_paused = true)]
async fn the_first_question_is_drawn_from_the_first_second_and_the_others_keep_the_interval() {
    let mut checks = Checks::new(means(8));
    let wanted: Vec<_> = (0..20).map(|i| failing(&i.to_string(), 10 * SECOND)).collect();
    checks.set(wanted);
    let mut first: Vec<f64> = times(&mut checks, 20).await.into_iter().map(|(_, at)| at).collect();
    assert!(first.iter().all(|at| *at <= 1.0), "{first:?}");
    first.dedup();
    assert!(first.len() > 15, "they come one after the other: {first:?}");
    let mut checks = Checks::new(means(8));
    checks.set(vec![failing("a", 10 * SECOND)]);
    let all: Vec<f64> = times(&mut checks, 4).await.into_iter().map(|(_, at)| at).collect();
    for pair in all.windows(2) {
        assert!((pair[1] - pair[0] - 10.0).abs() < 0.1, "{all:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_no_more_gives_no_answer_and_what_stays_is_asked_on() {
    let mut checks = Checks::new(means(8));
    checks.set(vec![failing("a", 10 * SECOND), failing("b", 10 * SECOND)]);
    times(&mut checks, 2).await;
    let before = checks.results();
    assert!(before.iter().all(|result| result.status == CheckStatus::Critical), "{before:?}");
    checks.set(vec![failing("b", 10 * SECOND)]);
    assert_eq!(checks.results()[0], before[1], "what it said stays");
    let names: Vec<_> = times(&mut checks, 3).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["b", "b", "b"]);
    let again = AskedCheck { started: Timestamp::from_nanos(2), ..failing("b", 10 * SECOND) };
    checks.set(vec![again]);
    assert_eq!(checks.results()[0].status, CheckStatus::Pending, "another start");
}

#[tokio::test(start_paused = true)]
async fn checks_that_find_no_place_wait_for_one() {
    let means = means(1);
    let held = Arc::clone(&means.places).acquire_owned().await.unwrap();
    let mut checks = Checks::new(means);
    checks.set(vec![failing("a", SECOND)]);
    let none = clock::timeout(30 * SECOND, checks.next()).await;
    assert!(none.is_none(), "nobody is asked");
    drop(held);
    assert!(clock::timeout(SECOND, checks.next()).await.is_some());
}

#[tokio::test]
async fn answers_change_what_is_said_and_when_that_began() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let means = means(8);
    let clock = means.clock.clone();
    let mut checks = Checks::new(means);
    checks.set(vec![tcp("t", port)]);
    assert_eq!(checks.results()[0].status, CheckStatus::Pending);
    clock.advance(Duration::from_nanos(2));
    let answered = clock::timeout(PATIENCE, checks.next()).await.unwrap();
    assert!(checks.take(answered).is_none());
    let first = checks.results()[0].clone();
    assert_eq!((first.status, first.passing), (CheckStatus::Passing, true));
    assert_eq!((first.since, first.answered), (clock.now(), Some(clock.now())));
    clock.advance(Duration::from_nanos(2));
    let answered = clock::timeout(PATIENCE, checks.next()).await.unwrap();
    checks.take(answered);
    let second = checks.results()[0].clone();
    assert_eq!((second.since, second.answered), (first.since, Some(clock.now())));
    drop(listener);
    loop {
        let answered = clock::timeout(PATIENCE, checks.next()).await.unwrap();
        checks.take(answered);
        let result = checks.results()[0].clone();
        if result.status == CheckStatus::Critical {
            assert!(result.output.starts_with("cannot connect to 127.0.0.1:"), "{result:?}");
            assert_eq!(result.since, clock.now());
            break;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_check_that_asks_for_a_restart_says_so() {
    let mut of = check("r", SECOND);
    of.restart = Some(CheckRestart { limit: 2, grace: Duration::ZERO, ignore_warnings: false });
    let mut checks = Checks::new(means(1));
    checks.set(vec![asked(of, Err("nothing to ask".to_owned()))]);
    let mut asks = Vec::new();
    for _ in 0..4 {
        let answered = checks.next().await;
        asks.push(checks.take(answered).is_some());
    }
    assert_eq!(asks, [false, true, false, true]);
}

#[test]
fn a_deployment_asks_of_a_check_what_on_update_says() {
    use CheckStatus::{Critical, Passing, Pending, Warning};
    let good = |on_update| [Pending, Passing, Warning, Critical].map(|s| is_good(on_update, s));
    assert_eq!(good(OnUpdate::RequireHealthy), [false, true, false, false]);
    assert_eq!(good(OnUpdate::IgnoreWarnings), [false, true, true, false]);
    assert_eq!(good(OnUpdate::Ignore), [true; 4]);
}
