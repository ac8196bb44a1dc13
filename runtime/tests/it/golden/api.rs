//! Every route of the API with what it answers, asked of a real agent.

use std::collections::{BTreeMap, BTreeSet};

use ostler_api::routes::{Route, RouteMethods};

use hyper::body::Bytes;
use serde_json::{Value, json};

use super::{JOB, compare, folder, placeholders, shape};
use crate::devices::sysfs;
use crate::support::http::{Answer, Client, within};
use crate::support::system::until;

/// Answers whose values are the machine's: only keys and types are compared.
const OF_THE_MACHINE: &[&str] = &[
    "/v1/agent/host",
    "/v1/agent/members",
    "/v1/agent/self",
    "/v1/client/allocation/{id}/stats",
    "/v1/client/stats",
    "/v1/metrics",
    "/v1/node/{id}",
    "/v1/nodes",
    "/v1/operator/raft/configuration",
    "/v1/ostler/node",
    "/v1/ostler/plugins",
    "/v1/ostler/plugins/status",
    "/v1/ostler/state",
    "/v1/ostler/watches",
];

/// No allocation's and no evaluation's id.
const NOBODY: &str = "ffffffff-0000-4000-8000-000000000000";

/// The paths of the API, but for the page, each with the methods it takes. Of `POST` and `PUT`, which are the same
/// everywhere, only the latter; of those that take any method, `GET`.
fn routes() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut routes: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for route in Route::ALL.iter().filter(|route| route.path().starts_with("/v1/")) {
        let methods: &[&str] = match route.methods() {
            RouteMethods::Get | RouteMethods::Any => &["GET"],
            RouteMethods::Put => &["PUT"],
            RouteMethods::Delete => &["DELETE"],
            RouteMethods::PutDelete => &["PUT", "DELETE"],
        };
        routes.entry(route.path()).or_default().extend(methods);
    }
    routes
}

/// The route that a path is of; the one without a placeholder goes first.
fn route(path: &str) -> &'static str {
    let path = path.split('?').next().unwrap();
    let fits = |route: &&str| {
        let (parts, route) = (path.split('/'), route.split('/'));
        parts.clone().count() == route.clone().count()
            && parts.zip(route).all(|(part, own)| part == own || own.starts_with('{'))
    };
    let fitting = routes().into_keys().filter(fits).min_by_key(|route| route.contains('{'));
    fitting.unwrap_or("/v1/no-route")
}

/// `/v1/job/{id}/plan` is kept in `job.id.plan.txt`.
fn file(route: &str) -> String {
    route.trim_start_matches("/v1/").replace('/', ".").replace(['{', '}', '*'], "") + ".txt"
}

#[test]
fn every_route_has_a_golden_file_with_each_of_its_methods() {
    let routes = routes();
    assert!(routes.len() > 50, "the routes are read: {routes:?}");
    for (route, methods) in routes {
        assert!(!methods.is_empty(), "{route}");
        let golden = std::fs::read_to_string(folder("api").join(file(route)));
        let golden = golden.unwrap_or_else(|error| panic!("{route} has no golden file: {error}"));
        for method in methods {
            let asked = golden.lines().any(|line| line.starts_with(&format!("{method} /v1/")));
            assert!(asked, "{} has nothing of {method}", file(route));
        }
    }
}

/// Asks, and keeps what was answered.
struct Recorder {
    client: Client,
    known: Vec<(String, &'static str)>,
    seen: BTreeMap<String, String>,
}

impl Recorder {
    async fn ask(&mut self, method: &str, path: &str, body: Value) -> Answer {
        let sent = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let answer = self.client.send(method, path, sent).await;
        let kind = answer.headers.get("content-type").map_or("none", |kind| kind.to_str().unwrap());
        let route = route(path);
        let shown = match serde_json::from_slice::<Value>(&answer.body) {
            Ok(value) if OF_THE_MACHINE.contains(&route) => shape(&value),
            Ok(value) => value,
            Err(_) => Value::Null,
        };
        let shown = match &shown {
            Value::Null => answer.text(),
            value => serde_json::to_string_pretty(value).unwrap(),
        };
        let text = format!("{method} {path}\n{} {kind}\n{shown}\n\n", answer.status);
        *self.seen.entry(file(route)).or_default() += &placeholders(&text, &self.known);
        answer
    }

