#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::*;
use ostler_model::ids::TaskName;
use ostler_model::job::{
    Affinity, Constraint, HealthPolicy, JobKind, Lifecycle, LifecycleHook, Operator, PortSpec,
    Service,
};
use ostler_model::placement::ScalingPolicy;
use ostler_model::resources::{CoreRequest, DeviceRequest, NumaAffinity};
use ostler_model::rollout::{DeployedGroup, DeploymentPhase, UpdatePolicy};
use ostler_model::saved::{EndedPlace, JobOrigin, JobRecord};
use ostler_model::template::{ChangeMode, TaskTemplate, TemplateSource};
use ostler_model::time::Timestamp;
use ostler_testing::fixtures;

fn id(n: u128) -> AllocId {
    AllocId::new(uuid::Uuid::from_u128(n))
}

fn name(text: &str) -> GroupName {
    GroupName::new(text).unwrap()
}

fn job(groups: &[(&str, u32)]) -> Job {
    let group = |(name, count): &(&str, u32)| TaskGroup {
        count: *count,
        ..fixtures::group(name, vec![fixtures::task("t").unwrap()]).unwrap()
    };
    fixtures::job("demo", JobKind::Service, groups.iter().map(group).collect()).unwrap()
}

const NOW: Timestamp = Timestamp::from_nanos(1_000_000_000_000);

fn wanted(job: &Job, version: u64) -> WantedJob<'_> {
    WantedJob {
        job,
        version,
        create_index: 10,
        stopped: false,
        ended: None,
        now: NOW,
        lives_on: true,
        deployment: None,
        forced: false,
    }
}

#[derive(Debug)]
struct Alloc {
    id: u128,
    group: GroupName,
    index: u32,
    version: u64,
    stopping: bool,
    status: ClientStatus,
}

impl Alloc {
    fn running(id: u128, group: &str, index: u32, version: u64) -> Self {
        let status = ClientStatus::Running;
        Self { id, group: name(group), index, version, stopping: false, status }
    }

    fn existing<'a>(&'a self, job: &'a Job) -> ExistingAlloc<'a> {
        ExistingAlloc {
            id: id(self.id),
            job,
            group: &self.group,
            index: self.index,
            version: self.version,
            create_index: 10 + u64::try_from(self.id).unwrap(),
            stopping: self.stopping,
            followed: false,
            created_at: NOW,
            status: self.status,
            ended_at: NOW,
            over: self.status.is_terminal(),
            before: &[],
            canary: false,
            deployed: false,
            healthy: None,
        }
    }
}

fn actions(wanted: &WantedJob<'_>, old: &Job, allocs: &[Alloc]) -> Vec<PlaceAction> {
    let existing: Vec<_> = allocs.iter().map(|alloc| alloc.existing(old)).collect();
    reconcile(wanted, &existing).actions
}

fn new(group: &str, index: u32, previous: Option<u128>, replaces: bool) -> PlaceAction {
    PlaceAction::Place {
        group: name(group),
        index,
        previous: previous.map(id),
        replaces,
        how: PlacementDetails::default(),
    }
}

fn stop(alloc: u128, reason: &'static str) -> PlaceAction {
    PlaceAction::Stop { alloc: id(alloc), reason }
}

#[test]
fn a_new_job_gets_every_place_filled() {
    let job = job(&[("a", 2), ("b", 1)]);
    let expected = [new("a", 0, None, false), new("a", 1, None, false), new("b", 0, None, false)];
    assert_eq!(actions(&wanted(&job, 0), &job, &[]), expected);
}

#[test]
fn a_lower_count_stops_the_highest_indexes_first() {
    let (old, new) = (job(&[("a", 4)]), job(&[("a", 2)]));
    let allocs: Vec<_> = (0..4).map(|n| Alloc::running(u128::from(n), "a", n, 0)).collect();
    assert_eq!(
        actions(&wanted(&new, 1), &old, &allocs),
        [
            stop(3, reason::NOT_NEEDED),
            stop(2, reason::NOT_NEEDED),
            PlaceAction::Update(id(0)),
            PlaceAction::Update(id(1)),
        ]
    );
}

