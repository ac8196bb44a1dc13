#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use super::*;

#[test]
fn a_service_is_asked_for_by_name_and_by_tag() {
    let plain = Query { tag: None, name: "web", namespace: None, region: None };
    assert_eq!(Query::read("web"), Ok(plain));
    assert_eq!(Query::read("v1.2.web"), Ok(Query { tag: Some("v1.2"), ..plain }));
    let whole = Query { namespace: Some("default"), region: Some("global"), ..plain };
    assert_eq!(Query::read("web?ns=default@global"), Ok(whole));
    for bad in ["", ".web", "web.", "web?ns=", "web@", "a b", "web?dc=x", "web/x"] {
        assert!(Query::read(bad).is_err(), "{bad:?}");
    }
}
