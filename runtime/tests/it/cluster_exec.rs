//! `nomad alloc exec` into tasks of our nodes, through stock servers, where `NOMAD_BIN` names the program.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::cluster::joined;
use crate::support::agent_process::{AgentProcess, Home};
use crate::support::jobs::with_guests;
use crate::support::nomad::NomadServer;
use crate::support::stock_job::StockJob;
use crate::support::system::{eventually, pid_in, processes_of, runs};

const CONFIG: &str = "name = \"box\"\nplugin \"raw_exec\" {\n enabled = true\n}\n";

async fn node(server: &NomadServer, config: &str) -> AgentProcess {
    let agent = joined(Home::new(), server.rpc, config).await;
    server.node("box", "ready").await;
    agent
}

pub(crate) fn exec<'a>(flags: &[&'a str], alloc: &'a str, command: &[&'a str]) -> Vec<&'a str> {
    [&["alloc", "exec"], flags, &[alloc], command].concat()
}

pub(crate) const PIPES: [&str; 2] = ["-i=true", "-t=false"];

/// A command line in a terminal of its own.
pub(crate) struct Terminal {
    ours: std::fs::File,
    said: Arc<Mutex<String>>,
    child: tokio::process::Child,
    reader: std::thread::JoinHandle<()>,
}

impl Terminal {
    pub(crate) fn start(server: &NomadServer, rows: u16, columns: u16, args: &[&str]) -> Self {
        Self::of(&server.command(args), rows, columns)
    }

    /// Its program, arguments and variables count.
    pub(crate) fn of(inside: &tokio::process::Command, rows: u16, columns: u16) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&ours).unwrap();
        unlockpt(&ours).unwrap();
        let path = ptsname(&ours, Vec::new()).unwrap();
        let theirs = std::fs::File::options().read(true).write(true).open(path.to_str().unwrap());
        let theirs: OwnedFd = theirs.unwrap().into();
        let inside = inside.as_std();
        let mut command = tokio::process::Command::new("setsid");
        // It hears of sizes and Ctrl-C only from the terminal of its session.
        command.args(["--ctty", "--wait"]).arg(inside.get_program()).args(inside.get_args());
        for (name, value) in inside.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.stdin(Stdio::from(theirs.try_clone().unwrap())).kill_on_drop(true);
        command.stdout(Stdio::from(theirs.try_clone().unwrap())).stderr(Stdio::from(theirs));
        let ours = std::fs::File::from(ours);
        let (said, mut shown) = (Arc::new(Mutex::new(String::new())), ours.try_clone().unwrap());
        let child = command.spawn().unwrap();
        // With it go this process's own copies of the other end.
        drop(command);
        let heard = Arc::clone(&said);
        let reader = std::thread::spawn(move || {
            let mut piece = [0; 4096];
            // An error: nobody has the other end any more.
            while let Ok(length @ 1..) = shown.read(&mut piece) {
                heard.lock().unwrap().push_str(&String::from_utf8_lossy(&piece[..length]));
            }
        });
        let terminal = Self { ours, said, child, reader };
        terminal.resize(rows, columns);
        terminal
    }

    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.ours, size).unwrap();
    }

    pub(crate) fn types(&mut self, text: &str) {
        self.ours.write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    pub(crate) async fn shows(&self, text: &str) {
        eventually(&format!("the terminal shows {text:?}: {:?}", self.said()), || {
            self.said().contains(text)
        })
        .await;
    }

    pub(crate) async fn ends(mut self) -> (Option<i32>, String) {
        let ended = ostler_model::clock::timeout(crate::support::PATIENCE, self.child.wait()).await;
        let code = ended.unwrap_or_else(|| panic!("it ends: {:?}", self.said())).unwrap().code();
        let (reader, said) = (self.reader, self.said);
        reader.join().unwrap();
        let said = said.lock().unwrap().clone();
        (code, said)
    }
}