#[test]
fn a_destructive_change_stops_the_old_one_and_places_one_that_waits_for_it() {
    let (old, mut changed) = (job(&[("a", 1)]), job(&[("a", 1)]));
    changed.groups[0].tasks[0].env.insert("A".into(), "1".into());
    let allocs = [Alloc::running(1, "a", 0, 0)];
    let expected = [stop(1, reason::REPLACED), new("a", 0, Some(1), true)];
    assert_eq!(actions(&wanted(&changed, 1), &old, &allocs), expected);
}

#[test]
fn completed_batch_work_of_the_same_version_is_not_run_again_and_that_of_an_older_one_is() {
    let mut job = job(&[("a", 1)]);
    job.kind = JobKind::Batch;
    let status = ClientStatus::Complete;
    let allocs = [Alloc { status, ..Alloc::running(1, "a", 0, 3) }];
    assert_eq!(actions(&wanted(&job, 3), &job, &allocs), [PlaceAction::Ignore(id(1))]);
    let again = [new("a", 0, Some(1), false), PlaceAction::Ignore(id(1))];
    assert_eq!(actions(&wanted(&job, 4), &job, &allocs), again);
}

/// These places of group `a` are over, of this version of the job.
fn ended(job: &Job, version: u64, indexes: &[u32]) -> EndedPlaceIndex {
    let record = JobRecord {
        job: std::sync::Arc::new(job.clone()),
        version,
        submitted_at: Timestamp::default(),
        create_index: 10,
        modify_index: 10,
        job_modify_index: 10,
        stopped: false,
        origin: JobOrigin::Api,
        stable: false,
    };
    let place = |alloc| EndedPlace {
        alloc: id(alloc),
        status: ClientStatus::Failed,
        restarts: 2,
        ended_at: Timestamp::default(),
    };
    let mut ended = EndedPlaceIndex::default();
    ended.enter(&record, &name("a"), indexes.iter().map(|i| (*i, place(u128::from(*i)))));
    ended
}

#[test]
fn a_place_whose_allocation_was_collected_is_not_filled_again() {
    let job = job(&[("a", 3)]);
    let ended = ended(&job, 4, &[0, 2]);
    let same = WantedJob { ended: Some(&ended), ..wanted(&job, 4) };
    assert_eq!(actions(&same, &job, &[]), [new("a", 1, None, false)]);
    let running = [Alloc::running(1, "a", 1, 4)];
    assert_eq!(actions(&same, &job, &running), [PlaceAction::Ignore(id(1))]);
    // One that is stopped is replaced, and it alone.
    let stopping = [Alloc { stopping: true, ..Alloc::running(1, "a", 1, 4) }];
    let again = [new("a", 1, Some(1), false), PlaceAction::Ignore(id(1))];
    assert_eq!(actions(&same, &job, &stopping), again);
}

#[test]
fn one_of_an_older_version_that_outlives_its_successor_is_no_reason_to_place_again() {
    let job = job(&[("a", 1)]);
    let ended = ended(&job, 4, &[0]);
    let wanted = WantedJob { ended: Some(&ended), ..wanted(&job, 4) };
    let older = Alloc { status: ClientStatus::Complete, ..Alloc::running(1, "a", 0, 3) };
    assert_eq!(actions(&wanted, &job, &[older]), [PlaceAction::Ignore(id(1))]);
    let stopping = Alloc { stopping: true, ..Alloc::running(1, "a", 0, 3) };
    assert_eq!(actions(&wanted, &job, &[stopping]), [PlaceAction::Ignore(id(1))]);
}

#[test]
fn a_successor_that_was_taken_back_uses_up_its_attempt_and_a_place_that_was_emptied_has_all() {
    let mut job = job(&[("web", 1)]);
    job.groups[0].reschedule = ReschedulePolicy {
        attempts: 2,
        interval: Duration::from_secs(600),
        ..ReschedulePolicy::NEVER
    };
    let failed =
        Alloc { stopping: true, status: ClientStatus::Failed, ..Alloc::running(1, "web", 0, 0) };
    let attempts = |followed| {
        let existing = ExistingAlloc { followed, ..failed.existing(&job) };
        let actions = reconcile(&wanted(&job, 0), &[existing]).actions;
        let placed = actions.into_iter().find_map(|action| match action {
            PlaceAction::Place { previous, how, .. } => Some((previous, how.reschedules)),
            _ => None,
        });
        let (previous, events) = placed.unwrap();
        assert_eq!(previous, Some(id(1)));
        events.into_iter().map(|event| event.previous).collect::<Vec<_>>()
    };
    assert_eq!(attempts(true), [id(1)]);
    assert_eq!(attempts(false), []);
}

