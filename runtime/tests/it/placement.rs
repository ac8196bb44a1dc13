//! What a job says of where and how many: constraints on its own allocations, and counts.

use serde_json::{Value, json};

use crate::support::agent_process::AgentProcess;
use crate::support::http::Client;
use crate::support::jobs::{SOON_HEALTHY, shell, with_guests};
use crate::support::system::until;

const IDLE: &str = "while :; do sleep 1; done";

/// A service `web` with a group `g` of these blocks.
fn service(blocks: &str, version: &str) -> String {
    let script = format!(": {version}; {IDLE}");
    with_guests(&format!(
        "job \"web\" {{\n group \"g\" {{\n {SOON_HEALTHY}\n {blocks}\n {}\n }}\n}}\n",
        shell("t", &script, "")
    ))
}

/// Running allocations, with the version each is of.
async fn running(agent: &AgentProcess) -> Vec<(String, u64)> {
    let live = |alloc: &Value| {
        let name = alloc["Name"].as_str().unwrap().to_owned();
        (alloc["ClientStatus"] == "running" && alloc["DesiredStatus"] == "run")
            .then(|| (name, alloc["JobVersion"].as_u64().unwrap()))
    };
    let mut running: Vec<_> = agent.allocs("web").await.iter().filter_map(live).collect();
    running.sort();
    running
}

#[tokio::test]
async fn of_a_group_with_distinct_hosts_one_runs_and_the_others_wait_for_it() {
    let agent = AgentProcess::start().await;
    let blocks = "count = 2\nconstraint {\ndistinct_hosts = true\n}";
    agent.submit(&service(blocks, "one")).await.said(0, &[]);
    until("one of them runs", async || running(&agent).await == [("web.g[0]".to_owned(), 0)]).await;
    let why = "constraint of the group: by distinct_hosts at most 1 of its allocations may be on \
               this node, and 1 are; allocation 1 waits";
    let shown = agent.ask(&["job", "status", "web"]).await;
    assert!(shown.stdout.contains(why), "{}", shown.stdout);
    let client = Client(agent.data.path().join("ostler.sock"));
    let evaluations = client.get("/v1/job/web/evaluations").await.json();
    let mut all = evaluations.as_array().unwrap().iter();
    let blocked = all.find(|one| one["Status"] == "blocked").unwrap_or_else(|| {
        panic!("something waits: {evaluations:#}");
    });
    assert_eq!(blocked["FailedTGAllocs"]["g"]["ConstraintFiltered"], json!({ why: 1 }));
    // Its place is taken as soon as the one that runs is gone for good.
    let one = "count = 1\nconstraint {\ndistinct_hosts = true\n}";
    agent.submit(&service(one, "one")).await.said(0, &[]);
    until("nothing waits", async || {
        let job = client.get("/v1/job/web").await.json();
        job["StatusDescription"] == ""
    })
    .await;
}

#[tokio::test]
async fn a_new_version_with_distinct_hosts_takes_the_place_of_the_old_one() {
    let agent = AgentProcess::start().await;
    let blocks = "constraint {\ndistinct_property = \"${node.unique.id}\"\n}";
    agent.run(&service(blocks, "one")).await.said(0, &[]);
    agent.run(&service(blocks, "two")).await.said(0, &[]);
    assert_eq!(running(&agent).await, [("web.g[0]".to_owned(), 1)]);
    let allocs = agent.allocs("web").await;
    let ends = allocs.iter().find(|alloc| alloc["JobVersion"] == 0).unwrap();
    let begins = allocs.iter().find(|alloc| alloc["JobVersion"] == 1).unwrap();
    let (ended, began) =
        (&ends["TaskStates"]["t"]["FinishedAt"], &begins["TaskStates"]["t"]["StartedAt"]);
    assert!(ended.as_str() <= began.as_str(), "never both: {ended} {began}");
}

