//! Plugins of a stock Nomad client beside a server of its own, where `NOMAD_BIN` names the program: what people
//! ask of running tasks, and random kills of the client, of its plugins and of the server.

use std::path::PathBuf;
use std::time::Duration;

use ostler_model::rng::Rng;

use crate::cluster_exec::{PIPES, Terminal, exec};
use crate::histories::{number, soak};
use crate::support::OSTLER;
use crate::support::ledger::Ledger;
use crate::support::nomad::{Alloc, NomadClient, NomadServer, SHORT_BEATS};
use crate::support::stock_job::StockJob;
use crate::support::system::{eventually, kill, pid_in, processes_of, runs, until};

/// A stock client whose plugins are ours, and its server.
struct Scene {
    server: NomadServer,
    client: NomadClient,
    /// Of the plugins. What runs there ends with this.
    dir: tempfile::TempDir,
    /// Where the client finds them.
    config: String,
}

const PLUGINS: [&str; 2] = ["raw_exec", "exec"];

impl Drop for Scene {
    fn drop(&mut self) {
        processes_of(self.dir.path()).into_iter().for_each(kill);
    }
}

impl Scene {
    /// With more in the configuration of its server.
    async fn new(more: &str) -> Option<Self> {
        let server = NomadServer::start_with(more).await?;
        let dir = tempfile::tempdir().unwrap();
        let plugins = dir.path().join("plugins");
        std::fs::create_dir(&plugins).unwrap();
        let mut config = format!("plugin_dir = \"{}\"\n", plugins.display());
        for name in PLUGINS {
            std::os::unix::fs::symlink(OSTLER, plugins.join(format!("ostler-{name}"))).unwrap();
            config += &format!(
                "plugin \"ostler-{name}\" {{\n args = [\"nomad-plugin\", \"--driver\", \"{name}\", \
                 \"--data-dir\", \"{}\"]\n}}\n",
                dir.path().join(name).display()
            );
        }
        let client = NomadClient::start("stock", &server, server.rpc, &config).await;
        let healthy = |nodes: &serde_json::Value| {
            PLUGINS.iter().all(|name| nodes[0]["Drivers"][name]["Healthy"] == true)
        };
        server.until("healthy drivers", "/v1/nodes", healthy).await;
        Some(Self { server, client, dir, config })
    }

    fn program(&self, name: &str) -> PathBuf {
        self.dir.path().join("plugins").join(format!("ostler-{name}"))
    }

    /// The client, once more. It gives up a driver for good, whosever it is, when that ends in its very first
    /// handshake: nothing is killed until it has its drivers.
    async fn start_again(&mut self) {
        let log = self.client.dir().join("log");
        let starts = || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            text.matches("started client").count()
        };
        let before = starts();
        self.client.start_again();
        eventually("the client has its drivers", || starts() > before).await;
    }

    /// The process of a plugin that serves the client.
    fn plugin(&self, name: &str) -> Option<u32> {
        let program = self.program(name).to_str().unwrap().as_bytes().to_vec();
        let pids = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.starts_with(&program))
                && runs(*pid)
        })
    }
}

#[tokio::test]
async fn people_reach_tasks_of_our_drivers_through_a_stock_client() {
    let Some(scene) = Scene::new(SHORT_BEATS).await else { return };
    let server = &scene.server;
    for driver in PLUGINS {
        let script = "trap 'echo told' USR1; echo up; while true; do sleep 0.1; done";
        let job = StockJob { driver, ..StockJob::service(driver, script) };
        server.register(&job.to_string()).await;
        let alloc = server.running(driver).await;
        let id = alloc.id();
        let command = ["/bin/sh", "-c", "read line; echo out $line; echo err >&2; exit 7"];
        let ended = server.said(&exec(&PIPES, id, &command), b"hello\n").await;
        let said = (ended.code, ended.stdout.as_str(), ended.stderr.as_str());
        assert_eq!(said, (Some(7), "out hello\n", "err\n"), "{driver}");
        let mut terminal = Terminal::start(server, 31, 97, &exec(&["-i", "-t"], id, &["/bin/sh"]));
        terminal.types("echo first=$(stty size)\r");
        terminal.shows("first=31 97").await;
        terminal.types("exit 9\r");
        let (code, said) = terminal.ends().await;
        assert_eq!(code, Some(9), "{driver}: {said:?}");

        server.prints(&["alloc", "logs", "-f", id], "up").await;
        server.does(&["alloc", "signal", "-s", "SIGUSR1", id]).await;
        server.prints(&["alloc", "logs", "-f", id], "told").await;
        let measured = async || {
            let said = server.does(&["alloc", "status", "-stats", id]).await;
            said.contains("Memory Stats") && said.contains("CPU Stats")
        };
        until("its use is measured", measured).await;
        server.does(&["alloc", "restart", id]).await;
        let twice = async || server.does(&["alloc", "logs", id]).await.matches("up").count() == 2;
        until("it has started again", twice).await;
        assert!(server.does(&["alloc", "fs", id, "t/"]).await.contains("local/"));
        server.does(&["job", "stop", "-detach", driver]).await;
        let over = |allocs: &[Alloc]| allocs.iter().all(|alloc| alloc.status() == "complete");
        server.allocs(driver, "it is over", over).await;
    }
}

