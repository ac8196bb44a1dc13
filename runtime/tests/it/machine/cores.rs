//! Cores that tasks have for themselves: the kernel lets them run there, and nobody else.

use super::jobs::{job, said, task};
use super::rig;
use super::vm::{MEMORY_MIB, Machine};

/// Writes into the log of task NAME on which cores it may run, and goes on.
fn told(name: &str, asked: &str) -> String {
    let tell = "echo $(grep Cpus_allowed_list /proc/self/status) $(echo $NOMAD_CPU_CORES | grep . || echo shared); sleep 876543";
    let text = task(name, "/bin/sh", &["-c", tell], 16, "");
    text.replace("cpu = 20", asked)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_has_its_cores_alone_also_when_its_agent_is_killed() {
    let Some((rig, _turn)) = rig().await else { return };
    let mut machine = Machine::boot_with(&rig, &rig.disk("cores"), None, &["-smp", "3"]).await;
    machine.start_agent().await;
    // Started before anybody has cores of its own.
    assert_eq!(
        machine.submit("before", &job("before", "service", &told("b", "cpu = 20"))).await.code,
        0
    );
    machine.alloc_when("before", "running").await;
    assert_eq!(machine.cores_of("before", "b").await, "0-2 shared");
    let both = told("one", "cores = 1") + &told("rest", "cpu = 20");
    assert_eq!(machine.submit("both", &job("both", "service", &both)).await.code, 0);
    let alloc = machine.alloc_when("both", "running").await;
    assert_eq!(machine.cores_of("both", "one").await, "0 0");
    assert_eq!(machine.cores_of("both", "rest").await, "1-2 shared");
    let id = alloc["ID"].as_str().unwrap();
    let text = machine.ok(&format!("ostler alloc status --json {id}")).await;
    let alloc: serde_json::Value = serde_json::from_str(&text).unwrap();
    let given = &alloc["AllocatedResources"]["Tasks"]["one"]["Cpu"];
    assert_eq!(given["ReservedCores"], serde_json::json!([0]), "{given}");
    assert!(given["CpuShares"].as_u64().unwrap() > 20, "{given}");
    assert_eq!(machine.now_of("b").await, "1-2", "who was there before leaves them");

    assert_eq!(
        machine.submit("two", &job("two", "service", &told("t", "cores = 2"))).await.code,
        0
    );
    let waits = "ostler job status two | grep 'none would be left for tasks that share them'";
    machine.until("the last core stays for those that share", waits).await;
    machine.ok("ostler job stop two").await;

    machine.ok("kill -9 $(cat /run/agent.pid)").await;
    machine.start_agent().await;
    assert_eq!(machine.now_of("one").await, "0");
    assert_eq!(machine.submit("late", &job("late", "batch", &told("l", "cpu = 20"))).await.code, 0);
    machine.alloc_when("late", "running").await;
    assert_eq!(machine.cores_of("late", "l").await, "1-2 shared");
    machine.ok("ostler job stop late; ostler job stop both").await;
    // More often than there are cores.
    for run in 0..4 {
        let once = job("again", "service", &told("a", "cores = 1"));
        assert_eq!(machine.submit("again", &once).await.code, 0, "{run}");
        machine.alloc_when("again", "running").await;
        machine.ok("ostler job stop again; ostler gc").await;
    }
    let back = "test $(cat /sys/fs/cgroup/ostler/share/cpuset.cpus) = 0-2";
    machine.until("its core is everybody's again", back).await;
    assert_eq!(machine.now_of("b").await, "0-2");
    machine.cut().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_gets_its_cores_from_one_numa_node() {
    let Some((rig, _turn)) = rig().await else { return };
    let half = format!("size={}M", MEMORY_MIB / 2);
    let memory = |id: &str| format!("memory-backend-ram,{half},id={id}");
    let (one, other) = (memory("one"), memory("other"));
    let (first, second) = ("node,memdev=one,cpus=0", "node,memdev=other,cpus=1-2");
    let objects = ["-object", &one, "-object", &other];
    let nodes = ["-smp", "3", "-numa", first, "-numa", second];
    let args = [&objects[..], &nodes].concat();
    let mut machine = Machine::boot_with(&rig, &rig.disk("numa"), None, &args).await;
    machine.start_agent().await;
    let asks =
        |count: u32| told("t", &format!("cores = {count}\n numa {{ affinity = \"require\" }}"));
    assert_eq!(machine.submit("far", &job("far", "service", &asks(3))).await.code, 0);
    let waits = "ostler job status far | grep 'needs 3 cores of one NUMA node'";
    machine.until("no node has three", waits).await;
    assert_eq!(machine.submit("near", &job("near", "service", &asks(2))).await.code, 0);
    machine.alloc_when("near", "running").await;
    assert_eq!(machine.cores_of("near", "t").await, "1-2 1-2");
    machine.cut().await;
}

impl Machine {
    /// What the task wrote: its cores and those of its environment.
    async fn cores_of(&mut self, id: &str, task: &str) -> String {
        let alloc = self.alloc(id).await;
        let logs = format!("/data/agent/allocs/{}/alloc/logs", alloc["ID"].as_str().unwrap());
        let wrote = format!("grep -o '[0-9].*' {logs}/{task}.stdout.0");
        let text = self.until(&format!("it wrote: {}", said(&alloc, task)), &wrote).await;
        text.trim().to_owned()
    }

    /// Cores that the processes of a task may run on now.
    async fn now_of(&mut self, task: &str) -> String {
        let script = format!(
            "cd /sys/fs/cgroup/ostler; for pid in $(cat *-{task}-*/cgroup.procs share/*-{task}-*/cgroup.procs); do \
             grep Cpus_allowed_list /proc/$pid/status; done 2>/dev/null | grep -o '[0-9].*' | sort -u"
        );
        self.ok(&script).await.trim().to_owned()
    }
}
