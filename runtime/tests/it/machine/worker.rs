//! The process of WASM tasks in a version 2 cgroup: held to its memory, with a share of the processor
//! for what its tasks reserved.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::jobs::{job, said, sleeper};
use super::rig;
use super::vm::Machine;

/// To the cgroup of the only worker.
const INTO: &str = "p=$(grep -l '_[_]worker' /proc/[0-9]*/cmdline 2>/dev/null | head -n 1) && \
                    cd /sys/fs/cgroup/$(cut -d: -f3 ${p%cmdline}cgroup)";
/// A number of the native service beside it.
const NATIVE: u32 = 100_101;

/// A module that writes to so many bytes and then waits for ever.
fn module(bytes: u32) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "wasi_snapshot_preview1" "poll_oneoff"
                (func $poll (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            ;; One subscription: the steady clock, 36 years from now.
            (data (i32.const 16) "\01")
            (data (i32.const 31) "\10")
            (func (export "_start") (local $at i32)
                (drop (memory.grow (i32.const {pages})))
                (local.set $at (i32.const 4096))
                (loop $more
                    (i32.store (local.get $at) (i32.const 1))
                    (local.set $at (i32.add (local.get $at) (i32.const 4096)))
                    (br_if $more (i32.lt_u (local.get $at) (i32.const {bytes}))))
                (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))))"#,
        pages = bytes.div_ceil(65_536),
    );
    wat::parse_str(text).unwrap()
}

/// Put a module there, and a job of one task of it.
async fn submit(machine: &mut Machine, id: &str, (bytes, cpu, memory_mib): (u32, u32, u32)) {
    let file = format!("/run/{id}.wasm");
    let code = STANDARD.encode(module(bytes));
    machine.ok(&format!("echo {code} | base64 -d >{file}")).await;
    let task = format!(
        "task \"t\" {{\n driver = \"wasm\"\n config {{\n module = \"{file}\"\n }}\n \
         resources {{\n cpu = {cpu}\n memory = {memory_mib}\n }}\n}}\n"
    );
    let text = job(id, "service", &task).replace("attempts = 1", "attempts = 0");
    assert_eq!(machine.submit(id, &text).await.code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_has_the_share_of_its_tasks_and_one_beyond_its_memory_ends_alone() {
    let Some((rig, _turn)) = rig().await else { return };
    let mut machine = Machine::boot(&rig, &rig.disk("worker"), None).await;
    let enable = "sed -i '/^plugin \"wasm\"/,/^}/d' /etc/agent.hcl && \
                  echo 'wasm_worker { memory_max_mb = 128 }' >>/etc/agent.hcl";
    machine.ok(enable).await;
    machine.start_agent().await;
    assert_eq!(machine.submit("native", &sleeper("native", NATIVE)).await.code, 0);
    machine.alloc_when("native", "running").await;

    submit(&mut machine, "idle", (65_536, 700, 16)).await;
    machine.alloc_when("idle", "running").await;
    let limits = machine.ok(&format!("{INTO} && cat memory.max pids.max && pwd")).await;
    let [memory, threads, cgroup] = limits.lines().collect::<Vec<_>>()[..] else {
        panic!("{limits}")
    };
    assert_eq!((memory, threads), ("134217728", "512"));
    assert!(cgroup.contains("/ostler/"), "{cgroup}");
    let weight = async |machine: &mut Machine| -> u32 {
        machine.ok(&format!("cat {cgroup}/cpu.weight")).await.trim().parse().unwrap()
    };
    let one = weight(&mut machine).await;
    submit(&mut machine, "more", (65_536, 500, 16)).await;
    machine.alloc_when("more", "running").await;
    assert_eq!(weight(&mut machine).await, one + 50, "a unit for 10 MHz");
    machine.ok("ostler job stop --purge more").await;
    let again = format!("test $(cat {cgroup}/cpu.weight) = {one}");
    machine.until("its share is given back", &again).await;

    machine.ok("ostler job stop --purge idle").await;
    submit(&mut machine, "hungry", (256 << 20, 100, 300)).await;
    let alloc = machine.alloc_when("hungry", "failed").await;
    let said = said(&alloc, "t");
    assert!(said.contains("the worker process of WASM tasks is gone"), "{said}");
    assert!(said.contains("out of its memory limit"), "{said}");
    assert_eq!(machine.sleepers().await.get(&NATIVE), Some(&1), "nothing else ended");
    machine.until("its cgroup is gone", &format!("test ! -e {cgroup}")).await;
    machine.cut().await;
}
