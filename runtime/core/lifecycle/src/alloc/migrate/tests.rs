#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

/// Ids no other test holds.
fn id() -> AllocId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("aaaaaaaa-0000-4000-8000-{number:012x}").parse().unwrap()
}

fn name(text: &str) -> TaskName {
    TaskName::new(text).unwrap()
}

/// In memory where there is such a place: a sync costs nothing there, and these tests ask for
/// thousands.
fn tempdir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// An old allocation with data of two tasks, and a new one as the hooks make it.
pub(super) struct Scene {
    pub root: tempfile::TempDir,
    pub from: AllocId,
    pub to: AllocId,
}

impl Scene {
    pub fn new() -> Self {
        let scene = Self { root: tempdir(), from: id(), to: id() };
        let old = AllocDir::create(scene.root.path(), scene.from).unwrap();
        AllocDir::create(scene.root.path(), scene.to).unwrap();
        fs::create_dir(old.data().join("db")).unwrap();
        fs::write(old.data().join("db/rows"), "one, two").unwrap();
        symlink("/etc/passwd", old.data().join("link")).unwrap();
        fs::write(old.logs().join("web.stdout.0"), "said").unwrap();
        fs::write(old.tmp().join("scratch"), "t").unwrap();
        for task in ["web", "db"] {
            let dir = old.create_task(&name(task)).unwrap();
            fs::write(dir.local.join("mine"), task).unwrap();
            fs::write(dir.secrets.join("token"), "secret").unwrap();
        }
        scene
    }

    fn go(&self) -> Result<MigratedData, MigrateError> {
        move_data(self.root.path(), self.from, self.to, &self.tasks())
    }

    pub fn tasks(&self) -> Vec<TaskName> {
        vec![name("web"), name("db"), name("added")]
    }

    pub fn old(&self, path: &str) -> PathBuf {
        self.root.path().join(self.from.to_string()).join(path)
    }

    pub fn new_place(&self, path: &str) -> PathBuf {
        self.root.path().join(self.to.to_string()).join(path)
    }

    fn all_items() -> MigratedData {
        MigratedData {
            items: vec![MovedDir::Data, MovedDir::Local(name("db")), MovedDir::Local(name("web"))],
        }
    }

    /// Every file below a directory of either allocation: relative path → content, with the
    /// allocations it is found in.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<(AllocId, String)>> {
        let mut found: BTreeMap<PathBuf, Vec<(AllocId, String)>> = BTreeMap::new();
        for alloc in [self.from, self.to] {
            let top = self.root.path().join(alloc.to_string());
            let mut todo = vec![top.clone()];
            while let Some(dir) = todo.pop() {
                for entry in fs::read_dir(&dir).unwrap().flatten() {
                    let path = entry.path();
                    let kind = entry.file_type().unwrap();
                    let content = if kind.is_dir() {
                        todo.push(path);
                        continue;
                    } else if kind.is_symlink() {
                        fs::read_link(&path).unwrap().display().to_string()
                    } else {
                        fs::read_to_string(&path).unwrap()
                    };
                    let relative = path.strip_prefix(&top).unwrap();
                    if !relative.to_string_lossy().starts_with("data move.json") {
                        found.entry(relative.to_owned()).or_default().push((alloc, content));
                    }
                }
            }
        }
        found
    }

    pub fn assert_all_moved(&self) {
        let place = |path: &str, alloc, content: &str| {
            (PathBuf::from(path), vec![(alloc, content.to_owned())])
        };
        let expected = BTreeMap::from([
            place("alloc/data/db/rows", self.to, "one, two"),
            place("alloc/data/link", self.to, "/etc/passwd"),
            place("web/local/mine", self.to, "web"),
            place("db/local/mine", self.to, "db"),
            place("alloc/logs/web.stdout.0", self.from, "said"),
            place("alloc/tmp/scratch", self.from, "t"),
            place("web/secrets/token", self.from, "secret"),
            place("db/secrets/token", self.from, "secret"),
        ]);
        assert_eq!(self.files(), expected);
    }
}

#[test]
fn data_and_local_directories_are_at_the_new_allocation_and_nowhere_else() {
    let scene = Scene::new();
    assert_eq!(scene.go().unwrap(), Scene::all_items());
    scene.assert_all_moved();
    let new = AllocDir::open(scene.root.path(), scene.to).unwrap();
    let task = new.create_task(&name("web")).unwrap();
    assert_eq!(fs::read_to_string(task.local.join("mine")).unwrap(), "web");
}