    async fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, Value::Null).await
    }

    async fn put(&mut self, path: &str, body: Value) -> Answer {
        self.ask("PUT", path, body).await
    }

    async fn gets(&mut self, paths: &[&str]) {
        for path in paths {
            self.get(path).await;
        }
    }
}

/// The mode of a log, as the umask of the tests and their agents leaves it.
fn log_mode() -> String {
    let mode = ostler_testing::files::mode_left(0o644).unwrap();
    let bits = "rwxrwxrwx".chars().zip((0..9).rev());
    let shown = bits.map(|(right, bit)| if mode >> bit & 1 == 1 { right } else { '-' });
    std::iter::once('-').chain(shown).collect()
}

#[tokio::test]
async fn every_answer_of_the_api_is_the_golden_one() {
    let root = sysfs();
    let agent = super::agent(root.path()).await;
    let client = Client(agent.data.path().join("ostler.sock"));
    let node = client.get("/v1/nodes").await.json()[0]["ID"].as_str().unwrap().to_owned();
    let mut known = super::paths(&agent, root.path());
    known.push((log_mode(), "-rw-r--r--"));
    let mut api = Recorder { client, known, seen: BTreeMap::new() };

    of_the_node(&mut api, &node).await;
    of_servers(&mut api).await;
    let job = registrations(&mut api).await;
    let alloc = running(&mut api, &node).await;
    files(&mut api, &alloc).await;
    ends(&mut api, &alloc, job).await;
    compare("api", &api.seen);
}

async fn of_the_node(api: &mut Recorder, node: &str) {
    let (one, none) = (format!("/v1/node/{node}"), format!("/v1/node/{NOBODY}"));
    api.gets(&["/v1/nodes", "/v1/nodes?resources=true", "/v1/nodes?prefix=ffffffff"]).await;
    api.gets(&[&one, &none, "/v1/client/stats"]).await;
    // What is followed has no end; what is wrong with a request has.
    api.gets(&["/v1/agent/monitor?log_level=loud", "/v1/agent/monitor?node_id=none"]).await;
    api.gets(&["/v1/agent/self", "/v1/agent/health", "/v1/status/leader", "/v1/status/peers"])
        .await;
    api.gets(&["/v1/regions", "/v1/regions?region=mars", "/v1/namespaces"]).await;
    api.gets(&["/v1/namespace/default", "/v1/namespace/other"]).await;
    api.gets(&["/v1/agent/host", "/v1/agent/pprof/heap"]).await;
    for ask in ["eligibility", "drain", "evaluate", "purge"] {
        api.put(&format!("{none}/{ask}"), json!({})).await;
    }
    api.put(&format!("{one}/eligibility"), json!({ "Eligibility": "perhaps" })).await;
    api.put(&format!("{one}/drain"), json!({ "NodeID": NOBODY })).await;
    api.put(&format!("{one}/drain"), json!({ "DrainSpec": { "Deadline": i64::MAX } })).await;
    api.put(&format!("{one}/purge"), Value::Null).await;
    api.gets(&["/v1/ostler/node", "/v1/ostler/plugins", "/v1/ostler/plugins/status"]).await;
    api.gets(&["/v1/ostler/watches", "/v1/ostler/state", "/v1/ostler/runs"]).await;
    api.gets(&["/v1/ostler/readiness", "/v1/ostler/jobs-dir", "/v1/ostler/reload", "/v1/metrics"])
        .await;
    // What happened differs; what is wrong with a request does not.
    api.gets(&["/v1/ostler/events?topic=none", "/v1/ostler/log?lines=0"]).await;
    api.put("/v1/ostler/run/1/end", Value::Null).await;
    for act in ["lift", "record", "upgrade"] {
        api.put(&format!("/v1/ostler/plugin/nobody/{act}"), Value::Null).await;
    }
    api.put("/v1/ostler/plugin/pci/lift", Value::Null).await;
    api.put("/v1/ostler/plugin/pci/record", Value::Null).await;
    api.put("/v1/ostler/plugin/pci/upgrade", json!({ "file": "relative.wasm" })).await;
    api.gets(&["/v1/nothing", "/v1/system/gc"]).await;
    variables(api).await;
}

