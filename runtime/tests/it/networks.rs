//! Networks of allocations: bridge, none, CNI, ports that lead there, and nothing left of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::{isolated_shell, shell, wasm, with_guests};
use crate::support::needs::{Need, skipped};
use crate::support::system::{eventually, until};
use crate::support::{KEEPS, PATIENCE};

/// A bridge of a test alone, with addresses that no other has; it is removed with this.
struct Bridge {
    name: String,
    subnet: String,
}

impl Bridge {
    /// None, aloud, where networks cannot be made.
    fn new() -> Option<Self> {
        static NUMBER: AtomicU8 = AtomicU8::new(0);
        if let Some(why) = cannot() {
            skipped(Need::Networks, why);
            return None;
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("ostl{}-{number}", std::process::id() % 1_000_000);
        let third = std::process::id() % 200;
        Some(Self { name, subnet: format!("10.{}.{third}.0/24", 200 + number) })
    }

    fn config(&self) -> String {
        let Self { name, subnet } = self;
        format!(
            "client {{\n bridge_network_name = \"{name}\"\n bridge_network_subnet = \"{subnet}\"\n}}\n"
        )
    }

    /// Addresses that are given to somebody.
    fn given(&self) -> Vec<PathBuf> {
        let dir = Path::new("/var/lib/cni/networks").join(&self.name);
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let is_address = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.parse::<std::net::IpAddr>().is_ok()
        };
        entries.map(|entry| entry.path()).filter(is_address).collect()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _gone = Command::new("ip").args(["link", "del", &self.name]).output();
        let rule = ["-o", &self.name, "-d", &self.subnet, "-j", "ACCEPT"];
        let remove = ["-w", "-D", "NOMAD-ADMIN"];
        let _gone = Command::new("iptables").args(remove.iter().chain(&rule)).output();
        let _gone = std::fs::remove_dir_all(Path::new("/var/lib/cni/networks").join(&self.name));
    }
}

fn cannot() -> Option<String> {
    if !ostler_process::netns::may_create() {
        return Some("network namespaces need root".to_owned());
    }
    for program in ["/usr/lib/cni/bridge", "/usr/lib/cni/portmap"] {
        if !Path::new(program).exists() {
            return Some(format!(
                "{program} is not there (Debian package containernetworking-plugins)"
            ));
        }
    }
    let rules = Command::new("iptables").args(["-w", "-t", "nat", "-S"]).output();
    match rules {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Some(format!("iptables: {error}")),
    }
}