#[test]
fn the_previous_allocation_keeps_its_logs_and_secrets() {
    let scene = Scene::new();
    scene.go().unwrap();
    let old = AllocDir::open(scene.root.path(), scene.from).unwrap();
    assert_eq!(old.logs_dir().unwrap().read_to_string("web.stdout.0").unwrap(), "said");
    assert!(scene.old("web/secrets/token").exists());
}

/// How many steps a whole move has.
fn steps() -> usize {
    let scene = Scene::new();
    let mut count = 0;
    move_in_steps(scene.root.path(), scene.from, scene.to, &scene.tasks(), &mut |_| {
        count += 1;
        Ok(())
    })
    .unwrap();
    count
}

/// Run a move that stops before step `stop` as a crash would.
fn stop_before(scene: &Scene, stop: usize) {
    let mut count = 0;
    let stopped =
        move_in_steps(scene.root.path(), scene.from, scene.to, &scene.tasks(), &mut |_| {
            let here = count == stop;
            count += 1;
            if here { Err(MigrateError::Same { alloc: scene.to }) } else { Ok(()) }
        });
    assert!(matches!(stopped, Err(MigrateError::Same { .. })), "{stopped:?}");
}

#[test]
fn a_stop_at_any_step_leaves_everything_at_one_place_and_the_next_call_moves_the_rest() {
    assert!(steps() > 15, "the journal twice and three renames");
    for stop in 0..steps() {
        let scene = Scene::new();
        let before = scene.files();
        stop_before(&scene, stop);
        let between = scene.files();
        assert!(between.keys().eq(before.keys()), "stop {stop}: nothing lost, nothing new");
        assert!(between.values().all(|places| places.len() == 1), "stop {stop}: at one place");
        assert_eq!(scene.go().unwrap(), Scene::all_items(), "stop {stop}");
        scene.assert_all_moved();
    }
}

#[test]
fn two_stops_in_a_row_at_any_steps_lose_nothing() {
    for first in 0..steps() {
        for second in 0..3 {
            let scene = Scene::new();
            stop_before(&scene, first);
            let mut count = 0;
            let again =
                move_in_steps(scene.root.path(), scene.from, scene.to, &scene.tasks(), &mut |_| {
                    count += 1;
                    if count > second {
                        Err(MigrateError::Same { alloc: scene.to })
                    } else {
                        Ok(())
                    }
                });
            drop(again);
            assert_eq!(scene.go().unwrap(), Scene::all_items(), "stops {first}, {second}");
            scene.assert_all_moved();
        }
    }
}

#[test]
fn a_stop_and_a_rebuilt_previous_directory_do_not_confuse_the_next_call() {
    // A restored agent makes the directories of the old allocation again, empty.
    for stop in 0..steps() {
        let scene = Scene::new();
        stop_before(&scene, stop);
        let old = AllocDir::create(scene.root.path(), scene.from).unwrap();
        old.create_task(&name("web")).unwrap();
        assert_eq!(scene.go().unwrap(), Scene::all_items(), "stop {stop}");
        scene.assert_all_moved();
    }
}

#[test]
fn once_done_a_later_call_changes_nothing_whatever_was_written_since() {
    let scene = Scene::new();
    scene.go().unwrap();
    fs::write(scene.new_place("alloc/data/db/rows"), "three").unwrap();
    let old = AllocDir::create(scene.root.path(), scene.from).unwrap();
    fs::write(old.data().join("late"), "x").unwrap();
    assert_eq!(scene.go().unwrap(), Scene::all_items());
    assert_eq!(fs::read_to_string(scene.new_place("alloc/data/db/rows")).unwrap(), "three");
    assert!(scene.old("alloc/data/late").exists());
}

#[test]
fn a_previous_allocation_that_is_gone_or_empty_has_nothing_and_leaves_no_trace() {
    let scene = Scene::new();
    AllocDir::destroy(scene.root.path(), scene.from).unwrap();
    assert!(scene.go().unwrap().is_nothing());
    AllocDir::create(scene.root.path(), scene.from).unwrap().create_task(&name("web")).unwrap();
    assert!(scene.go().unwrap().is_nothing());
    let entries: Vec<_> = fs::read_dir(scene.new_place("")).unwrap().flatten().collect();
    assert_eq!(entries.len(), 1, "alloc only: {entries:?}");
}