/// What a node alone says to what servers are asked.
async fn of_servers(api: &mut Recorder) {
    api.gets(&["/v1/agent/members", "/v1/agent/servers", "/v1/operator/raft/configuration"]).await;
    api.ask("DELETE", "/v1/operator/raft/peer?address=127.0.0.1:1", Value::Null).await;
    api.gets(&["/v1/operator/autopilot/configuration", "/v1/operator/autopilot/health"]).await;
    api.gets(&["/v1/operator/scheduler/configuration", "/v1/operator/snapshot"]).await;
    api.gets(&["/v1/operator/license", "/v1/agent/keyring/list", "/v1/plugins", "/v1/volumes"])
        .await;
    api.gets(&["/v1/plugin/csi/x", "/v1/volume/csi/x", "/v1/quotas"]).await;
    of_tokens(api).await;
    api.gets(&["/v1/quota", "/v1/quota/x", "/v1/quota-usages", "/v1/sentinel/policies"]).await;
    api.gets(&["/v1/recommendation", "/v1/recommendation/x", "/v1/recommendations"]).await;
    api.gets(&["/v1/recommendations/apply"]).await;
    // What is followed has no end; what is wrong with a request has.
    api.get("/v1/event/stream?topic=Weather").await;
    api.get("/v1/ostler/live?region=elsewhere").await;
    for path in [
        "/v1/agent/servers",
        "/v1/agent/join",
        "/v1/agent/force-leave",
        "/v1/agent/force-leave?node=gone",
        "/v1/operator/autopilot/configuration",
        "/v1/operator/scheduler/configuration",
        "/v1/operator/license",
        "/v1/volume/csi/x",
        "/v1/job/none/dispatch",
        "/v1/job/none/periodic/force",
        "/v1/job/none/evaluate",
        "/v1/system/reconcile/summaries",
        "/v1/namespace",
        "/v1/namespace/other",
    ] {
        api.put(path, json!({})).await;
    }
    for path in ["/v1/volume/csi/x", "/v1/volume/csi/x/detach"] {
        api.ask("DELETE", path, Value::Null).await;
    }
    api.put("/v1/namespace", json!({ "Name": "other", "Quota": "small" })).await;
    api.ask("DELETE", "/v1/namespace/other", Value::Null).await;
    api.ask("DELETE", "/v1/namespace/none", Value::Null).await;
    api.ask("DELETE", "/v1/namespace/default", Value::Null).await;
    api.put("/v1/search", json!({ "Prefix": "none", "Context": "jobs" })).await;
    api.put("/v1/search", json!({ "Context": "weather" })).await;
}

/// An agent that asks for no tokens.
async fn of_tokens(api: &mut Recorder) {
    api.gets(&["/v1/acl/tokens", "/v1/acl/token/self", "/v1/acl/token/none", "/v1/acl/policies"])
        .await;
    api.gets(&["/v1/acl/policy/read", "/v1/acl/roles"]).await;
    for path in ["/v1/acl/bootstrap", "/v1/acl/token", "/v1/acl/token/none", "/v1/acl/policy/read"]
    {
        api.put(path, json!({})).await;
    }
    for path in ["/v1/acl/token/none", "/v1/acl/policy/read"] {
        api.ask("DELETE", path, Value::Null).await;
    }
}

