//! Trouble between our nodes and stock servers, where `NOMAD_BIN` names the program: links that are cut, silent
//! or slow, servers that are killed, replaced or set back, agents that are held.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::cluster::{joined, native, ready_node};
use crate::support::agent_process::AgentProcess;
use crate::support::link::{Link, Way};
use crate::support::nomad::{Alloc, NomadServer, SHORT_BEATS};
use crate::support::stock_job::StockJob;
use crate::support::system::{eventually, pid_in, runs, until};

/// A server that nodes reach by this link alone, but for those that are told its own port.
async fn behind(link: &Link, more: &str) -> Option<NomadServer> {
    let named = format!("advertise {{\n rpc = \"127.0.0.1:{}\"\n}}\n{more}", link.port);
    let server = NomadServer::start_with(&named).await?;
    link.to(server.rpc);
    Some(server)
}

/// A script that writes down each start of it, and goes on.
fn written(ledger: &Path) -> String {
    format!(
        "echo $NOMAD_ALLOC_ID >> {0}; echo $$ > {0}.$NOMAD_ALLOC_ID; exec sleep 600",
        ledger.display()
    )
}

fn service(name: &str, ledger: &Path) -> String {
    StockJob::service(name, &written(ledger)).to_string()
}

fn starts(ledger: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(ledger).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

async fn pid_of(ledger: &Path, alloc: &str) -> u32 {
    pid_in(&PathBuf::from(format!("{}.{alloc}", ledger.display()))).await
}

fn of<'a>(allocs: &'a [Alloc], node: &str) -> Option<&'a Alloc> {
    allocs.iter().find(|alloc| alloc.node() == node)
}

#[tokio::test]
async fn what_a_node_that_is_cut_off_for_too_long_ran_is_replaced_and_ends_when_it_is_back() {
    for way in [Way::Cut, Way::Silent] {
        let link = Link::new().await;
        let Some(server) = behind(&link, SHORT_BEATS).await else { return };
        let one = ready_node(&server, link.port, "one").await;
        let ledger = one.data.path().join("ledger");
        server.register(&service("web", &ledger)).await;
        let first = server.running("web").await;
        let pid = pid_of(&ledger, first.id()).await;
        let two = ready_node(&server, server.rpc, "two").await;

        link.set(way);
        let id_of_one = server.node("one", "down").await;
        let replaced = |allocs: &[Alloc]| {
            of(allocs, &id_of_one).is_some_and(|alloc| alloc.status() == "lost")
                && allocs
                    .iter()
                    .any(|alloc| alloc.id() != first.id() && alloc.status() == "running")
        };
        let allocs = server.allocs("web", "another runs in its place", replaced).await;
        let second = allocs.iter().find(|alloc| alloc.status() == "running").unwrap();
        assert!(runs(pid), "{way:?}: nobody has told it to end");
        // The other one has its own way to the server.
        server.node("two", "ready").await;

        link.set(Way::Open);
        server.node("one", "ready").await;
        eventually("the first one ends", || !runs(pid)).await;
        let other = pid_of(&ledger, second.id()).await;
        assert!(runs(other), "{way:?}");
        assert_eq!(starts(&ledger), [first.id(), second.id()], "{way:?}");
        let still = server.running("web").await;
        assert_eq!(still.id(), second.id(), "{way:?}");

        // It is a node as before: it gets what the other one can no longer have.
        server
            .does(&["node", "drain", "-enable", "-self=false", "-yes", "-detach", second.node()])
            .await;
        let third = async || {
            let runs = server.running("web").await;
            runs.node() == id_of_one
        };
        until("it runs on the first node again", third).await;
        assert_eq!(starts(&ledger).len(), 3, "{way:?}");
        drop(two);
    }
}

#[tokio::test]
async fn a_link_that_is_cut_for_less_than_the_ttl_changes_nothing() {
    let link = Link::new().await;
    let Some(server) = behind(&link, "").await else { return };
    let one = ready_node(&server, link.port, "one").await;
    let ledger = one.data.path().join("ledger");
    server.register(&service("web", &ledger)).await;
    let web = server.running("web").await;
    for way in [Way::Cut, Way::Silent] {
        link.set(way);
        // The server wants something meanwhile.
        let name = format!("while_{way:?}").to_lowercase();
        server.register(&service(&name, &ledger)).await;
        server.allocs(&name, "it is placed", |allocs| allocs.len() == 1).await;
        link.set(Way::Open);
        server.running(&name).await;
    }
    let nodes = server.get("/v1/nodes").await.unwrap();
    let path = format!("/v1/node/{}", nodes[0]["ID"].as_str().unwrap());
    let events = server.get(&path).await.unwrap()["Events"].to_string();
    assert!(!events.contains("missed"), "{events}");
    assert_eq!(server.running("web").await.id(), web.id());
    assert_eq!(starts(&ledger).len(), 3);
}