#[test]
fn a_previous_allocation_collected_in_the_middle_of_a_move_ends_it() {
    let scene = Scene::new();
    let renames = 1;
    let mut seen = 0;
    let stopped =
        move_in_steps(scene.root.path(), scene.from, scene.to, &scene.tasks(), &mut |step| {
            seen += usize::from(step == "rename");
            if seen > renames { Err(MigrateError::Same { alloc: scene.to }) } else { Ok(()) }
        });
    assert!(stopped.is_err());
    AllocDir::destroy(scene.root.path(), scene.from).unwrap();
    assert_eq!(scene.go().unwrap(), MigratedData { items: vec![MovedDir::Data] }, "what had come");
    assert_eq!(scene.go().unwrap(), MigratedData { items: vec![MovedDir::Data] });
}

#[test]
fn a_target_with_files_is_refused_as_a_whole_and_nothing_is_lost() {
    let scene = Scene::new();
    let new = AllocDir::open(scene.root.path(), scene.to).unwrap();
    fs::write(new.create_task(&name("web")).unwrap().local.join("own"), "x").unwrap();
    let before = scene.files();
    let error = scene.go().unwrap_err();
    assert!(
        matches!(&error, MigrateError::Occupied { from, to }
            if *from == scene.old("web/local") && *to == scene.new_place("web/local")),
        "{error}"
    );
    assert_eq!(scene.files(), before, "data did not move either");
}

#[test]
fn a_file_written_to_the_target_at_the_last_moment_is_not_lost() {
    let scene = Scene::new();
    let new = AllocDir::open(scene.root.path(), scene.to).unwrap();
    let error =
        move_in_steps(scene.root.path(), scene.from, scene.to, &scene.tasks(), &mut |step| {
            if step == "rename" {
                fs::write(new.data().join("late"), "x").unwrap();
            }
            Ok(())
        })
        .unwrap_err();
    assert!(matches!(error, MigrateError::Occupied { .. }), "{error}");
    assert!(scene.new_place("alloc/data/late").exists());
    assert_eq!(fs::read_to_string(scene.old("alloc/data/db/rows")).unwrap(), "one, two");
}