/// A variable that comes, changes and goes, and what cannot be done with one.
async fn variables(api: &mut Recorder) {
    let items = |text: &str| json!({ "Items": { "name": text } });
    api.gets(&["/v1/vars", "/v1/var/web"]).await;
    api.put("/v1/var/web?cas=0", items("one")).await;
    api.put("/v1/var/web?cas=0", items("two")).await;
    api.put("/v1/var/none?cas=7", items("two")).await;
    api.put("/v1/var/web", items("two")).await;
    api.put("/v1/var/web", json!({ "Items": { "name": 7 } })).await;
    api.put("/v1/var/web?lock-acquire", items("two")).await;
    api.put("/v1/var/a.b", items("two")).await;
    api.put("/v1/var/nomad", items("two")).await;
    api.gets(&["/v1/vars", "/v1/vars?prefix=x", "/v1/vars?namespace=other", "/v1/var/web"]).await;
    api.ask("DELETE", "/v1/var/web?cas=7", Value::Null).await;
    api.ask("DELETE", "/v1/var/web", Value::Null).await;
}

/// Everything that is asked about a job, right and wrong; the job runs afterwards.
async fn registrations(api: &mut Recorder) -> Value {
    let text = json!({ "JobHCL": JOB, "Canonicalize": true });
    let job = api.put("/v1/jobs/parse", text).await.json();
    api.put("/v1/jobs/parse", json!({ "JobHCL": "job \"a\" {\n  grup \"g\" {}\n}\n" })).await;
    api.put("/v1/jobs/parse", json!(7)).await;
    let right = json!({ "Job": job, "Diff": true });
    let with = |pointer: &str, value: Value| {
        let mut changed = right.clone();
        *changed.pointer_mut(pointer).unwrap() = value;
        changed
    };
    let task = "/Job/TaskGroups/0/Tasks/0";
    let misspelt = with(&format!("{task}/Config"), json!({ "comand": "/bin/sh" }));
    let huge = with(&format!("{task}/Resources/CPU"), json!(100_000_000));
    for path in ["/v1/validate/job", "/v1/job/web/plan"] {
        api.put(path, right.clone()).await;
        api.put(path, with(&format!("{task}/Driver"), json!("exce"))).await;
        api.put(path, misspelt.clone()).await;
    }
    api.gets(&["/v1/jobs", "/v1/job/web", "/v1/ostler/job/web/blocked"]).await;
    api.put("/v1/jobs", misspelt).await;
    api.put("/v1/jobs", with("/Job/TaskGroups", json!([]))).await;
    api.put("/v1/jobs?namespace=other", right.clone()).await;
    api.ask("PATCH", "/v1/jobs", Value::Null).await;
    api.put("/v1/jobs", right.clone()).await;
    api.put("/v1/jobs", json!({ "Job": job, "EnforceIndex": true, "JobModifyIndex": 0 })).await;
    api.put("/v1/job/web", right.clone()).await;
    api.put("/v1/job/other", right.clone()).await;
    api.put("/v1/job/web/plan", huge.clone()).await;
    api.put("/v1/job/other/plan", right).await;
    let mut waits = huge;
    waits["Job"]["ID"] = "waits".into();
    api.put("/v1/jobs", waits).await;
    job
}

