#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use super::*;
use ostler_model::artifact::ChecksumKind;
use ostler_model::time::Timestamp;

struct SourcePlace {
    dir: tempfile::TempDir,
    cache: Arc<Cache>,
    clock: Clock,
}

fn place(bytes_max: u64) -> SourcePlace {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::fixed(Timestamp::from_nanos(1_700_000_000_000_000_000));
    let cache = Cache::open(dir.path().join("cache"), bytes_max, clock.clone()).unwrap();
    SourcePlace { dir, cache: Arc::new(cache), clock }
}

impl SourcePlace {
    fn keep(&self, text: &str) -> (CacheKey, Option<CachedFile>) {
        self.clock.advance(Duration::from_secs(60));
        let file = self.dir.path().join("download");
        std::fs::write(&file, text).unwrap();
        let sum = sums::file_sum(&file, ChecksumKind::Sha256, &AtomicBool::new(false)).unwrap();
        let key = CacheKey { name: sum.digits(), sum: Some(sum.clone()) };
        let kept = self.cache.keep(&key, &file, &sum, None).unwrap();
        (key, kept)
    }

    fn find(&self, key: &CacheKey) -> Option<CachedFile> {
        self.clock.advance(Duration::from_secs(60));
        self.cache.find(key, &AtomicBool::new(false)).unwrap()
    }

    /// The cache as a new agent finds it.
    fn again(&self) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = self.dir.path().join("cache");
        let cache = Cache::open(at, self.cache.bytes_max, self.clock.clone()).unwrap();
        Self { dir, cache: Arc::new(cache), clock: self.clock.clone() }
    }
}

#[test]
fn what_is_kept_is_found_by_this_agent_and_the_next() {
    let place = place(1_000);
    let (key, kept) = place.keep("text");
    drop(kept);
    for place in [&place, &place.again()] {
        let found = place.find(&key).unwrap();
        assert_eq!(std::fs::read_to_string(found.path()).unwrap(), "text");
    }
    let other = CacheKey { name: "other".to_owned(), sum: None };
    assert!(place.find(&other).is_none());
}

#[test]
fn what_is_damaged_is_removed_and_not_given() {
    let place = place(1_000);
    let (key, kept) = place.keep("text");
    let path = kept.unwrap().path().to_owned();
    std::fs::write(&path, "texT").unwrap();
    assert!(place.again().find(&key).is_none());
    assert!(!path.exists());
    let (_, kept) = place.keep("text");
    std::fs::write(kept.unwrap().path(), "").unwrap();
    assert!(place.find(&key).is_none(), "this agent sees that it is another file than it summed");
}

#[test]
fn what_was_not_used_for_the_longest_time_goes_first_and_nothing_in_use() {
    let place = place(10);
    let (first, in_use) = place.keep("aaaa");
    let (second, kept) = place.keep("bbbb");
    drop(kept);
    let (third, kept) = place.keep("cccc");
    drop(kept);
    assert!(place.find(&second).is_none(), "the oldest that nobody holds");
    assert!(place.find(&third).is_some());
    drop(in_use);
    assert!(place.find(&first).is_some(), "it was used just now");
    place.keep("dddd");
    assert!(place.find(&third).is_none());
    assert!(place.find(&first).is_some());
}

#[test]
fn what_is_larger_than_all_that_may_be_kept_stays_where_it_is() {
    let place = place(3);
    let (key, kept) = place.keep("text");
    assert!(kept.is_none());
    assert!(place.dir.path().join("download").exists());
    assert!(place.find(&key).is_none());
}

#[test]
fn a_module_has_the_name_that_its_tasks_know() {
    let place = place(1_000);
    let (_, kept) = place.keep("text");
    let kept = kept.unwrap();
    let named = place.cache.link_name(&kept, "app.wasm");
    assert_eq!(named.file_name().unwrap(), "app.wasm");
    assert_eq!(std::fs::read_to_string(&named).unwrap(), "text");
    assert_eq!(place.cache.link_name(&kept, "app.wasm"), named);
    assert_eq!(place.cache.link_name(&kept, "data"), kept.path());
    let names = (0..100).map(|number| place.cache.link_name(&kept, &format!("{number}.wasm")));
    let made = names.filter(|path| path != kept.path()).count();
    assert!(made < ARTIFACT_CACHE_NAMES_MAX, "{made}");
}

#[test]
fn what_has_its_sum_beside_it_is_checked_against_that() {
    let place = place(1_000);
    let file = place.dir.path().join("download");
    std::fs::write(&file, "module").unwrap();
    let sum = sums::file_sum(&file, ChecksumKind::Sha256, &AtomicBool::new(false)).unwrap();
    let key = CacheKey { name: "manifest-x".to_owned(), sum: None };
    place.cache.keep(&key, &file, &sum, Some(b"signed")).unwrap();
    let found = place.again().find(&key).unwrap();
    assert_eq!(found.signature.as_deref(), Some(&b"signed"[..]));
    std::fs::write(found.path(), "other").unwrap();
    drop(found);
    assert!(place.again().find(&key).is_none());
}
