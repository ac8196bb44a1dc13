//! How far a node trusts servers: who they must be, and what their allocations cannot have.

use std::path::Path;

use ostler_cluster::dial::TLS;
use ostler_cluster::msgpack::Value;
use ostler_cluster::rpc::{map, text};
use ostler_testing::servers::ServerDouble;
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use crate::cluster::joined;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::authority::Authority;
use crate::support::binary::ostler;
use crate::support::system::eventually;

/// A double behind a certificate of this authority with this name, and its port.
async fn serves(authority: &Authority, name: &str) -> (ServerDouble, u16) {
    let (double, acceptor) = (ServerDouble::default(), authority.acceptor(name));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = double.clone();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (double, acceptor) = (served.clone(), acceptor.clone());
            tokio::spawn(async move {
                if socket.read_u8().await.ok() == Some(TLS)
                    && let Ok(socket) = acceptor.accept(socket).await
                {
                    double.serve(socket).await;
                }
            });
        }
    });
    (double, port)
}

fn args<'a>(at: &'a str, authorities: &'a Path) -> [&'a str; 6] {
    ["--servers", at, "--region", "eu", "--ca-file", authorities.to_str().unwrap()]
}

#[tokio::test]
async fn a_node_registers_with_servers_of_its_region_that_its_authority_vouches_for() {
    let (home, authority) = (Home::new(), Authority::new());
    let (double, port) = serves(&authority, "server.eu.nomad").await;
    let (at, file) = (format!("127.0.0.1:{port}"), authority.file(home.path()));
    let _agent = AgentProcess::start_in(home, &args(&at, &file)).await;
    eventually("it is registered", || !double.book().nodes.is_empty()).await;
}

#[tokio::test]
async fn servers_of_another_authority_region_or_name_get_no_node_and_both_faces_say_why() {
    let (ours, other) = (Authority::new(), Authority::new());
    for (authority, name, why) in [
        (&other, "server.eu.nomad", "invalid peer certificate"),
        (&ours, "server.us.nomad", "server.eu.nomad"),
        (&ours, "client.eu.nomad", "server.eu.nomad"),
        (&ours, "localhost", "server.eu.nomad"),
    ] {
        let home = Home::new();
        let (double, port) = serves(authority, name).await;
        let (at, file) = (format!("127.0.0.1:{port}"), ours.file(home.path()));
        let args = args(&at, &file);
        let checked = ostler(["node", "join-check"].iter().chain(&args)).await;
        checked.said(1, &[]);
        for said in ["the TLS handshake failed", why, "a node cannot join"] {
            assert!(checked.stdout.contains(said), "{said}: {}", checked.stdout);
        }
        let mut agent = AgentProcess::spawn(home, &args, |_| {});
        let line = agent.hears("the TLS handshake failed").await;
        assert!(line.contains(why) && line.contains("WARN"), "{line}");
        assert!(double.book().nodes.is_empty(), "nothing was told to {name}");
    }
}

#[tokio::test]
async fn a_way_to_servers_without_tls_that_leaves_the_machine_is_warned_of() {
    // An address of documentation: nobody is there.
    let mut agent = AgentProcess::spawn(Home::new(), &["--servers", "192.0.2.1:4647"], |_| {});
    let line = agent.hears("does not use TLS").await;
    assert!(line.contains("warning") && line.contains("192.0.2.1:4647"), "{line}");
}

/// Another value at the end of a path of fields; a number is an index of a list.
fn with(value: &mut Value, path: &[&str], new: Value) {
    let Some((first, rest)) = path.split_first() else {
        *value = new;
        return;
    };
    match value {
        Value::Array(list) => with(&mut list[first.parse::<usize>().unwrap()], rest, new),
        Value::Map(fields) => {
            if !fields.iter().any(|(key, _)| text(key) == Some(*first)) {
                fields.push(((*first).into(), Value::Nil));
            }
            let found = fields.iter_mut().find(|(key, _)| text(key) == Some(*first));
            with(&mut found.unwrap().1, rest, new);
        }
        _ => panic!("nothing at {first}"),
    }
}

