//! What tokens allow on our nodes, with stock servers that check them; where `NOMAD_BIN` names the program.

use crate::cluster::ready_node;
use crate::cluster_exec::{PIPES, exec};
use crate::support::nomad::NomadServer;
use crate::support::stock_job::StockJob;

const INSIDE: &str = "namespace \"default\" {\n policy = \"write\"\n}\n";
const ON_NODE: &str =
    "namespace \"def*\" {\n policy = \"write\"\n capabilities = [\"alloc-node-exec\"]\n}\n";

fn secret(said: &str) -> String {
    let line = said.lines().find(|line| line.starts_with("Secret ID"));
    line.and_then(|line| line.split_whitespace().last()).unwrap().to_owned()
}

/// A token of one policy.
async fn token(server: &NomadServer, name: &str, rules: &str) -> String {
    let file = server.file(&format!("{name}.policy"), rules);
    server.does(&["acl", "policy", "apply", name, file.to_str().unwrap()]).await;
    secret(&server.does(&["acl", "token", "create", "-policy", name]).await)
}

#[tokio::test]
async fn stock_servers_say_who_may_run_commands_inside_tasks_that_see_the_node() {
    let more = "acl {\n enabled = true\n}\n";
    let Some(mut server) = NomadServer::start_with(more).await else { return };
    server.token = secret(&server.does(&["acl", "bootstrap"]).await);
    let _agent = ready_node(&server, server.rpc, "box").await;
    for driver in ["raw_exec", "exec"] {
        let job = StockJob { driver, ..StockJob::service(driver, "exec sleep 600") };
        server.register(&job.to_string()).await;
    }
    let (native, isolated) = (server.running("raw_exec").await, server.running("exec").await);
    let inside = token(&server, "inside", INSIDE).await;
    let on_node = token(&server, "on-node", ON_NODE).await;
    // Who shows nothing may what this policy says.
    let _anonymous = token(&server, "anonymous", INSIDE).await;
    let management = server.token.clone();
    for (who, token, allowed) in [
        ("management", management, true),
        ("on the node", on_node, true),
        ("inside tasks", inside, false),
        ("nothing", String::new(), false),
    ] {
        server.token = token;
        let echo = async |alloc: &str| {
            server.said(&exec(&PIPES, alloc, &["/bin/echo", "here"]), b"").await
        };
        let ended = echo(isolated.id()).await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "here\n"), "{who}: {ended:#?}");
        let ended = echo(native.id()).await;
        assert_eq!(ended.code == Some(0), allowed, "{who}: {ended:#?}");
        assert_eq!(ended.stdout, if allowed { "here\n" } else { "" }, "{who}: {ended:#?}");
        let reason = "has alloc-node-exec in namespace default";
        assert_eq!(ended.stderr.contains(reason), !allowed, "{who}: {ended:#?}");
    }
}
