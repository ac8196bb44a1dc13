//! Isolated tasks on the kernel they are meant for: version 2 cgroups, namespaces, Landlock.

use super::jobs::{job, said, task};
use super::rig;
use super::vm::Machine;

/// As `agent.hcl` grants it, with room for the task's first process and the agent's init beside.
const PROCESSES_MAX: usize = 64;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_alone_with_its_files_and_processes_and_has_only_so_many() {
    let Some((rig, _turn)) = rig().await else { return };
    let mut machine = Machine::boot(&rig, &rig.disk("isolated"), None).await;
    machine.start_agent().await;
    // A driver may come into use later than the agent is ready: it is compiled code that is mapped.
    let known = "ostler node status --json 2>/dev/null >/run/node; grep -q isolation.mounts /run/node \
                 && cat /run/node || { sleep 1; false; }";
    let node = machine.until("the driver is in use", known).await;
    let node: serde_json::Value = serde_json::from_str(&node).unwrap();
    for part in ["mounts", "pids", "ipc", "user", "privileges", "seccomp", "landlock", "network"] {
        let has = &node["drivers"]["exec"]["attributes"][format!("isolation.{part}")]["value"];
        assert_eq!(*has, true, "{part}");
    }
    looks_around(&mut machine).await;
    forks(&mut machine).await;
    machine.cut().await;
}

/// What a task sees, and what it may do.
async fn looks_around(machine: &mut Machine) {
    machine.ok("sleep 987654 & echo hush >/run/secret; chmod 644 /run/secret").await;
    let look = "cd /; echo $(ls -d /*); cat /run/secret /data/agent/state.redb; ls /sys/fs/cgroup; \
                echo $(cat /proc/[0-9]*/cmdline | tr -d '\\\\0' | grep -c 98765[4]); \
                echo $(id -u) $(grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status); \
                touch /bin/x /etc/x; mount -t tmpfs x /tmp && echo mounted; \
                kill -9 1 2>/dev/null && echo killed; \
                echo over";
    let text = task("look", "/bin/sh", &["-c", look], 32, "");
    let text = text.replace("command =", "network_mode = \"none\"\n command =");
    let text = job("look", "batch", &text).replace("attempts = 1", "attempts = 0");
    assert_eq!(machine.submit("look", &text).await.code, 0);
    let alloc = machine.alloc_when("look", "complete").await;
    let id = alloc["ID"].as_str().unwrap();
    let out = machine.ok(&format!("cat /data/agent/allocs/{id}/alloc/logs/look.stdout.0")).await;
    let lines: Vec<&str> = out.lines().collect();
    let [root, processes, rights, .., over] = lines[..] else { panic!("{out}") };
    assert_eq!(over, "over", "{out}");
    for shown in ["/local", "/secrets", "/alloc", "/tmp", "/bin", "/etc", "/proc", "/dev"] {
        assert!(root.split(' ').any(|name| name == shown), "no {shown} in {root}");
    }
    for hidden in ["/run", "/data", "/root", "/sys", "/tools", "/init"] {
        assert!(!root.split(' ').any(|name| name == hidden), "{hidden} in {root}");
    }
    assert_eq!(processes, "0", "it sees no process of the node: {out}");
    let rights: Vec<&str> = rights.split_whitespace().collect();
    let (user, rights) = rights.split_first().unwrap();
    assert!((80_000..=89_999).contains(&user.parse::<u32>().unwrap()), "{out}");
    let wanted = ["CapEff:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2"];
    assert_eq!(rights, wanted, "{out}");
    for done in ["hush", "mounted", "killed"] {
        assert!(!out.contains(done), "{done}: {out}");
    }
}

/// One that forks without end has what it may have, and all of it ends with it.
async fn forks(machine: &mut Machine) {
    let bomb = "(n=0; while [ $n -lt 200 ]; do sleep 876543 & n=$((n+1)); echo $n >/local/n; done); \
                echo over >/local/over; sleep 876543";
    let text = job("bomb", "service", &task("t", "/bin/sh", &["-c", bomb], 64, ""));
    assert_eq!(machine.submit("bomb", &text).await.code, 0);
    let alloc = machine.alloc_when("bomb", "running").await;
    let local = format!("/data/agent/allocs/{}/t/local", alloc["ID"].as_str().unwrap());
    machine.until("it has forked", &format!("cat {local}/over")).await;
    let bound = machine.ok("cat /sys/fs/cgroup/ostler/share/*-t-*/pids.max").await;
    assert_eq!(bound.trim(), PROCESSES_MAX.to_string(), "{}", said(&alloc, "t"));
    let forked: usize = machine.ok(&format!("cat {local}/n")).await.trim().parse().unwrap();
    assert!((PROCESSES_MAX / 2..PROCESSES_MAX).contains(&forked), "{forked}");
    machine.ok("ostler job stop bomb").await;
    let left = "! grep -l 876543 /proc/[0-9]*/cmdline && ! ls -d /sys/fs/cgroup/ostler/share/*-t-*";
    machine.until("nothing of it is left", left).await;
}
