//! One emulated machine: started, told what to do, switched off or cut from its power.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, Command};

use super::rig::{Rig, tail};
use crate::support::PATIENCE;

/// Memory of a machine, MiB.
pub const MEMORY_MIB: u32 = 768;

/// What a script in the machine came to.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub text: String,
}

/// A machine that runs. It ends with this.
pub struct Machine {
    child: Child,
    from: BufReader<OwnedReadHalf>,
    to: OwnedWriteHalf,
    console: PathBuf,
    number: u32,
}

impl Machine {
    /// Start it with this data disk. With a log, every write and flush of that disk is written down, in
    /// the order in which the machine made them.
    pub async fn boot(rig: &Rig, disk: &Path, log: Option<&Path>) -> Self {
        Self::boot_with(rig, disk, log, &["-smp", "1"]).await
    }

    /// The same, with these processors.
    pub async fn boot_with(
        rig: &Rig,
        disk: &Path,
        log: Option<&Path>,
        processors: &[&str],
    ) -> Self {
        static BOOTED: AtomicU32 = AtomicU32::new(0);
        let number = BOOTED.fetch_add(1, Ordering::Relaxed);
        let socket = rig.dir.path().join(format!("control-{number}"));
        let console = rig.dir.path().join(format!("console-{number}"));
        let listener = UnixListener::bind(&socket).unwrap();
        let mut command = command(rig, disk, log, &socket, &console);
        let child = command.args(processors).spawn().unwrap();
        let come_up = async {
            let (stream, _) = listener.accept().await.unwrap();
            let (from, to) = stream.into_split();
            let mut from = BufReader::new(from);
            let mut line = String::new();
            while !line.contains("ready") {
                line.clear();
                assert!(from.read_line(&mut line).await.unwrap() > 0, "the machine ended");
            }
            (from, to)
        };
        let up = ostler_model::clock::timeout(PATIENCE, come_up).await;
        let (from, to) = up.unwrap_or_else(|| panic!("it does not come up: {}", tail(&console)));
        Self { child, from, to, console, number: 0 }
    }

    /// Run a script in it.
    pub async fn run(&mut self, script: &str) -> Said {
        let said = ostler_model::clock::timeout(PATIENCE, self.ask(script)).await;
        said.unwrap_or_else(|| panic!("no answer to {script:?}: {}", tail(&self.console)))
    }

    /// The same for one that must succeed; its output.
    pub async fn ok(&mut self, script: &str) -> String {
        let said = self.run(script).await;
        assert_eq!(said.code, 0, "{script}: {}\n{}", said.text, tail(&self.console));
        said.text
    }

    async fn ask(&mut self, script: &str) -> Said {
        self.number += 1;
        let mut line = String::new();
        let _ = writeln!(line, "{} {}", self.number, STANDARD.encode(script));
        self.to.write_all(line.as_bytes()).await.unwrap();
        line.clear();
        self.from.read_line(&mut line).await.unwrap();
        let mut numbers = line.split_whitespace().map(|word| word.parse::<i64>().unwrap());
        assert_eq!(numbers.next(), Some(i64::from(self.number)), "{line:?}");
        let (code, bytes) = (numbers.next().unwrap(), numbers.next().unwrap());
        let mut text = vec![0; usize::try_from(bytes).unwrap()];
        self.from.read_exact(&mut text).await.unwrap();
        let text = String::from_utf8_lossy(&text).into_owned();
        Said { code: i32::try_from(code).unwrap(), text }
    }

    /// Ask again and again until a script succeeds; its output.
    pub async fn until(&mut self, what: &str, script: &str) -> String {
        self.until_within(PATIENCE, what, script).await
    }

    /// The same for what takes a time of its own.
    pub async fn until_within(&mut self, patience: Duration, what: &str, script: &str) -> String {
        let last = std::cell::RefCell::new(String::new());
        let wait = async {
            loop {
                let said = self.ask(script).await;
                if said.code == 0 {
                    return said.text;
                }
                last.replace(said.text);
            }
        };
        let said = ostler_model::clock::timeout(patience, wait).await;
        said.unwrap_or_else(|| panic!("never: {what}: {}", last.borrow()))
    }

    /// Start the agent and wait until it is ready.
    pub async fn start_agent(&mut self) {
        self.start_agent_in("/sys/fs/cgroup").await;
    }

    /// The same in this cgroup, as a service manager would.
    pub async fn start_agent_in(&mut self, cgroup: &str) {
        let script = format!(
            "echo 'echo $$ >{cgroup}/cgroup.procs && exec ostler agent' >/run/agent.sh && \
             {{ setsid sh /run/agent.sh </dev/null >/run/agent.log 2>&1 & echo $! >/run/agent.pid; }}"
        );
        self.ok(&script).await;
        let script = "grep -q 'ready: the agent' /run/agent.log || \
                      { sleep 0.2; cat /run/agent.log; kill -0 $(cat /run/agent.pid) && false; }";
        self.until("the agent is ready", script).await;
    }

    /// Ask the agent to end and wait for it; its tasks go on.
    pub async fn stop_agent(&mut self) {
        self.ok("kill -TERM $(cat /run/agent.pid)").await;
        let ended = "! kill -0 $(cat /run/agent.pid) 2>/dev/null || { sleep 0.1; false; }";
        self.until("the agent has ended", ended).await;
    }

    /// Write everything to the disks and switch it off, as `poweroff` does.
    pub async fn off(mut self) {
        let script = STANDARD.encode("killall5 -9; sync; umount /data; poweroff -f");
        self.to.write_all(format!("0 {script}\n").as_bytes()).await.unwrap();
        let ended = ostler_model::clock::timeout(PATIENCE, self.child.wait()).await;
        ended.unwrap_or_else(|| panic!("it does not end: {}", tail(&self.console))).unwrap();
    }

    /// Take its power away.
    pub async fn cut(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn command(rig: &Rig, disk: &Path, log: Option<&Path>, socket: &Path, console: &Path) -> Command {
    let file = |node: &str, path: &Path| {
        format!("driver=file,node-name={node},filename={}", path.display())
    };
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-machine", "q35", "-accel", "tcg", "-cpu", "max", "-nographic"])
        .args(["-m", &MEMORY_MIB.to_string(), "-nodefaults", "-no-reboot", "-kernel"])
        .arg(&rig.kernel)
        .arg("-initrd")
        .arg(&rig.initramfs)
        .args([
            "-append",
            "console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check",
        ])
        .args(["-serial", &format!("file:{}", console.display())])
        .args(["-serial", &format!("unix:{}", socket.display())])
        .args(["-blockdev", &format!("{},read-only=on", file("tools", &rig.tools))])
        .args(["-device", "virtio-blk-pci,drive=tools"])
        .args(["-blockdev", &file("data", disk)]);
    let data = match log {
        Some(log) => {
            command.args(["-blockdev", &file("log", log)]);
            command.args(["-blockdev", "driver=blklogwrites,node-name=logged,file=data,log=log"]);
            "logged"
        }
        None => "data",
    };
    command
        .args(["-device", &format!("virtio-blk-pci,drive={data}")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::inherit())
        .kill_on_drop(true);
    command
}
