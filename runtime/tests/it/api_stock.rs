//! What Nomad's tools ask of any agent: search, events, differences, and what only servers have.

use std::collections::VecDeque;

use hyper::StatusCode;
use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::support::http::{Client, Served, Stream, job, within};

const SLEEPER: &str = "exec sleep 1000";

async fn search(client: &Client, prefix: &str, context: &str) -> Value {
    let body = json!({ "Prefix": prefix, "Context": context });
    let answer = client.put("/v1/search", Some(body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    answer.json()
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_found_by_the_beginning_of_its_name() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.register("web", SLEEPER).await;
    served.register("worker", SLEEPER).await;
    let all = search(client, "w", "all").await;
    assert_eq!(all["Matches"]["jobs"], json!(["web", "worker"]));
    assert_eq!(all["Truncations"]["jobs"], false);
    assert_eq!(
        (&all["Matches"]["allocs"], &all["Matches"]["volumes"]),
        (&Value::Null, &Value::Null)
    );
    let of_jobs = search(client, "web", "jobs").await;
    assert_eq!(of_jobs["Matches"], json!({ "jobs": ["web"] }));
    let found = search(client, &alloc[..8].to_uppercase(), "").await;
    assert_eq!(found["Matches"]["allocs"], json!([alloc]));
    let evaluations = client.get("/v1/job/web/evaluations").await.json();
    let evaluation = evaluations[0]["ID"].as_str().unwrap();
    let found = search(client, &evaluation[..8], "evals").await;
    assert_eq!(found["Matches"]["evals"], json!([evaluation]));
    let wrong = client.put("/v1/search", Some(json!({ "Context": "cats" }))).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    assert!(wrong.text().contains("cats"), "{}", wrong.text());
    for method in ["GET", "DELETE"] {
        let answer = client.send(method, "/v1/search", Bytes::new()).await;
        assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    }
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_names_each_field_that_differs_and_what_that_forces() {
    let served = Served::start().await;
    let client = &served.client;
    let plan = async |job: &Value| {
        let mut body = job.clone();
        body["Diff"] = json!(true);
        let answer = client.put("/v1/job/web/plan", Some(body)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        answer.json()["Diff"].clone()
    };
    let mut web = job("web", SLEEPER);
    assert_eq!(plan(&web).await["Type"], "Added");
    served.register("web", SLEEPER).await;
    let same = plan(&web).await;
    assert_eq!((&same["Type"], &same["Fields"]), (&json!("None"), &Value::Null));
    web["Job"]["Priority"] = json!(70);
    web["Job"]["TaskGroups"][0]["Count"] = json!(3);
    web["Job"]["TaskGroups"][0]["Tasks"][0]["Env"] = json!({ "A": "b" });
    let diff = plan(&web).await;
    assert_eq!(diff["Type"], "Edited");
    let priority = &diff["Fields"][0];
    assert_eq!((&priority["Name"], &priority["Old"]), (&json!("Priority"), &json!("50")));
    let group = &diff["TaskGroups"][0];
    assert_eq!(group["Fields"][0]["Annotations"], json!(["forces create"]), "{group}");
    assert_eq!(group["Updates"]["create"], 2, "{group}");
    let task = &group["Tasks"][0];
    assert_eq!(task["Annotations"], json!(["forces create/destroy update"]), "{task}");
    assert_eq!(task["Fields"][0]["Name"], "Env[A]", "{task}");

    let taken = client.put("/v1/jobs", Some(web)).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.text());
    let versions = client.get("/v1/job/web/versions?diffs=true").await.json();
    assert_eq!(versions["Diffs"].as_array().unwrap().len(), 1, "{versions}");
    assert_eq!(versions["Diffs"][0]["Fields"][0]["New"], "70");
    served.stop().await;
}

/// A stream of events, and what of it is read and not looked at.
struct Events {
    stream: Stream,
    text: String,
    read: VecDeque<Value>,
}

impl Events {
    async fn of(client: &Client, query: &str) -> Self {
        let path = format!("/v1/event/stream{query}");
        let stream = client.open("GET", &path, Bytes::new()).await;
        assert_eq!(stream.status, StatusCode::OK);
        Self { stream, text: String::new(), read: VecDeque::new() }
    }

    /// The next event that is wanted; those before it are passed over.
    async fn next(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            while let Some(event) = self.read.pop_front() {
                if wanted(&event) {
                    return event;
                }
            }
            while let Some(end) = self.text.find('\n') {
                let line: Value = serde_json::from_str(&self.text[..end]).unwrap();
                self.text.drain(..=end);
                for event in line["Events"].as_array().into_iter().flatten() {
                    assert_eq!(event["Index"], line["Index"], "{line}");
                    self.read.push_back(event.clone());
                }
            }
            if self.read.is_empty() {
                let piece = self.stream.next().await.expect("the stream ended");
                self.text.push_str(std::str::from_utf8(&piece).unwrap());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_change_is_an_event_for_those_who_follow_its_topic() {
    let served = Served::start().await;
    let client = &served.client;
    let mut all = Events::of(client, "").await;
    let mut of_web = Events::of(client, "?topic=Allocation:web&topic=Job:none").await;
    served.register("other", SLEEPER).await;
    let alloc = served.register("web", SLEEPER).await;
    let registered = all.next(|event| event["Topic"] == "Job" && event["Key"] == "web").await;
    assert_eq!(registered["Type"], "JobRegistered");
    assert_eq!(registered["Payload"]["Job"]["ID"], "web");
    let evaluation = all.next(|event| event["Topic"] == "Evaluation").await;
    assert_eq!(evaluation["FilterKeys"], json!(["web"]));
    assert_eq!(evaluation["Index"], registered["Index"]);
    let running = |event: &Value| event["Payload"]["Allocation"]["ClientStatus"] == "running";
    let first = of_web.next(running).await;
    assert_eq!((&first["Key"], &first["Topic"]), (&json!(alloc), &json!("Allocation")));
    assert_eq!(first["Payload"]["Allocation"]["Job"], Value::Null);

    client.send("DELETE", "/v1/job/web?purge=true", Bytes::new()).await;
    all.next(|event| event["Type"] == "JobDeregistered" && event["Key"] == "web").await;

    // Who comes later begins where it was.
    let index = registered["Index"].as_u64().unwrap();
    let mut again = Events::of(client, &format!("?topic=Job&index={}", index - 1)).await;
    let event = again.next(|_| true).await;
    assert_eq!((&event["Key"], &event["Index"]), (&json!("web"), &json!(index)));
    assert_eq!(event["Type"], "JobRegistered", "as it was then");
    let wrong = client.get("/v1/event/stream?topic=Weather").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn that_an_allocation_is_told_to_stop_is_another_event_than_its_end() {
    let served = Served::start().await;
    let client = &served.client;
    let mut events = Events::of(client, "?topic=Allocation:web").await;
    served.run("web", "trap 'sleep 1; exit 0' TERM; while :; do sleep 0.1; done").await;
    events.next(|event| event["Payload"]["Allocation"]["ClientStatus"] == "running").await;
    client.send("DELETE", "/v1/job/web", Bytes::new()).await;
    let of_stop = |event: &Value| event["Payload"]["Allocation"]["DesiredStatus"] == "stop";
    let told = events.next(of_stop).await;
    assert_eq!(told["Type"], "AllocationUpdateDesiredStatus", "{told}");
    let over = |event: &Value| event["Payload"]["Allocation"]["ClientStatus"] == "complete";
    let end = events.next(over).await;
    assert_eq!((&end["Type"], &end["Key"]), (&json!("AllocationUpdated"), &told["Key"]), "{end}");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_servers_have_is_answered_as_by_one_that_is_alone() {
    let served = Served::start().await;
    let client = &served.client;
    let members = client.get("/v1/agent/members").await.json();
    assert_eq!(members["Members"].as_array().unwrap().len(), 1, "{members}");
    assert_eq!(members["Members"][0]["Status"], "alive");
    assert_eq!(client.get("/v1/agent/servers").await.json(), json!(["127.0.0.1:4647"]));
    for list in ["/v1/plugins?type=csi", "/v1/volumes?type=csi"] {
        assert_eq!(client.get(list).await.json(), json!([]), "{list}");
    }
    for (path, status, text) in [
        ("/v1/acl/tokens", 400, "ACL support disabled"),
        ("/v1/quotas", 501, "Nomad Enterprise"),
        ("/v1/recommendation/x", 501, "Nomad Enterprise"),
        ("/v1/plugin/csi/x", 404, "plugin not found"),
        ("/v1/operator/autopilot/health", 400, "servers of a cluster"),
        ("/v1/namespace/none", 404, "namespace not found"),
    ] {
        let answer = client.get(path).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        assert!(answer.text().contains(text), "{path}: {}", answer.text());
    }
    let autopilot = client.get("/v1/operator/autopilot/configuration").await.json();
    assert_eq!(autopilot["ServerStabilizationTime"], "10s", "{autopilot}");
    let put = async |path: &str, body: Value| client.put(path, Some(body)).await;
    assert_eq!(put("/v1/agent/force-leave?node=gone", json!({})).await.status, StatusCode::OK);
    for (path, status, text) in [
        ("/v1/operator/license", 501, "Nomad Enterprise"),
        ("/v1/recommendations/apply", 501, "Nomad Enterprise"),
        ("/v1/volume/csi/x", 400, "no CSI plugin"),
        ("/v1/operator/autopilot/configuration", 400, "client { servers"),
        ("/v1/acl/bootstrap", 400, "ACL support disabled"),
    ] {
        let answer = put(path, json!({})).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        assert!(answer.text().contains(text), "{path}: {}", answer.text());
    }
    for (path, text) in [
        ("/v1/namespace", "namespace"),
        ("/v1/agent/join?address=x", "no servers beside it"),
        ("/v1/job/web/dispatch", "servers of a cluster"),
        ("/v1/job/web/periodic/force", "servers of a cluster"),
    ] {
        let answer = put(path, json!({})).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
        assert!(answer.text().contains(text), "{path}: {}", answer.text());
    }
    let summaries = put("/v1/system/reconcile/summaries", json!({})).await;
    assert_eq!((summaries.status, summaries.text().as_str()), (StatusCode::OK, ""));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evaluation_is_given_to_who_asks_for_one_also_of_a_job_that_is_gone() {
    let served = Served::start().await;
    let client = &served.client;
    served.register("web", SLEEPER).await;
    let evaluated = client.put("/v1/job/web/evaluate", Some(json!({ "JobID": "web" }))).await;
    assert_eq!(evaluated.status, StatusCode::OK, "{}", evaluated.text());
    let of = |answer: &Value| format!("/v1/evaluation/{}", answer["EvalID"].as_str().unwrap());
    let found = client.get(&of(&evaluated.json())).await.json();
    assert_eq!((&found["Status"], &found["JobID"]), (&json!("complete"), &json!("web")));
    // Nothing has failed.
    let force = json!({ "EvalOptions": { "ForceReschedule": true } });
    let forced = client.put("/v1/job/web/evaluate", Some(force)).await;
    assert_eq!(forced.status, StatusCode::OK, "{}", forced.text());

    let purged = client.send("DELETE", "/v1/job/web?purge=true", Bytes::new()).await.json();
    let found = client.get(&of(&purged)).await.json();
    assert_eq!((&found["TriggeredBy"], &found["JobID"]), (&json!("job-deregister"), &json!("web")));
    let none = client.get(&format!("{}x", of(&purged))).await;
    assert_eq!(none.status, StatusCode::NOT_FOUND);

    let stale =
        json!({ "Job": job("web", SLEEPER)["Job"], "EnforceIndex": true, "JobModifyIndex": 7 });
    let refused = client.put("/v1/jobs", Some(stale)).await;
    // The stock command line knows it by this beginning.
    assert!(refused.text().starts_with("Enforcing job modify index 7:"), "{}", refused.text());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_have_nomads_names_and_prometheus_reads_them() {
    let served = Served::start().await;
    let client = &served.client;
    let alloc = served.run("web", SLEEPER).await;
    let metrics = client.get("/v1/metrics").await.json();
    let gauges = metrics["Gauges"].as_array().unwrap();
    let value = |name: &str, label: (&str, &str)| {
        let found = gauges.iter().find(|gauge| {
            gauge["Name"] == name && (label.0.is_empty() || gauge["Labels"][label.0] == label.1)
        });
        found.unwrap_or_else(|| panic!("{name}"))["Value"].as_f64().unwrap()
    };
    let any = ("", "");
    assert_eq!(value("nomad.client.allocations.running", any), 1.0);
    assert_eq!(value("nomad.client.allocated.cpu", any), 20.0);
    assert_eq!(value("nomad.client.allocated.memory", any), 64.0);
    assert!(value("nomad.client.unallocated.memory", any) > 64.0);
    assert!(value("nomad.client.host.memory.total", any) > 0.0);
    assert!(value("nomad.client.uptime", any) > 0.0);
    let of_task = ("alloc_id", alloc.as_str());
    assert_eq!(value("nomad.client.allocs.cpu.allocated", of_task), 20.0);
    assert_eq!(value("ostler.client.jobs", any), 1.0);

    let text = client.get("/v1/metrics?format=prometheus").await;
    assert_eq!(text.headers["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = text.text();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(name.starts_with("nomad_") || name.starts_with("ostler_"), "{line}");
    }
    assert!(text.contains("\nnomad_client_allocations_running{"), "{text}");
    // As promtool wants it: what each counts, and counters by their names.
    for line in text.lines().filter(|line| line.starts_with("# TYPE ")) {
        let (name, kind) = line["# TYPE ".len()..].split_once(' ').unwrap();
        let help = text.lines().find(|line| line.starts_with(&format!("# HELP {name} ")));
        let help = help.unwrap_or_else(|| panic!("{name} says nothing of itself"));
        assert!(!help.ends_with("A number of this agent."), "{name} is not in the list");
        assert_eq!(
            name.ends_with("_total") && name.starts_with("ostler"),
            kind == "counter",
            "{line}"
        );
    }
    assert!(text.contains("\nostler_state_writes_total "), "{text}");
    let wrong = client.get("/v1/metrics?format=xml").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_is_drained_and_takes_what_waits_when_it_is_eligible_again() {
    let served = Served::start().await;
    let client = &served.client;
    let mut events = Events::of(client, "?topic=Node").await;
    let alloc = served.run("web", SLEEPER).await;
    let node = client.get("/v1/nodes").await.json()[0]["ID"].as_str().unwrap().to_owned();
    let path = format!("/v1/node/{node}");
    let put = async |what: &str, body: Value| {
        let answer = client.put(&format!("{path}/{what}"), Some(body)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
        answer
    };
    let spec = json!({ "NodeID": node, "DrainSpec": { "Deadline": 60_000_000_000_u64 } });
    let set = put("drain", spec).await;
    let drained = client.alloc_when(&alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    assert_eq!(drained["DesiredTransition"]["Migrate"], true);
    // As the stock command line waits for it.
    let mut index = set.index();
    let shown = loop {
        let answer = client.get(&format!("{path}?index={}&wait=10s", index - 1)).await;
        let shown = answer.json();
        if shown["DrainStrategy"].is_null() {
            break shown;
        }
        assert_eq!(shown["DrainStrategy"]["Deadline"], 60_000_000_000_u64);
        index = answer.index() + 1;
    };
    assert_eq!(shown["SchedulingEligibility"], "ineligible");
    let last = shown["Events"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["Message"], "Node drain complete");
    let stub = client.get("/v1/nodes").await.json()[0].clone();
    assert_eq!(
        (&stub["Drain"], &stub["SchedulingEligibility"]),
        (&json!(false), &json!("ineligible"))
    );
    let waits = client.get("/v1/job/web").await.json();
    assert_eq!(waits["Status"], "pending");
    let why = waits["StatusDescription"].as_str().unwrap();
    assert!(why.contains("nothing new is placed"), "{why}");
    let metrics = client.get("/v1/metrics?format=prometheus").await.text();
    assert!(metrics.contains("node_scheduling_eligibility=\"ineligible\""), "{metrics}");

    put("eligibility", json!({ "Eligibility": "eligible" })).await;
    let all = client.get("/v1/job/web/allocations").await.json();
    let next = all.as_array().unwrap().iter().find(|one| one["ID"] != alloc.as_str());
    let next = match next {
        Some(next) => next["ID"].as_str().unwrap().to_owned(),
        None => {
            let index = client.get("/v1/job/web/allocations").await.index();
            let path = format!("/v1/job/web/allocations?index={index}&wait=10s");
            let all = client.get(&path).await.json();
            let next = all.as_array().unwrap().iter().find(|one| one["ID"] != alloc.as_str());
            next.expect("it is placed again")["ID"].as_str().unwrap().to_owned()
        }
    };
    client.alloc_when(&next, |alloc| alloc["ClientStatus"] == "running").await;
    let first = events.next(|_| true).await;
    assert_eq!((&first["Type"], &first["Key"]), (&json!("NodeDrain"), &json!(node)));
    assert_eq!(first["Payload"]["Node"]["ID"], node.as_str());
    events.next(|event| event["Type"] == "NodeEligibility").await;
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_are_made_described_and_removed_when_they_are_empty() {
    let served = Served::start().await;
    let client = &served.client;
    let made = json!({ "Name": "dev", "Description": "for trials" });
    let answer = client.put("/v1/namespace", Some(made)).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text());
    let dev = client.get("/v1/namespace/dev").await.json();
    assert_eq!((&dev["Description"], &dev["Configured"]), (&json!("for trials"), &json!(false)));
    let mut web = job("web", SLEEPER);
    web["Job"]["Namespace"] = json!("dev");
    let taken = client.put("/v1/jobs", Some(web)).await;
    assert_eq!(taken.status, StatusCode::OK, "{}", taken.text());
    let delete = async |name: &str| {
        client.send("DELETE", &format!("/v1/namespace/{name}"), Bytes::new()).await
    };
    let used = delete("dev").await;
    assert_eq!(used.status, StatusCode::CONFLICT);
    assert!(used.text().contains("1 job"), "{}", used.text());
    assert_eq!(delete("default").await.status, StatusCode::BAD_REQUEST);
    client.send("DELETE", "/v1/job/web?purge=true&namespace=dev", Bytes::new()).await;
    let gone = delete("dev").await;
    assert_eq!(gone.status, StatusCode::OK, "{}", gone.text());
    assert_eq!(client.get("/v1/namespace/dev").await.status, StatusCode::NOT_FOUND);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn long_answers_are_packed_for_who_takes_that_and_streams_never() {
    let served = Served::start().await;
    let socket = served.client.socket().to_owned();
    let head = async |path: &str| {
        let mut stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: ostler\r\nAccept-Encoding: gzip\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut read = vec![0; 4096];
        let mut text = String::new();
        while !text.contains("\r\n\r\n") {
            let count =
                within(tokio::io::AsyncReadExt::read(&mut stream, &mut read)).await.unwrap();
            assert!(count > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&read[..count]));
        }
        text.to_ascii_lowercase()
    };
    let packed = head("/v1/nodes?resources=true").await;
    assert!(packed.contains("content-encoding: gzip"), "{packed}");
    for path in ["/v1/status/leader", "/v1/event/stream", "/v1/agent/monitor"] {
        let plain = head(path).await;
        assert!(!plain.contains("content-encoding"), "{path}: {plain}");
        assert!(plain.contains("vary: accept-encoding"), "{path}: {plain}");
    }
    served.stop().await;
}
