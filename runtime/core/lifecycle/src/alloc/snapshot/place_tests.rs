#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "tests")]

use std::path::{Component, Path, PathBuf};

use proptest::prelude::{Strategy, prop, prop_assert, prop_oneof, proptest};

use super::*;

fn from() -> AllocId {
    "aaaaaaaa-0000-4000-8000-000000000001".parse().unwrap()
}

fn of(path: &[u8], kind: ArchiveEntryKind) -> Result<EntryPlacement, BadEntryName> {
    let entry =
        ArchiveEntry { path: path.to_vec(), kind, mode: 0o644, owner: None, changed: 0, size: 0 };
    let tasks = ["web", "db"].map(|name| name.parse().unwrap()).into();
    place_entry(&entry, from(), &tasks)
}

fn at(item: MovedDir, below: &[&str]) -> Result<EntryPlacement, BadEntryName> {
    Ok(EntryPlacement::At(item, below.iter().map(OsString::from).collect()))
}

#[test]
fn what_moves_has_a_place_and_what_belongs_to_a_task_that_is_gone_has_none() {
    let web = || MovedDir::Local("web".parse().unwrap());
    assert_eq!(of(b"alloc/data", ArchiveEntryKind::Directory), at(MovedDir::Data, &[]));
    assert_eq!(of(b"./alloc/data/", ArchiveEntryKind::Directory), at(MovedDir::Data, &[]));
    assert_eq!(of(b"alloc/data/a/b", ArchiveEntryKind::File), at(MovedDir::Data, &["a", "b"]));
    assert_eq!(of(b"web/local/..a", ArchiveEntryKind::File), at(web(), &["..a"]));
    assert_eq!(of(b"old/local/a", ArchiveEntryKind::File), Ok(EntryPlacement::NotMoved));
    let marker = format!("NOMAD-{}-ERROR.log", from());
    assert_eq!(of(marker.as_bytes(), ArchiveEntryKind::File), Ok(EntryPlacement::SenderFailed));
}

#[test]
fn a_name_that_leads_elsewhere_is_refused() {
    for path in [
        &b""[..],
        b"/",
        b"/alloc/data/x",
        b"alloc/data/../../x",
        b"..",
        b"alloc/data/./x",
        b"alloc/data//x",
        b"alloc/data/x\0y",
        b"alloc/data/x//",
    ] {
        assert_eq!(of(path, ArchiveEntryKind::File), Err(BadEntryName::Path), "{path:?}");
    }
    for path in [
        &b"alloc"[..],
        b"alloc/logs/web.stdout.0",
        b"alloc/local/x",
        b"web",
        b"web/secrets/token",
        b"data move.json",
        b"NOMAD-aaaaaaaa-0000-4000-8000-000000000002-ERROR.log",
        b"data move.json/local/x",
    ] {
        assert_eq!(of(path, ArchiveEntryKind::File), Err(BadEntryName::Elsewhere), "{path:?}");
    }
    let deep = format!("alloc/data{}", "/d".repeat(MOVED_DEPTH_MAX));
    assert_eq!(of(deep.as_bytes(), ArchiveEntryKind::File), Err(BadEntryName::TooLong));
    let long = format!("alloc/data/{}", "n".repeat(256));
    assert_eq!(of(long.as_bytes(), ArchiveEntryKind::File), Err(BadEntryName::TooLong));
}

#[test]
fn what_moves_is_a_directory() {
    for kind in [
        ArchiveEntryKind::File,
        ArchiveEntryKind::Symlink(b"x".to_vec()),
        ArchiveEntryKind::Other("a device"),
    ] {
        assert_eq!(of(b"alloc/data", kind.clone()), Err(BadEntryName::Elsewhere));
        assert_eq!(of(b"web/local", kind), Err(BadEntryName::Elsewhere));
    }
}

#[test]
fn a_link_stays_where_it_does_not_lead_out_and_nothing_else_stays_that_is_no_file() {
    let link =
        |target: &str| of(b"web/local/a/l", ArchiveEntryKind::Symlink(target.into())).unwrap();
    for inside in ["b", "../b", "../../../alloc/data/x", "./b/./c", "../../..", "b//c/"] {
        assert!(matches!(link(inside), EntryPlacement::At(..)), "{inside}");
    }
    for outside in ["/etc/passwd", "../../../..", "b/../../../../..", "b/..", "", "b\0c"] {
        assert!(matches!(link(outside), EntryPlacement::LeftOut(_)), "{outside}");
    }
    let device = of(b"alloc/data/null", ArchiveEntryKind::Other("a device"));
    assert_eq!(device, Ok(EntryPlacement::LeftOut("a device")));
}

/// Where the kernel goes from a directory, with these links; `None`: above the top.
fn goes(mut at: PathBuf, to: &Path, links: &[(PathBuf, PathBuf)], hops: u32) -> Option<PathBuf> {
    for part in to.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                if !at.pop() {
                    return None;
                }
            }
            Component::Normal(name) => {
                at.push(name);
                if let Some((_, target)) = links.iter().find(|(link, _)| *link == at)
                    && hops > 0
                {
                    at.pop();
                    at = goes(at, target, links, hops - 1)?;
                }
            }
            _ => return None,
        }
    }
    Some(at)
}

proptest! {
    #[test]
    fn links_that_stay_lead_nowhere_out_not_even_through_each_other(
        links in prop::collection::vec(
            (prop::collection::vec("[a-c]", 1..4), prop::collection::vec(prop_oneof!["[a-c]", "\\.\\.", "\\."], 1..6)),
            1..8,
        )
    ) {
        let made = links.iter().map(|(at, to)| {
            let at = [vec!["alloc".to_owned(), "data".to_owned()], at.clone()].concat().join("/");
            (at, to.join("/"))
        });
        let taken: Vec<_> = made
            .filter(|(at, to)| matches!(of(at.as_bytes(), ArchiveEntryKind::Symlink(to.clone().into_bytes())), Ok(EntryPlacement::At(..))))
            .collect();
        // What lies below a link is not unpacked.
        let below = |at: &str| taken.iter().any(|(other, _)| at.starts_with(&format!("{other}/")));
        let links: Vec<(PathBuf, PathBuf)> = taken.iter().filter(|(at, _)| !below(at)).map(|(at, to)| (at.into(), to.into())).collect();
        for (at, to) in &links {
            let parent = at.parent().unwrap().to_owned();
            prop_assert!(goes(parent, to, &links, 10).is_some(), "{links:?}");
        }
    }

    #[test]
    fn whatever_has_a_place_has_plain_names(path in prop_oneof!["(alloc/data|web/local|db)(/[a-b.]{0,3}){0,5}/?", ".{0,30}"].prop_map(String::into_bytes)) {
        if let Ok(EntryPlacement::At(_, below)) = of(&path, ArchiveEntryKind::File) {
            for name in below {
                let parts: Vec<_> = Path::new(&name).components().collect();
                prop_assert!(matches!(parts.as_slice(), [Component::Normal(_)]), "{name:?}");
            }
        }
    }
}
