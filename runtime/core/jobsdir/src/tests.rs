#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use proptest::prelude::{Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

use super::watch::InotifyWatch;
use super::*;

const JOB: &str = r#"group "g" {
  task "t" {
    driver = "exec"
    config { command = "true" }
  }
}"#;

fn text(id: &str) -> String {
    format!("job \"{id}\" {{\n{JOB}\n}}\n")
}

fn job(id: &str) -> Arc<Job> {
    Arc::new(ostler_jobspec::parse(text(id).as_bytes(), Path::new(""), None).unwrap())
}

fn id(text: &str) -> JobId {
    JobId::new(text).unwrap()
}

fn scan_of(files: &[(&str, Result<&str, &str>)]) -> Scan {
    let files = files
        .iter()
        .map(|(path, content)| (PathBuf::from(path), content.map(job).map_err(str::to_owned)));
    Scan { files: files.collect(), incomplete: false }
}

fn running(jobs: &[(&str, &str)]) -> BTreeMap<JobId, PathBuf> {
    jobs.iter().map(|(job, path)| (id(job), PathBuf::from(path))).collect()
}

fn register(path: &str, of: &str) -> Action {
    Action::Register { path: path.into(), job: job(of) }
}

fn stop(job: &str, path: &str) -> Action {
    Action::Stop { job: id(job), path: path.into() }
}

#[test]
fn a_removed_file_stops_its_job_and_a_bad_one_leaves_it_running() {
    let now = running(&[("a", "a.hcl"), ("b", "b.hcl")]);
    let actions = step(&now, &scan_of(&[("a.hcl", Err("no job in it"))]));
    let problem = Action::Problem { path: "a.hcl".into(), text: "no job in it".into() };
    assert_eq!(actions, [stop("b", "b.hcl"), problem]);
}

#[test]
fn another_id_in_the_same_file_stops_the_old_job_and_starts_the_new_one() {
    let actions = step(&running(&[("a", "x.hcl")]), &scan_of(&[("x.hcl", Ok("b"))]));
    assert_eq!(actions, [stop("a", "x.hcl"), register("x.hcl", "b")]);
}

#[test]
fn of_two_files_with_one_job_the_one_that_runs_it_is_used_and_the_other_told() {
    let files = scan_of(&[("a.hcl", Ok("j")), ("b.hcl", Ok("j"))]);
    for (now, used, other) in
        [(running(&[]), "a.hcl", "b.hcl"), (running(&[("j", "b.hcl")]), "b.hcl", "a.hcl")]
    {
        let actions = step(&now, &files);
        assert!(actions.contains(&register(used, "j")), "{actions:?}");
        let told = actions.iter().any(|action| {
            matches!(action, Action::Problem { path, text }
                if path == Path::new(other) && text.contains(used))
        });
        assert!(told && actions.len() == 2, "{actions:?}");
    }
}

#[test]
fn a_renamed_file_keeps_its_job() {
    let actions = step(&running(&[("j", "old.hcl")]), &scan_of(&[("new.hcl", Ok("j"))]));
    assert_eq!(actions, [register("new.hcl", "j")]);
}

#[test]
fn what_was_not_looked_at_is_not_stopped() {
    let mut scan = scan_of(&[]);
    scan.incomplete = true;
    assert_eq!(step(&running(&[("j", "j.hcl")]), &scan), []);
}

const DIR: DirId = DirId { device: 1, inode: 2 };
const OTHER: DirId = DirId { device: 7, inode: 2 };