/// A running allocation, and everything that lists it or the jobs.
async fn running(api: &mut Recorder, node: &str) -> String {
    let list = api.client.get("/v1/job/web/allocations").await.json();
    let alloc = list[0]["ID"].as_str().unwrap().to_owned();
    let eval = list[0]["EvalID"].as_str().unwrap().to_owned();
    api.known.push((node.to_owned(), "<node>"));
    let names = super::names(&api.client, &alloc).await;
    api.known.extend(names);
    api.gets(&["/v1/jobs", "/v1/jobs?prefix=none", "/v1/jobs?index=x", "/v1/job/none"]).await;
    for part in ["", "/summary", "/versions", "/allocations", "/evaluations", "/deployments"] {
        api.get(&format!("/v1/job/web{part}")).await;
    }
    api.gets(&["/v1/job/waits", "/v1/job/web/deployment", "/v1/job/none/summary"]).await;
    api.gets(&["/v1/evaluations", "/v1/deployments", &format!("/v1/evaluation/{eval}")]).await;
    deployments(api).await;
    api.gets(&[&format!("/v1/evaluation/{NOBODY}")]).await;
    api.gets(&[&format!("/v1/evaluation/{eval}/allocations")]).await;
    api.gets(&["/v1/allocations", "/v1/allocations?resources=true"]).await;
    api.gets(&["/v1/allocations?prefix=ffffffff", "/v1/allocations?prefix=%2Fbin"]).await;
    api.gets(&["/v1/allocation/zzz", &format!("/v1/allocation/{NOBODY}")]).await;
    api.gets(&[&format!("/v1/allocation/{alloc}"), &format!("/v1/node/{node}/allocations")]).await;
    api.gets(&["/v1/node/none/allocations", "/v1/ostler/devices"]).await;
    let of = format!("/v1/client/allocation/{alloc}");
    api.gets(&[&format!("{of}/stats"), &format!("{of}/stats?task=none")]).await;
    api.gets(&[&format!("{of}/checks"), &format!("/v1/client/allocation/{NOBODY}/checks")]).await;
    // What goes on as a WebSocket is no answer that is kept; what is wrong with a request is.
    api.gets(&[&format!("{of}/exec?task=t"), &format!("{of}/exec?task=t&command=ls")]).await;
    api.gets(&[&format!("{of}/exec?task=t&command=%5B%22ls%22%5D")]).await;
    api.gets(&["/v1/services", "/v1/services?namespace=other", "/v1/service/web-0"]).await;
    api.gets(&["/v1/service/none", "/v1/service/web-0?choose=1%7Ca"]).await;
    api.gets(&[&format!("{of}/gc"), &format!("/v1/client/allocation/{NOBODY}/gc")]).await;
    // What there is of it is an archive.
    api.gets(&[&format!("/v1/client/allocation/{NOBODY}/snapshot")]).await;
    alloc
}

/// The deployment that the job came with, and its versions.
async fn deployments(api: &mut Recorder) {
    let all = api.client.get("/v1/deployments").await.json();
    let deployment = all[0]["ID"].as_str().unwrap().to_owned();
    api.gets(&["/v1/deployments?prefix=ffffffff", &format!("/v1/deployment/{deployment}")]).await;
    api.gets(&[&format!("/v1/deployment/{NOBODY}")]).await;
    api.gets(&[&format!("/v1/deployment/allocations/{deployment}")]).await;
    for (act, body) in [
        ("promote", json!({ "All": true })),
        ("pause", json!({ "Pause": true })),
        ("fail", Value::Null),
        ("unblock", Value::Null),
        ("allocation-health", json!({ "HealthyAllocationIDs": [NOBODY] })),
    ] {
        for id in [NOBODY, &deployment] {
            api.put(&format!("/v1/deployment/{act}/{id}"), body.clone()).await;
        }
    }
    scaling(api).await;
    for act in ["revert", "stable"] {
        let version = |version: u64| {
            let mut body = json!({ "JobID": "web", "JobVersion": version });
            if act == "stable" {
                body["Stable"] = true.into();
            }
            body
        };
        api.put(&format!("/v1/job/web/{act}"), version(7)).await;
        api.put(&format!("/v1/job/none/{act}"), version(0)).await;
        api.put(&format!("/v1/job/web/{act}"), version(0)).await;
    }
    // What only the other request knows.
    let stray = json!({ "JobID": "web", "JobVersion": 7, "Stable": true });
    api.put("/v1/job/web/revert", stray).await;
}