#[test]
fn a_canary_that_failed_has_its_attempts_on_record_though_its_successor_never_came_to_be() {
    let mut job = job(&[("a", 1)]);
    job.groups[0].update = Some(UpdatePolicy { canary: 1, ..UpdatePolicy::default() });
    job.groups[0].reschedule = ReschedulePolicy { unlimited: true, ..ReschedulePolicy::NEVER };
    let group = DeployedGroup { desired_canaries: 1, ..DeployedGroup::default() };
    let deployment = Deployment {
        id: "d".into(),
        version: 1,
        job_create_index: 10,
        job_modify_index: 10,
        phase: DeploymentPhase::Running,
        description: String::new(),
        groups: BTreeMap::from([(name("a"), group)]),
        create_index: 0,
        modify_index: 0,
    };
    let wanted = WantedJob { deployment: Some(&deployment), ..wanted(&job, 1) };
    let mut old = job.clone();
    old.groups[0].tasks[0].env.insert("A".into(), "1".into());
    let running = Alloc::running(1, "a", 0, 0);
    let failed =
        Alloc { stopping: true, status: ClientStatus::Failed, ..Alloc::running(2, "a", 0, 1) };
    // Somebody stopped it, or a successor was to follow it.
    for (followed, expected) in [(false, None), (true, Some(id(2)))] {
        let canary = failed.existing(&job);
        let canary = ExistingAlloc { followed, canary: true, deployed: true, ..canary };
        let actions = reconcile(&wanted, &[running.existing(&old), canary]).actions;
        let placed = actions.into_iter().filter_map(|action| match action {
            PlaceAction::Place { previous, how, .. } => Some((previous, how)),
            _ => None,
        });
        let placed: Vec<_> = placed.collect();
        let [(previous, how)] = &placed[..] else { panic!("{placed:?}") };
        assert!(how.canary);
        assert_eq!(*previous, expected);
        let before: Vec<_> = how.reschedules.iter().map(|event| event.previous).collect();
        assert_eq!(before, Vec::from_iter(expected));
    }
}

#[test]
fn an_allocation_told_to_stop_is_replaced_and_one_that_failed_is_not() {
    let job = job(&[("a", 2)]);
    let stopping = Alloc { stopping: true, ..Alloc::running(1, "a", 0, 0) };
    let failed = Alloc { status: ClientStatus::Failed, ..Alloc::running(2, "a", 1, 0) };
    let expected =
        [new("a", 0, Some(1), false), PlaceAction::Ignore(id(1)), PlaceAction::Ignore(id(2))];
    assert_eq!(actions(&wanted(&job, 0), &job, &[stopping, failed]), expected);
}

#[test]
fn a_place_is_filled_after_its_newest_allocation_also_when_an_older_one_only_ended() {
    let job = job(&[("a", 1)]);
    // The first failed; the job was changed, and the second is on its way out.
    let failed = Alloc { status: ClientStatus::Failed, ..Alloc::running(1, "a", 0, 0) };
    let stopping = Alloc { stopping: true, ..Alloc::running(2, "a", 0, 1) };
    let expected =
        [new("a", 0, Some(2), false), PlaceAction::Ignore(id(2)), PlaceAction::Ignore(id(1))];
    let mut found = actions(&wanted(&job, 1), &job, &[failed, stopping]);
    found.sort_by_key(|action| *action == PlaceAction::Ignore(id(1)));
    assert_eq!(found, expected);
}

#[test]
fn a_job_of_the_name_of_a_purged_one_does_not_take_its_allocations_for_its_own() {
    let job = job(&[("a", 1)]);
    let status = ClientStatus::Complete;
    let allocs = [Alloc { status, ..Alloc::running(1, "a", 0, 0) }];
    let later = WantedJob { create_index: 100, ..wanted(&job, 0) };
    let expected = [new("a", 0, Some(1), false), PlaceAction::Ignore(id(1))];
    assert_eq!(actions(&later, &job, &allocs), expected);
}

