//! Jobs of many groups: each group, place and attempt is looked at a few times, whatever is planned or registered.
//! What is looked at is counted.

use super::*;
use crate::admission::looks;
use crate::views::{JobOptions, JobPlan};
use ostler_model::ids::GroupName;
use ostler_model::job::{Constraint, Operator};

const GROUPS: u32 = 900;

/// Looks at each place that a change or a plan may take.
const MOST: usize = 12;

fn large(count: u32) -> Job {
    let mut job = job("large", count);
    let group = job.groups.remove(0);
    let named = |n| TaskGroup { name: GroupName::new(format!("g{n}")).unwrap(), ..group.clone() };
    job.groups = (0..GROUPS).map(named).collect();
    job
}

/// The same where no group may be on this node.
fn elsewhere(job: &Job) -> Job {
    let mut job = job.clone();
    let (left, right) = ("${meta.rack}".into(), "nowhere".into());
    let rule = Constraint { left, operator: Operator::Equal, right };
    job.groups.iter_mut().for_each(|group| group.constraints.push(rule.clone()));
    job
}

fn with_room_for(allocations: u64) -> Play {
    let mut play = Play::new();
    let (cpu_mhz, memory_mb) = (allocations * 100, allocations * 100);
    play.view.resources = NodeTotals { cpu_mhz, memory_mb };
    play
}

/// A plan, and how much was looked at for it.
fn planned(play: &Play, job: &Job) -> (JobPlan, usize) {
    let world = World {
        now: Timestamp::from_nanos(5),
        uptime: play.uptime,
        node: &play.view,
        rng: &play.rng,
        port_in_use: &|_| false,
    };
    let tables = play.machine.tables().copy_for_job(&job.id);
    looks::take();
    (tables.plan(&world, job, JobOptions::default()), looks::take())
}

#[test]
fn a_plan_of_hundreds_of_groups_that_do_not_fit_looks_at_each_place_a_few_times() {
    let count = 50;
    let places = (GROUPS * count) as usize;
    let (plan, looked) = planned(&with_room_for(50_000), &elsewhere(&large(count)));
    assert_eq!(plan.waiting.len(), places);
    assert!(plan.groups.values().all(|group| group.waiting == count && group.place == 0));
    assert!(looked >= places && looked <= MOST * places, "{looked} looks at {places} places");
}

#[test]
fn a_plan_of_which_half_fits_looks_at_each_place_a_few_times() {
    let count = 50;
    let places = (GROUPS * count) as usize;
    let (plan, looked) = planned(&with_room_for(22_500), &large(count));
    assert_eq!(plan.waiting.len(), places / 2);
    assert!(looked >= places && looked <= MOST * places, "{looked} looks at {places} places");
}

#[test]
fn what_a_large_job_would_replace_in_vain_is_looked_at_a_few_times_and_runs_on() {
    let count = 5;
    let places = (GROUPS * count) as usize;
    let mut play = with_room_for(50_000);
    let first = large(count);
    looks::take();
    let request = play.register(&first);
    assert_eq!(play.changed(request).unwrap().placed.len(), places);
    let looked = looks::take();
    assert!(looked >= places && looked <= MOST * places, "{looked} looks at {places} places");

    let mut second = elsewhere(&first);
    for group in &mut second.groups {
        group.tasks[0].env.insert("A".into(), "1".into());
    }
    let before = play.machine.tables().admission().clone();
    let (plan, looked) = planned(&play, &second);
    assert_eq!(plan.waiting.len(), places);
    assert!(plan.groups.values().all(|group| (group.waiting, group.destructive) == (count, 0)));
    assert!(looked >= places && looked <= MOST * places, "{looked} looks at {places} places");
    let request = play.register(&second);
    assert_eq!(play.changed(request).unwrap().copies.len(), 0);
    assert_eq!(play.blocked("large"), places);
    assert_eq!(*play.machine.tables().admission(), before, "what runs has what it had");
    assert_eq!(play.live().len(), places);
}

#[test]
fn a_plan_is_of_the_moment_when_what_it_needs_was_copied() {
    let mut play = with_room_for(4);
    let small = job("small", 2);
    let tables = play.machine.tables().copy_for_job(&small.id);
    let request = play.register(&job("other", 3));
    assert_eq!(play.changed(request).unwrap().placed.len(), 3);
    let (later, _) = planned(&play, &small);
    assert_eq!(later.waiting.len(), 1);
    let world = World {
        now: Timestamp::from_nanos(5),
        uptime: play.uptime,
        node: &play.view,
        rng: &play.rng,
        port_in_use: &|_| false,
    };
    let then = tables.plan(&world, &small, JobOptions::default());
    assert_eq!((then.waiting.len(), then.groups.len()), (0, 1));
}

#[test]
fn a_plan_with_what_is_known_of_its_job_alone_is_that_of_all_that_is_known() {
    let mut play = with_room_for(5);
    let small = job("small", 2);
    for registered in [&job("other", 2), &small] {
        let request = play.register(registered);
        play.changed(request).unwrap();
    }
    let next = changed(&small, "2");
    let (of_job, _) = planned(&play, &next);
    let world = World {
        now: Timestamp::from_nanos(5),
        uptime: play.uptime,
        node: &play.view,
        rng: &play.rng,
        port_in_use: &|_| false,
    };
    let of_all = play.machine.tables().plan(&world, &next, JobOptions::default());
    assert_eq!(of_job, of_all);
    assert_eq!(of_job.groups.values().map(|group| group.destructive).sum::<u32>(), 2);
}