/// The count of a group, and policies of autoscalers: the job has none.
async fn scaling(api: &mut Recorder) {
    api.gets(&["/v1/job/web/scale", "/v1/job/none/scale", "/v1/scaling/policies"]).await;
    api.gets(&[&format!("/v1/scaling/policy/{NOBODY}")]).await;
    let note = json!({ "Error": true, "Target": { "Group": "g" }, "Message": "noted" });
    api.put("/v1/job/web/scale", note).await;
    api.put("/v1/job/web/scale", json!({ "Count": 1 })).await;
    api.put("/v1/job/none/scale", json!({ "Count": 1, "Target": { "Group": "g" } })).await;
}

/// Files and logs of the allocation.
async fn files(api: &mut Recorder, alloc: &str) {
    let printed = format!("/v1/client/fs/cat/{alloc}?path=alloc/logs/t.stdout.0");
    within(async { while api.client.get(&printed).await.text() != "hello\n" {} }).await;
    api.get(&printed).await;
    let logs = format!("/v1/client/fs/logs/{alloc}");
    api.gets(&[&format!("{logs}?task=t&type=stdout&plain=true")]).await;
    api.gets(&[&format!("{logs}?task=t&type=stdout")]).await;
    api.gets(&[&logs, &format!("{logs}?task=none&type=stdout")]).await;
    api.gets(&[&format!("{logs}?task=t&type=other")]).await;
    let at = |call: &str, path: &str| format!("/v1/client/fs/{call}/{alloc}?path={path}");
    api.gets(&[&at("ls", "/t"), &at("ls", "/none"), &at("stat", "/alloc/logs/t.stdout.0")]).await;
    api.gets(&[&at("stat", "/t/secrets"), &at("cat", "/none"), &at("readat", "/none")]).await;
    api.gets(&[&at("readat", "/alloc/logs/t.stdout.0&offset=1&limit=3")]).await;
    api.gets(&[&at("stream", "/alloc/logs/t.stdout.0&origin=end&offset=3&follow=false")]).await;
    api.gets(&[&at("stream", "/none")]).await;
}

/// What ends an allocation, a job, and the list of both.
async fn ends(api: &mut Recorder, alloc: &str, job: Value) {
    let of = format!("/v1/client/allocation/{alloc}");
    api.put(&format!("{of}/signal"), json!({ "Signal": "FOO" })).await;
    api.put(&format!("{of}/signal"), json!({ "Signal": "SIGUSR1", "Task": "t" })).await;
    api.put(&format!("{of}/restart"), json!({ "TaskName": "none" })).await;
    api.put(&format!("{of}/restart"), Value::Null).await;
    let restarted = |alloc: &Value| alloc["TaskStates"]["t"]["Restarts"] == 1;
    api.client
        .alloc_when(alloc, |alloc| {
            restarted(alloc) && alloc["TaskStates"]["t"]["State"] == "running"
        })
        .await;
    api.put(&format!("/v1/allocation/{NOBODY}/stop"), Value::Null).await;
    api.put(&format!("/v1/allocation/{alloc}/stop"), Value::Null).await;
    api.ask("DELETE", "/v1/job/web", Value::Null).await;
    api.client.alloc_when(alloc, |alloc| alloc["ClientStatus"] == "complete").await;
    // What took its place before the job was stopped may take longer.
    until("the job is over", async || {
        api.client.get("/v1/job/web").await.json()["Status"] == "dead"
    })
    .await;
    api.get("/v1/jobs?prefix=web").await;
    api.client.alloc_gone(alloc).await;
    api.gets(&[&format!("/v1/allocation/{alloc}"), "/v1/client/gc"]).await;
    api.put("/v1/system/gc", Value::Null).await;
    api.put("/v1/jobs", json!({ "Job": job })).await;
    api.ask("DELETE", "/v1/job/web?purge=true", Value::Null).await;
    api.ask("DELETE", "/v1/job/none", Value::Null).await;
}