#[tokio::test]
async fn stock_exec_carries_input_both_outputs_and_the_exit_code_of_native_tasks() {
    let Some(server) = NomadServer::start().await else { return };
    let _agent = node(&server, CONFIG).await;
    for driver in ["raw_exec", "exec"] {
        let job = StockJob {
            driver,
            of_task: "env {\n MARK = \"mine\"\n }",
            ..StockJob::service(driver, "exec sleep 600")
        };
        server.register(&job.to_string()).await;
        let alloc = server.running(driver).await;

        let script = "read line; echo out $line; echo err >&2; exit 7";
        let ended =
            server.said(&exec(&PIPES, alloc.id(), &["/bin/sh", "-c", script]), b"hello\n").await;
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
            (Some(7), "out hello\n", "err\n"),
            "{driver}"
        );

        // All of a long input, and its end.
        let input = "0123456789abcde\n".repeat(200_000);
        let ended =
            server.said(&exec(&PIPES, alloc.id(), &["/usr/bin/wc", "-c"]), input.as_bytes()).await;
        assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "3200000"), "{driver}: {ended:#?}");
        let ended = server.said(&exec(&PIPES, alloc.id(), &["/usr/bin/seq", "300000"]), b"").await;
        assert_eq!((ended.code, ended.stdout.lines().count()), (Some(0), 300_000), "{driver}");

        // In the place and with the variables of the task.
        let script = "pwd; echo $NOMAD_TASK_NAME $MARK; cat /proc/1/comm; id -u";
        let ended = server.said(&exec(&PIPES, alloc.id(), &["/bin/sh", "-c", script]), b"").await;
        let lines: Vec<_> = ended.stdout.lines().collect();
        assert_eq!(lines.get(1), Some(&"t mine"), "{driver}: {ended:#?}");
        let isolated = driver == "exec";
        assert_eq!(lines[3] == "0", !isolated, "{driver}: {ended:#?}");

        let task = ["-task", "t", "-i=false", "-t=false"];
        let ended = server.said(&exec(&task, alloc.id(), &["/bin/cat"]), b"unread").await;
        assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), ""), "{driver}: {ended:#?}");
        let ended = server.said(&exec(&PIPES, alloc.id(), &["/no/such/program"]), b"").await;
        assert_ne!(ended.code, Some(0), "{driver}");
        assert!(ended.stderr.contains("/no/such/program"), "{driver}: {ended:#?}");
        let ended = server.said(&exec(&["-task", "other"], alloc.id(), &["/bin/true"]), b"").await;
        assert!(ended.code != Some(0) && ended.stderr.contains("other"), "{driver}: {ended:#?}");
    }
    // By its job, as people do.
    let ended = server.said(&["alloc", "exec", "-job", "exec", "/bin/echo", "here"], b"").await;
    assert_eq!((ended.code, ended.stdout.as_str()), (Some(0), "here\n"), "{ended:#?}");
}

#[tokio::test]
async fn stock_exec_in_a_terminal_follows_its_size_and_takes_ctrl_c() {
    let Some(server) = NomadServer::start().await else { return };
    let _agent = node(&server, CONFIG).await;
    for driver in ["raw_exec", "exec"] {
        let job = StockJob { driver, ..StockJob::service(driver, "exec sleep 600") };
        server.register(&job.to_string()).await;
        let alloc = server.running(driver).await;
        let args = exec(&["-i", "-t"], alloc.id(), &["/bin/sh"]);
        let mut terminal = Terminal::start(&server, 31, 97, &args);
        terminal.types("tty; echo first=$(stty size)\r");
        terminal.shows("first=31 97").await;
        if driver == "raw_exec" {
            // An isolated task sees no terminals but its own; what asks the kernel works there too.
            terminal.shows("/dev/pts/").await;
        }
        terminal.resize(44, 120);
        let size = async || {
            terminal.types("echo now=$(stty size)\r");
            ostler_model::clock::sleep(std::time::Duration::from_millis(200)).await;
            terminal.said().contains("now=44 120")
        };
        crate::support::system::until("the new size arrives", size).await;
        // Ctrl-C ends what runs in it and not the shell, nor the command line.
        terminal.types("sh -c 'echo a$((1+1))b; exec sleep 500'; echo after=$?\r");
        terminal.shows("a2b").await;
        terminal.types("\u{3}");
        terminal.types("echo still=$((40+2)); exit 9\r");
        let (code, said) = terminal.ends().await;
        assert!(said.contains("still=42"), "{driver}: {said:?}");
        assert_eq!(code, Some(9), "{driver}: {said:?}");
    }
}