/// Every rule of the node that says something of this address.
fn rules_of(address: &str) -> Vec<String> {
    let of = |table: &str| {
        let output = Command::new("iptables").args(["-w", "-t", table, "-S"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let all = of("nat") + &of("filter");
    all.lines()
        .filter(|line| {
            line.contains(&format!("{address}/")) || line.contains(&format!("{address}:"))
        })
        .map(str::to_owned)
        .collect()
}

async fn start(bridge: &Bridge, more: &str) -> AgentProcess {
    start_in(Home::new(), bridge, more).await
}

async fn start_in(home: Home, bridge: &Bridge, more: &str) -> AgentProcess {
    let file = home.path().join("ostler.hcl");
    std::fs::write(&file, format!("{KEEPS}{}{more}", bridge.config())).unwrap();
    let file = file.to_str().unwrap().to_owned();
    AgentProcess::start_in(home, &["--config", &file]).await
}

fn service(name: &str, network: &str, tasks: &str) -> String {
    with_guests(&format!(
        "job \"{name}\" {{\n group \"g\" {{\n update {{\n min_healthy_time = \"10ms\"\n }}\n restart {{\n \
         attempts = 0\n mode = \"fail\"\n }}\n network {{\n {network}\n }}\n {tasks}\n }}\n}}"
    ))
}

/// The namespaces that an agent holds.
fn held(data: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(data.join("netns")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn mounted(data: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.contains(&data.join("netns").display().to_string())
}

async fn shown(agent: &AgentProcess, alloc: &str) -> Value {
    agent.json(&["alloc", "status", "--json", alloc]).await
}

/// Address and port of the node, by the label.
fn port_of(alloc: &Value, label: &str) -> String {
    let ports = alloc["AllocatedResources"]["Shared"]["Ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["Label"] == label).unwrap();
    format!("{}:{}", port["HostIP"].as_str().unwrap(), port["Value"])
}

async fn connected(address: &str) -> TcpStream {
    let wait = async {
        loop {
            match TcpStream::connect(address).await {
                Ok(stream) => return stream,
                Err(_) => ostler_model::clock::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
    };
    let stream = ostler_model::clock::timeout(PATIENCE, wait).await;
    stream.unwrap_or_else(|| panic!("nobody listens on {address}"))
}

async fn said_at(address: &str) -> String {
    let mut said = String::new();
    connected(address).await.read_to_string(&mut said).await.unwrap();
    said
}

/// Answers everybody with what it sees, from Perl, which Debian always has.
fn answers(port: &str, what: &str) -> String {
    format!(
        "exec /usr/bin/perl -MIO::Socket::INET -e 'my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => \
         \"0.0.0.0\", LocalPort => {port}, ReuseAddr => 1) or die $!; while (my $c = $s->accept) {{ print $c \
         {what}; close $c }}'"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_a_bridge_group_are_reached_by_ports_of_the_node_and_leave_nothing() {
    let Some(bridge) = Bridge::new() else { return };
    let agent = start(&bridge, "").await;
    let env = "join(\" \", map { \"$_=$ENV{$_}\" } qw(NOMAD_PORT_web NOMAD_ALLOC_PORT_web NOMAD_ALLOC_IP_web))";
    let tasks = isolated_shell("isolated", &answers("$ENV{NOMAD_PORT_web}", env), "")
        + &shell("bare", &answers("$ENV{NOMAD_PORT_raw}", "\"bare\""), "");
    let network = "mode = \"bridge\"\n port \"web\" {\n to = 8080\n }\n port \"raw\" {}";
    agent.run(&service("web", network, &tasks)).await.said(0, &[]);
    let id = agent.alloc("web").await;
    let alloc = shown(&agent, &id).await;
    let address = alloc["NetworkStatus"]["Address"].as_str().unwrap().to_owned();
    assert_eq!(alloc["NetworkStatus"]["InterfaceName"], "eth0");
    assert!(address.starts_with(bridge.subnet.rsplit_once('.').unwrap().0), "{address}");
    let expected =
        format!("NOMAD_PORT_web=8080 NOMAD_ALLOC_PORT_web=8080 NOMAD_ALLOC_IP_web={address}");
    assert_eq!(said_at(&port_of(&alloc, "web")).await, expected);
    assert_eq!(said_at(&port_of(&alloc, "raw")).await, "bare");
    // By its own address too, from the node.
    assert_eq!(said_at(&format!("{address}:8080")).await, expected);
    assert!(!rules_of(&address).is_empty() && bridge.given().len() == 1);

    agent.ask(&["job", "stop", "--purge", "web"]).await.said(0, &[]);
    let data = agent.data.path().to_owned();
    eventually("the network is taken away", || held(&data).is_empty()).await;
    assert_eq!(rules_of(&address), Vec::<String>::new());
    assert_eq!(bridge.given(), Vec::<PathBuf>::new());
    assert!(!mounted(&data));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wasm_task_of_a_bridge_group_listens_inside_its_network() {
    let Some(bridge) = Bridge::new() else { return };
    let agent = start(&bridge, "").await;
    let task = wasm("kv", "guest:kv-server", &["db"], "")
        .replace("args =", "network {\n listen = true\n }\n args =");
    let network = "mode = \"bridge\"\n port \"db\" {\n to = 6379\n }";
    agent.run(&service("kv", network, &task)).await.said(0, &[]);
    let alloc = shown(&agent, &agent.alloc("kv").await).await;
    let mut stream = BufReader::new(connected(&port_of(&alloc, "db")).await);
    stream.write_all(b"PING\n").await.unwrap();
    let mut answer = String::new();
    stream.read_line(&mut answer).await.unwrap();
    assert_eq!(answer.trim(), "PONG");
    drop(stream);
    let address = alloc["NetworkStatus"]["Address"].as_str().unwrap().to_owned();
    agent.ask(&["job", "stop", "--purge", "kv"]).await.said(0, &[]);
    let data = agent.data.path().to_owned();
    eventually("the network is taken away", || held(&data).is_empty()).await;
    assert!(rules_of(&address).is_empty() && bridge.given().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_keep_their_network_when_their_agent_is_killed_and_the_next_takes_it_away() {
    let Some(bridge) = Bridge::new() else { return };
    let agent = start(&bridge, "").await;
    let task = isolated_shell("t", &answers("8080", "\"here\""), "");
    let network = "mode = \"bridge\"\n port \"web\" {\n to = 8080\n }";
    agent.run(&service("keeps", network, &task)).await.said(0, &[]);
    let id = agent.alloc("keeps").await;
    let before = shown(&agent, &id).await;
    agent.signal(rustix::process::Signal::KILL);
    let (_, home) = agent.ended().await;
    assert_eq!(said_at(&port_of(&before, "web")).await, "here", "without an agent");

    let agent = start_in(home, &bridge, "").await;
    assert_eq!(agent.alloc("keeps").await, id);
    let until = async || shown(&agent, &id).await["NetworkStatus"] == before["NetworkStatus"];
    crate::support::system::until("the network is known again", until).await;
    assert_eq!(said_at(&port_of(&before, "web")).await, "here");
    // A run that is made now is in the same network.
    agent.ask(&["alloc", "restart", &id]).await.said(0, &[]);
    assert_eq!(said_at(&port_of(&before, "web")).await, "here");

    let address = before["NetworkStatus"]["Address"].as_str().unwrap();
    agent.ask(&["job", "stop", "--purge", "keeps"]).await.said(0, &[]);
    let data = agent.data.path().to_owned();
    eventually("the network is taken away", || held(&data).is_empty()).await;
    assert!(rules_of(address).is_empty() && bridge.given().is_empty() && !mounted(&data));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_agent_left_of_an_allocation_that_is_over_is_found_and_taken_away() {
    let Some(bridge) = Bridge::new() else { return };
    let agent = start(&bridge, "").await;
    let task = shell("t", "sleep 1000", "kill_timeout = \"10ms\"");
    agent.run(&service("left", "mode = \"bridge\"\n port \"p\" {}", &task)).await.said(0, &[]);
    let id = agent.alloc("left").await;
    let address = shown(&agent, &id).await["NetworkStatus"]["Address"].as_str().unwrap().to_owned();
    let kept: BTreeSet<String> = held(agent.data.path()).into_iter().collect();
    assert_eq!(kept, [id.clone(), format!("{id}.json")].into());
    // As if its records had been lost with everything but the network: another job's agent.
    agent.signal(rustix::process::Signal::KILL);
    let (_, home) = agent.ended().await;
    for pid in crate::support::system::processes_of(home.path()) {
        crate::support::system::kill(pid);
    }
    for name in ["state.redb", "state.redb.journal"] {
        let _gone = std::fs::remove_file(home.path().join(name));
    }
    let agent = start_in(home, &bridge, "").await;
    let data = agent.data.path().to_owned();
    eventually("the network is taken away", || held(&data).is_empty()).await;
    assert!(rules_of(&address).is_empty() && bridge.given().is_empty() && !mounted(&data));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_of_mode_none_has_a_loopback_and_nothing_else() {
    let Some(bridge) = Bridge::new() else { return };
    let agent = start(&bridge, "").await;
    let script = "ls /sys/class/net > /dev/null; cat /proc/net/dev | grep -c : ; cat /proc/net/route | wc -l; \
                  sleep 1000";
    let task = shell("t", script, "kill_timeout = \"10ms\"");
    agent.run(&service("none", "mode = \"none\"", &task)).await.said(0, &[]);
    let id = agent.alloc("none").await;
    let log = agent.data.path().join(format!("allocs/{id}/alloc/logs/t.stdout.0"));
    eventually("it has looked", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text == "1\n1\n")
    })
    .await;
    let exec = agent.ask(&["alloc", "status", &id]).await;
    exec.said(0, &[]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_of_the_operators_own_is_made_by_its_cni_configuration() {
    let Some(bridge) = Bridge::new() else { return };
    let dir = tempfile::tempdir().unwrap();
    let Bridge { name, subnet } = &bridge;
    let text = format!(
        r#"{{"cniVersion": "0.4.0", "name": "mine", "plugins": [{{"type": "bridge", "bridge": "{name}",
            "isGateway": true, "ipam": {{"type": "host-local", "subnet": "{subnet}"}}}}]}}"#
    );
    std::fs::write(dir.path().join("mine.conflist"), text).unwrap();
    let config = format!("client {{\n cni_config_dir = \"{}\"\n}}\n", dir.path().display());
    let home = Home::new();
    let file = home.path().join("ostler.hcl");
    std::fs::write(&file, format!("{KEEPS}{config}")).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", file.to_str().unwrap()]).await;
    let task = isolated_shell("t", &answers("8080", "\"mine\""), "");
    agent.run(&service("mine", "mode = \"cni/mine\"", &task)).await.said(0, &[]);
    let alloc = shown(&agent, &agent.alloc("mine").await).await;
    let address = alloc["NetworkStatus"]["Address"].as_str().unwrap();
    assert_eq!(said_at(&format!("{address}:8080")).await, "mine");
    let refused = agent.submit(&service("other", "mode = \"cni/other\"", &task)).await;
    assert!(refused.stderr.contains("no CNI configuration named other"), "{refused:#?}");
    agent.ask(&["job", "stop", "--purge", "mine"]).await.said(0, &[]);
    let data = agent.data.path().to_owned();
    eventually("the network is taken away", || held(&data).is_empty()).await;
    let _gone = std::fs::remove_dir_all("/var/lib/cni/networks/mine");
}

/// The first allocation of a job that fails.
async fn failed(agent: &AgentProcess, text: &str, job: &str) -> String {
    agent.submit(text).await.said(0, &[]);
    until("it failed", async || {
        agent.allocs(job).await.first().is_some_and(|alloc| alloc["ClientStatus"] == "failed")
    })
    .await;
    agent.allocs(job).await[0]["ID"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_resolved_as_the_group_says_where_the_driver_can() {
    let Some(bridge) = Bridge::new() else { return };
    let agent = start(&bridge, "").await;
    let dns =
        "mode = \"bridge\"\n dns {\n servers = [\"192.0.2.53\"]\n searches = [\"example.com\"]\n }";
    let task = isolated_shell("t", "cat /etc/resolv.conf; sleep 1000", "kill_timeout = \"10ms\"");
    agent.run(&service("dns", dns, &task)).await.said(0, &[]);
    let id = agent.alloc("dns").await;
    let log = agent.data.path().join(format!("allocs/{id}/alloc/logs/t.stdout.0"));
    let expected = "search example.com\nnameserver 192.0.2.53\n";
    eventually("it has looked", || {
        std::fs::read_to_string(&log).is_ok_and(|text| text == expected)
    })
    .await;
    let id = failed(&agent, &service("bare", dns, &shell("t", "true", "")), "bare").await;
    let told = shown(&agent, &id).await.to_string();
    assert!(told.contains("driver raw_exec shows its tasks no /etc/resolv.conf"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn native_tasks_see_the_name_of_the_host_that_their_group_says() {
    let Some(bridge) = Bridge::new() else { return };
    let before = rustix::system::uname().nodename().to_owned();
    let agent = start(&bridge, "").await;
    let network = "mode = \"none\"\n hostname = \"web-${NOMAD_ALLOC_INDEX}.example\"";
    for (name, task) in [
        ("kept", isolated_shell("t", "uname -n; sleep 1000", "kill_timeout = \"10ms\"")),
        ("bare", shell("t", "uname -n; sleep 1000", "kill_timeout = \"10ms\"")),
    ] {
        agent.run(&service(name, network, &task)).await.said(0, &[]);
        let id = agent.alloc(name).await;
        let log = agent.data.path().join(format!("allocs/{id}/alloc/logs/t.stdout.0"));
        eventually("it has looked", || {
            std::fs::read_to_string(&log).is_ok_and(|text| text == "web-0.example\n")
        })
        .await;
    }
    assert_eq!(rustix::system::uname().nodename(), &*before, "the node's own stays");
    let wrong = network.replace(".example", "_x");
    let id = failed(&agent, &service("wrong", &wrong, &shell("t", "true", "")), "wrong").await;
    let told = shown(&agent, &id).await.to_string();
    assert!(told.contains("is not a valid host name"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_plugins_a_bridge_is_refused_with_the_package_to_install() {
    let empty = tempfile::tempdir().unwrap();
    let home = Home::new();
    let file = home.path().join("ostler.hcl");
    let config = format!("{KEEPS}client {{\n cni_path = \"{}\"\n}}\n", empty.path().display());
    std::fs::write(&file, config).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", file.to_str().unwrap()]).await;
    let job = service("web", "mode = \"bridge\"", &shell("t", "sleep 1000", ""));
    let refused = agent.submit(&job).await;
    let said = format!("{}{}", refused.stdout, refused.stderr);
    assert!(said.contains("install containernetworking-plugins"), "{refused:#?}");
    let node = agent.json(&["node", "status", "--json"]).await;
    let attribute = |name: &str| node["attributes"][name]["value"].clone();
    assert_eq!(attribute("network.bridge"), false);
    assert!(attribute("network.bridge.missing").as_str().unwrap().contains("install"));
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_at_the_host_network_that_they_name() {
    let home = Home::new();
    let file = home.path().join("ostler.hcl");
    let config = format!(
        "{KEEPS}client {{\n host_network \"local\" {{\n cidr = \"127.0.0.0/8\"\n reserved_ports = \
         \"20000-32000\"\n }}\n host_network \"narrow\" {{\n interface = \"lo\"\n reserved_ports = \
         \"8080\"\n }}\n}}\n"
    );
    std::fs::write(&file, config).unwrap();
    let agent = AgentProcess::start_in(home, &["--config", file.to_str().unwrap()]).await;
    let job = |name: &str, port: &str| {
        service(name, port, &shell("t", "sleep 1000", "kill_timeout = \"10ms\""))
    };
    let there = "port \"x\" {\n host_network = \"narrow\"\n }";
    agent.run(&job("there", there)).await.said(0, &[]);
    let alloc = shown(&agent, &agent.alloc("there").await).await;
    assert!(port_of(&alloc, "x").starts_with("127.0.0.1:"), "{alloc:#}");
    for (port, said) in [
        ("port \"x\" {\n host_network = \"other\"\n }", "has no address"),
        ("port \"x\" {\n host_network = \"local\"\n }", "no free port"),
        (
            "port \"x\" {\n static = 8080\n host_network = \"narrow\"\n }",
            "is reserved on host network",
        ),
    ] {
        let refused = agent.submit(&job("refused", port)).await;
        let all = format!("{}{}", refused.stdout, refused.stderr);
        assert!(all.contains(said), "{said}: {all}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_in_a_tasks_resources_are_its_own_and_others_know_them_by_its_name() {
    let agent = crate::support::TestAgent::start().await;
    let of_task =
        "resources {\n cpu = 20\n memory = 64\n network {\n mbits = 10\n port \"http\" {}\n }\n }";
    let print = "env | grep -E '^NOMAD_(PORT|ADDR|IP)' | sort";
    let tasks = shell("web", print, of_task) + &shell("side", print, "");
    let result = agent.run(&crate::support::jobs::batch(&tasks)).await;
    crate::support::jobs::assert_successful(&result);
    let (web, side) = (agent.stdout(&result, "web"), agent.stdout(&result, "side"));
    let port = web.lines().find_map(|line| line.strip_prefix("NOMAD_PORT_http=")).unwrap();
    assert!(web.contains(&format!("NOMAD_ADDR_http=127.0.0.1:{port}\n")), "{web}");
    let expected = format!(
        "NOMAD_ADDR_web_http=127.0.0.1:{port}\nNOMAD_IP_web_http=127.0.0.1\nNOMAD_PORT_web_http={port}\n"
    );
    assert_eq!(side, expected);
    agent.stop().await;
}