fn held(left: Duration) -> MissingFiles {
    MissingFiles::Held { left }
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_directory_that_loses_all_its_files_at_once_is_held_and_then_counts_as_emptied() {
    let mut hold = EmptyDirHold::default();
    assert_eq!(hold.step(seconds(0), DIR, true, 3), MissingFiles::Removed);
    assert_eq!(hold.step(seconds(9), DIR, false, 3), held(JOBS_DIR_HOLD));
    let almost = seconds(8) + JOBS_DIR_HOLD;
    assert_eq!(hold.step(almost, DIR, false, 3), held(seconds(1)));
    assert_eq!(hold.step(seconds(9) + JOBS_DIR_HOLD, DIR, false, 3), MissingFiles::Removed);
    let later = seconds(14) + JOBS_DIR_HOLD;
    assert_eq!(hold.step(later, DIR, false, 1), MissingFiles::Removed, "what could not be stopped");
}

#[test]
fn files_that_come_back_in_time_end_the_hold() {
    let mut hold = EmptyDirHold::default();
    let _filled = hold.step(seconds(0), DIR, true, 2);
    let _held = hold.step(seconds(1), DIR, false, 2);
    assert_eq!(hold.step(seconds(200), DIR, true, 2), MissingFiles::Removed);
    assert_eq!(hold.step(seconds(400), DIR, false, 2), held(JOBS_DIR_HOLD), "it begins anew");
}

#[test]
fn the_only_file_counts_as_removed_where_its_directory_is_still_the_same() {
    let filled = |jobs| {
        let mut hold = EmptyDirHold::default();
        let _filled = hold.step(seconds(0), DIR, true, jobs);
        hold
    };
    assert_eq!(filled(1).step(seconds(1), DIR, false, 1), MissingFiles::Removed);
    assert_eq!(filled(1).step(seconds(1), OTHER, false, 1), held(JOBS_DIR_HOLD), "unmounted");
    assert_eq!(
        EmptyDirHold::default().step(seconds(1), DIR, false, 1),
        held(JOBS_DIR_HOLD),
        "not mounted"
    );
    assert_eq!(EmptyDirHold::default().step(seconds(1), DIR, false, 0), MissingFiles::Removed);
}

#[test]
fn a_hold_is_over_only_when_one_directory_was_empty_all_the_time() {
    let mut hold = EmptyDirHold::default();
    let _held = hold.step(seconds(0), DIR, false, 2);
    hold.mark_unreadable();
    assert_eq!(hold.step(JOBS_DIR_HOLD, DIR, false, 2), held(JOBS_DIR_HOLD), "it was not there");
    let twice = JOBS_DIR_HOLD * 2;
    assert_eq!(hold.step(twice, OTHER, false, 2), held(JOBS_DIR_HOLD), "it is another");
    assert_eq!(hold.step(twice + JOBS_DIR_HOLD, OTHER, false, 2), MissingFiles::Removed);
}

fn contents() -> impl Strategy<Value = BTreeMap<PathBuf, Option<&'static str>>> {
    let path = prop::sample::select(vec!["1", "2", "3", "4"]);
    let content = prop::option::of(prop::sample::select(vec!["a", "b", "c"]));
    prop::collection::btree_map(path.prop_map(PathBuf::from), content, 0..4)
}

fn jobs() -> impl Strategy<Value = BTreeMap<JobId, PathBuf>> {
    let job = prop::sample::select(vec!["a", "b", "c"]).prop_map(id);
    let path = prop::sample::select(vec!["1", "2", "3", "4"]).prop_map(PathBuf::from);
    prop::collection::btree_map(job, path, 0..3)
}

proptest! {
    /// The reference: a job runs afterwards when some file gives it, or when its file cannot be
    /// read; every file is either used or told; nothing is left to do.
    #[test]
    fn files_decide_what_runs(
        mut now in jobs(), contents in contents(), incomplete in any::<bool>(),
    ) {
        let files = contents.iter().map(|(path, content)| {
            (path.clone(), content.map(job).ok_or_else(|| "bad".to_owned()))
        });
        let scan = Scan { files: files.collect(), incomplete };
        let expected: Vec<JobId> = ["a", "b", "c"].map(id).into_iter().filter(|job| {
            let given = contents.values().flatten().any(|of| *of == job.as_str());
            let unread = now.get(job).is_some_and(|path| match contents.get(path) {
                Some(content) => content.is_none(),
                None => incomplete,
            });
            given || unread
        }).collect();
        let actions = step(&now, &scan);
        let mut told = Vec::new();
        for action in &actions {
            match action {
                Action::Stop { job, path } => {
                    prop_assert_eq!(now.remove(job), Some(path.clone()));
                }
                Action::Register { path, job } => {
                    told.push(path.clone());
                    now.insert(job.id.clone(), path.clone());
                }
                Action::Problem { path, .. } => told.push(path.clone()),
            }
        }
        prop_assert_eq!(now.keys().cloned().collect::<Vec<_>>(), expected);
        prop_assert_eq!(told, contents.keys().cloned().collect::<Vec<_>>());
        let again = step(&now, &scan);
        prop_assert!(again.iter().all(|action| match action {
            Action::Register { path, job } => now.get(&job.id) == Some(path),
            Action::Problem { .. } => true,
            Action::Stop { .. } => false,
        }), "{:?}", again);
    }
}

