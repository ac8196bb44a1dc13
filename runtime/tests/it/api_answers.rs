//! What the API says of jobs and requests that are not quite right: warnings, places, plain words,
//! and an answer that arrives.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use hyper::StatusCode;
use ostler_model::limits::{API_BODY_BYTES_MAX, API_DRAIN_BYTES_MAX};
use serde_json::{Value, json};

use crate::support::PATIENCE;
use crate::support::http::{Client, Served, job, within};

const IDLE: &str = "while :; do sleep 1; done";

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_and_not_done_is_named_in_every_answer_to_the_job() {
    let served = Served::start().await;
    let client = &served.client;
    let mut wanted = job("web", IDLE);
    wanted["Job"]["Region"] = json!("eu");
    wanted["Job"]["TaskGroups"][0]["Tasks"][0]["KillTimeout"] = json!(90_000_000_000_u64);
    for path in ["/v1/validate/job", "/v1/job/web/plan", "/v1/jobs"] {
        let answer = client.put(path, Some(wanted.clone())).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.text());
        let warnings = answer.json()["Warnings"].as_str().unwrap().to_owned();
        assert!(warnings.starts_with("2 warnings:\n\n* "), "{path}: {warnings}");
        let late = "group g, task t: kill_timeout of 1m 30s is longer than this node allows";
        for key in ["Region has no effect", late] {
            assert!(warnings.contains(key), "{path}: no {key} in {warnings}");
        }
        // The others are told by the text alone.
        let of_agent = answer.json()["AgentWarnings"].as_array().unwrap().clone();
        assert!(
            of_agent.len() == 1 && of_agent[0].as_str().unwrap().starts_with(late),
            "{of_agent:?}"
        );
    }
    let plain = client.put("/v1/validate/job", Some(job("plain", IDLE))).await.json();
    assert_eq!((&plain["Warnings"], &plain["Error"]), (&json!(""), &json!("")));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_driver_nobody_has_is_not_valid() {
    let served = Served::start().await;
    let mut wanted = job("web", IDLE);
    wanted["Job"]["TaskGroups"][0]["Tasks"][0]["Driver"] = json!("exce");
    let answer = served.client.put("/v1/validate/job", Some(wanted)).await.json();
    let error = answer["Error"].as_str().unwrap();
    for said in ["group g, task t: no driver exce; the loaded ones are: exec", "did you mean exec?"]
    {
        assert!(error.contains(said), "{error}");
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_key_of_a_config_is_told_with_its_path_and_the_name_that_was_meant() {
    let served = Served::start().await;
    let mut wanted = job("web", IDLE);
    wanted["Job"]["TaskGroups"][0]["Tasks"][0]["Config"]["comand"] = json!("${NOMAD_TASK_DIR}/x");
    let refused = served.client.put("/v1/jobs", Some(wanted.clone())).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    let said = "group g, task t, config.comand: \"comand\" is unknown; did you mean command?";
    assert_eq!(refused.text(), said);
    let answer = served.client.put("/v1/validate/job", Some(wanted)).await.json();
    assert_eq!(answer["ValidationErrors"], json!([said]));
    assert_eq!(
        answer["ConfigProblems"],
        json!([{
            "Group": "g", "Task": "t", "Path": "comand", "Message": "\"comand\" is unknown",
            "Suggestion": "command",
        }])
    );
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_signal_is_the_askers_mistake_and_told_in_one_plain_line() {
    let served = Served::start().await;
    let alloc = served.run("web", IDLE).await;
    let path = format!("/v1/client/allocation/{alloc}/signal");
    let answer = served.client.put(&path, Some(json!({ "Signal": "FOO" }))).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.text(), "FOO is not a signal; try SIGTERM, SIGHUP or SIGUSR1");
    let known = served.client.put(&path, Some(json!({ "Signal": "usr1", "Task": "t" }))).await;
    assert_eq!(known.status, StatusCode::OK, "{}", known.text());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_that_is_not_there_is_found_nowhere() {
    let served = Served::start().await;
    let client = &served.client;
    let names = async |path: &str| {
        let all = client.get(path).await.json();
        let names = all.as_array().unwrap().iter().map(|one| one["Name"].as_str().unwrap());
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(names("/v1/namespaces").await, ["default"]);
    assert_eq!(names("/v1/namespaces?prefix=def").await, ["default"]);
    assert_eq!(names("/v1/namespaces?prefix=other").await, [""; 0]);
    assert_eq!(client.get("/v1/namespace/default").await.json()["Name"], "default");
    let other = client.get("/v1/namespace/other").await;
    assert_eq!((other.status, other.text()), (StatusCode::NOT_FOUND, "namespace not found".into()));
    served.stop().await;
}

/// Write a whole request before anything of the answer is read, as simple clients do.
fn insist(socket: PathBuf, head: String, body: usize) -> std::io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let head = format!("{head}\r\nHost: x\r\nContent-Length: {body}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    let part = vec![b' '; 64 * 1024];
    let mut left = body;
    while left > 0 {
        let now = left.min(part.len());
        stream.write_all(&part[..now])?;
        left -= now;
    }
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_writes_all_of_its_body_first_reads_why_it_was_refused() {
    let served = Served::start().await;
    let socket = served.client.socket().to_owned();
    let ask = async |head: &str, body: usize| {
        let (socket, head) = (socket.clone(), head.to_owned());
        tokio::task::spawn_blocking(move || insist(socket, head, body)).await.unwrap()
    };
    for (head, status) in [
        ("PUT /v1/nothing HTTP/1.1", "404"),
        ("PATCH /v1/jobs HTTP/1.1", "405"),
        ("PUT /v1/jobs?region=mars HTTP/1.1", "400"),
        ("PUT /v1/client/allocation/x/signal HTTP/1.1", "400"),
    ] {
        let answer = ask(head, API_BODY_BYTES_MAX).await.unwrap_or_else(|e| panic!("{head}: {e}"));
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{head}: {answer}");
    }
    let large = ask("PUT /v1/jobs HTTP/1.1", 2 * API_BODY_BYTES_MAX).await.unwrap();
    assert!(large.starts_with("HTTP/1.1 413 ") && large.contains("larger than"), "{large}");
    // Not without an end.
    let endless = ask("PUT /v1/nothing HTTP/1.1", 4 * API_DRAIN_BYTES_MAX).await;
    assert!(endless.is_err(), "{endless:?}");
    assert_eq!(served.client.get("/v1/agent/self").await.status, StatusCode::OK);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_parsed_with_the_values_that_come_with_it_and_without_the_files_of_the_agent() {
    let served = Served::start().await;
    let hcl = "variable \"image\" {}\njob \"web\" {\n task \"t\" {\n driver = \"exec\"\n env = { \
               IMAGE = upper(var.image) }\n }\n}";
    let ask = |body: serde_json::Value| {
        let client = served.client.clone();
        async move { client.put("/v1/jobs/parse", Some(body)).await }
    };
    let parsed =
        ask(json!({ "JobHCL": hcl, "Canonicalize": true, "Variables": "image = \"a:1\"" })).await;
    assert_eq!(parsed.status, StatusCode::OK, "{}", parsed.text());
    let group = &parsed.json()["TaskGroups"][0];
    assert_eq!((&group["Name"], &group["Tasks"][0]["Env"]["IMAGE"]), (&json!("t"), &json!("A:1")));
    for (body, said) in [
        (json!({ "JobHCL": hcl }), "the variable \"image\" has no value"),
        (json!({ "JobHCL": hcl, "Variables": "imgae = 1" }), "the variable \"image\" has no value"),
        (
            json!({ "JobHCL": hcl, "Variables": "image = [" }),
            "Variables:1:9: this [ is never closed",
        ),
        (json!({ "JobHCL": hcl, "hclv1": true }), "hclv1: Ostler reads HCL2"),
        (
            json!({ "JobHCL": hcl.replace("upper(var.image)", "file(\"/etc/passwd\")"), "Variables": "image = 1" }),
            "the agent does not show its files",
        ),
    ] {
        let refused = ask(body).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text());
        assert!(refused.text().contains(said), "{}", refused.text());
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_a_job_of_a_program_is_said_with_the_keys_that_lead_there() {
    let served = Served::start().await;
    let mut wrong = job("web", IDLE);
    wrong["Job"]["TaskGroups"][0]["Tasks"][0]["Resources"]["CPU"] = json!(-1);
    for path in ["/v1/jobs", "/v1/job/web/plan"] {
        let refused = served.client.put(path, Some(wrong.clone())).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.text());
        let text = refused.text();
        let said = "error: TaskGroups[0] (\"g\") > Tasks[0] (\"t\") > Resources > CPU: CPU must be";
        assert!(text.starts_with(said) && !text.contains("^^"), "{text}");
    }
    served.stop().await;
}

/// The list of allocations, as it is kept and as it is made anew, until both say the same and it has what is
/// wanted of its only allocation.
async fn listed_when(client: &Client, wanted: impl Fn(&Value) -> bool) -> Value {
    within(async {
        loop {
            let made_anew = client.get("/v1/allocations?pretty").await.json();
            let kept = client.get("/v1/allocations").await.json();
            if kept == made_anew && kept.as_array().unwrap().iter().any(&wanted) {
                return kept;
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_that_is_asked_for_again_and_again_says_what_has_changed() {
    let served = Served::start().await;
    let client = &served.client;
    assert_eq!(client.get("/v1/allocations").await.text(), "[]");
    let mut job = job("web", "while :; do sleep 1; done");
    job["Job"]["TaskGroups"][0]["ReschedulePolicy"] = json!({
        "Unlimited": true, "Delay": 3_600_000_000_000_u64, "DelayFunction": "constant",
    });
    assert_eq!(client.put("/v1/jobs", Some(job)).await.status, StatusCode::OK);
    let task = |alloc: &Value| alloc["TaskStates"]["t"].clone();
    let list = listed_when(client, |alloc| task(alloc)["State"] == "running").await;
    let alloc = list[0]["ID"].as_str().unwrap().to_owned();
    assert_eq!(listed_when(client, |_| true).await, list, "nothing happened");

    let restart = format!("/v1/client/allocation/{alloc}/restart");
    assert_eq!(client.put(&restart, Some(json!({}))).await.status, StatusCode::OK);
    let started = |alloc: &Value| {
        let events = task(alloc)["Events"].as_array().unwrap().clone();
        events.iter().filter(|event| event["Type"] == "Started").count()
    };
    listed_when(client, |alloc| started(alloc) == 2).await;

    let signal = format!("/v1/client/allocation/{alloc}/signal");
    let kill = json!({ "Signal": "SIGKILL", "Task": "t" });
    assert_eq!(client.put(&signal, Some(kill)).await.status, StatusCode::OK);
    let failed = |alloc: &Value| alloc["ClientStatus"] == "failed";
    let later = |alloc: &Value| alloc["FollowupEvalID"] != "";
    listed_when(client, |alloc| failed(alloc) && later(alloc)).await;

    let stopped = client.send("DELETE", "/v1/job/web", hyper::body::Bytes::new()).await;
    assert_eq!(stopped.status, StatusCode::OK, "{}", stopped.text());
    listed_when(client, |alloc| !later(alloc)).await;
    client.alloc_gone(&alloc).await;
    assert_eq!(client.get("/v1/allocations").await.text(), "[]");
    served.stop().await;
}
