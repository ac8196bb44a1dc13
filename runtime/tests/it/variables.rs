//! Variables: over the API, on the command line, over the end of an agent, and in the templates of real
//! tasks, beside services.

use bytes::Bytes;
use hyper::StatusCode;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::support::agent_process::AgentProcess;
use crate::support::binary::{Ended, command};
use crate::support::http::{Client, Served, within};
use crate::support::system::{eventually, runs, until};

const SECRET: &str = "hunter2-is-in-no-message";

fn items(of: &[(&str, &str)]) -> Option<Value> {
    let items: serde_json::Map<_, _> =
        of.iter().map(|(name, text)| ((*name).to_owned(), json!(text))).collect();
    Some(json!({ "Items": items }))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_variable_is_written_read_listed_and_removed_over_the_api() {
    let served = Served::start().await;
    let client = &served.client;
    let gone = client.get("/v1/var/a/b").await;
    assert_eq!((gone.status, gone.text().as_str()), (StatusCode::NOT_FOUND, "variable not found"));
    assert_eq!(client.get("/v1/vars").await.json(), json!([]));
    let written = client.put("/v1/var/a/b", items(&[("k", "v")])).await;
    assert_eq!(written.status, StatusCode::OK, "{}", written.text());
    let variable = written.json();
    assert_eq!(variable["Items"], json!({ "k": "v" }));
    assert_eq!((&variable["Namespace"], &variable["Path"]), (&json!("default"), &json!("a/b")));
    assert_eq!(variable["CreateIndex"], variable["ModifyIndex"]);
    assert_eq!(variable["ModifyIndex"], written.index());
    assert!(variable["ModifyTime"].as_u64().unwrap() > 1_600_000_000_000_000_000);
    let read = client.get("/v1/var/a%2Fb").await;
    assert_eq!((read.json(), read.index()), (variable.clone(), written.index()));
    client.put("/v1/var/a/c", items(&[("k", SECRET)])).await;
    client.put("/v1/var/b", items(&[("k", SECRET)])).await;
    let all = client.get("/v1/vars?prefix=a/").await;
    let paths: Vec<_> =
        all.json().as_array().unwrap().iter().map(|of| of["Path"].clone()).collect();
    assert_eq!(paths, ["a/b", "a/c"]);
    assert!(!all.text().contains(SECRET) && !all.text().contains("Items"), "{}", all.text());
    let page = client.get("/v1/vars?per_page=2").await;
    assert_eq!(page.json().as_array().unwrap().len(), 2);
    let token = page.headers["x-nomad-nexttoken"].to_str().unwrap().to_owned();
    let rest = client.get(&format!("/v1/vars?per_page=2&next_token={token}")).await.json();
    assert_eq!(rest[0]["Path"], "b");
    let removed = client.send("DELETE", "/v1/var/a/b", Bytes::new()).await;
    assert_eq!((removed.status, removed.body.len()), (StatusCode::NO_CONTENT, 0));
    assert!(removed.index() > written.index());
    assert_eq!(client.get("/v1/var/a/b").await.status, StatusCode::NOT_FOUND);
    let again = client.send("DELETE", "/v1/var/a/b", Bytes::new()).await;
    assert_eq!(again.status, StatusCode::NO_CONTENT, "where there is none nothing happens");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_for_another_index_is_a_conflict_with_what_is_there() {
    let served = Served::start().await;
    let client = &served.client;
    let first = client.put("/v1/var/a?cas=0", items(&[("k", "one")])).await;
    assert_eq!(first.status, StatusCode::OK);
    for (method, body) in [("PUT", items(&[("k", "two")])), ("DELETE", None)] {
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let conflict = client.send(method, "/v1/var/a?cas=0", body).await;
        assert_eq!(conflict.status, StatusCode::CONFLICT, "{method}");
        assert_eq!(conflict.json(), first.json(), "{method}");
        assert_eq!(conflict.index(), first.index());
    }
    let none = client.put("/v1/var/none?cas=7", items(&[("k", "two")])).await;
    assert_eq!(none.status, StatusCode::CONFLICT);
    assert_eq!((&none.json()["ModifyIndex"], &none.json()["Path"]), (&json!(0), &json!("none")));
    let index = first.index();
    let second = client.put(&format!("/v1/var/a?cas={index}"), items(&[("k", "two")])).await;
    assert_eq!(second.status, StatusCode::OK);
    assert_eq!(second.json()["CreateIndex"], index);
    let removed = format!("/v1/var/a?cas={}", second.index());
    assert_eq!(client.send("DELETE", &removed, Bytes::new()).await.status, StatusCode::NO_CONTENT);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_is_refused_by_name_and_without_what_is_in_it() {
    let served = Served::start().await;
    let client = &served.client;
    let large = "x".repeat(64 * 1024 + 1);
    let body = |text: &str| items(&[("k", text)]).unwrap().to_string();
    for (path, body, said) in [
        ("/v1/var/a.b", body(SECRET), "has the character '.'"),
        ("/v1/var/nomad/acl", body(SECRET), "is reserved"),
        ("/v1/var/nomad", body(SECRET), "is reserved"),
        ("/v1/var/a", json!({ "Items": {} }).to_string(), "at least one item"),
        ("/v1/var/a", String::new(), "at least one item"),
        ("/v1/var/a", format!("{{\"Items\": {{\"k\": {SECRET}"), "not a variable (line 1"),
        ("/v1/var/a", json!({ "Items": SECRET }).to_string(), "not a variable (line 1"),
        ("/v1/var/a", json!({ "Items": { "k": 1 } }).to_string(), "not a variable (line 1"),
        ("/v1/var/a", body(&large), "at most 65536 bytes"),
        ("/v1/var/a?cas=x", body(SECRET), "cas=\"x\""),
        ("/v1/var/a?cas=", body(SECRET), "cas=\"\""),
        ("/v1/var/a?lock-acquire", body(SECRET), "lock-acquire: this agent does not support locks"),
        ("/v1/var/a?lock-operation=release", body(SECRET), "does not support locks"),
        (
            "/v1/var/a",
            json!({ "Lock": {}, "Items": { "k": SECRET } }).to_string(),
            "does not support locks",
        ),
        (
            "/v1/var/a",
            json!({ "Path": "b", "Items": { "k": SECRET } }).to_string(),
            "the path \"b\", the request \"a\"",
        ),
        ("/v1/var/a?namespace=other", body(SECRET), "there is no namespace \"other\""),
        (
            "/v1/var/a",
            json!({ "Namespace": "other", "Items": { "k": SECRET } }).to_string(),
            "there is no namespace \"other\"",
        ),
    ] {
        let refused = client.send("PUT", path, Bytes::from(body)).await;
        let text = refused.text();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{path}: {text}");
        assert!(text.contains(said), "{path}: {said:?} is not in {text}");
        assert!(!text.contains(SECRET), "{text}");
    }
    let locked = client.send("DELETE", "/v1/var/a?lock-release", Bytes::new()).await;
    assert_eq!(locked.status, StatusCode::BAD_REQUEST);
    assert_eq!(client.get("/v1/vars").await.json(), json!([]), "nothing was written");
    assert_eq!(client.get("/v1/vars?namespace=other").await.json(), json!([]));
    assert_eq!(client.get("/v1/var/a?namespace=other").await.status, StatusCode::NOT_FOUND);
    let largest = client.put("/v1/var/a", items(&[("k", &large[2..])])).await;
    assert_eq!(largest.status, StatusCode::OK, "{}", largest.text());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_waits_is_answered_by_the_next_change() {
    let served = Served::start().await;
    let client = served.client.clone();
    let index = client.put("/v1/var/a", items(&[("k", "one")])).await.index();
    for (path, change, body) in [
        ("/v1/var/a", "PUT", items(&[("k", "two")]).unwrap().to_string()),
        ("/v1/vars", "PUT", items(&[("k", "three")]).unwrap().to_string()),
        ("/v1/var/a", "DELETE", String::new()),
    ] {
        let seen = client.get("/v1/vars").await.index();
        assert!(seen >= index);
        let (own, asked) = (client.clone(), format!("{path}?index={seen}&wait=60s"));
        let waiting = tokio::spawn(async move { own.get(&asked).await });
        client.send(change, "/v1/var/a", Bytes::from(body)).await;
        let answer = within(waiting).await.unwrap();
        assert!(answer.index() > seen, "{path}: {} {seen}", answer.index());
    }
    // Who comes with an index of a state that is gone is not kept waiting.
    let answer = within(client.get("/v1/vars?index=99999999&wait=300s")).await;
    assert_eq!(answer.status, StatusCode::OK);
    served.stop().await;
}

/// Run a command against an agent, with something on its standard input.
async fn with_input(agent: &AgentProcess, args: &[&str], input: &str) -> Ended {
    let mut child = command(args)
        .args(["--data-dir", agent.data.path().to_str().unwrap()])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).await.unwrap();
    drop(stdin);
    let output = within(child.wait_with_output()).await.unwrap();
    Ended {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_put_got_listed_and_purged_on_the_command_line() {
    let agent = AgentProcess::start().await;
    let file = agent.file("password", &format!("{SECRET}\n"));
    let from = format!("password=@{}", file.display());
    let put = agent.ask(&["var", "put", "nomad/jobs/web", "host=db", &from]).await;
    put.said(0, &["variable nomad/jobs/web has index"]);
    let item = agent.ask(&["var", "get", "--item", "password", "nomad/jobs/web"]).await;
    assert_eq!((item.code, item.stdout), (Some(0), format!("{SECRET}\n")), "as the file has it");
    let shown = agent.ask(&["var", "get", "nomad/jobs/web"]).await.stdout;
    assert!(shown.contains("host = db\n") && shown.contains("nomad/jobs/web"), "{shown}");
    let list = agent.ask(&["var", "list", "nomad/"]).await.stdout;
    assert!(list.contains("nomad/jobs/web") && !list.contains(SECRET), "{list}");
    assert!(agent.ask(&["var", "list", "x"]).await.stdout.contains("no variables"));

    let whole = agent.json(&["var", "get", "--json", "nomad/jobs/web"]).await;
    let mut other = whole.clone();
    other["Items"]["host"] = json!("db2");
    let put = ["var", "put", "--json", "nomad/jobs/web", "-"];
    let written = with_input(&agent, &put, &other.to_string()).await;
    assert_eq!(written.code, Some(0), "{written:#?}");
    let metadata: Value = serde_json::from_str(&written.stdout).unwrap();
    assert_eq!(metadata["CreateIndex"], whole["CreateIndex"]);
    assert!(!written.stdout.contains(SECRET), "{}", written.stdout);
    // The same again is one that somebody else was before.
    let late = with_input(&agent, &put, &other.to_string()).await;
    late.said(3, &["was changed meanwhile", "nothing was done"]);
    assert!(!format!("{late:?}").contains(SECRET), "{late:?}");
    let forced = ["var", "put", "--force", "nomad/jobs/web", "-"];
    with_input(&agent, &forced, &other.to_string()).await.said(0, &["has index"]);
    let read = with_input(&agent, &["var", "put", "a", "k=@-", "l=\\@x"], "from stdin").await;
    read.said(0, &[]);
    assert_eq!(agent.ask(&["var", "get", "--item", "k", "a"]).await.stdout, "from stdin");
    assert_eq!(agent.ask(&["var", "get", "--item", "l", "a"]).await.stdout, "@x");

    agent.ask(&["var", "put", "--check-index", "0", "a", "k=x"]).await.said(3, &["changed"]);
    agent.ask(&["var", "put", "--check-index", "0", "b", "k=x"]).await.said(0, &[]);
    agent.ask(&["var", "purge", "--check-index", "1", "b"]).await.said(3, &["changed"]);
    agent.ask(&["var", "purge", "b"]).await.said(0, &["variable b is gone"]);
    agent.ask(&["var", "get", "b"]).await.said(2, &["there is no variable b"]);
    agent.ask(&["var", "get", "--item", "z", "a"]).await.said(2, &["no item z; it has k, l"]);
    let wrong = agent.ask(&["var", "put", "a", SECRET]).await;
    wrong.said(2, &["an item must be KEY=VALUE"]);
    assert!(!wrong.stderr.contains(SECRET), "{}", wrong.stderr);
    agent.ask(&["var", "put", "nomad/x", "k=v"]).await.said(2, &["is reserved"]);

    // What is in them is there for the next agent, and in nothing that it logs or dumps.
    agent.signal(Signal::KILL);
    let (ended, home) = agent.ended().await;
    assert!(!ended.stderr.contains(SECRET), "{}", ended.stderr);
    let dump = crate::support::agent_process::ask(home.path(), &["state", "dump"]).await;
    assert!(dump.stdout.contains("variable/default/nomad/jobs/web"), "{dump:#?}");
    assert!(!dump.stdout.contains(SECRET), "{}", dump.stdout);
    let agent = AgentProcess::start_in(home, &[]).await;
    let item = agent.ask(&["var", "get", "--item", "password", "nomad/jobs/web"]).await;
    assert_eq!(item.stdout, format!("{SECRET}\n"));
}

/// A service whose template has this text, and which tells what it reads at each signal.
fn follower(id: &str, data: &str) -> String {
    let data = serde_json::to_string(data).unwrap();
    let script = "trap 'cat local/out >> local/hups' HUP; echo $$ > local/new; \
                  mv local/new local/pid; while :; do sleep 0.05; done";
    let script = serde_json::to_string(script).unwrap();
    format!(
        "job \"{id}\" {{\n group \"g\" {{\n task \"t\" {{\n driver = \"raw_exec\"\n config {{\n \
         command = \"/bin/sh\"\n args = [\"-c\", {script}]\n }}\n template {{\n data = {data}\n \
         destination = \"local/out\"\n splay = \"0s\"\n change_mode = \"signal\"\n change_signal = \
         \"SIGHUP\"\n }}\n }}\n }}\n}}\n"
    )
}

/// A service that offers `db` at a port of its own.
const OFFERS: &str = r#"job "db" {
  group "g" {
    network {
      port "x" {}
    }
    service {
      name = "db"
      port = "x"
      tags = ["fast"]
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "while :; do sleep 0.1; done"]
      }
    }
  }
}
"#;

/// The task's state, as the agent has it.
async fn task_state(agent: &AgentProcess, alloc: &str) -> Value {
    let status = agent.json(&["alloc", "status", "--json", alloc]).await;
    status["TaskStates"]["t"].clone()
}

async fn running(agent: &AgentProcess, alloc: &str) {
    until("the task runs", async || task_state(agent, alloc).await["State"] == "running").await;
}

/// Wait until the agent has noted that the task was told of its templates. If it is killed before, the next
/// agent tells the task once more.
async fn told_is_noted(agent: &AgentProcess, alloc: &str) {
    let untold = agent.data.path().join(format!("allocs/{alloc}/templates of t not told"));
    eventually("that it was told is noted", || !untold.exists()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_waits_for_its_variable_and_then_follows_it_over_the_end_of_its_agent() {
    let agent = AgentProcess::start().await;
    let text = "{{ with nomadVar \"nomad/jobs/web\" }}{{ .k }};{{ end }}";
    assert_eq!(agent.submit(&follower("web", text)).await.code, Some(0));
    let alloc = agent.alloc("web").await;
    let said = "template local/out waits for nomad.var(nomad/jobs/web)";
    until("it says what it waits for", async || {
        let state = task_state(&agent, &alloc).await;
        let events = state["Events"].as_array().cloned().unwrap_or_default();
        events.iter().any(|event| event["DisplayMessage"] == said)
    })
    .await;
    assert_eq!(task_state(&agent, &alloc).await["State"], "pending");
    agent.ask(&["var", "put", "unrelated", "k=v"]).await.said(0, &[]);
    agent.ask(&["var", "put", "nomad/jobs/web", "k=one"]).await.said(0, &[]);
    let dir = agent.data.path().join(format!("allocs/{alloc}/t/local"));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    eventually("the task runs", || read("pid").is_some()).await;
    let pid = read("pid").unwrap();
    assert_eq!(read("out").as_deref(), Some("one;"));
    running(&agent, &alloc).await;
    agent.ask(&["var", "put", "nomad/jobs/web", "k=two"]).await.said(0, &[]);
    eventually("the task hears of it", || read("hups").as_deref() == Some("two;")).await;
    told_is_noted(&agent, &alloc).await;

    // A new agent: nothing changed, and nothing is done.
    agent.signal(Signal::KILL);
    let agent = AgentProcess::start_in(agent.ended().await.1, &[]).await;
    running(&agent, &alloc).await;
    agent.ask(&["var", "put", "nomad/jobs/web", "k=two"]).await.said(0, &[]);
    agent.ask(&["var", "put", "nomad/jobs/web", "k=three"]).await.said(0, &[]);
    eventually("it hears of the next change", || read("hups").as_deref() == Some("two;three;"))
        .await;
    assert_eq!(read("pid").unwrap(), pid, "the same run");
    assert!(runs(pid.trim().parse().unwrap()));
    // What is gone leaves the file as it is, and is said.
    agent.ask(&["var", "purge", "nomad/jobs/web"]).await.said(0, &[]);
    until("it is said", async || {
        let state = task_state(&agent, &alloc).await;
        let events = state["Events"].as_array().cloned().unwrap_or_default();
        events.iter().filter(|event| event["DisplayMessage"] == said).count() == 2
    })
    .await;
    assert_eq!(read("out").as_deref(), Some("three;"));
    assert_eq!(agent.ask(&["job", "stop", "web"]).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_follows_a_service_and_an_agent_that_comes_back_tells_it_nothing_new() {
    let agent = AgentProcess::start().await;
    let text = "{{ range nomadService \"db\" }}{{ .Address }}:{{ .Port }} {{ end }};";
    assert_eq!(agent.submit(&follower("web", text)).await.code, Some(0));
    let alloc = agent.alloc("web").await;
    let dir = agent.data.path().join(format!("allocs/{alloc}/t/local"));
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    eventually("the task runs", || read("pid").is_some()).await;
    running(&agent, &alloc).await;
    assert_eq!(read("out").as_deref(), Some(";"));
    assert_eq!(agent.run(OFFERS).await.code, Some(0));
    let db = Client(agent.data.path().join("ostler.sock")).get("/v1/service/db").await.json();
    let at = format!("{}:{} ;", db[0]["Address"].as_str().unwrap(), db[0]["Port"]);
    eventually("the task hears of it", || read("hups").as_deref() == Some(&at)).await;
    told_is_noted(&agent, &alloc).await;

    // In order and by force: what runs goes on, and so does what is known of it.
    let written = || std::fs::metadata(dir.join("out")).unwrap().modified().unwrap();
    let before = written();
    let mut agent = agent;
    for signal in [Signal::TERM, Signal::KILL] {
        agent.signal(signal);
        agent = AgentProcess::start_in(agent.ended().await.1, &[]).await;
        running(&agent, &alloc).await;
        let client = Client(agent.data.path().join("ostler.sock"));
        until("the services are known again", async || {
            client.get("/v1/service/db").await.json().as_array().unwrap().len() == 1
        })
        .await;
        // The whole way of another change, behind the looks that the start of the agent brings.
        let id = format!("later-{}", signal.as_raw());
        assert_eq!(agent.run(&follower(&id, "x")).await.code, Some(0));
        assert_eq!(written(), before, "{signal:?}: not written again");
        assert_eq!(read("hups").as_deref(), Some(&*at), "{signal:?}: not told");
    }
    assert_eq!(agent.ask(&["job", "stop", "db"]).await.code, Some(0));
    eventually("the task hears that it is gone", || {
        read("hups").is_some_and(|text| text == format!("{at};"))
    })
    .await;
}