#[test]
fn a_link_in_the_place_of_data_is_refused_and_what_it_points_at_stays() {
    let outside = tempdir();
    fs::write(outside.path().join("keep"), "x").unwrap();
    let victim = |path: &Path| {
        fs::remove_dir_all(path).unwrap();
        symlink(outside.path(), path).unwrap();
    };
    for place in ["alloc/data", "alloc", "web/local", "web"] {
        let scene = Scene::new();
        victim(&scene.old(place));
        let error = scene.go().unwrap_err();
        assert!(
            matches!(&error, MigrateError::Dir(AllocDirError::NotDirectory { path, found })
                if *path == scene.old(place) && *found == "a symbolic link"),
            "{place}: {error}"
        );
        let scene = Scene::new();
        let new = AllocDir::open(scene.root.path(), scene.to).unwrap();
        new.create_task(&name("web")).unwrap();
        victim(&scene.new_place(place));
        let error = scene.go().unwrap_err();
        assert!(
            matches!(&error, MigrateError::Dir(AllocDirError::NotDirectory { path, .. })
                if *path == scene.new_place(place)),
            "{place}: {error}"
        );
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_link_swapped_in_between_check_and_rename_moves_nothing() {
    let outside = tempdir();
    for end in ["old", "new"] {
        let scene = Scene::new();
        let place = match end {
            "old" => scene.old("alloc/data"),
            _ => scene.new_place("alloc/data"),
        };
        let error =
            move_in_steps(scene.root.path(), scene.from, scene.to, &scene.tasks(), &mut |step| {
                if step == "rename" && !place.is_symlink() {
                    fs::rename(&place, outside.path().join(end)).unwrap();
                    symlink(outside.path(), &place).unwrap();
                }
                Ok(())
            })
            .unwrap_err();
        assert!(
            matches!(&error, MigrateError::Dir(AllocDirError::NotDirectory { path, .. })
                if *path == place),
            "{end}: {error}"
        );
    }
    assert!(outside.path().join("old/db/rows").exists());
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 2);
}

#[test]
fn an_allocation_is_not_its_own_predecessor() {
    let scene = Scene::new();
    let error = move_data(scene.root.path(), scene.to, scene.to, &[]).unwrap_err();
    assert!(matches!(error, MigrateError::Same { alloc } if alloc == scene.to), "{error}");
}

#[test]
fn a_missing_new_directory_is_an_error_and_moves_nothing() {
    let scene = Scene::new();
    AllocDir::destroy(scene.root.path(), scene.to).unwrap();
    let error = scene.go().unwrap_err();
    assert!(matches!(error, MigrateError::Dir(AllocDirError::Missing { .. })), "{error}");
    assert!(scene.old("alloc/data/db/rows").exists());
}

#[test]
fn an_unfinished_move_from_another_allocation_is_not_mixed_up() {
    let scene = Scene::new();
    stop_before(&scene, 5);
    let other = id();
    AllocDir::create(scene.root.path(), other).unwrap();
    let error = move_data(scene.root.path(), other, scene.to, &[]).unwrap_err();
    assert!(
        matches!(error, MigrateError::OtherUnfinished { begun, from, .. }
            if begun == scene.from && from == other),
        "{error}"
    );
    scene.go().unwrap();
    assert!(move_data(scene.root.path(), other, scene.to, &[]).unwrap().is_nothing());
}

#[test]
fn a_journal_that_is_none_is_named_and_holds_nobody_up() {
    let plant: [fn(&Path); 4] = [
        |path| fs::write(path, "{").unwrap(),
        |path| fs::write(path, " ".repeat(600 * 1024)).unwrap(),
        |path| symlink("/etc/passwd", path).unwrap(),
        |path| {
            let fifo = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, path, fifo, Mode::from_raw_mode(0o600), 0)
                .unwrap();
        },
    ];
    for plant in plant {
        let scene = Scene::new();
        let before = scene.files();
        plant(&scene.new_place("data move.json"));
        let error = scene.go().unwrap_err();
        assert!(matches!(error, MigrateError::Journal { .. }), "{error}");
        assert!(error.to_string().contains("data move.json: "), "{error}");
        fs::remove_file(scene.new_place("data move.json")).unwrap();
        assert_eq!(scene.files(), before);
    }
}

#[test]
fn a_journal_cannot_lead_out_of_the_directory() {
    for task in ["../x", "alloc", ".."] {
        let scene = Scene::new();
        let text =
            format!(r#"{{"from":"{}","items":[{{"local":"{task}"}}],"done":false}}"#, scene.from);
        fs::write(scene.new_place("data move.json"), text).unwrap();
        let error = scene.go().unwrap_err();
        assert!(
            matches!(
                error,
                MigrateError::Journal { .. }
                    | MigrateError::Dir(AllocDirError::ReservedTaskName { .. })
            ),
            "{error}"
        );
        assert!(scene.old("alloc/data/db/rows").exists());
    }
}

#[test]
fn a_planted_temporary_journal_is_replaced_not_followed() {
    let scene = Scene::new();
    let outside = tempfile::NamedTempFile::new().unwrap();
    symlink(outside.path(), scene.new_place("data move.json.new")).unwrap();
    scene.go().unwrap();
    assert_eq!(fs::metadata(outside.path()).unwrap().len(), 0);
}

#[test]
fn directories_a_task_closed_are_moved_too() {
    let scene = Scene::new();
    fs::set_permissions(scene.old("alloc/data"), fs::Permissions::from_mode(0o500)).unwrap();
    assert_eq!(scene.go().unwrap(), Scene::all_items());
    assert!(scene.new_place("alloc/data/db/rows").exists());
}

#[test]
fn moving_and_destroying_at_once_never_leaves_half_a_directory() {
    for _ in 0..30 {
        let scene = Scene::new();
        for i in 0..50 {
            fs::write(scene.old("alloc/data").join(format!("file{i}")), "x").unwrap();
        }
        let start = std::sync::Barrier::new(2);
        let moved = std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                AllocDir::destroy(scene.root.path(), scene.from).unwrap();
            });
            start.wait();
            scene.go().unwrap()
        });
        let files = fs::read_dir(scene.new_place("alloc/data")).unwrap().count();
        assert_eq!(files, if moved.is_nothing() { 0 } else { 52 });
        assert!(!scene.old("").exists());
    }
}