#[tokio::test]
async fn a_slow_link_keeps_its_node() {
    let link = Link::new().await;
    let Some(server) = behind(&link, "").await else { return };
    link.set(Way::Slow(Duration::from_millis(700)));
    let one = ready_node(&server, link.port, "one").await;
    let ledger = one.data.path().join("ledger");
    server.register(&service("web", &ledger)).await;
    let web = server.running("web").await;
    server.register(&StockJob::batch("once", "echo slowly; echo and well").to_string()).await;
    let done = |allocs: &[Alloc]| allocs.len() == 1 && allocs[0].status() == "complete";
    let once = server.allocs("once", "it is over", done).await;
    assert_eq!(server.does(&["alloc", "logs", once[0].id()]).await, "slowly\nand well\n");
    let path = format!("/v1/node/{}", web.node());
    let whole = server.get(&path).await.unwrap();
    assert_eq!(whole["Status"], "ready");
    assert!(!whole["Events"].to_string().contains("missed"), "{}", whole["Events"]);
    assert_eq!(starts(&ledger), [web.id()]);
}

#[tokio::test]
async fn tasks_go_on_while_a_server_is_killed_and_its_next_process_has_them() {
    let Some(mut server) = NomadServer::start_with(SHORT_BEATS).await else { return };
    let one = ready_node(&server, server.rpc, "one").await;
    let ledger = one.data.path().join("ledger");
    server.register(&service("web", &ledger)).await;
    let ends = "while ! test -e over; do sleep 0.1; done; echo done";
    server
        .register(
            &StockJob::batch("work", &format!("cd {}; {ends}", one.data.path().display()))
                .to_string(),
        )
        .await;
    let web = server.running("web").await;
    server.running("work").await;
    let pid = pid_of(&ledger, web.id()).await;

    server.kill().await;
    // It ends while nobody hears of it.
    one.file("over", "");
    eventually("it has ended", || !runs_work(&one)).await;
    server.start_again().await;
    server.node("one", "ready").await;
    let complete = |allocs: &[Alloc]| allocs.len() == 1 && allocs[0].status() == "complete";
    server.allocs("work", "its end is told", complete).await;
    assert_eq!(server.running("web").await.id(), web.id());
    assert!(runs(pid));
    assert_eq!(starts(&ledger), [web.id()]);
    server.does(&["job", "stop", "-detach", "web"]).await;
    eventually("it ends", || !runs(pid)).await;
}