#[tokio::test]
async fn a_command_inside_a_task_ends_with_the_task_and_with_a_killed_command_line() {
    let Some(server) = NomadServer::start().await else { return };
    let agent = node(&server, CONFIG).await;
    for driver in ["raw_exec", "exec"] {
        let job = StockJob { driver, ..StockJob::service(driver, "exec sleep 600") };
        server.register(&job.to_string()).await;
        let alloc = server.running(driver).await;
        let script = "echo begun; sleep 601 & wait";
        let before = processes_of(agent.data.path());
        let begun = async || {
            let mut command = server.command(&exec(&PIPES, alloc.id(), &["/bin/sh", "-c", script]));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            let mut first = [0; 6];
            tokio::io::AsyncReadExt::read_exact(child.stdout.as_mut().unwrap(), &mut first)
                .await
                .unwrap();
            child
        };
        let mut child = begun().await;
        let inside = || {
            let now = processes_of(agent.data.path());
            now.into_iter().filter(|pid| !before.contains(pid)).collect::<Vec<_>>()
        };
        assert!(!inside().is_empty(), "{driver}: it runs");
        child.kill().await.unwrap();
        eventually("nothing of it is left", || inside().is_empty()).await;
        server.running(driver).await;

        let child = begun().await;
        server.does(&["alloc", "signal", "-s", "SIGKILL", alloc.id()]).await;
        let ended =
            ostler_model::clock::timeout(crate::support::PATIENCE, child.wait_with_output()).await;
        let ended = ended.unwrap_or_else(|| panic!("{driver}: it ends with its task")).unwrap();
        assert_ne!(ended.status.code(), Some(0), "{driver}");
        server.does(&["job", "stop", "-detach", driver]).await;
        eventually("nothing of the job is left", || inside().is_empty()).await;
    }
}

#[tokio::test]
async fn an_agent_that_came_later_lets_people_into_its_tasks_too() {
    let Some(server) = NomadServer::start().await else { return };
    let agent = node(&server, CONFIG).await;
    let pid_file = agent.data.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 600", pid_file.display());
    server.register(&StockJob::service("raw", &script).to_string()).await;
    server
        .register(
            &StockJob { driver: "exec", ..StockJob::service("isolated", "exec sleep 600") }
                .to_string(),
        )
        .await;
    let (raw, isolated) = (server.running("raw").await, server.running("isolated").await);
    let pid = pid_in(&pid_file).await;
    let mut child = server.command(&exec(&PIPES, raw.id(), &["/bin/sleep", "600"]));
    let mut child =
        child.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let sleeps = || {
        processes_of(agent.data.path())
            .into_iter()
            .filter(|pid| {
                std::fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| line.starts_with(b"/bin/sleep\x00600"))
            })
            .count()
    };
    eventually("it runs", || sleeps() == 1).await;
    agent.signal(Signal::KILL);
    eventually("a command ends with the agent that serves it", || sleeps() == 0).await;
    let ended = ostler_model::clock::timeout(crate::support::PATIENCE, child.wait()).await;
    assert_ne!(ended.expect("the command line ends").unwrap().code(), Some(0));
    let (_, home) = agent.ended().await;
    assert!(runs(pid), "the task goes on");
    let _agent = joined(home, server.rpc, CONFIG).await;
    for alloc in [raw, isolated] {
        let answers = async || {
            let ended = server.said(&exec(&PIPES, alloc.id(), &["/bin/echo", "here"]), b"").await;
            ended.code == Some(0) && ended.stdout == "here\n"
        };
        crate::support::system::until("the next agent lets people in", answers).await;
    }
}

#[tokio::test]
async fn where_nobody_may_run_commands_or_a_task_has_no_processes_people_are_told_so() {
    let Some(server) = NomadServer::start().await else { return };
    let config = format!("{CONFIG}client {{\n disable_remote_exec = true\n}}\n");
    let agent = node(&server, &config).await;
    server.register(&StockJob::service("raw", "exec sleep 600").to_string()).await;
    let alloc = server.running("raw").await;
    let ended = server.said(&exec(&PIPES, alloc.id(), &["/bin/true"]), b"").await;
    assert!(ended.code != Some(0) && ended.stderr.contains("disable_remote_exec"), "{ended:#?}");
    server.does(&["job", "stop", "-detach", "raw"]).await;
    agent.signal(Signal::TERM);
    let (_, home) = agent.ended().await;

    let _agent = joined(home, server.rpc, CONFIG).await;
    let config =
        with_guests("module = \"guest:toolbox\"\n args = [\"say-times\", \"100000\", \"100\"]");
    let job = StockJob { driver: "wasm", config: Some(&config), ..StockJob::service("wasm", "") };
    server.register(&job.to_string()).await;
    let alloc = server.running("wasm").await;
    let ended = server.said(&exec(&PIPES, alloc.id(), &["/bin/true"]), b"").await;
    assert!(
        ended.code != Some(0) && ended.stderr.contains("runs no commands inside its tasks"),
        "{ended:#?}"
    );
}
