//! Limits of a real kernel, and a machine in trouble.

use super::jobs::{job, said, sleeper, starts, task};
use super::rig;
use super::vm::Machine;

/// A number of the service that runs through it all.
const STEADY: u32 = 100_001;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_held_to_its_memory_and_its_share_and_an_end_for_memory_says_so() {
    let Some((rig, _turn)) = rig().await else { return };
    let mut machine = Machine::boot(&rig, &rig.disk("limits"), None).await;
    machine.start_agent().await;
    out_of_memory(&mut machine).await;
    may_grow(&mut machine).await;
    weights(&mut machine).await;
    machine.cut().await;
}

async fn out_of_memory(machine: &mut Machine) {
    // `tail` keeps what has no line end.
    let hungry = ["-c", "head -c 200m /dev/zero | tail >/dev/null; sleep 600"];
    let text = job("hungry", "batch", &task("t", "/bin/sh", &hungry, 32, ""));
    let text = text.replace("attempts = 1", "attempts = 0");
    assert_eq!(machine.submit("hungry", &text).await.code, 0);
    let alloc = machine.alloc_when("hungry", "failed").await;
    assert!(said(&alloc, "t").contains("out of memory at 32 MiB"), "{}", said(&alloc, "t"));
    assert_eq!(alloc["TaskStates"]["t"]["LastExit"]["OOMKilled"], true);
    let left = "! ls -d /sys/fs/cgroup/ostler/share/*-t-* 2>/dev/null";
    machine.until("nothing of it is left", left).await;
}

/// One that reserved little and may have more has it.
async fn may_grow(machine: &mut Machine) {
    let hungry = ["-c", "head -c 60m /dev/zero | tail >/dev/null; echo $NOMAD_MEMORY_MAX_LIMIT"];
    let text = job("grows", "batch", &task("t", "/bin/sh", &hungry, 32, ""));
    let text = text.replace("memory = 32", "memory = 32\n memory_max = 200");
    assert_eq!(machine.submit("grows", &text).await.code, 0);
    let alloc = machine.alloc_when("grows", "complete").await;
    let id = alloc["ID"].as_str().unwrap();
    let out = machine.ok(&format!("cat /data/agent/allocs/{id}/alloc/logs/t.stdout.0")).await;
    assert_eq!(out.trim(), "200");
}

