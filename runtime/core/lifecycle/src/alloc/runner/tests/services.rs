//! Services over the life of an allocation: when they are listed, and checks that restart. Scripts do not
//! run on the scripted node, so a script check is one that always fails.

use super::*;
use ostler_model::job::{
    Check, CheckKind, CheckRestart, HealthCheck, HealthPolicy, Service, TaskGroup,
};
use ostler_model::service::Services as _;
use ostler_model::time::Timestamp;
use ostler_testing::fake_driver::{Ending, Script};

/// Time of day goes on with virtual time.
fn bench() -> Bench {
    let mut bench = Bench::new();
    let node = bench.node.clone();
    let began = Timestamp::from_nanos(1_000_000_000);
    bench.clock = Clock::from_fn(move || began.plus(node.age()));
    bench.kind = JobKind::Service;
    bench
}

fn with_group(bench: &Bench, tasks: Vec<Task>, change: impl FnOnce(&mut TaskGroup)) -> AllocHandle {
    let mut allocation = fixtures::allocation(bench.kind, tasks, &Rng::from_seed(7)).unwrap();
    change(&mut Arc::make_mut(&mut allocation.job).groups[0]);
    bench.run_allocation(allocation)
}

fn service(text: &str, task: Option<&str>) -> Service {
    Service {
        name: text.to_owned(),
        port: Some("8080".to_owned()),
        task: task.map(name),
        ..Service::default()
    }
}

fn failing(task: &str, restart: Option<CheckRestart>) -> Check {
    let kind = CheckKind::Script { command: "/bin/false".to_owned(), args: Vec::new() };
    let check = Check::new("always".to_owned(), kind, 10 * SECOND, SECOND);
    Check { restart, task: Some(name(task)), ..check }
}

fn listed(bench: &Bench) -> Vec<String> {
    bench.services.list().instances.iter().map(|of| of.name.clone()).collect()
}

async fn until_listed(bench: &Bench, wanted: &[&str]) {
    let reached = async {
        loop {
            let list = bench.services.list();
            if listed(bench) == wanted {
                return;
            }
            bench.services.wait_for_change(list.index).await;
        }
    };
    let reached = clock::timeout(Duration::from_secs(86_400), reached).await;
    reached.unwrap_or_else(|| panic!("{:?} is not {wanted:?}", listed(bench)));
}

