#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::*;
use ostler_model::cow_arc::CowArc;
use ostler_model::event::EventKind;
use ostler_model::ids::AllocId;
use ostler_model::limits::TASK_EVENTS_MAX;
use ostler_model::rng::Rng;
use ostler_model::saved::DeploymentStatus;
use ostler_model::time::Timestamp;

fn parsed(job: &str) -> Job {
    ostler_jobspec::parse(job.as_bytes(), std::path::Path::new("job.hcl"), None).unwrap()
}

const ONE: &str = r#"
job "a" {
  group "g" {
    task "web" { driver = "mock" }
    task "db1" { driver = "mock" }
  }
}"#;

fn texts(job: &str) -> Vec<String> {
    labels(&parsed(job))
        .values()
        .flat_map(BTreeMap::values)
        .map(|label| label.text.clone())
        .collect()
}

#[test]
fn tasks_of_one_allocation_are_called_by_their_names() {
    assert_eq!(texts(ONE), ["db1", "web"]);
}

#[test]
fn tasks_of_several_allocations_are_told_apart_and_all_labels_are_equally_wide() {
    let job = ONE.replace("group \"g\" {", "group \"g\" {\n count = 2").replace("web", "w");
    assert_eq!(texts(&job), ["g[0]/db1", "g[0]/w  ", "g[1]/db1", "g[1]/w  "]);
}

fn event(number: u64) -> TaskEvent {
    TaskEvent::new(EventKind::Driver, Timestamp::from_nanos(number), format!("event {number}"))
}

fn seen() -> AllocProgress {
    let placed = PlacementReport {
        alloc: AllocId::new(Rng::from_seed(1).uuid()),
        name: "a.g[0]".to_owned(),
        group: "g".to_owned(),
        follows: None,
        ports: Vec::new(),
        devices: BTreeMap::new(),
    };
    let labels = labels(&parsed(ONE)).remove("a.g[0]").unwrap();
    AllocProgress::new(placed, labels)
}

fn told(reports: &[RunReport]) -> Vec<String> {
    reports
        .iter()
        .map(|report| match report {
            RunReport::Event { task, event, .. } => format!("{task} {}", event.message),
            RunReport::EventsMissed { task, .. } => format!("{task} missed"),
            RunReport::Status { status, .. } => status.to_string(),
            RunReport::Placed(placed) => placed.name.clone(),
            RunReport::Health { healthy, .. } => format!("healthy: {healthy}"),
            other => format!("{other:?}"),
        })
        .collect()
}

fn tasks_of(state: &mut AllocState) -> &mut BTreeMap<TaskName, CowArc<TaskState>> {
    Arc::make_mut(&mut state.tasks)
}

#[test]
fn each_event_is_told_once_in_order_of_time_and_the_status_when_it_changes() {
    let mut seen = seen();
    let (web, db) = (TaskName::new("web").unwrap(), TaskName::new("db1").unwrap());
    let mut state = AllocState::default();
    tasks_of(&mut state).entry(web.clone()).or_default().push_event(event(1));
    tasks_of(&mut state).entry(db).or_default().push_event(event(2));
    tasks_of(&mut state).entry(web.clone()).or_default().push_event(event(3));
    let first = ["a.g[0]", "web event 1", "db1 event 2", "web event 3"];
    assert_eq!(told(&seen.update(&state)), first);
    assert_eq!(told(&seen.update(&state)), Vec::<String>::new());
    tasks_of(&mut state).entry(web).or_default().push_event(event(4));
    state.client_status = ClientStatus::Running;
    assert_eq!(told(&seen.update(&state)), ["web event 4", "running"]);
    state.health = Some(DeploymentStatus { healthy: Some(true), ..Default::default() });
    assert_eq!(told(&seen.update(&state)), ["healthy: true"]);
    assert_eq!(told(&seen.update(&state)), Vec::<String>::new());
}

#[test]
fn what_happened_before_an_update_is_no_news() {
    let mut state = AllocState::default();
    let web = TaskName::new("web").unwrap();
    tasks_of(&mut state).entry(web.clone()).or_default().push_event(event(1));
    let mut seen = seen().skip_known(&state);
    tasks_of(&mut state).entry(web).or_default().push_event(event(2));
    assert_eq!(told(&seen.update(&state)), ["web event 2"]);
}

#[test]
fn when_more_events_came_than_a_task_keeps_it_is_said() {
    let mut seen = seen();
    let web = TaskName::new("web").unwrap();
    let mut state = AllocState::default();
    let task: &mut TaskState = tasks_of(&mut state).entry(web).or_default();
    task.push_event(event(0));
    seen.update(&state);
    for number in 1..=u64::try_from(TASK_EVENTS_MAX).unwrap() + 1 {
        tasks_of(&mut state).values_mut().for_each(|task| task.push_event(event(number)));
    }
    let told = told(&seen.update(&state));
    assert_eq!((told.len(), told[0].as_str()), (TASK_EVENTS_MAX + 1, "web missed"));
}

proptest! {
    #[test]
    fn states_that_were_skipped_lose_no_events(
        steps in prop::collection::vec(0..TASK_EVENTS_MAX, 1..20),
    ) {
        let mut seen = seen();
        let mut state = AllocState::default();
        let (mut all, mut heard) = (vec!["a.g[0]".to_owned()], Vec::new());
        heard.extend(told(&seen.update(&state)));
        let web = TaskName::new("web").unwrap();
        let mut number = 0;
        for step in steps {
            let task: &mut TaskState = tasks_of(&mut state).entry(web.clone()).or_default();
            for _ in 0..step {
                number += 1;
                all.push(format!("web event {number}"));
                task.push_event(event(number));
            }
            heard.extend(told(&seen.update(&state)));
        }
        prop_assert_eq!(heard, all);
    }
}
