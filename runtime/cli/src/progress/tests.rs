#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use proptest::prelude::*;

use super::*;
use ostler_model::event::EventKind;
use ostler_model::ids::AllocId;
use ostler_model::limits::TASK_EVENTS_MAX;
use ostler_model::rng::Rng;
use ostler_model::task::TaskState;
use ostler_model::time::Timestamp;

fn allocations(job: &str) -> Vec<Allocation> {
    let job = ostler_jobspec::parse(job.as_bytes(), std::path::Path::new("job.hcl"), None);
    let job = Arc::new(job.unwrap());
    let rng = Rng::seeded(1);
    let mut placed = Vec::new();
    for group in &job.groups {
        for index in 0..group.count {
            placed.push(Allocation {
                id: AllocId::new(rng.uuid()),
                name: format!("{}.{}[{index}]", job.id, group.name),
                job: Arc::clone(&job),
                group: group.name.clone(),
                index,
                created_at: Timestamp::default(),
                desired: Default::default(),
                ports: Vec::new(),
                devices: BTreeMap::new(),
                modify_index: 1,
                create_index: 1,
                job_version: 0,
                previous: None,
                desired_description: String::new(),
            });
        }
    }
    placed
}

const ONE: &str = r#"
job "a" {
  group "g" {
    task "web" { driver = "mock" }
    task "db1" { driver = "mock" }
  }
}"#;

fn texts(job: &str) -> Vec<String> {
    let allocations = allocations(job);
    let labels = labels(&allocations.iter().collect::<Vec<_>>());
    labels.iter().flat_map(BTreeMap::values).map(|label| label.text.clone()).collect()
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

fn seen() -> Seen {
    let allocation = allocations(ONE).remove(0);
    let labels = labels(&[&allocation]).remove(0);
    Seen::new(Arc::new(allocation), labels)
}

fn told(reports: &[Report]) -> Vec<String> {
    reports
        .iter()
        .map(|report| match report {
            Report::Event { task, event, .. } => format!("{task} {}", event.message),
            Report::EventsMissed { task, .. } => format!("{task} missed"),
            Report::Status { status, .. } => status.to_string(),
            other => format!("{other:?}"),
        })
        .collect()
}

fn tasks_of(state: &mut AllocState) -> &mut BTreeMap<TaskName, TaskState> {
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
    assert_eq!(told(&seen.update(&state)), ["web event 1", "db1 event 2", "web event 3"]);
    assert_eq!(told(&seen.update(&state)), Vec::<String>::new());
    tasks_of(&mut state).entry(web).or_default().push_event(event(4));
    state.client_status = ClientStatus::Running;
    assert_eq!(told(&seen.update(&state)), ["web event 4", "running"]);
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
        let (mut all, mut heard) = (Vec::new(), Vec::new());
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
