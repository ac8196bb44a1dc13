//! An agent that a service manager started: in a cgroup of its own, which is delegated to it. Its tasks
//! have limits and cores as those of an agent in the root cgroup.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::jobs::{job, said, task};
use super::rig;
use super::vm::Machine;

/// Where the service lies, as systemd would make it.
const SERVICE: &str = "/sys/fs/cgroup/system.slice/ostler.service";
/// A number of the task that lives on.
const LIVES_ON: &str = "345678";

/// Writes into its log on which cores it may run, and goes on.
fn told(name: &str, asked: &str) -> String {
    let tell = format!("grep Cpus_allowed_list /proc/self/status; sleep {LIVES_ON}");
    task(name, "/bin/sh", &["-c", &tell], 16, "").replace("cpu = 20", asked)
}

/// A cgroup that its manager has delegated, with all controllers.
async fn delegated(machine: &mut Machine, cgroup: &str, subgroup: &str) {
    let above = "for above in /sys/fs/cgroup /sys/fs/cgroup/system.slice; do \
                 echo '+memory +cpu +pids +cpuset' >$above/cgroup.subtree_control || exit 1; done";
    machine.ok(&format!("mkdir -p {cgroup}{subgroup} && {above}")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_service_have_limits_and_cores_also_after_it_is_started_again() {
    let Some((rig, _turn)) = rig().await else { return };
    let mut machine = Machine::boot_with(&rig, &rig.disk("service"), None, &["-smp", "2"]).await;
    delegated(&mut machine, SERVICE, "/agent").await;
    let own = format!("{SERVICE}/agent");
    machine.start_agent_in(&own).await;
    let both = told("one", "cores = 1") + &told("rest", "cpu = 20");
    assert_eq!(machine.submit("both", &job("both", "service", &both)).await.code, 0);
    let alloc = machine.alloc_when("both", "running").await;
    assert_eq!(machine.ok(&allowed(SERVICE, "one")).await.trim(), "0", "{}", said(&alloc, "one"));
    assert_eq!(machine.ok(&allowed(SERVICE, "rest")).await.trim(), "1", "{}", said(&alloc, "rest"));
    let limit = machine.ok(&format!("cat {SERVICE}/ostler/*-one-*/memory.max")).await;
    assert_eq!(limit.trim(), (16_u64 << 20).to_string());
    runs_out_of_memory(&mut machine).await;

    // As systemd does with KillMode=process: the agent alone, and the next one where the first one began.
    machine.ok("kill -9 $(cat /run/agent.pid)").await;
    machine.start_agent_in(&own).await;
    assert_eq!(machine.ok(&allowed(SERVICE, "one")).await.trim(), "0");
    let alloc = machine.alloc_when("both", "running").await;
    assert_eq!(super::jobs::starts(&alloc, "one"), 1, "it was taken over: {}", said(&alloc, "one"));
    let late = job("late", "service", &told("late", "cpu = 20"));
    assert_eq!(machine.submit("late", &late).await.code, 0);
    machine.alloc_when("late", "running").await;
    assert_eq!(machine.ok(&allowed(SERVICE, "late")).await.trim(), "1");
    machine.cut().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_moves_down_in_a_scope_and_stays_in_a_service_that_is_started_there_again() {
    let Some((rig, _turn)) = rig().await else { return };
    let mut machine = Machine::boot(&rig, &rig.disk("scope"), None).await;
    let scope = "/sys/fs/cgroup/system.slice/run-1.scope";
    delegated(&mut machine, scope, "").await;
    mark(&mut machine, scope).await;
    machine.start_agent_in(scope).await;
    machine.ok(&format!("test -z \"$(cat {scope}/cgroup.procs)\" && grep $(cat /run/agent.pid) {scope}/agent/cgroup.procs")).await;
    machine.ok(&format!("grep -w memory {scope}/ostler/cgroup.controllers")).await;
    machine.stop_agent().await;

    delegated(&mut machine, SERVICE, "").await;
    mark(&mut machine, SERVICE).await;
    machine.start_agent_in(SERVICE).await;
    machine.ok(&format!("grep $(cat /run/agent.pid) {SERVICE}/cgroup.procs")).await;
    machine.ok("grep 'write DelegateSubgroup=agent into the unit' /run/agent.log").await;
    machine.cut().await;
}

/// Set the attribute by which systemd says that it has delegated a cgroup. No applet of busybox can.
async fn mark(machine: &mut Machine, cgroup: &str) {
    let program = STANDARD.encode(setxattr_program());
    let run = format!(
        "echo {program} | base64 -d >/run/mark && chmod 755 /run/mark && /run/mark {cgroup}"
    );
    machine.ok(&run).await;
}

/// A program for Linux on x86-64: `setxattr(argv[1], "trusted.delegate", "1", 1, 0)`, and exits with what
/// that returned.
fn setxattr_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let name = b"trusted.delegate\0".as_slice();
    let code = [
        b"\x48\x8b\x7c\x24\x10".as_slice(),      // mov rdi, [rsp+16]
        b"\x48\x8d\x35\x20\x00\x00\x00",         // lea rsi, [rip+32]: the name
        b"\x48\x8d\x15\x2a\x00\x00\x00",         // lea rdx, [rip+42]: the value
        b"\x41\xba\x01\x00\x00\x00",             // mov r10d, 1
        b"\x45\x31\xc0",                         // xor r8d, r8d
        b"\xb8\xbc\x00\x00\x00\x0f\x05",         // mov eax, 188; syscall
        b"\x89\xc7\xb8\x3c\x00\x00\x00\x0f\x05", // mov edi, eax; mov eax, 60; syscall
        name,
        b"1",
    ]
    .concat();
    let size = HEADERS + code.len() as u64;
    let half = |number: u16| number.to_le_bytes();
    let word = |number: u32| number.to_le_bytes();
    let long = |number: u64| number.to_le_bytes();
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec();
    file.extend([half(2), half(62)].concat());
    file.extend(word(1));
    file.extend([long(BASE + HEADERS), long(64), long(0)].concat());
    file.extend(word(0));
    file.extend([half(64), half(56), half(1), half(64), half(0), half(0)].concat());
    // One part, to be read and run.
    file.extend([word(1), word(5)].concat());
    file.extend([long(0), long(BASE), long(BASE), long(size), long(size), long(0x1000)].concat());
    file.extend(code);
    file
}

/// The script that prints on which cores the processes of a task may run.
fn allowed(service: &str, task: &str) -> String {
    format!(
        "cd {service}/ostler; for pid in $(cat *-{task}-*/cgroup.procs share/*-{task}-*/cgroup.procs); do \
         grep Cpus_allowed_list /proc/$pid/status; done 2>/dev/null | grep -o '[0-9].*' | sort -u"
    )
}

async fn runs_out_of_memory(machine: &mut Machine) {
    let eats = "head -c 200m /dev/zero | tail >/dev/null; sleep 600";
    let text = job("eats", "batch", &task("t", "/bin/sh", &["-c", eats], 24, ""));
    let text = text.replace("attempts = 1", "attempts = 0");
    assert_eq!(machine.submit("eats", &text).await.code, 0);
    let alloc = machine.alloc_when("eats", "failed").await;
    let said = said(&alloc, "t");
    assert!(said.contains("out of memory at 24 MiB"), "{said}");
}
