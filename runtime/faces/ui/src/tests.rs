#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use super::*;

fn sent(path: &str) -> (&'static str, String, bool, String) {
    match answer_request(PageRequest { path, ..PageRequest::default() }) {
        PageAnswer::File { kind, tag, gzip, body } => {
            (kind, tag, gzip, String::from_utf8(body.into_owned()).unwrap())
        }
        other => panic!("{path}: {other:?}"),
    }
}

#[test]
fn each_path_that_is_no_file_is_answered_with_the_page_and_the_way_back() {
    for (path, way) in [
        ("", "./"),
        ("jobs", "./"),
        ("jobs/web%2Fone", "./../"),
        ("allocations/x/logs", "./../../"),
    ] {
        let (kind, _, _, text) = sent(path);
        assert_eq!(kind, "text/html; charset=utf-8");
        assert!(text.contains(&format!("src=\"{way}assets/js/main.js\"")), "{path}: {text}");
        assert!(!text.contains(WAY_BACK), "{text}");
    }
    assert!(sent(&"x/".repeat(1_000)).3.len() < 10_000, "however deep it is asked for");
}

#[test]
fn a_browser_that_has_a_file_is_not_sent_it_again() {
    let (_, tag, ..) = sent("assets/app.css");
    fn again(path: &str, has: &str) -> PageAnswer {
        answer_request(PageRequest { path, has: Some(has), takes: None })
    }
    for has in [tag.clone(), format!("\"other\", W/{tag}"), "*".to_owned()] {
        assert_eq!(
            again("assets/app.css", &has),
            PageAnswer::Unchanged { tag: tag.clone() },
            "{has}"
        );
    }
    assert!(matches!(again("assets/app.css", "\"other\""), PageAnswer::File { .. }));
    let (_, tag, ..) = sent("jobs");
    assert!(matches!(again("jobs", &tag), PageAnswer::Unchanged { .. }));
    assert!(matches!(again("jobs/web", &tag), PageAnswer::File { .. }), "its links differ");
}

#[test]
fn a_file_is_packed_for_those_who_take_it_so() {
    let takes =
        |takes| match answer_request(PageRequest { path: "assets/app.css", has: None, takes }) {
            PageAnswer::File { gzip, body, .. } => (gzip, body.len()),
            other => panic!("{other:?}"),
        };
    let (gzip, packed) = takes(Some("deflate, gzip;q=1.0, *;q=0.5"));
    let (plainly, plain) = takes(None);
    assert!(gzip && !plainly && packed < plain);
    for not in ["", "br", "gzip;q=0", "x-gzip-not"] {
        assert!(!takes(Some(not)).0, "{not}");
    }
}

#[test]
fn what_is_no_file_among_the_files_is_missing() {
    for path in ["assets/", "assets/nothing.js", "assets/../index.html", "assets/js/../app.css"] {
        assert_eq!(
            answer_request(PageRequest { path, ..PageRequest::default() }),
            PageAnswer::Missing,
            "{path}"
        );
    }
}

/// The page sends its requests only to where it came from, so that it works behind a proxy that
/// puts a prefix before every path.
#[test]
fn no_file_of_the_page_names_another_origin_or_an_absolute_path() {
    for asset in ASSETS.iter().filter(|asset| !asset.name.starts_with("vendor/")) {
        let text = std::str::from_utf8(asset.plain).unwrap();
        for absolute in
            ["http://", "https://", "src=\"/", "href=\"/", "url(", "fetch('/", "from '/"]
        {
            let found = text
                .lines()
                .find(|line| line.contains(absolute) && !line.contains("www.w3.org/2000/svg"));
            assert_eq!(found, None, "{} has {absolute}", asset.name);
        }
    }
}

/// Everything that comes from guests is text. No file of ours turns a text into HTML or a program.
#[test]
fn no_file_of_ours_makes_html_or_programs_of_texts() {
    let ours = ASSETS.iter().filter(|asset| asset.name.starts_with("js/"));
    for asset in ours {
        let text = std::str::from_utf8(asset.plain).unwrap();
        let makers = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "dangerously",
        ];
        for maker in makers {
            assert!(!text.contains(maker), "{} has {maker}", asset.name);
        }
    }
}

#[test]
fn our_files_are_short() {
    for asset in ASSETS.iter().filter(|asset| asset.name.starts_with("js/")) {
        let lines = std::str::from_utf8(asset.plain).unwrap().lines().count();
        assert!(lines <= 420, "{} has {lines} lines", asset.name);
    }
}

#[test]
fn each_vendored_file_comes_with_its_licence() {
    let text = |name: &str| {
        let found = ASSETS.iter().find(|asset| asset.name == name);
        std::str::from_utf8(found.unwrap_or_else(|| panic!("no {name}")).plain).unwrap()
    };
    for (library, licence) in
        [("preact", "The MIT License"), ("htm", "Apache License"), ("uplot", "The MIT License")]
    {
        let name = format!("vendor/{library}-licence.txt");
        assert!(text(&name).contains(licence), "{name}");
        assert!(text("vendor/README.md").contains(library), "the list of them names {library}");
    }
}