#[test]
fn only_regular_files_with_a_known_end_are_job_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["a.hcl", "b.nomad", ".hidden.hcl", "c.txt", "d.hcl~"] {
        std::fs::write(at(name), text("j")).unwrap();
    }
    std::fs::create_dir(at("e.hcl")).unwrap();
    std::os::unix::fs::symlink(at("a.hcl"), at("f.hcl")).unwrap();
    std::os::unix::fs::symlink(at("gone"), at("g.hcl")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe.hcl"), rustix::fs::Mode::RWXU).unwrap();
    let mut known = FileCache::new();
    let (_, scan) = scan::scan(&FilesOnDisk(dir.path().to_owned()), &mut known).unwrap();
    let names: Vec<_> = scan.files.keys().map(|path| path.file_name().unwrap()).collect();
    assert_eq!(names, ["a.hcl", "b.nomad", "f.hcl", "g.hcl"]);
    let nowhere = scan.files[&at("g.hcl")].as_ref().unwrap_err();
    assert!(nowhere.contains("cannot be read"), "its job runs on: {nowhere}");
    assert!(!scan.incomplete);
}

#[test]
fn a_file_is_read_again_only_when_it_changed_and_a_bad_one_says_where() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.hcl");
    std::fs::write(&path, text("one")).unwrap();
    let mut known = FileCache::new();
    let (id, first) = scan::scan(&FilesOnDisk(dir.path().to_owned()), &mut known).unwrap();
    let (same, second) = scan::scan(&FilesOnDisk(dir.path().to_owned()), &mut known).unwrap();
    assert_eq!(id, same);
    let (Ok(before), Ok(same)) = (&first.files[&path], &second.files[&path]) else {
        panic!("a good file")
    };
    assert!(Arc::ptr_eq(before, same), "not read again");
    // As editors do: a new file under the old name.
    std::fs::write(dir.path().join(".new"), "job {").unwrap();
    std::fs::rename(dir.path().join(".new"), &path).unwrap();
    let (_, third) = scan::scan(&FilesOnDisk(dir.path().to_owned()), &mut known).unwrap();
    let problem = third.files[&path].as_ref().unwrap_err();
    assert!(problem.contains("a.hcl:1"), "{problem}");
    // Cut to nothing, and half of it written.
    for cut in [0, text("one").len() / 2] {
        std::fs::write(&path, &text("one")[..cut]).unwrap();
        let (_, scan) = scan::scan(&FilesOnDisk(dir.path().to_owned()), &mut known).unwrap();
        assert!(scan.files[&path].is_err(), "its job runs on: {:?}", scan.files[&path]);
    }
    std::fs::remove_file(&path).unwrap();
    assert!(
        scan::scan(&FilesOnDisk(dir.path().to_owned()), &mut known).unwrap().1.files.is_empty()
    );
    assert!(scan::scan(&FilesOnDisk(path), &mut known).is_err());
}

#[tokio::test]
async fn a_file_that_comes_is_told_by_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let watch = InotifyWatch::new(dir.path()).unwrap();
    std::fs::write(dir.path().join("a.hcl"), "x").unwrap();
    watch.wait_changed().await.unwrap();
    assert!(InotifyWatch::new(&dir.path().join("gone")).is_err());
}
