//! What the API shows of a job can be given back to it as it is, and what is accepted is done.

use std::path::Path;

use hyper::StatusCode;
use serde_json::{Value, json};

use crate::support::http::{Client, Served, job};

const IDLE: &str = "while :; do sleep 1; done";

async fn good(client: &Client, path: &str, body: Value) -> Value {
    let answer = client.put(path, Some(body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
    answer.json()
}

/// The job as it is shown changes nothing: at plan, at validate and when it is registered, alone and in
/// another document.
async fn changes_nothing(client: &Client, id: &str) {
    let path = format!("/v1/job/{id}");
    let shown = client.get(&path).await.json();
    let newest = client.get(&format!("{path}/versions")).await.json()["Versions"][0].clone();
    for job in [shown.clone(), newest] {
        let plan = good(client, &format!("{path}/plan"), json!({ "Job": job, "Diff": true })).await;
        assert_eq!((&plan["Diff"]["Type"], &plan["Changes"]), (&json!("None"), &json!([])), "{id}");
        let checked = good(client, "/v1/validate/job", json!({ "Job": job })).await;
        assert_eq!((&checked["Error"], &checked["Warnings"]), (&json!(""), &json!("")), "{id}");
        for path in ["/v1/jobs", &path] {
            let taken = good(client, path, json!({ "Job": job })).await;
            assert_eq!(taken["JobModifyIndex"], shown["JobModifyIndex"], "{id}: {taken}");
            assert_eq!(taken["Registered"]["Version"], shown["Version"], "{id}: {taken}");
        }
    }
    let text = shown.to_string();
    let file = ostler_jobspec::read(text.as_bytes(), Path::new("job.json"), None);
    assert_eq!(file.is_err(), shown["Stop"] == true, "{id}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_read_is_given_back_and_changes_nothing() {
    let served = Served::start().await;
    let client = &served.client;
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/jobs");
    let mut seen = 0;
    for entry in std::fs::read_dir(examples).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let parsed = client.put("/v1/jobs/parse", Some(json!({ "JobHCL": text }))).await;
        // Some need variables, one the directory of its file.
        if parsed.status != StatusCode::OK || text.contains("job.dir") {
            continue;
        }
        let parsed = parsed.json();
        let id = parsed["ID"].as_str().unwrap().to_owned();
        // For drivers or devices that this agent has not.
        if client.put("/v1/jobs", Some(json!({ "Job": parsed }))).await.status != StatusCode::OK {
            continue;
        }
        changes_nothing(client, &id).await;
        client.send("DELETE", &format!("/v1/job/{id}?purge=true"), Default::default()).await;
        seen += 1;
    }
    assert!(seen >= 4, "{seen} examples");
    served.run("web", IDLE).await;
    changes_nothing(client, "web").await;
    client.send("DELETE", "/v1/job/web", Default::default()).await;
    let stopped = client.get("/v1/job/web").await.json();
    assert_eq!(stopped["Stop"], true);
    changes_nothing(client, "web").await;
    assert_eq!(client.get("/v1/job/web").await.json()["Stop"], true, "it stays stopped");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_given_as_stopped_is_stopped_and_as_not_stopped_runs_again() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", IDLE).await;
    let mut wanted = client.get("/v1/job/web").await.json();
    wanted["Stop"] = json!(true);
    let plan = json!({ "Job": wanted, "Diff": true });
    let plan = good(client, "/v1/job/web/plan", plan).await;
    assert_eq!(plan["Changes"], json!(["the job would be stopped"]));
    assert_eq!(plan["Annotations"]["DesiredTGUpdates"]["g"]["Stop"], 1, "{plan}");
    good(client, "/v1/jobs", json!({ "Job": wanted })).await;
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    assert_eq!(client.get("/v1/job/web").await.json()["Stop"], true);
    wanted["Stop"] = json!(false);
    let taken = good(client, "/v1/jobs", json!({ "Job": wanted })).await;
    assert_eq!(taken["Registered"]["Placed"].as_array().unwrap().len(), 1, "{taken}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_preserved_where_that_is_asked_and_a_plan_says_so() {
    let served = Served::start().await;
    let client = &served.client;
    let mut wanted = job("web", IDLE);
    wanted["Job"]["TaskGroups"][0]["Update"] = json!({ "MaxParallel": 0 });
    good(client, "/v1/jobs", wanted.clone()).await;
    let scaling = json!({ "Count": 3, "Target": { "Group": "g" } });
    good(client, "/v1/job/web/scale", scaling).await;
    let count = async || client.get("/v1/job/web").await.json()["TaskGroups"][0]["Count"].clone();
    assert_eq!(count().await, 3);
    // The text says 1.
    wanted["Job"]["Priority"] = json!(70);
    wanted["PreserveCounts"] = json!(true);
    wanted["Diff"] = json!(true);
    let plan = good(client, "/v1/job/web/plan", wanted.clone()).await;
    assert_eq!(plan["Annotations"]["DesiredTGUpdates"]["g"]["Stop"], 0, "{plan}");
    assert!(!plan["Diff"]["TaskGroups"].to_string().contains("\"Count\""), "{plan}");
    wanted.as_object_mut().unwrap().remove("Diff");
    let taken = good(client, "/v1/jobs", wanted.clone()).await;
    assert_eq!((&taken["Warnings"], count().await), (&json!(""), json!(3)), "{taken}");
    // A group that the job did not have gets the count that is written.
    let mut more = wanted["Job"]["TaskGroups"][0].clone();
    more["Name"] = json!("h");
    more["Count"] = json!(2);
    wanted["Job"]["TaskGroups"].as_array_mut().unwrap().push(more);
    // A policy that does not allow the count is told.
    wanted["Job"]["TaskGroups"][0]["Scaling"] = json!({ "Min": 1, "Max": 2 });
    let taken = good(client, "/v1/jobs", wanted.clone()).await;
    let said = taken["Warnings"].as_str().unwrap();
    assert!(said.contains("group g keeps its count of 3"), "{taken}");
    let shown = client.get("/v1/job/web").await.json();
    let counts = |group: usize| shown["TaskGroups"][group]["Count"].clone();
    assert_eq!((counts(0), counts(1)), (json!(3), json!(2)));
    wanted["PreserveCounts"] = json!(false);
    good(client, "/v1/jobs", wanted).await;
    assert_eq!(count().await, 1);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_stands_beside_a_job_is_done_or_told_or_refused_at_each_request() {
    let served = Served::start().await;
    let client = &served.client;
    let told = ["SecretID", "AuthToken", "PolicyOverride", "EvalPriority", "IdempotencyToken"];
    let elsewhere = [
        ("/v1/job/web/plan", "EnforceIndex"),
        ("/v1/job/web/plan", "Rerun"),
        ("/v1/validate/job", "PreserveCounts"),
    ];
    let paths = ["/v1/jobs", "/v1/job/web", "/v1/job/web/plan", "/v1/validate/job"];
    let all = paths.iter().flat_map(|path| told.map(|key| (*path, key))).chain(elsewhere);
    for (path, key) in all {
        let mut body = job("web", "exit 0");
        body[key] = if key == "EvalPriority" { json!(7) } else { json!(true) };
        let answer = good(client, path, body).await;
        let said = answer["Warnings"].as_str().unwrap();
        assert!(said.contains(&format!("{key} beside Job has no effect")), "{path} {key}: {said}");
    }
    let mut body = job("web", "exit 0");
    body["PreserveResources"] = json!(true);
    for path in &paths[..3] {
        let answer = client.put(path, Some(body.clone())).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(answer.text().contains("PreserveResources is valid in Nomad"), "{}", answer.text());
    }
    // Bodies of other requests.
    for (path, body, key) in [
        ("/v1/job/web/scale", json!({ "Cuont": 3, "Target": { "Group": "g" } }), "Cuont"),
        ("/v1/job/web/evaluate", json!({ "EvalOptions": { "Force": true } }), "EvalOptions.Force"),
        ("/v1/search", json!({ "Prefix": "w", "Text": "x" }), "Text"),
        ("/v1/job/web/revert", json!({ "JobID": "web", "Version": 1 }), "Version"),
    ] {
        let answer = client.put(path, Some(body)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}: {}", answer.text());
        let said = format!("\"{key}\" is unknown in this request");
        assert!(answer.text().contains(&said), "{path}: {}", answer.text());
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_driver_that_nobody_has_is_refused_at_each_request_and_nothing_is_registered() {
    let served = Served::start().await;
    let client = &served.client;
    let mut wanted = job("web", "exit 0");
    wanted["Job"]["TaskGroups"][0]["Tasks"][0]["Driver"] = json!("docker");
    for path in ["/v1/jobs", "/v1/job/web", "/v1/job/web/plan"] {
        let answer = client.put(path, Some(wanted.clone())).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        let said = "group g, task t: no driver docker; the loaded ones are: exec";
        assert!(answer.text().starts_with(said), "{path}: {}", answer.text());
    }
    let checked = good(client, "/v1/validate/job", wanted).await;
    let problem = &checked["ConfigProblems"][0];
    assert_eq!((&problem["OfDriver"], &problem["Task"]), (&json!(true), &json!("t")), "{checked}");
    assert_eq!(client.get("/v1/jobs").await.json(), json!([]));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_that_nothing_runs_of_are_dead() {
    let served = Served::start().await;
    let client = &served.client;
    served.run("web", IDLE).await;
    let mut wanted = job("web", IDLE);
    wanted["Job"]["Priority"] = json!(70);
    good(client, "/v1/jobs", wanted).await;
    let statuses = async || {
        let all = client.get("/v1/job/web/versions").await.json()["Versions"].clone();
        let all = all.as_array().unwrap().clone();
        all.iter().map(|one| one["Status"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // It took the change without a restart, so it is of the newest version.
    assert_eq!(statuses().await, ["running", "dead"]);
    let allocs = client.get("/v1/job/web/allocations").await.json();
    let alloc = allocs[0]["ID"].as_str().unwrap().to_owned();
    client.send("DELETE", "/v1/job/web", Default::default()).await;
    client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    assert_eq!(statuses().await, ["dead", "dead"]);
    served.stop().await;
}
