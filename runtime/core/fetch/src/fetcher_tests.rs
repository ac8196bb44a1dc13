#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use super::*;
use ostler_model::artifact::ArtifactMode;

fn source(text: &str) -> ArtifactSource {
    ArtifactSource::parse(text, &BTreeMap::new()).unwrap()
}

fn ask(text: &str, token: &str) -> ArtifactRequest {
    let headers = vec![("X-Token".to_owned(), token.to_owned())];
    ArtifactRequest { source: source(text), headers, mode: ArtifactMode::Any, room_bytes: None }
}

#[test]
fn what_nobody_can_make_again_is_kept_for_all_and_the_rest_for_its_address() {
    let strong = format!("checksum=sha256:{}", "a".repeat(64));
    let weak = format!("checksum=md5:{}", "a".repeat(32));
    let name = |text: &str| cache_key(&source(text)).map(|key| key.name);
    let one = name(&format!("https://h/x?{strong}")).unwrap();
    assert_eq!(one, format!("sha256-{}", "a".repeat(64)));
    assert_eq!(name(&format!("https://other/y?{strong}")), Some(one));
    let one = name(&format!("https://h/x?{weak}")).unwrap();
    assert_ne!(name(&format!("https://other/y?{weak}")), Some(one.clone()));
    assert_eq!(name(&format!("https://h/x?{weak}")), Some(one));
    assert_eq!(name("https://h/x"), None);
    assert_eq!(name("oci://reg.example/x:1"), None);
    let digest = "b".repeat(64);
    assert_eq!(
        name(&format!("oci://reg.example/x@sha256:{digest}")),
        Some(format!("manifest-{digest}"))
    );
}

#[test]
fn those_who_show_a_server_something_else_do_not_wait_for_each_other() {
    let text = format!("https://h/x?checksum=sha256:{}", "a".repeat(64));
    let flight = |token: &str| {
        let ask = ask(&text, token);
        download_name(&ask, &cache_key(&ask.source).unwrap())
    };
    assert_eq!(flight("one"), flight("one"));
    assert_ne!(flight("one"), flight("two"));
    assert!(!flight("secret").contains("secret"));
}

#[tokio::test]
async fn who_asks_when_a_download_has_just_ended_does_not_begin_another_one() {
    let data = tempfile::tempdir().unwrap();
    let fetcher = Fetcher::open(FetchOptions {
        data_dir: data.path().to_owned(),
        // A download of its own would fail.
        program: data.path().join("nothing"),
        config: ArtifactConfig::default(),
        insecure: Vec::new(),
        trust: TrustConfig::default(),
        clock: Clock::system(),
    })
    .unwrap();
    let bytes = b"of a module";
    let sum: Checksum = Digest::compute(bytes).to_tagged().parse().unwrap();
    let ask = ask(&format!("https://h/x?checksum={sum}"), "one");
    let key = cache_key(&ask.source).unwrap();
    let progress: FetchProgress = Arc::new(|_, _| {});
    let inner = &fetcher.0;
    assert!(
        inner.join_download(&ask, key.clone(), &progress).await.is_err(),
        "nothing is kept yet"
    );

    let file = data.path().join("brought");
    std::fs::write(&file, bytes).unwrap();
    // The caller checked the cache before this, and there is no download any more that it could
    // wait for.
    inner.cache.keep(&key, &file, &sum, None).unwrap().unwrap();
    let got = inner.join_download(&ask, key, &progress).await.unwrap();
    assert_eq!(std::fs::read(got.path()).unwrap(), bytes);
}