/// Two that compute get the processor as they reserved it.
async fn weights(machine: &mut Machine) {
    let spin = |name: &str, cpu: u32| {
        let spins = task(name, "/bin/sh", &["-c", "while :; do :; done"], 16, "");
        spins.replace("cpu = 20", &format!("cpu = {cpu}"))
    };
    let text = job("spin", "service", &(spin("light", 100) + &spin("heavy", 900)));
    assert_eq!(machine.submit("spin", &text).await.code, 0);
    let used = |name: &str| format!("awk '/^usage_usec/ {{ print $2 }}' *-{name}-*/cpu.stat");
    let both = format!("cd /sys/fs/cgroup/ostler/share && {} && {}", used("light"), used("heavy"));
    let numbers =
        |text: String| -> Vec<f64> { text.lines().map(|line| line.parse().unwrap()).collect() };
    machine.until("both run", &format!("{both} >/dev/null")).await;
    let weight = machine.ok("cat /sys/fs/cgroup/ostler/share/*-heavy-*/cpu.weight").await;
    assert_eq!(weight.trim(), "90");
    let before = numbers(machine.ok(&both).await);
    let after = numbers(machine.ok(&format!("sleep 4; {both}")).await);
    let (light, heavy) = (after[0] - before[0], after[1] - before[1]);
    assert!(heavy > 4.0 * light, "light {light} µs, heavy {heavy} µs");
    machine.ok("ostler job stop spin").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_a_jumping_clock_a_read_only_disk_and_a_reboot_lose_nothing() {
    let Some((rig, _turn)) = rig().await else { return };
    let disk = rig.disk("trouble");
    let mut machine = Machine::boot(&rig, &disk, None).await;
    machine.start_agent().await;
    let lifecycle = "lifecycle {\n hook = \"prestart\"\n sidecar = false\n }";
    let prepared = task("prepare", "/bin/true", &[], 16, lifecycle)
        + &task("main", "/bin/sleep", &[&STEADY.to_string()], 16, "");
    assert_eq!(machine.submit("steady", &job("steady", "service", &prepared)).await.code, 0);
    let once = job("once", "batch", &task("t", "/bin/true", &[], 16, ""));
    assert_eq!(machine.submit("once", &once).await.code, 0);
    machine.alloc_when("steady", "running").await;
    machine.alloc_when("once", "complete").await;

    full_disk(&mut machine).await;
    jumping_clock(&mut machine).await;
    read_only(&mut machine).await;
    assert_eq!(machine.sleepers().await.get(&STEADY), Some(&1), "nothing of it ended the service");

    machine.stop_agent().await;
    machine.off().await;
    let mut machine = Machine::boot(&rig, &disk, None).await;
    machine.start_agent().await;
    // Its status is that of before until its tasks say another: what is waited for is the program.
    let runs =
        format!("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' | grep -q 'slee[p] {STEADY}'");
    machine.until("the service runs again", &runs).await;
    let alloc = machine.alloc_when("steady", "running").await;
    assert_eq!(machine.sleepers().await.get(&STEADY), Some(&1));
    assert_eq!((starts(&alloc, "prepare"), starts(&alloc, "main")), (2, 2), "{alloc:#?}");
    let once = machine.alloc("once").await;
    assert_eq!((once["ClientStatus"].as_str(), starts(&once, "t")), (Some("complete"), 1));
    machine.cut().await;
}

/// A job is refused, or taken where the state file has room left, and then its allocation waits; in
/// both cases it is said why. The agent goes on answering. Whether the job was taken.
async fn trouble_is_told(machine: &mut Machine, id: &str, number: u32, words: &str) -> bool {
    let said = machine.submit(id, &sleeper(id, number)).await;
    let taken = said.code == 0;
    if taken {
        let why = format!("ostler job status {id} | grep 'pending .*{words}'");
        machine.until("it waits and says why", &why).await;
    } else {
        assert!(said.text.contains(words), "{}", said.text);
    }
    machine.ok("ostler job status").await;
    taken
}

/// The job that waited runs, and so does the next one.
async fn trouble_is_over(machine: &mut Machine, waited: Option<&str>, id: &str, number: u32) {
    if let Some(waited) = waited {
        machine.alloc_when(waited, "running").await;
        machine.ok(&format!("ostler job stop --purge {waited}")).await;
    }
    let file = format!("/run/{id}.hcl");
    let text = sleeper(id, number);
    let hand_in = format!("cat >{file} <<'END'\n{text}END\nostler job run --detach {file}");
    machine.until("a job is taken again", &hand_in).await;
    machine.alloc_when(id, "running").await;
    machine.ok(&format!("ostler job stop --purge {id}")).await;
}

async fn full_disk(machine: &mut Machine) {
    let fill = "dd if=/dev/zero of=/data/filler bs=1M; dd if=/dev/zero of=/data/rest bs=512";
    machine.run(fill).await;
    let taken = trouble_is_told(machine, "full", 100_002, "o space left").await;
    machine.ok("rm /data/filler /data/rest").await;
    trouble_is_over(machine, taken.then_some("full"), "room", 100_003).await;
}

async fn jumping_clock(machine: &mut Machine) {
    for (name, jump) in [("ahead", "+ 600"), ("back", "- 1200")] {
        machine.ok(&format!("date -s @$(($(date +%s) {jump}))")).await;
        let id = format!("clock-{name}");
        let text = job(&id, "batch", &task("t", "/bin/true", &[], 16, ""));
        assert_eq!(machine.submit(&id, &text).await.code, 0);
        machine.alloc_when(&id, "complete").await;
    }
    machine.ok("date -s @$(($(date +%s) + 600))").await;
    let steady = machine.alloc("steady").await;
    assert_eq!((steady["ClientStatus"].as_str(), starts(&steady, "main")), (Some("running"), 1));
}

/// As after an error of the disk: the kernel takes no more writes.
async fn read_only(machine: &mut Machine) {
    machine.ok("sync; echo u >/proc/sysrq-trigger").await;
    machine.until("it is read-only", "grep ' /data ext4 ro' /proc/mounts").await;
    let taken = trouble_is_told(machine, "readonly", 100_004, "ead-only").await;
    machine.ok("mount -o remount,rw /data").await;
    trouble_is_over(machine, taken.then_some("readonly"), "writable", 100_005).await;
}