#[test]
fn a_stopped_job_stops_what_runs_and_leaves_what_ended() {
    let job = job(&[("a", 2)]);
    let ended = Alloc { status: ClientStatus::Complete, ..Alloc::running(2, "a", 1, 0) };
    let allocs = [Alloc::running(1, "a", 0, 0), ended];
    let stopped = WantedJob { stopped: true, ..wanted(&job, 0) };
    let expected = [stop(1, reason::JOB_STOPPED), PlaceAction::Ignore(id(2))];
    assert_eq!(actions(&stopped, &job, &allocs), expected);
}

type Change = fn(&mut Job);

fn group_of(job: &mut Job) -> &mut TaskGroup {
    &mut job.groups[0]
}

fn task_of(job: &mut Job) -> &mut Task {
    &mut job.groups[0].tasks[0]
}

fn rule() -> Constraint {
    Constraint { left: "a".into(), operator: Operator::Equal, right: "a".into() }
}

#[test]
fn each_field_is_on_the_side_the_table_says() {
    let in_place: &[(&str, Change)] = &[
        ("priority", |j| j.priority = 1),
        ("datacenters", |j| j.datacenters.clear()),
        ("job constraints", |j| j.constraints.push(rule())),
        ("all_at_once", |j| j.all_at_once = true),
        ("job placement", |j| j.placement.affinities.push(Affinity { rule: rule(), weight: 1 })),
        ("group placement", |j| {
            let affinity = Affinity { rule: rule(), weight: 1 };
            group_of(j).placement.affinities.push(affinity);
        }),
        ("affinities", |j| task_of(j).affinities.push(Affinity { rule: rule(), weight: 1 })),
        ("scaling", |j| {
            let policy = ostler_model::json::JsonObject::default();
            let scaling = ScalingPolicy { enabled: true, min: 0, max: 9, policy };
            group_of(j).scaling = Some(scaling);
        }),
        ("count", |j| group_of(j).count = 7),
        ("group constraints", |j| group_of(j).constraints.push(rule())),
        ("group shutdown_delay", |j| group_of(j).shutdown_delay = Some(Duration::from_secs(1))),
        ("health", |j| group_of(j).health = Some(HealthPolicy::default())),
        ("services", |j| {
            let service = Service { name: "web".into(), ..Service::default() };
            group_of(j).services.push(service);
        }),
        ("max_run_duration", |j| group_of(j).max_run_duration = Some(Duration::from_secs(1))),
        ("stop_after_disconnect", |j| {
            group_of(j).stop_after_disconnect = Some(Duration::from_secs(1));
        }),
        ("migrate_parallel", |j| group_of(j).migrate_parallel = 9),
        ("restart", |j| task_of(j).restart.attempts = 9),
        ("kill_timeout", |j| task_of(j).kill_timeout = Duration::from_secs(99)),
        ("kill_signal", |j| task_of(j).kill_signal = Some("SIGINT".into())),
        ("shutdown_delay", |j| task_of(j).shutdown_delay = Some(Duration::from_secs(1))),
        ("leader", |j| task_of(j).leader = true),
        ("log sizes", |j| task_of(j).logs.max_files = 3),
        ("task constraints", |j| task_of(j).constraints.push(rule())),
        ("where meta stands", |j| {
            j.meta.clear();
            task_of(j).meta.insert("k".into(), "v".into());
        }),
    ];
    let destructive: &[(&str, Change)] = &[
        ("templates", |j| {
            task_of(j).templates.push(TaskTemplate {
                source: TemplateSource::Data("x".into()),
                destination: "local/x".into(),
                change: ChangeMode::Noop,
                splay: Duration::ZERO,
                mode: 0o644,
                uid: None,
                gid: None,
                env: false,
                left_delimiter: "{{".into(),
                right_delimiter: "}}".into(),
                error_on_missing_key: false,
                wait: None,
            });
        }),
        ("kind", |j| j.kind = JobKind::Batch),
        ("name", |j| j.name = "other".into()),
        ("job meta", |j| drop(j.meta.insert("k".into(), "w".into()))),
        ("group meta", |j| drop(group_of(j).meta.insert("k".into(), "w".into()))),
        ("task meta", |j| drop(task_of(j).meta.insert("k".into(), "w".into()))),
        ("network", |j| {
            let port = PortSpec { label: "http".into(), fixed: None, to: None, host_network: None };
            group_of(j).network = Some(NetworkSpec { ports: vec![port], ..NetworkSpec::default() });
        }),
        ("ephemeral_disk", |j| group_of(j).ephemeral_disk.sticky = true),
        ("driver", |j| task_of(j).driver = ostler_model::ids::PluginName::new("other").unwrap()),
        ("user", |j| task_of(j).user = Some("nobody".into())),
        ("config", |j| {
            let config = serde_json::json!({ "command": "x" });
            task_of(j).config = config.as_object().cloned().unwrap().into();
        }),
        ("env", |j| drop(task_of(j).env.insert("A".into(), "1".into()))),
        ("cpu", |j| task_of(j).resources.cpu_mhz += 1),
        ("cores", |j| {
            let numa = NumaAffinity::None;
            task_of(j).resources.cores = Some(CoreRequest { count: 1, numa });
        }),
        ("memory", |j| task_of(j).resources.memory_mb += 1),
        ("devices", |j| {
            let request = DeviceRequest {
                name: "gpu".into(),
                count: 1,
                constraints: Vec::new(),
                affinities: Vec::new(),
            };
            task_of(j).resources.devices.push(request);
        }),
        ("lifecycle", |j| {
            let lifecycle = Lifecycle { hook: LifecycleHook::Prestart, sidecar: true };
            task_of(j).lifecycle = Some(lifecycle);
        }),
        ("logs.disabled", |j| task_of(j).logs.disabled = true),
        ("one task more", |j| group_of(j).tasks.push(fixtures::task("second").unwrap().into())),
        ("a task's name", |j| task_of(j).name = TaskName::new("other").unwrap()),
    ];
    let mut before = job(&[("a", 1)]);
    before.meta.insert("k".into(), "v".into());
    for (changes, expected) in [(in_place, false), (destructive, true)] {
        for (what, change) in changes {
            let mut after = before.clone();
            change(&mut after);
            assert_ne!(before, after, "{what} changes the job");
            assert_eq!(is_destructive(&before, &after, &name("a")), expected, "{what}");
            let decides = job_essence(&before) != job_essence(&after);
            assert_eq!(decides, expected, "{what}: the same is said of the whole job");
        }
    }
}