const TASK: [&str; 4] = ["TaskGroups", "0", "Tasks", "0"];

/// Where something stands in a job, and what.
type Change = (Vec<&'static str>, Value);

/// What a server might ask for beyond what the node's operator has granted: where it stands in a job, and what
/// the refusal names.
fn beyond(dir: &Path) -> Vec<(Vec<Change>, &'static str)> {
    let of_task = |key| [&TASK[..], &[key]].concat();
    let exec = |more: Vec<(&str, Value)>| {
        let script = format!("touch {}/reached", dir.display());
        let args = Value::Array(vec!["-c".into(), script.as_str().into()]);
        let config = [("command", "/bin/sh".into()), ("args", args)];
        let config = map(config.into_iter().chain(more));
        vec![(of_task("Driver"), "exec".into()), (of_task("Config"), config)]
    };
    let at = dir.to_str().unwrap();
    let mount = map([("source", at.into()), ("target", at.into())]);
    let also = |mut all: Vec<_>, path, value: Value| {
        all.push((path, value));
        all
    };
    let volume = map([("Name", "v".into()), ("Type", "host".into()), ("Source", "etc".into())]);
    let mounted = map([("Volume", "v".into()), ("Destination", "/v".into())]);
    let granted = map([("process", true.into())]);
    vec![
        (vec![], "raw_exec"),
        (exec(vec![("mounts", Value::Array(vec![mount]))]), "mount"),
        (exec(vec![("cap_add", Value::Array(vec!["sys_admin".into()]))]), "cap"),
        (also(exec(vec![]), of_task("User"), "root".into()), "root"),
        (exec(vec![("grants", granted.clone())]), "grants"),
        (vec![(of_task("Grants"), granted.clone())], "Grants"),
        (vec![(vec!["Plugin"], map([("exec", granted)]))], "Plugin"),
        (
            also(
                also(exec(vec![]), vec!["TaskGroups", "0", "Volumes"], map([("v", volume)])),
                of_task("VolumeMounts"),
                Value::Array(vec![mounted]),
            ),
            "volume v (source etc)",
        ),
        (vec![(of_task("Name"), "../../../x".into())], "../../../x"),
    ]
}

#[tokio::test]
async fn an_allocation_of_a_server_cannot_have_what_the_operator_has_not_granted() {
    let double = ServerDouble::default();
    let port = double.listen().await.unwrap();
    let home = Home::new();
    let dir = home.path().join("outside");
    std::fs::create_dir(&dir).unwrap();
    let mut placed = Vec::new();
    for (number, (changes, named)) in beyond(&dir).into_iter().enumerate() {
        let id = format!("00000000-0000-4000-8000-{number:012}");
        let mut job = ostler_testing::servers::recorded_alloc()["Job"].clone();
        let never = map([("Attempts", 0.into()), ("Mode", "fail".into())]);
        with(&mut job, &["TaskGroups", "0", "RestartPolicy"], never.clone());
        with(&mut job, &[&TASK[..], &["RestartPolicy"]].concat(), never);
        with(&mut job, &["ID"], format!("beyond-{number}").as_str().into());
        for (path, value) in changes {
            with(&mut job, &path, value);
        }
        double.book().put(
            None,
            &[("ID", id.as_str().into()), ("Job", job), ("AllocatedResources", map([]))],
        );
        placed.push((id, named));
    }
    let agent = joined(home, port, "name = \"box\"\n").await;
    for (id, named) in placed {
        let failed = || double.book().reported_status(&id) == "failed";
        eventually(&format!("{named} is refused"), failed).await;
        let told = format!("{:?}", double.book().last_report(&id)).to_lowercase();
        assert!(told.contains(&named.to_lowercase()), "{named}: {told}");
    }
    assert!(!agent.data.path().join("outside/reached").exists());
}