fn runs_work(agent: &AgentProcess) -> bool {
    let names = crate::support::system::processes_of(agent.data.path());
    names.into_iter().any(|pid| {
        std::fs::read(format!("/proc/{pid}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains("while ! test"))
    })
}

#[tokio::test]
async fn a_server_that_was_set_back_takes_the_node_again_and_ends_nothing_by_an_older_index() {
    let Some(mut server) = NomadServer::start_with(SHORT_BEATS).await else { return };
    let one = ready_node(&server, server.rpc, "one").await;
    let ledger = one.data.path().join("ledger");
    server.register(&service("web", &ledger)).await;
    let web = server.running("web").await;
    let pid = pid_of(&ledger, web.id()).await;
    let before = server.node("one", "ready").await;
    let index = web.0["ModifyIndex"].as_u64().unwrap() + 10;

    server.kill().await;
    server.forget();
    server.start_again().await;
    assert_eq!(server.node("one", "ready").await, before, "the same node");
    assert!(runs(pid), "an older index says nothing");
    // It fits no node, and makes the index grow as all that happens in a cluster does.
    let nowhere = StockJob {
        of_job: "constraint {\n attribute = \"${node.class}\"\n value = \"none\"\n }",
        ..StockJob::service("nowhere", "true")
    };
    let grown = async || {
        server.register(&nowhere.to_string()).await;
        let job = server.get("/v1/job/nowhere").await.unwrap();
        server.does(&["job", "stop", "-detach", "-purge", "nowhere"]).await;
        job["ModifyIndex"].as_u64() > Some(index)
    };
    until("the index is where it was", grown).await;
    assert!(runs(pid));
    server.register(&service("new", &ledger)).await;
    let new = server.running("new").await;
    eventually("what nobody knows ends", || !runs(pid)).await;
    assert!(runs(pid_of(&ledger, new.id()).await));
    assert_eq!(starts(&ledger), [web.id(), new.id()]);
}

#[tokio::test]
async fn a_node_stays_with_three_servers_of_which_one_after_another_is_killed() {
    let Some(mut servers) = NomadServer::start_many(3, SHORT_BEATS).await else { return };
    // It is told of one, and learns of the others.
    let one = ready_node(&servers[0], servers[0].rpc, "one").await;
    let ledger = one.data.path().join("ledger");
    servers[0].register(&service("web", &ledger)).await;
    let web = servers[0].running("web").await;
    let pid = pid_of(&ledger, web.id()).await;
    for round in 0..3 {
        let mut leader = None;
        let found = async || {
            for (number, server) in servers.iter().enumerate() {
                if server.leads().await {
                    leader = Some(number);
                }
            }
            leader.is_some()
        };
        until("one of them leads", found).await;
        let leader = leader.unwrap();
        servers[leader].kill().await;
        let other = &servers[(leader + 1) % 3];
        let led = |value: &serde_json::Value| {
            value.as_str().is_some_and(|at| {
                !at.is_empty() && at != format!("127.0.0.1:{}", servers[leader].rpc)
            })
        };
        other.until("another leads", "/v1/status/leader", led).await;
        let name = format!("job{round}");
        other.register(&service(&name, &ledger)).await;
        other.running(&name).await;
        other.node("one", "ready").await;
        assert_eq!(other.running("web").await.id(), web.id());
        assert!(runs(pid));
        servers[leader].start_again().await;
    }
    assert_eq!(starts(&ledger).len(), 4, "{:?}", starts(&ledger));
}

#[tokio::test]
async fn an_agent_that_is_held_for_too_long_ends_what_was_replaced_when_it_goes_on() {
    let Some(server) = NomadServer::start_with(SHORT_BEATS).await else { return };
    let one = ready_node(&server, server.rpc, "one").await;
    let ledger = one.data.path().join("ledger");
    server.register(&service("web", &ledger)).await;
    let first = server.running("web").await;
    let pid = pid_of(&ledger, first.id()).await;
    one.signal(Signal::STOP);
    server.node("one", "down").await;
    let _two = ready_node(&server, server.rpc, "two").await;
    let moved = |allocs: &[Alloc]| {
        allocs.iter().any(|alloc| alloc.id() != first.id() && alloc.status() == "running")
    };
    server.allocs("web", "it runs elsewhere", moved).await;
    assert!(runs(pid));
    one.signal(Signal::CONT);
    server.node("one", "ready").await;
    eventually("the first one ends", || !runs(pid)).await;
    assert_eq!(starts(&ledger).len(), 2);
}

#[tokio::test]
async fn a_node_that_takes_nothing_new_stays_so_over_its_kill_and_a_drain_ends_by_its_deadline() {
    let Some(server) = NomadServer::start().await else { return };
    let one = ready_node(&server, server.rpc, "one").await;
    let ledger = one.data.path().join("ledger");
    let script = format!(
        "trap '' TERM INT; {}",
        written(&ledger).replace("exec sleep 600", "while true; do sleep 1; done")
    );
    let job = StockJob { of_task: "kill_timeout = \"25s\"", ..StockJob::service("web", &script) };
    server.register(&job.to_string()).await;
    let web = server.running("web").await;
    let id = web.node().to_owned();
    server.does(&["node", "eligibility", "-disable", &id]).await;
    one.signal(Signal::KILL);
    let (_, home) = one.ended().await;
    let _one = joined(home, server.rpc, &native("one")).await;
    server.node("one", "ready").await;
    server.register(&service("later", &ledger)).await;
    let path = "/v1/job/later/evaluations";
    server
        .until("it waits for a node", path, |evals| {
            evals
                .as_array()
                .is_some_and(|evals| evals.iter().any(|eval| eval["Status"] == "blocked"))
        })
        .await;
    let whole = server.get(&format!("/v1/node/{id}")).await.unwrap();
    assert_eq!(whole["SchedulingEligibility"], "ineligible");
    assert_eq!(starts(&ledger), [web.id()]);
    server.does(&["node", "eligibility", "-enable", &id]).await;
    let later = server.running("later").await;
    assert_eq!(starts(&ledger), [web.id(), later.id()]);

    let pid = pid_of(&ledger, web.id()).await;
    server.does(&["node", "drain", "-enable", "-deadline", "1s", "-yes", "-detach", &id]).await;
    let over = |allocs: &[Alloc]| {
        allocs.iter().any(|alloc| alloc.id() == web.id() && alloc.status() == "complete")
    };
    server.allocs("web", "it is over", over).await;
    eventually("its process is gone", || !runs(pid)).await;
    let drained = |node: &serde_json::Value| {
        node["DrainStrategy"].is_null() && node["SchedulingEligibility"] == "ineligible"
    };
    server.until("the drain is over", &format!("/v1/node/{id}"), drained).await;
}