// ----- against a reference: every place decided by itself, by a table -----

fn versions() -> (Job, Job, Job) {
    let first = job(&[("a", 3), ("b", 2)]);
    let mut rules = job(&[("a", 2), ("b", 2)]);
    rules.groups[1].tasks[0].restart.attempts = 5;
    let mut other = job(&[("a", 2), ("c", 1)]);
    other.groups[0].tasks[0].env.insert("A".into(), "1".into());
    (first, rules, other)
}

fn alloc_of(n: u128) -> impl Strategy<Value = Alloc> {
    let status = prop::sample::select(vec![
        ClientStatus::Pending,
        ClientStatus::Running,
        ClientStatus::Complete,
        ClientStatus::Failed,
    ]);
    let group = prop::sample::select(vec!["a", "b", "c"]);
    (group, 0..4_u32, 0..3_u64, any::<bool>(), status).prop_map(
        move |(group, index, version, stopping, status)| Alloc {
            id: n,
            group: name(group),
            index,
            version,
            stopping,
            status,
        },
    )
}

fn allocs() -> impl Strategy<Value = Vec<Alloc>> {
    (0..8_usize).prop_flat_map(|count| {
        (0..count).map(|n| alloc_of(u128::try_from(n).unwrap())).collect::<Vec<_>>()
    })
}

