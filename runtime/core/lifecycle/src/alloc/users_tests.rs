#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::PathBuf;

use ostler_model::job::{JobKind, Task};
use ostler_model::rng::Rng;
use ostler_model::volume::{VolumeMount, VolumeRequest};
use ostler_testing::fixtures;
use proptest::prelude::*;

use super::*;

const RANGE: RangeInclusive<u32> = 80_000..=80_003;
const NOBODY: FileOwner = FileOwner { uid: 65_534, gid: 65_534 };

fn id(number: u32) -> AllocId {
    format!("dddddddd-0000-4000-8000-{number:012x}").parse().unwrap()
}

#[test]
fn an_id_is_one_allocations_until_that_is_gone_and_is_used_again_last() {
    let mut table = UserIdTable::default();
    let claim = |table: &mut UserIdTable, number| table.claim(id(number), 0, &RANGE);
    let first: Vec<u32> = (0..3).map(|number| claim(&mut table, number).unwrap()).collect();
    assert_eq!(first, [80_000, 80_001, 80_002]);
    assert_eq!(claim(&mut table, 1), Ok(80_001), "asked again");
    table.retain_allocs(&[1, 2].map(id).into());
    assert_eq!(claim(&mut table, 3), Ok(80_003), "not the one that was freed a moment ago");
    assert_eq!(claim(&mut table, 4), Ok(80_000));
    let error = claim(&mut table, 5).unwrap_err();
    assert_eq!(error, NoUserFree { of: RANGE });
    let said = error.to_string();
    assert!(said.contains("80000 to 80003") && said.contains("dynamic_user_max"), "{said}");
}

#[test]
fn the_group_of_a_directory_says_which_it_had_under_an_earlier_agent() {
    let mut table = UserIdTable::from_groups([(id(7), 80_001), (id(8), 1_000)], &RANGE);
    assert_eq!(table.claim(id(1), 80_002, &RANGE), Ok(80_002));
    assert_eq!(table.claim(id(2), 80_002, &RANGE), Ok(80_003), "it is another's now");
    assert_eq!(table.claim(id(3), 90_000, &RANGE), Ok(80_000), "of another range");
    assert_eq!(table.id_of_alloc(id(7)), Some(80_001));
}

/// A directory of allocations of one task; none where files cannot be given away.
struct Node {
    root: tempfile::TempDir,
    users: AllocUsers,
    rng: Rng,
}

impl Node {
    fn new(range: RangeInclusive<u32>) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root gives files to others");
            return None;
        }
        let root = tempfile::tempdir().unwrap();
        let users = AllocUsers::find(root.path(), range).unwrap();
        Some(Self { root, users, rng: Rng::from_seed(1) })
    }

    fn alloc(&self, task: Task) -> Allocation {
        let made = fixtures::allocation(JobKind::Batch, vec![task.clone()], &self.rng).unwrap();
        let dir = AllocDir::create(self.root.path(), made.id).unwrap();
        dir.create_task(&task.name).unwrap();
        made
    }

    fn web(&self) -> Allocation {
        self.alloc(fixtures::task("web").unwrap())
    }

    fn path(&self, alloc: &Allocation) -> PathBuf {
        self.root.path().join(alloc.id.to_string())
    }

    fn of(&self, alloc: &Allocation) -> Result<AllocUser, AllocUserError> {
        self.users.assign_user(self.root.path(), alloc, NOBODY)
    }
}

#[test]
fn a_directory_keeps_its_id_over_agents_and_gives_it_up_when_it_is_gone() {
    let Some(mut node) = Node::new(80_000..=80_001) else { return };
    let [first, second, third] = [node.web(), node.web(), node.web()];
    assert_eq!(node.of(&first).unwrap(), AllocUser::Own(80_000));
    assert_eq!(node.of(&second).unwrap(), AllocUser::Own(80_001));
    assert_eq!(node.path(&second).metadata().unwrap().gid(), 80_001);

    node.users = AllocUsers::find(node.root.path(), 80_000..=80_001).unwrap();
    assert!(matches!(node.of(&third), Err(AllocUserError::NoneFree(_))));
    assert_eq!(node.of(&second).unwrap(), AllocUser::Own(80_001));
    AllocDir::destroy(node.root.path(), first.id).unwrap();
    assert_eq!(node.of(&third).unwrap(), AllocUser::Own(80_000));
    node.users = AllocUsers::default();
    assert_eq!(node.of(&second).unwrap(), AllocUser::Shared, "where none are given");
}