#[tokio::test(start_paused = true)]
async fn services_are_listed_while_their_task_runs_and_go_before_the_delay() {
    let bench = bench();
    bench.node.script("main", [Script::runs()]);
    bench.node.script("side", [Script::ends(50 * SECOND, 0)]);
    let side =
        fixtures::lifecycle(task("side"), ostler_model::job::LifecycleHook::Poststart, false);
    let handle = with_group(&bench, vec![task("main"), side], |group| {
        group.shutdown_delay = Some(30 * SECOND);
        group.services = vec![
            service("whole", None),
            service("one", Some("main")),
            service("two", Some("side")),
        ];
    });
    assert_eq!(listed(&bench), Vec::<String>::new());
    until_listed(&bench, &["one", "two", "whole"]).await;
    until_listed(&bench, &["one", "whole"]).await;
    assert_eq!(bench.node.age().as_secs(), 50, "the task's end");
    clock::sleep(10 * SECOND).await;
    handle.stop("enough").await;
    until_listed(&bench, &[]).await;
    assert!(bench.node.age().abs_diff(60 * SECOND) < SECOND, "{:?}", bench.node.age());
    handle.wait_done().await;
    assert_eq!(bench.when("stop main"), 90.0, "others had the delay to look elsewhere");
    assert_eq!(listed(&bench), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_task_that_is_restarted_is_not_listed_meanwhile() {
    let bench = bench();
    let mut slow = Script::runs();
    slow.on_stop = Ending::After(3 * SECOND, 0);
    bench.node.script("main", [slow, Script::runs()]);
    let handle = with_group(&bench, vec![task("main")], |group| {
        group.services = vec![service("one", Some("main"))];
    });
    until_listed(&bench, &["one"]).await;
    let first = bench.services.list().instances[0].create_index;
    handle.restart(RestartScope::Task(name("main")), "wanted").await.unwrap();
    until_listed(&bench, &[]).await;
    assert_eq!(bench.node.age().as_secs(), 0, "before it has ended");
    until_listed(&bench, &["one"]).await;
    assert_eq!(bench.node.age().as_secs(), 3);
    assert!(bench.services.list().instances[0].create_index > first);
    handle.stop("enough").await;
    handle.wait_done().await;
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_check_restarts_its_task_by_the_policy_until_that_is_used_up() {
    let bench = bench();
    bench.node.script("main", vec![Script::runs(); 3]);
    let mut main = task("main");
    main.restart = fixtures::restart(2, 15 * SECOND);
    let restart = CheckRestart { limit: 2, grace: 5 * SECOND, ignore_warnings: false };
    let handle = with_group(&bench, vec![main], |group| {
        let checks = vec![failing("main", Some(restart))];
        group.services = vec![Service { checks, ..service("one", Some("main")) }];
    });
    let state = handle.wait_done().await;
    let main = &state.tasks["main"];
    assert!(main.failed, "{main:?}");
    assert_eq!(main.restarts, 2);
    let texts: Vec<_> = main.events.iter().map(|event| event.message.as_str()).collect();
    let asked = "healthcheck: check \"always\" unhealthy";
    assert_eq!(texts.iter().filter(|text| **text == asked).count(), 3, "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("Exceeded allowed attempts 2")), "{texts:?}");
    // The first answer is in the grace, so the third is the second that counts.
    let first = bench.when("stop main");
    assert!((20.0..22.0).contains(&first), "{first}");
}

#[tokio::test(start_paused = true)]
async fn a_check_of_the_group_restarts_all_that_run() {
    let bench = bench();
    let (mut one, mut two) = (task("one"), task("two"));
    (one.restart, two.restart) = (fixtures::restart(9, SECOND), fixtures::restart(9, SECOND));
    bench.node.script("one", vec![Script::runs(); 9]);
    bench.node.script("two", vec![Script::runs(); 9]);
    let restart = CheckRestart { limit: 1, grace: Duration::ZERO, ignore_warnings: false };
    let handle = with_group(&bench, vec![one, two], |group| {
        let checks = vec![failing("one", Some(restart))];
        group.services = vec![Service { checks, ..service("whole", None) }];
    });
    let both = |state: &AllocState| state.tasks.values().all(|task| task.restarts > 0);
    let state = until(&handle, both).await;
    for name in ["one", "two"] {
        assert!(events(&state, name).contains(&"Restart Signaled"), "{name}");
    }
    handle.stop("enough").await;
    handle.wait_done().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_checks_say_is_known_and_a_verdict_names_the_one_that_fails() {
    let bench = bench();
    bench.node.script("main", [Script::runs()]);
    let handle = with_group(&bench, vec![task("main")], |group| {
        let checks = vec![failing("main", None)];
        group.services = vec![Service { checks, ..service("one", Some("main")) }];
        group.health = Some(HealthPolicy {
            check: HealthCheck::Checks,
            min_healthy_time: SECOND,
            healthy_deadline: 60 * SECOND,
        });
    });
    let state = until(&handle, |state| state.health.is_some()).await;
    assert!(state.health.as_ref().unwrap().is_unhealthy());
    assert!(bench.node.age().abs_diff(60 * SECOND) < SECOND, "{:?}", bench.node.age());
    let told = state.tasks["main"].events.iter().map(|event| event.message.clone());
    let told: Vec<_> = told.collect();
    assert!(
        told.iter().any(|text| text.contains("check \"always\" of service \"one\" fails")),
        "{told:?}"
    );
    let results = handle.checks();
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].status, ostler_model::job::CheckStatus::Critical);
    assert_eq!(results[0].output, "exit code 7");
    handle.stop("enough").await;
    handle.wait_done().await;
    assert!(handle.checks().is_empty(), "nothing is there any more");
}

#[tokio::test(start_paused = true)]
async fn a_service_whose_name_means_nothing_is_not_listed_and_that_is_said_once() {
    let bench = bench();
    bench.node.script("main", [Script::runs()]);
    let handle = with_group(&bench, vec![task("main")], |group| {
        group.services = vec![service("a-${nobody}", Some("main")), service("b", None)];
    });
    until_listed(&bench, &["b"]).await;
    let said = |state: &AllocState| {
        let events = &state.tasks["main"].events;
        events.iter().filter(|event| event.message.contains("a-${nobody} is not listed")).count()
    };
    let state = until(&handle, |state| said(state) == 1).await;
    let text = "\"a-${nobody}\" is not a valid service name";
    let events = &state.tasks["main"].events;
    assert!(events.iter().any(|event| event.message.contains(text)), "{events:?}");
    handle.stop("enough").await;
    assert_eq!(said(&handle.wait_done().await), 1);
}

#[tokio::test(start_paused = true)]
async fn a_change_in_place_changes_the_list_and_what_is_asked_stays() {
    let bench = bench();
    bench.node.script("main", [Script::runs()]);
    let handle = with_group(&bench, vec![task("main")], |group| {
        let checks = vec![failing("main", None)];
        group.services = vec![Service { checks, ..service("one", Some("main")) }];
    });
    until_listed(&bench, &["one"]).await;
    clock::sleep(5 * SECOND).await;
    let answered = handle.checks();
    assert!(answered[0].answered.is_some());
    let tagged = |group: &mut TaskGroup| {
        group.services[0].tags = vec!["new".to_owned()];
        group.services.push(service("two", None));
    };
    handle.update(super::updates::changed(&handle, 2, tagged));
    until_listed(&bench, &["one", "two"]).await;
    assert_eq!(bench.services.list().instances[0].tags, ["new"]);
    assert_eq!(handle.checks(), answered);
    let nothing = |group: &mut TaskGroup| group.services.clear();
    handle.update(super::updates::changed(&handle, 3, nothing));
    until_listed(&bench, &[]).await;
    handle.stop("enough").await;
    handle.wait_done().await;
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_leaves_lists_nothing() {
    let bench = bench();
    bench.node.script("main", [Script::runs()]);
    let handle = with_group(&bench, vec![task("main")], |group| {
        group.services = vec![service("one", Some("main"))];
    });
    until_listed(&bench, &["one"]).await;
    handle.shutdown().await;
    until_listed(&bench, &[]).await;
}
