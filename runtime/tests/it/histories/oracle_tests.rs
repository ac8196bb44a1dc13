use std::time::Duration;

use super::super::model::JobState;
use super::*;

fn shape(life: Life) -> Shape {
    Shape { id: "j".into(), batch: true, wasm: false, sticky: true, attempts: 1, life }
}

fn ends() -> Shape {
    shape(Life::Ends { after: Duration::ZERO })
}

fn register(generation: u32, number: u64, count: u32) -> Mark {
    let spec = Spec { count, generation, number };
    Mark::Register { job: "j".into(), spec, anew: true }
}

#[track_caller]
fn wrong(text: &str, marks: &[Mark], shape: &Shape) -> Vec<String> {
    Evidence::read(text, marks).unwrap().violations(&[shape])
}

#[test]
fn one_run_that_was_asked_for_is_right_and_a_second_one_is_not() {
    let marks = [register(1, 1, 2)];
    let once = "begin 0\ndone 0\nstart a j 0 1 7 -\nend a j 0 1 7 0\n";
    assert_eq!(wrong(once, &marks, &ends()), [""; 0]);
    let again = format!("{once}start b j 0 1 8 -\n");
    assert!(wrong(&again, &marks, &ends())[0].contains("explains a new allocation"));
    let same = format!("{once}start a j 0 1 8 a\n");
    assert!(wrong(&same, &marks, &ends())[0].contains("after it ended well"));
    let nobody = "start a j 0 1 7 -\n";
    assert_eq!(wrong(nobody, &[], &ends()).len(), 1);
    assert_eq!(wrong("begin 0\nstart a j 2 1 7 -\n", &marks, &ends()).len(), 1, "no such place");
}

#[test]
fn a_change_of_rules_runs_again_what_was_over_and_not_what_was_there() {
    let marks = [register(1, 1, 1), register(1, 2, 1)];
    let over =
        "begin 0\ndone 0\nstart a j 0 1 7 -\nend a j 0 1 7 0\nbegin 1\ndone 1\nstart b j 0 1 8 a\n";
    assert_eq!(wrong(over, &marks, &ends()), [""; 0]);
    let there =
        "begin 0\ndone 0\nstart a j 0 1 7 -\nbegin 1\ndone 1\nend a j 0 1 7 0\nstart b j 0 1 8 a\n";
    assert_eq!(wrong(there, &marks, &ends()).len(), 1);
    let unheard = there.replace("done 1\n", "");
    assert_eq!(wrong(&unheard, &marks, &ends()), [""; 0]);
}

#[test]
fn starts_are_counted_over_the_life_of_an_allocation() {
    let fails = shape(Life::Fails { code: 3 });
    let marks = [register(1, 1, 1), Mark::RestartAlloc { alloc: "a".into() }];
    let run = |pid: u32, seen: &str| format!("start a j 0 1 {pid} {seen}\nend a j 0 1 {pid} 3\n");
    let text = format!("begin 0\ndone 0\n{}{}", run(1, "-"), run(2, "a"));
    assert_eq!(wrong(&text, &marks, &fails), [""; 0]);
    let more = format!("{text}{}", run(3, "a"));
    assert!(wrong(&more, &marks, &fails)[0].contains("start 3"));
    let asked = format!("{text}begin 1\ndone 1\n{}", run(3, "a"));
    assert_eq!(wrong(&asked, &marks, &fails), [""; 0]);
}

#[test]
fn two_at_a_time_and_old_after_new_are_wrong() {
    let marks = [register(1, 1, 1), register(2, 2, 1)];
    let text = "begin 0\ndone 0\nbegin 1\ndone 1\nstart b j 0 2 7 -\nstart a j 0 1 8 b\n";
    assert!(wrong(text, &marks, &ends())[0].contains("ran here before"));
    assert!(wrong("double a j 0 1 8\n", &marks, &ends())[0].contains("another one lives"));
}

#[test]
fn sticky_data_goes_along() {
    let marks = [register(1, 1, 1), register(2, 2, 1), Mark::Collect];
    let runs = shape(Life::Runs { stop: Duration::ZERO });
    let text = |seen: &str| {
        format!("begin 0\ndone 0\nstart a j 0 1 7 -\nbegin 1\ndone 1\nstart b j 0 2 8 {seen}\n")
    };
    assert_eq!(wrong(&text("a"), &marks, &runs), [""; 0]);
    assert!(wrong(&text("-"), &marks, &runs)[0].contains("data"));
    let collected = text("-").replace("done 1\n", "done 1\nbegin 2\ndone 2\n");
    assert_eq!(wrong(&collected, &marks, &runs), [""; 0]);
}

#[test]
fn a_place_is_settled_when_it_is_as_registered() {
    let spec = Spec { count: 1, generation: 1, number: 1 };
    let mut job = JobModel::new(shape(Life::Runs { stop: Duration::ZERO }));
    job.asked(|_| JobState::Wanted(spec), true);
    let text = "begin 0\ndone 0\nstart a j 0 1 7 -\n";
    let evidence = Evidence::read(text, &[register(1, 1, 1)]).unwrap();
    let seen = Seen {
        id: "a".into(),
        job: "j".into(),
        index: 0,
        version: 0,
        desired_run: true,
        client: "running".into(),
    };
    let mut observed = Observed {
        versions: BTreeMap::from([("j".to_owned(), 0)]),
        allocs: vec![seen],
        alive: evidence.runs(),
        evidence,
    };
    assert_eq!(observed.unsettled(&[&job]), [""; 0]);
    let alive = std::mem::take(&mut observed.alive);
    assert_eq!(observed.unsettled(&[&job]).len(), 1, "nothing lives");
    observed.alive = alive;
    job.asked(|_| JobState::Stopped(spec), true);
    assert_eq!(observed.unsettled(&[&job]).len(), 2, "it lives, and is not over");
    observed.alive.clear();
    observed.allocs[0].client = "complete".into();
    assert_eq!(observed.unsettled(&[&job]), [""; 0]);
}

#[test]
fn what_was_stopped_is_followed_by_what_was_registered_after_it_whenever_it_says_its_start() {
    let marks =
        [register(1, 1, 1), Mark::Stop { job: "j".into(), purge: false }, register(1, 2, 1)];
    let asked = "begin 0\ndone 0\nbegin 1\ndone 1\nbegin 2\ndone 2\n";
    let late = format!("{asked}start a j 0 1 7 -\nend a j 0 1 7 0\nstart b j 0 1 8 a\n");
    let runs = Shape { sticky: false, ..shape(Life::Runs { stop: Duration::ZERO }) };
    for shape in [&runs, &ends()] {
        assert_eq!(wrong(&late, &marks, shape), [""; 0]);
        let third = format!("{late}start c j 0 1 9 b\n");
        assert_eq!(wrong(&third, &marks, shape).len(), 1);
    }
}

#[test]
fn a_run_that_was_asked_to_restart_may_be_on_its_way_out_until_the_next_one_starts() {
    let marks = [Mark::RestartAlloc { alloc: "a".into() }];
    let run = |pid: u32| Run { alloc: "a".into(), job: "j".into(), index: 0, generation: 1, pid };
    let before = "start a j 0 1 7 -\n";
    assert!(!Evidence::read(before, &marks).unwrap().restarted(&run(7)));
    let asked = format!("{before}begin 0\ndone 0\n");
    assert!(Evidence::read(&asked, &marks).unwrap().restarted(&run(7)));
    let again = format!("{asked}end a j 0 1 7 0\nstart a j 0 1 8 -\n");
    assert!(!Evidence::read(&again, &marks).unwrap().restarted(&run(8)));
}