#[test]
fn one_whose_tasks_run_as_the_user_that_all_share_goes_on_so() {
    let Some(node) = Node::new(RANGE) else { return };
    let alloc = node.web();
    let tmp = node.path(&alloc).join("web/tmp");
    chown(&tmp, Some(NOBODY.uid), Some(NOBODY.gid)).unwrap();
    assert_eq!(node.of(&alloc).unwrap(), AllocUser::Shared);
    // What came from an allocation before may be that one's.
    let local = node.path(&alloc).join("web/local");
    chown(&tmp, Some(0), Some(0)).unwrap();
    chown(&local, Some(NOBODY.uid), Some(NOBODY.gid)).unwrap();
    assert_eq!(node.of(&alloc).unwrap(), AllocUser::Own(80_000));
    // It has one by now.
    chown(&tmp, Some(NOBODY.uid), Some(NOBODY.gid)).unwrap();
    assert_eq!(node.of(&alloc).unwrap(), AllocUser::Own(80_000));
    let named = Task { user: Some("nobody".to_owned()), ..fixtures::task("web").unwrap() };
    let named = node.alloc(named);
    let tmp = node.path(&named).join("web/tmp");
    chown(&tmp, Some(NOBODY.uid), Some(NOBODY.gid)).unwrap();
    assert_eq!(node.of(&named).unwrap(), AllocUser::Own(80_001), "for siblings that name none");
}

#[test]
fn one_that_writes_to_a_volume_has_the_user_that_all_share_as_the_next_will_have() {
    let Some(node) = Node::new(RANGE) else { return };
    for (asked, mounted, shares) in
        [(false, false, true), (true, false, false), (false, true, false)]
    {
        let mount = VolumeMount {
            volume: "data".to_owned(),
            destination: "/srv".to_owned(),
            read_only: mounted,
        };
        let task = Task { volume_mounts: vec![mount], ..fixtures::task("web").unwrap() };
        let mut alloc = node.alloc(task);
        let mut job = (*alloc.job).clone();
        let request = VolumeRequest { source: "data".to_owned(), read_only: asked };
        job.groups[0].volumes.insert("data".to_owned(), request);
        alloc.job = job.into();
        let found = node.of(&alloc).unwrap();
        assert_eq!(found == AllocUser::Shared, shares, "{asked} {mounted}: {found:?}");
    }
}

/// What happens to directories and to the agent.
#[derive(Clone, Debug)]
enum Step {
    /// An allocation asks; the agent ends before the group is set, or does not.
    Claim(u32, bool),
    Remove(u32),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8_u32, any::<bool>()).prop_map(|(number, set)| Step::Claim(number, set)),
        2 => (0..8_u32).prop_map(Step::Remove),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    #[test]
    fn no_two_directories_have_one_id_whatever_the_agent_ends_in(
        steps in prop::collection::vec(step(), 0..80)
    ) {
        // Directories and their groups: all that an agent leaves.
        let mut dirs = BTreeMap::new();
        let mut table = UserIdTable::default();
        for step in steps {
            let mut ends = false;
            match step {
                Step::Claim(number, set) => {
                    let group = *dirs.entry(id(number)).or_insert(0);
                    let claimed = table.claim(id(number), group, &RANGE).or_else(|_| {
                        table.retain_allocs(&dirs.keys().copied().collect());
                        table.claim(id(number), group, &RANGE)
                    });
                    if let Ok(id_of_it) = claimed {
                        prop_assert!(group == 0 || group == id_of_it, "it has one already");
                        ends = !set && group == 0;
                        if !ends {
                            dirs.insert(id(number), id_of_it);
                        }
                    } else {
                        prop_assert_eq!(dirs.values().filter(|group| **group != 0).count(), 4);
                    }
                }
                Step::Remove(number) => drop(dirs.remove(&id(number))),
                Step::Restart => ends = true,
            }
            if ends {
                table = UserIdTable::from_groups(dirs.clone(), &RANGE);
            }
            let mut given: Vec<u32> = dirs.values().copied().filter(|group| *group != 0).collect();
            let all = given.len();
            given.sort_unstable();
            given.dedup();
            prop_assert_eq!(given.len(), all, "{:?}", dirs);
        }
    }
}
