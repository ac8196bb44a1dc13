#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;
use crate::artifact::ArchiveCompression;

fn read(text: &str) -> Result<ArtifactSource, SourceError> {
    ArtifactSource::parse(text, &BTreeMap::new())
}

fn with(text: &str, options: &[(&str, &str)]) -> Result<ArtifactSource, SourceError> {
    let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    ArtifactSource::parse(text, &options.collect())
}

fn asked(source: &ArtifactSource) -> &str {
    match &source.place {
        SourcePlace::Http(url) => url.as_str(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_address_is_asked_for_as_it_is_written() {
    let source = read("http://foo.com/artifact").unwrap();
    assert_eq!(asked(&source), "http://foo.com/artifact");
    assert_eq!((source.archive, source.checksum.clone()), (None, None));
    assert_eq!(
        source.outcome(ArtifactMode::Any),
        Ok(ArtifactOutcome::Below("artifact".to_owned()))
    );
    assert_eq!(source.outcome(ArtifactMode::File), Ok(ArtifactOutcome::Named));
    let signed = "https://h/x?X-Sig=a%2Fb%2B&X-Z=1";
    assert_eq!(asked(&read(signed).unwrap()), signed);
    assert_eq!(asked(&read("http::https://h/x").unwrap()), "https://h/x");
}

#[test]
fn how_it_is_fetched_is_taken_out_of_the_query_and_other_options_go_into_it() {
    let sum = format!("sha256:{}", "0".repeat(64));
    let source = read(&format!("https://h/x?a=1&checksum={sum}&archive=zip&b=%20")).unwrap();
    assert_eq!(asked(&source), "https://h/x?a=1&b=%20");
    assert_eq!(source.checksum.unwrap().to_string(), sum);
    assert_eq!(source.archive, Some(ArchiveKind::Zip));
    let source =
        with("https://h/x.zip", &[("archive", "false"), ("foo", "b r"), ("filename", "y")]);
    let source = source.unwrap();
    assert_eq!(asked(&source), "https://h/x.zip?foo=b+r");
    assert_eq!(source.outcome(ArtifactMode::Any), Ok(ArtifactOutcome::Below("y".to_owned())));
}

#[test]
fn what_an_archive_becomes_follows_from_its_name_and_the_mode() {
    let source = read("https://h/a/x.tar.gz//bin/tools?v=1").unwrap();
    assert_eq!(asked(&source), "https://h/a/x.tar.gz?v=1");
    assert_eq!(source.archive, Some(ArchiveKind::Tar(ArchiveCompression::Gz)));
    assert_eq!(source.part, Some(vec!["bin".to_owned(), "tools".to_owned()]));
    assert_eq!(source.outcome(ArtifactMode::Any), Ok(ArtifactOutcome::Tree));
    assert_eq!(source.outcome(ArtifactMode::File), Err(SourceError::NoParts));
    let packed = read("https://h/x.gz").unwrap();
    assert!(matches!(packed.outcome(ArtifactMode::Any), Err(SourceError::OneFile(_))));
    assert_eq!(packed.outcome(ArtifactMode::File), Ok(ArtifactOutcome::Named));
    let plain = read("https://h/x").unwrap();
    assert_eq!(plain.outcome(ArtifactMode::Dir), Err(SourceError::NoDirectory));
    assert_eq!(read("https://h/x/").unwrap().outcome(ArtifactMode::Any), Err(SourceError::NoName));
    assert_eq!(
        read("https://h/x//y").unwrap().outcome(ArtifactMode::Any),
        Err(SourceError::NoParts)
    );
}

#[test]
fn files_of_the_node_and_places_in_registries_are_read() {
    for text in ["file:///srv/a%20b.zip", "/srv/a b.zip", "file::/srv/a b.zip"] {
        let source = read(text).unwrap();
        assert_eq!(source.place, SourcePlace::File("/srv/a b.zip".into()), "{text}");
        assert_eq!(source.archive, Some(ArchiveKind::Zip));
    }
    let source = read("oci://reg.example:5000/team/app:1").unwrap();
    assert_eq!(
        source.outcome(ArtifactMode::Any),
        Ok(ArtifactOutcome::Below("app.wasm".to_owned()))
    );
}

#[test]
fn what_is_not_fetched_is_refused_with_its_kind() {
    for (text, kind) in [
        ("git::https://h/x.git", "git::"),
        ("git@github.com:a/b.git", "git"),
        ("github.com/a/b", "git (github.com)"),
        ("s3::https://s3.amazonaws.com/b/k", "s3::"),
        ("my-bucket.s3.amazonaws.com/k", "s3 (my-bucket.s3.amazonaws.com)"),
        ("hg::https://h/x", "hg::"),
        ("gcs::https://www.googleapis.com/x", "gcs::"),
        ("ftp://h/x", "ftp://"),
    ] {
        assert_eq!(read(text).unwrap_err(), SourceError::Kind(kind.to_owned()), "{text}");
    }
    assert!(matches!(read("example.com/x.zip"), Err(SourceError::NoScheme(_))));
    assert!(matches!(read("local/x"), Err(SourceError::NoScheme(_))));
    assert!(matches!(read("https://h/x.zip//../y"), Err(SourceError::Part)));
    assert!(matches!(read("https://h/x?archive=rar"), Err(SourceError::Archive(_))));
    assert!(matches!(read("https://h/x?checksum=nope"), Err(SourceError::Checksum(_))));
    assert!(matches!(with("https://h/x", &[("filename", "../y")]), Err(SourceError::Filename(_))));
    assert!(matches!(with("/srv/x", &[("ref", "y")]), Err(SourceError::Option(_))));
}

#[test]
fn nothing_secret_is_shown() {
    assert_eq!(public_source("https://user:pa%40ss@h:8/p/x?token=abc#d"), "https://h:8/p/x?…");
    assert_eq!(public_source("https://a@b@h/x"), "https://h/x");
    let source = read("https://user:secret@h/x?token=abc").unwrap();
    assert_eq!(source.public_text(), "https://h/x?…");
    let SourcePlace::Http(url) = &source.place else { panic!("it is HTTP") };
    assert_eq!(url.user(), Some(("user".to_owned(), "secret".to_owned())));
    let error = read("token:abc@h/x?token=abc").unwrap_err().to_string();
    assert!(!error.contains("?token"), "{error}");
}

#[test]
fn redirects_are_relative_to_where_they_come_from() {
    let url = HttpUrl::parse("https://h/a/b?c").unwrap();
    assert_eq!(url.join("/x").unwrap().as_str(), "https://h/x");
    assert_eq!(url.join("//other/x").unwrap().host(), "other");
    assert!(!url.is_same_place(&url.join("http://h/x").unwrap()));
    assert!(url.is_same_place(&url.join("https://h:443/x").unwrap()));
    url.join("file:///etc/passwd").unwrap_err();
    let v6 = HttpUrl::parse("http://[::1]:8080/x").unwrap();
    assert_eq!(
        (v6.host().as_str(), v6.port(), v6.authority().as_str()),
        ("::1", 8080, "[::1]:8080")
    );
}

proptest::proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "(http|https|file|oci|git)?(::|://)?[a-z0-9./?&=:@#%-]{0,60}|.{0,60}") {
        let _ = public_source(&text);
        if let Ok(source) = read(&text) {
            for mode in [ArtifactMode::Any, ArtifactMode::File, ArtifactMode::Dir] {
                if let Ok(ArtifactOutcome::Below(name)) = source.outcome(mode) {
                    assert!(is_name(&name));
                }
            }
            for name in source.part.iter().flatten() {
                assert!(is_name(name));
            }
        }
    }

    #[test]
    fn a_secret_in_an_address_is_never_shown(secret in "[a-z]{12}", host in "[a-z]{1,8}") {
        let text = format!("https://u:{secret}@{host}/x?t={secret}");
        let source = read(&text).unwrap();
        assert!(!source.public_text().contains(&secret));
        assert!(!public_source(&text).contains(&secret));
    }
}