/// Number of allocations to be made, updated and stopped of one place.
fn reference(
    wanted: &WantedJob<'_>,
    jobs: &[Job; 3],
    place: (&str, u32),
    allocs: &[Alloc],
) -> [usize; 3] {
    let group = name(place.0);
    let here = |alloc: &&Alloc| alloc.group == group && alloc.index == place.1;
    let running: Vec<&Alloc> = allocs.iter().filter(here).filter(|alloc| !alloc.stopping).collect();
    let live = running.iter().filter(|alloc| !alloc.status.is_terminal()).count();
    let exists = wanted.job.group(&group).is_some_and(|group| place.1 < group.count);
    if wanted.stopped || !exists {
        return [0, 0, live];
    }
    // One of a later version counts where there is no other. Of the others the later version counts first.
    let order = |alloc: &&&Alloc| (alloc.version, alloc.id);
    let taken_back = |alloc: &&&Alloc| alloc.version > wanted.version;
    let kept = running.iter().filter(|alloc| !taken_back(alloc)).max_by_key(order);
    let Some(newest) = kept.or_else(|| running.iter().max_by_key(|alloc| alloc.id)) else {
        return [1, 0, 0];
    };
    let newest_lives = usize::from(!newest.status.is_terminal());
    let others = live - newest_lives;
    if newest.version == wanted.version {
        return [0, 0, others];
    }
    if newest_lives == 0 {
        return [1, 0, others];
    }
    let old = &jobs[usize::try_from(newest.version).unwrap()];
    if is_destructive(old, wanted.job, &group) { [1, 0, others + 1] } else { [0, 1, others] }
}

proptest! {
    #[test]
    fn it_decides_as_the_reference_and_has_nothing_to_do_afterwards(
        mut allocs in allocs(), version in 0..3_u64, stopped in any::<bool>(),
    ) {
        let (first, rules, other) = versions();
        let jobs = [first, rules, other];
        let of = |version: u64| &jobs[usize::try_from(version).unwrap()];
        let wanted = WantedJob { stopped, ..wanted(of(version), version) };
        let existing: Vec<_> = allocs.iter().map(|a| a.existing(of(a.version))).collect();
        let actions = reconcile(&wanted, &existing).actions;

        let mut seen = std::collections::BTreeSet::new();
        let mut counts: BTreeMap<(String, u32), [usize; 3]> = BTreeMap::new();
        for action in &actions {
            let (at, kind) = match action {
                PlaceAction::Place { group, index, previous, .. } => {
                    let there = allocs.iter().filter(|a| a.group == *group && a.index == *index);
                    let newest = there.max_by_key(|alloc| (alloc.version.min(version), alloc.id));
                    let newest = newest.map(|alloc| id(alloc.id));
                    prop_assert_eq!(*previous, newest, "it comes after all that had its place");
                    ((group.to_string(), *index), 0)
                }
                PlaceAction::Update(alloc) | PlaceAction::Stop { alloc, .. } | PlaceAction::Ignore(alloc) => {
                    prop_assert!(seen.insert(*alloc), "{alloc} twice");
                    let alloc = allocs.iter().find(|a| id(a.id) == *alloc).unwrap();
                    let kind = match action {
                        PlaceAction::Update(_) => 1,
                        PlaceAction::Stop { .. } => 2,
                        _ => continue,
                    };
                    ((alloc.group.to_string(), alloc.index), kind)
                }
            };
            counts.entry(at).or_default()[kind] += 1;
        }
        prop_assert_eq!(seen.len(), allocs.len(), "every allocation has an action");
        for group in ["a", "b", "c"] {
            for index in 0..4 {
                let found = counts.get(&(group.to_owned(), index)).copied().unwrap_or_default();
                let expected = reference(&wanted, &jobs, (group, index), &allocs);
                prop_assert_eq!(found, expected, "{}[{}]", group, index);
            }
        }

        for action in actions {
            match action {
                PlaceAction::Place { group, index, .. } => {
                    let next = u128::try_from(allocs.len()).unwrap();
                    allocs.push(Alloc::running(next, group.as_str(), index, version));
                }
                PlaceAction::Update(alloc) => {
                    allocs.iter_mut().find(|a| id(a.id) == alloc).unwrap().version = version;
                }
                PlaceAction::Stop { alloc, .. } => {
                    allocs.iter_mut().find(|a| id(a.id) == alloc).unwrap().stopping = true;
                }
                PlaceAction::Ignore(_) => {}
            }
        }
        let existing: Vec<_> = allocs.iter().map(|a| a.existing(of(a.version))).collect();
        let again = reconcile(&wanted, &existing).actions;
        prop_assert!(again.iter().all(|a| matches!(a, PlaceAction::Ignore(_))), "{again:?}");
    }
}
