//! The disk of an allocation goes with it from one node of a stock server to the next, where `NOMAD_BIN` names one:
//! between two of our nodes, and between a stock client and one of ours.

use rustix::process::Signal;

use crate::cluster::joined;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::needs::{Need, skipped};
use crate::support::nomad::{Alloc, NomadClient, NomadServer, free_port};
use crate::support::stock_job::StockJob;
use crate::support::system::until;

/// A node of ours whose disks other nodes can fetch, and its id.
async fn node(name: &str, server: &NomadServer) -> (AgentProcess, String) {
    let config = format!(
        "name = \"{name}\"\nplugin \"raw_exec\" {{\n enabled = true\n}}\nbind_addr = \"127.0.0.1\"\n\
         ports {{\n http = {}\n}}\n",
        free_port()
    );
    let agent = joined(Home::new(), server.rpc, &config).await;
    let id = server.node(name, "ready").await;
    // Servers hear of it as soon as it listens.
    let path = format!("/v1/node/{id}");
    server.until("its address", &path, |node| node["HTTPAddr"] != "").await;
    (agent, id)
}

/// A job whose allocations write their ids behind those that they find on their disk.
async fn registered(server: &NomadServer) -> Alloc {
    let script = "for f in local/been $NOMAD_ALLOC_DIR/data/been; do echo $NOMAD_ALLOC_ID >> $f; done; \
                  ln -sf been local/link; chmod 640 local/been; exec sleep 600";
    let of_group = "ephemeral_disk {\n   migrate = true\n   sticky = true\n  }\n  migrate {\n   \
                    min_healthy_time = \"1s\"\n  }";
    let job = StockJob { of_group, ..StockJob::service("goes", script) };
    server.register(&job.to_string()).await;
    server.running("goes").await
}

/// Take a node out of service, wait for the allocation elsewhere, and put it back in.
async fn moved(server: &NomadServer, from: &str) -> Alloc {
    server.does(&["node", "drain", "-enable", "-yes", "-detach", "-deadline", "1m", from]).await;
    let runs = |alloc: &&Alloc| alloc.status() == "running" && alloc.node() != from;
    let there = |allocs: &[Alloc]| allocs.iter().any(|alloc| runs(&alloc));
    let allocs = server.allocs("goes", "it runs elsewhere", there).await;
    server.does(&["node", "drain", "-disable", "-yes", from]).await;
    allocs.iter().find(runs).unwrap().clone()
}

/// Both places of the last one have the ids of all of them.
async fn has_been(server: &NomadServer, allocs: &[&Alloc]) {
    let wanted: String = allocs.iter().map(|alloc| format!("{}\n", alloc.id())).collect();
    let last = allocs.last().unwrap().id();
    for file in ["alloc/data/been", "t/local/been", "t/local/link"] {
        // It runs before its script has written.
        let what = format!("{file} of {last} is {wanted:?}");
        until(&what, async || server.nomad(&["alloc", "fs", last, file]).await.1 == wanted).await;
    }
    let listed = server.does(&["alloc", "fs", last, "t/local"]).await;
    assert!(listed.contains("-rw-r-----"), "{listed}");
}

#[tokio::test]
async fn the_disk_of_an_allocation_goes_with_it_from_one_node_to_another_and_back() {
    let Some(server) = NomadServer::start().await else { return };
    let ((one, _), (two, _)) = tokio::join!(node("one", &server), node("two", &server));
    let first = registered(&server).await;
    has_been(&server, &[&first]).await;

    let second = moved(&server, first.node()).await;
    has_been(&server, &[&first, &second]).await;
    // The command asks the node first, which answers for disks alone.
    let exec = ["alloc", "exec", "-i=false", "-t=false", second.id(), "cat", "local/been"];
    assert_eq!(server.does(&exec).await, format!("{}\n{}\n", first.id(), second.id()));

    let third = moved(&server, second.node()).await;
    assert_eq!(third.node(), first.node());
    has_been(&server, &[&first, &second, &third]).await;
    one.signal(Signal::TERM);
    two.signal(Signal::TERM);
}

#[tokio::test]
async fn the_disk_of_an_allocation_goes_with_it_from_a_stock_client_to_a_node_and_back() {
    if !rustix::process::geteuid().is_root() {
        skipped(Need::Root, "a stock client runs tasks as root");
        return;
    }
    let Some(server) = NomadServer::start().await else { return };
    let _stock = NomadClient::start("stock", &server, server.rpc, "").await;
    let first = registered(&server).await;
    has_been(&server, &[&first]).await;

    let (agent, ours) = node("ours", &server).await;
    let second = moved(&server, first.node()).await;
    assert_eq!(second.node(), ours);
    has_been(&server, &[&first, &second]).await;

    let third = moved(&server, &ours).await;
    assert_eq!(third.node(), first.node());
    has_been(&server, &[&first, &second, &third]).await;
    agent.signal(Signal::TERM);
}
