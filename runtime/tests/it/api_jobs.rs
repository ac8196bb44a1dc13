//! The API with a real agent: jobs, allocations, waiting queries, what is refused.

use std::time::Duration;

use hyper::StatusCode;
use hyper::body::Bytes;
use ostler_api::server::{self, ApiError};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::http::{A_MOMENT, Served, job, within};

const IDLE: &str = "while :; do sleep 1; done";

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_registered_seen_everywhere_stopped_and_purged() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", IDLE).await;

    let jobs = client.get("/v1/jobs").await;
    assert_eq!(jobs.headers["x-nomad-knownleader"], "true");
    assert_eq!(jobs.headers["x-nomad-lastcontact"], "0");
    assert_eq!(jobs.headers["content-type"], "application/json");
    let jobs = jobs.json();
    assert_eq!((&jobs[0]["ID"], &jobs[0]["Status"]), (&json!("web"), &json!("running")));
    assert_eq!(jobs[0]["JobSummary"]["Summary"]["g"]["Running"], 1);
    assert_eq!(client.get("/v1/jobs?prefix=x").await.json(), json!([]));
    assert_eq!(client.get("/v1/jobs?namespace=other").await.json(), json!([]));
    assert_eq!(client.get("/v1/jobs?namespace=*").await.json().as_array().unwrap().len(), 1);
    for path in ["/v1/job/web", "/v1/job/web/summary", "/v1/job/web/versions"] {
        assert_eq!(client.get(path).await.status, StatusCode::OK, "{path}");
    }
    assert_eq!(client.get("/v1/job/web").await.json()["Version"], 0);

    for path in [
        "/v1/job/web/allocations",
        "/v1/allocations",
        &format!("/v1/allocations?prefix={}", &alloc[..8]),
    ] {
        let allocs = client.get(path).await.json();
        assert_eq!(allocs.as_array().unwrap().len(), 1, "{path}");
        assert_eq!(allocs[0]["ID"], json!(alloc), "{path}");
        assert_eq!(allocs[0]["TaskStates"]["t"]["State"], "running", "{path}");
    }
    let node = client.get("/v1/nodes").await.json()[0]["ID"].as_str().unwrap().to_owned();
    let of_node = client.get(&format!("/v1/node/{node}/allocations")).await.json();
    assert_eq!(of_node[0]["Job"]["ID"], "web");
    assert_eq!(client.get(&format!("/v1/node/{node}")).await.json()["Status"], "ready");

    let stopped = client.send("DELETE", "/v1/job/web?purge=true", Bytes::new()).await;
    assert_eq!(stopped.status, StatusCode::OK, "{}", stopped.text());
    assert_eq!(stopped.index(), stopped.json()["JobModifyIndex"].as_u64().unwrap());
    assert_eq!(client.get("/v1/job/web").await.status, StatusCode::NOT_FOUND);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_has_an_evaluation_that_is_complete_and_names_its_allocations() {
    let served = Served::start().await;
    let client = &served.client;
    let evaluation = async |answer: crate::support::http::Answer, trigger: &str| {
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        let id = answer.json()["EvalID"].as_str().unwrap().to_owned();
        let found = client.get(&format!("/v1/evaluation/{id}")).await;
        assert_eq!(found.status, StatusCode::OK, "{}", found.text());
        let found = found.json();
        assert_eq!((&found["ID"], &found["Status"]), (&json!(id), &json!("complete")));
        assert_eq!((&found["JobID"], &found["TriggeredBy"]), (&json!("web"), &json!(trigger)));
        assert_eq!(found["CreateIndex"], answer.json()["Index"], "{found}");
        assert!(found["FailedTGAllocs"].is_null(), "{found}");
        // Only a version that came is a deployment.
        assert!(trigger == "job-register" || found["DeploymentID"] == "", "{found}");
        let allocs = client.get(&format!("/v1/evaluation/{id}/allocations")).await.json();
        (id, allocs)
    };
    let put = async |script| client.put("/v1/jobs", Some(job("web", script))).await;
    let (first, allocs) = evaluation(put(IDLE).await, "job-register").await;
    let alloc = allocs[0]["ID"].as_str().unwrap().to_owned();
    assert_eq!(allocs[0]["EvalID"], json!(first));
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "running").await;
    // Given again, nothing changes: the evaluation of that has no allocations.
    let (again, none) = evaluation(put(IDLE).await, "job-register").await;
    assert_eq!(none, json!([]));
    assert_ne!(again, first);
    let stop = client.put(&format!("/v1/allocation/{alloc}/stop"), None).await;
    let (_, allocs) = evaluation(stop, "alloc-stop").await;
    assert!(allocs.as_array().unwrap().iter().any(|stopped| stopped["ID"] == json!(alloc)));
    let stop = client.send("DELETE", "/v1/job/web", Bytes::new()).await;
    let (last, _) = evaluation(stop, "job-deregister").await;
    let known = client.get("/v1/job/web/evaluations").await.json();
    assert_eq!(known[0]["ID"], json!(last), "the newest first: {known}");
    assert_eq!(client.get("/v1/evaluations").await.json(), known);
    let unknown = client.get("/v1/evaluation/ffffffff-0000-4000-8000-000000000000").await;
    assert_eq!((unknown.status, unknown.text()), (StatusCode::NOT_FOUND, "eval not found".into()));
    let purged = client.send("DELETE", "/v1/job/web?purge=true", Bytes::new()).await;
    let purged = purged.json()["EvalID"].as_str().unwrap().to_owned();
    let found = client.get(&format!("/v1/evaluation/{purged}")).await.json();
    assert_eq!(found["Status"], "complete", "also of a job that is gone: {found}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_query_is_answered_by_the_change_and_not_before() {
    let served = Served::start().await;
    let client = served.client.clone();
    let first = client.get("/v1/jobs").await;
    let path = format!("/v1/jobs?index={}&wait=5m", first.index());
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(&path).await }
    });
    tokio::time::sleep(A_MOMENT).await;
    assert!(!waiting.is_finished(), "nothing changed");
    served.run("late", IDLE).await;
    let answer = within(waiting).await.unwrap();
    assert!(answer.index() > first.index());
    assert_eq!(answer.json()[0]["ID"], "late");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_query_is_answered_unchanged_at_its_deadline() {
    let served = Served::start().await;
    let first = served.client.get("/v1/jobs").await;
    let began = std::time::Instant::now();
    let path = format!("/v1/jobs?index={}&wait=200ms", first.index());
    let answer = served.client.get(&path).await;
    assert!(began.elapsed() >= Duration::from_millis(200));
    assert_eq!((answer.index(), answer.json()), (first.index(), json!([])));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_can_wait_for_a_job_that_is_not_there_yet() {
    let served = Served::start().await;
    let client = served.client.clone();
    let absent = client.get("/v1/job/later").await;
    assert_eq!((absent.status, absent.text()), (StatusCode::NOT_FOUND, "job not found".to_owned()));
    let path = format!("/v1/job/later?index={}", absent.index());
    let waiting = tokio::spawn(async move { client.get(&path).await });
    served.run("later", IDLE).await;
    let answer = within(waiting).await.unwrap();
    assert_eq!((answer.status, &answer.json()["ID"]), (StatusCode::OK, &json!("later")));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collected_allocation_raises_the_index_of_the_list() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("short", IDLE).await;
    let running = client.get(&format!("/v1/client/allocation/{alloc}/gc")).await;
    assert_eq!(running.status, StatusCode::CONFLICT, "{}", running.text());
    client.send("DELETE", "/v1/job/short", Bytes::new()).await;
    let before = client.alloc_gone(&alloc).await;
    let after = within(client.get(&format!("/v1/allocations?index={before}"))).await;
    assert_eq!(after.json(), json!([]));
    assert!(after.index() > before);
    let gone = client.get(&format!("/v1/allocation/{alloc}")).await;
    assert_eq!((gone.status, gone.text()), (StatusCode::NOT_FOUND, "alloc not found".to_owned()));
    let gone = client.get(&format!("/v1/client/allocation/{alloc}/gc")).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);
    assert_eq!(gone.text(), format!("Unknown allocation \"{alloc}\""));
    assert_eq!(client.get("/v1/client/gc").await.status, StatusCode::OK);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_request_is_said_with_the_right_status() {
    let served = Served::start().await;
    let client = &served.client;
    let none = "00000000-0000-0000-0000-000000000000";
    let unknown = format!("/v1/client/allocation/{none}/restart");
    let other = json!({ "Job": job("a", IDLE)["Job"] });
    for (method, path, body, status, text) in [
        ("GET", "/v1/bogus", Value::Null, 404, "not found"),
        ("GET", "/v1/validate/job", Value::Null, 405, "Invalid method"),
        ("PATCH", "/v1/jobs", Value::Null, 405, "Invalid method"),
        ("GET", "/v1/jobs?index=x", Value::Null, 400, "index"),
        ("GET", "/v1/jobs?region=moon", Value::Null, 400, "moon"),
        ("GET", "/v1/allocations?prefix=%2Fbin", Value::Null, 400, "/bin"),
        ("GET", "/v1/allocation/zzz", Value::Null, 400, "zzz"),
        ("GET", "/v1/node/zzz", Value::Null, 404, "node not found"),
        ("GET", "/v1/client/metadata", Value::Null, 404, "not found"),
        ("PUT", &unknown, Value::Null, 404, none),
        ("PUT", "/v1/jobs", json!({ "Job": { "ID": "x" } }), 400, "TaskGroups"),
        ("PUT", "/v1/jobs", json!({ "Job": 7 }), 400, "object"),
        ("PUT", "/v1/jobs", json!({ "Job": job("a", IDLE)["Job"], "Region": "moon" }), 400, "moon"),
        ("PUT", "/v1/job/b", other, 400, "job a"),
        ("DELETE", "/v1/job/none", Value::Null, 404, "job not found"),
        ("PUT", "/v1/jobs/parse", json!({ "JobHCL": "job {" }), 400, "job"),
        ("PUT", "/v1/jobs/parse", json!([]), 400, "body"),
    ] {
        let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let answer = client.send(method, path, bytes).await;
        assert_eq!(answer.status.as_u16(), status, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains(text), "{method} {path}: {}", answer.text());
        assert!(answer.headers["content-type"].to_str().unwrap().starts_with("text/plain"));
    }
    let empty = client.put("/v1/jobs", None).await;
    assert_eq!(empty.status, StatusCode::BAD_REQUEST);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_or_header_beyond_the_limit_is_refused() {
    let served = Served::start().await;
    let huge = Bytes::from(vec![b' '; ostler_model::limits::API_BODY_BYTES_MAX + 1]);
    let answer = served.client.send("PUT", "/v1/jobs", huge).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE, "{}", answer.text());
    let long =
        format!("/v1/jobs?prefix={}", "x".repeat(ostler_model::limits::API_HEADER_BYTES_MAX));
    let answer = served.client.get(&long).await;
    assert!(answer.status.is_client_error(), "{}", answer.status);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_can_insist_on_the_version_it_was_planned_for() {
    let served = Served::start().await;
    let client = &served.client;
    let plan = client.put("/v1/job/web/plan", Some(job("web", IDLE))).await;
    assert_eq!(plan.status, StatusCode::OK, "{}", plan.text());
    assert_eq!(plan.json()["Annotations"]["DesiredTGUpdates"]["g"]["Place"], 1);
    assert_eq!(plan.json()["JobModifyIndex"], 0);
    let insist = |index: u64| {
        let mut body = job("web", IDLE);
        body["EnforceIndex"] = json!(true);
        body["JobModifyIndex"] = json!(index);
        body
    };
    let taken = client.put("/v1/jobs", Some(insist(0))).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.text());
    let refused = client.put("/v1/jobs", Some(insist(0))).await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text());
    let index = taken.json()["JobModifyIndex"].as_u64().unwrap();
    assert_eq!(client.put("/v1/jobs", Some(insist(index))).await.status, StatusCode::OK);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn validation_says_what_is_wrong_without_registering() {
    let served = Served::start().await;
    let client = &served.client;
    let good = client.put("/v1/validate/job", Some(job("web", IDLE))).await.json();
    assert_eq!((&good["ValidationErrors"], &good["Error"]), (&Value::Null, &json!("")));
    let mut bad = job("web", IDLE);
    bad["Job"]["TaskGroups"][0]["Tasks"][0]["Config"] = json!({ "comand": "/bin/true" });
    let bad = client.put("/v1/validate/job", Some(bad)).await.json();
    assert!(bad["Error"].as_str().unwrap().contains("comand"), "{bad}");
    assert_eq!(client.get("/v1/jobs").await.json(), json!([]));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_tells_what_nomads_tools_ask_any_agent() {
    let served = Served::start().await;
    let client = &served.client;
    let health = client.get("/v1/agent/health").await;
    assert_eq!((health.status, &health.json()["client"]["ok"]), (StatusCode::OK, &json!(true)));
    let own = client.get("/v1/agent/self?pretty").await;
    assert!(own.text().contains("\n  "), "pretty is indented");
    let node = client.get("/v1/nodes").await.json()[0]["ID"].clone();
    assert_eq!(own.json()["stats"]["client"]["node_id"], node);
    assert_eq!(client.get("/v1/regions").await.json(), json!(["global"]));
    assert_eq!(client.get("/v1/namespaces").await.json()[0]["Name"], "default");
    assert_eq!(client.get("/v1/deployments").await.json(), json!([]));
    assert!(client.get("/v1/status/leader").await.json().is_string());
    let metrics = client.get("/v1/metrics").await.json();
    let gauges = metrics["Gauges"].as_array().unwrap();
    assert!(gauges.iter().any(|gauge| gauge["Name"] == "ostler.state.commits"), "{gauges:?}");
    assert!(client.get("/v1/ostler/state").await.json()["commits"].is_u64());
    let plugins = client.get("/v1/ostler/plugins").await.json();
    assert!(plugins.as_array().unwrap().iter().any(|plugin| plugin["name"] == "exec"));
    assert_eq!(client.put("/v1/system/gc", None).await.status, StatusCode::OK);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_path_too_long_for_the_kernel_is_refused() {
    let served = Served::start().await;
    let long = std::env::temp_dir().join("d".repeat(120)).join(ostler_api::SOCKET_NAME);
    let error = server::serve(
        served.agent.handle.clone(),
        crate::support::http::faces(&served.agent.handle, &long),
        CancellationToken::new(),
    );
    assert!(matches!(error.unwrap_err(), ApiError::PathTooLong { .. }));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_changes_nothing_has_an_evaluation_without_allocations() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", IDLE).await;
    let first = client.get(&format!("/v1/allocation/{alloc}")).await.json()["EvalID"].clone();
    let again = client.put("/v1/jobs", Some(job("web", IDLE))).await.json();
    assert_eq!(again["Registered"]["Placed"], json!([]), "{again:#}");
    let id = again["EvalID"].as_str().unwrap();
    assert_ne!(again["EvalID"], first, "its allocations were not made by this one");
    let evaluation = client.get(&format!("/v1/evaluation/{id}")).await.json();
    assert_eq!((&evaluation["ID"], &evaluation["Status"]), (&json!(id), &json!("complete")));
    assert_eq!(evaluation["FailedTGAllocs"], Value::Null, "{evaluation:#}");
    let allocs = client.get(&format!("/v1/evaluation/{id}/allocations")).await.json();
    assert_eq!(allocs, json!([]));
    let made = client.get(&format!("/v1/evaluation/{}/allocations", first.as_str().unwrap())).await;
    assert_eq!(made.json()[0]["ID"], json!(alloc));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_placed_is_told_as_nomad_does_by_plan_and_evaluations() {
    let served = Served::start().await;
    let client = &served.client;
    let mut huge = job("huge", IDLE);
    huge["Job"]["TaskGroups"][0]["Count"] = json!(2);
    huge["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"]["MemoryMB"] = json!(100_000_000);
    let plan = client.put("/v1/job/huge/plan", Some(huge.clone())).await;
    assert_eq!(plan.status, StatusCode::OK, "{}", plan.text());
    let plan = plan.json();
    assert_eq!(plan["Annotations"]["DesiredTGUpdates"]["g"]["Place"], 2);
    let failed = &plan["FailedTGAllocs"]["g"];
    assert_eq!(failed["DimensionExhausted"], json!({ "memory": 1 }), "{plan:#}");
    assert_eq!((&failed["NodesExhausted"], &failed["CoalescedFailures"]), (&json!(1), &json!(1)));

    let taken = client.put("/v1/jobs", Some(huge.clone())).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.text());
    let id = taken.json()["EvalID"].as_str().unwrap().to_owned();
    assert!(taken.json()["Warnings"].as_str().unwrap().contains("MiB of memory"));
    let evaluation = client.get(&format!("/v1/evaluation/{id}")).await.json();
    assert_eq!(evaluation["FailedTGAllocs"]["g"], *failed, "{evaluation:#}");
    assert_eq!(evaluation["QueuedAllocations"]["g"], 2);
    let blocked = evaluation["BlockedEval"].as_str().unwrap();
    let waits = client.get(&format!("/v1/evaluation/{blocked}")).await.json();
    assert_eq!((&waits["Status"], &waits["PreviousEval"]), (&json!("blocked"), &json!(id)));
    let of_job = client.get("/v1/job/huge/evaluations").await.json();
    assert_eq!(of_job.as_array().unwrap().len(), 2, "{of_job:#}");
    let seen = client.get("/v1/job/huge").await.json();
    assert_eq!((&seen["Status"], &seen["Places"]["Waiting"]), (&json!("pending"), &json!(2)));
    // The same again fails in the same way.
    let again = client.put("/v1/jobs", Some(huge)).await.json()["EvalID"].clone();
    let again = client.get(&format!("/v1/evaluation/{}", again.as_str().unwrap())).await.json();
    assert_eq!(again["FailedTGAllocs"]["g"], *failed, "{again:#}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_another_namespace_nothing_is_changed_and_nothing_is_there() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", IDLE).await;
    let refused = |answer: crate::support::http::Answer| {
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text());
        assert!(answer.text().contains("other"), "{}", answer.text());
    };
    let mut in_job = job("web", "exit 0");
    in_job["Job"]["Namespace"] = json!("other");
    let mut beside = job("web", "exit 0");
    beside["Namespace"] = json!("other");
    for body in [in_job, beside] {
        for path in ["/v1/jobs", "/v1/job/web", "/v1/job/web/plan"] {
            refused(client.put(path, Some(body.clone())).await);
        }
    }
    for path in ["/v1/jobs", "/v1/job/web", "/v1/job/web/plan", "/v1/validate/job"] {
        let path = format!("{path}?namespace=other");
        refused(client.put(&path, Some(job("web", "exit 0"))).await);
    }
    refused(client.send("DELETE", "/v1/job/web?namespace=other", Bytes::new()).await);
    refused(client.put(&format!("/v1/allocation/{alloc}/stop?namespace=other"), None).await);

    for path in ["", "/summary", "/versions"] {
        let path = format!("/v1/job/web{path}?namespace=other");
        assert_eq!(client.get(&path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
    for path in ["/v1/jobs", "/v1/allocations", "/v1/evaluations"] {
        assert_eq!(
            client.get(&format!("{path}?namespace=other")).await.json(),
            json!([]),
            "{path}"
        );
    }
    for path in ["allocations", "evaluations", "deployments"] {
        let path = format!("/v1/job/web/{path}?namespace=other");
        assert_eq!(client.get(&path).await.json(), json!([]), "{path}");
    }
    let none = client.get("/v1/job/web/deployment?namespace=other").await;
    assert_eq!(none.json(), Value::Null);

    let own = client.put("/v1/jobs?namespace=default", Some(job("web", IDLE))).await;
    assert_eq!(own.json()["Registered"]["Version"], 0, "it is as it was: {}", own.text());
    served.stop().await;
}