#[tokio::test]
async fn a_group_is_scaled_within_its_range_and_the_requests_are_kept() {
    let agent = AgentProcess::start().await;
    let blocks = "count = 1\nscaling {\nmin = 1\nmax = 3\npolicy {\ncooldown = \"1m\"\n}\n}";
    agent.run(&service(blocks, "one")).await.said(0, &[]);
    let client = Client(agent.data.path().join("ostler.sock"));
    let scale = async |body: Value| client.put("/v1/job/web/scale", Some(body)).await;
    let to = |count: i64| json!({ "Count": count, "Target": { "Group": "g" }, "Message": "more" });
    for (body, said) in [
        (to(4), "group count was greater than scaling policy maximum: 4 > 3"),
        (to(0), "group count was less than scaling policy minimum: 0 < 1"),
        (to(-1), "scaling action count can't be negative"),
        (json!({ "Count": 2 }), "missing task group name for scaling action"),
        (
            json!({ "Count": 2, "Target": { "Group": "h" } }),
            "task group \"h\" specified for scaling does not exist in job",
        ),
        (
            json!({ "Count": 2, "Error": true, "Target": { "Group": "g" } }),
            "scaling action should not contain count if error is true",
        ),
    ] {
        let answer = scale(body).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (400, said.to_owned()));
    }
    until("the first deployment is over", async || {
        client.get("/v1/job/web/deployment").await.json()["Status"] == "successful"
    })
    .await;
    agent.ask(&["job", "scale", "web", "2"]).await.said(0, &["group g of job web has count 2"]);
    until("two run", async || running(&agent).await.len() == 2).await;
    until("the deployment is over", async || {
        let one = client.get("/v1/job/web/deployment").await.json();
        one["JobVersion"] == 1 && one["Status"] == "successful"
    })
    .await;
    let answer = scale(to(3)).await;
    let evaluation = answer.json()["EvalID"].as_str().unwrap().to_owned();
    let found = client.get(&format!("/v1/evaluation/{evaluation}")).await.json();
    assert_eq!((&found["ID"], &found["Status"]), (&json!(evaluation), &json!("complete")));
    let again = scale(to(1)).await;
    assert_eq!(again.text(), "job scaling blocked due to active deployment");
    let note = json!({ "Error": true, "Target": { "Group": "g" }, "Message": "no metrics",
                       "Meta": { "source": "x" } });
    assert_eq!(scale(note).await.status.as_u16(), 200);
    until("three run", async || running(&agent).await.len() == 3).await;
    let status = client.get("/v1/job/web/scale").await.json();
    let group = &status["TaskGroups"]["g"];
    assert_eq!(
        (&group["Desired"], &group["Placed"], &group["Running"]),
        (&json!(3), &json!(3), &json!(3)),
        "{status:#}"
    );
    let events = group["Events"].as_array().unwrap();
    let told: Vec<_> = events
        .iter()
        .map(|event| {
            (event["Count"].clone(), event["PreviousCount"].clone(), event["Error"].clone())
        })
        .collect();
    assert_eq!(
        told,
        [
            (Value::Null, json!(3), json!(true)),
            (json!(3), json!(2), json!(false)),
            (json!(2), json!(1), json!(false)),
        ]
    );
    assert_eq!(events[0]["Meta"], json!({ "source": "x" }));
    assert_eq!(events[1]["EvalID"], json!(evaluation));
}

#[tokio::test]
async fn the_policies_of_groups_are_listed_as_long_as_their_job_is_there() {
    let agent = AgentProcess::start().await;
    let blocks =
        "count = 1\nscaling {\nmax = 3\nenabled = false\npolicy {\ncooldown = \"1m\"\n}\n}";
    agent.submit(&service(blocks, "one")).await.said(0, &[]);
    let client = Client(agent.data.path().join("ostler.sock"));
    let all = client.get("/v1/scaling/policies").await.json();
    let target = json!({ "Namespace": "default", "Job": "web", "Group": "g" });
    assert_eq!(
        (&all[0]["Target"], &all[0]["Type"], &all[0]["Enabled"]),
        (&target, &json!("horizontal"), &json!(false)),
        "{all:#}"
    );
    for (query, count) in [
        ("job=web", 1),
        ("job=other", 0),
        ("type=horizontal", 1),
        ("type=vertical_cpu", 0),
        ("prefix=zz", 0),
        ("namespace=other", 0),
    ] {
        let found = client.get(&format!("/v1/scaling/policies?{query}")).await.json();
        assert_eq!(found.as_array().unwrap().len(), count, "{query}");
    }
    let path = format!("/v1/scaling/policy/{}", all[0]["ID"].as_str().unwrap());
    let one = client.get(&path).await.json();
    assert_eq!(
        (&one["Min"], &one["Max"], &one["Policy"]),
        (&json!(1), &json!(3), &json!({ "cooldown": "1m" })),
        "{one:#}"
    );
    agent.ask(&["job", "stop", "--purge", "web"]).await.said(0, &[]);
    let gone = client.get(&path).await;
    assert_eq!((gone.status.as_u16(), gone.text()), (404, "policy not found".to_owned()));
}