#[tokio::test]
async fn a_stock_client_that_is_killed_finds_its_tasks_again() {
    let Some(mut scene) = Scene::new(SHORT_BEATS).await else { return };
    let mut pids = Vec::new();
    for driver in PLUGINS {
        let job = StockJob {
            driver,
            ..StockJob::service(driver, "echo $$ > local/pid; exec sleep 3600")
        };
        scene.server.register(&job.to_string()).await;
        let alloc = scene.server.running(driver).await;
        let task = scene.client.dir().join("state/alloc").join(alloc.id()).join("t");
        let inside = pid_in(&task.join("local/pid")).await;
        // Inside of an isolated task numbers are others.
        let sleeps = || {
            let all = processes_of(&task);
            all.into_iter().find(|pid| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(b"sleep\x003600"))
            })
        };
        eventually("it sleeps", || sleeps().is_some()).await;
        let pid = sleeps().unwrap();
        assert_eq!(inside == pid, driver == "raw_exec", "{driver}: {inside}, {pid}");
        pids.push((alloc, pid));
    }
    scene.client.kill().await;
    for name in PLUGINS {
        if let Some(plugin) = scene.plugin(name) {
            kill(plugin);
        }
    }
    scene.server.node("stock", "down").await;
    assert!(pids.iter().all(|(_, pid)| runs(*pid)), "tasks need neither of them");
    scene.start_again().await;
    scene.server.node("stock", "ready").await;
    for (driver, (_, pid)) in PLUGINS.iter().zip(&pids) {
        scene.server.running(driver).await;
        scene.server.does(&["job", "stop", "-detach", driver]).await;
        eventually("it ends", || !runs(*pid)).await;
    }
}

#[tokio::test]
async fn a_driver_whose_data_another_process_has_says_so_to_its_client() {
    let Some(scene) = Scene::new(SHORT_BEATS).await else { return };
    let _second =
        NomadClient::start("second", &scene.server, scene.server.rpc, &scene.config).await;
    let says = |nodes: &serde_json::Value| {
        let second = nodes.as_array().unwrap().iter().find(|node| node["Name"] == "second");
        let driver = second.map(|node| &node["Drivers"]["raw_exec"]);
        driver.is_some_and(|driver| {
            let why = driver["HealthDescription"].as_str().unwrap_or_default();
            driver["Healthy"] == false && why.contains("another")
        })
    };
    scene.server.until("the second client says why", "/v1/nodes", says).await;
}

#[tokio::test]
async fn what_a_stock_client_has_forgotten_is_ended_before_it_starts_again() {
    // It is away for less than its server takes to replace what it ran: nobody would start that again.
    let Some(mut scene) = Scene::new("").await else { return };
    let ledger = Ledger::new();
    ledger.service(&scene.server).await;
    ledger.comes_to_rest(&scene.server).await;
    let before = ledger.processes();
    scene.client.kill().await;
    // One that lives has the data directory, and another one may just have been started.
    let gone = || {
        let left: Vec<_> = PLUGINS.iter().filter_map(|name| scene.plugin(name)).collect();
        left.iter().for_each(|plugin| kill(*plugin));
        left.is_empty()
    };
    eventually("no plugin is left", gone).await;
    // As if it had been killed before it kept what it had started.
    std::fs::remove_file(scene.client.dir().join("state/client/state.db")).unwrap();
    scene.start_again().await;
    eventually("all are started again", || before.iter().all(|pid| !runs(*pid))).await;
    let all = async || {
        ledger.live().len() == ledger.processes().len() && ledger.live().len() == before.len()
    };
    until("each of them once", all).await;
    assert!(ledger.never_two_at_once());
}

#[tokio::test]
async fn nothing_is_lost_doubled_or_left_over_after_random_kills_around_plugins() {
    let kills = number("OSTLER_KILLS").unwrap_or(if soak() { 100 } else { 10 });
    let seed = number("OSTLER_SEED").unwrap_or_else(|| Rng::system().next_u64());
    let Some(mut scene) = Scene::new(SHORT_BEATS).await else { return };
    eprintln!("OSTLER_SEED={seed}");
    let (rng, mut ledger) = (Rng::from_seed(seed), Ledger::new());
    let chance = async |most| {
        ostler_model::clock::sleep(Duration::from_millis(rng.number_below(most))).await;
    };
    ledger.of_stock_client = true;
    ledger.service(&scene.server).await;
    for count in 1..=kills {
        ledger.work(&scene.server).await;
        chance(1_500).await;
        let drawn = rng.number_below(4);
        eprintln!(
            "{count}: {}",
            ["plugin", "plugin", "client", "server"][usize::try_from(drawn).unwrap()]
        );
        match drawn {
            0 | 1 => {
                if let Some(plugin) = scene.plugin("raw_exec") {
                    kill(plugin);
                }
            }
            2 => {
                scene.client.kill().await;
                chance(4_000).await;
                scene.start_again().await;
            }
            _ => {
                scene.server.kill().await;
                chance(4_000).await;
                scene.server.start_again().await;
            }
        }
        if count % 10 == 0 || count == kills {
            scene.server.node("stock", "ready").await;
            ledger.comes_to_rest(&scene.server).await;
        }
    }
    let stops = async || {
        scene.server.does(&["job", "stop", "-detach", "service"]).await;
        ledger.live().is_empty()
    };
    until("nothing is left", stops).await;
}
