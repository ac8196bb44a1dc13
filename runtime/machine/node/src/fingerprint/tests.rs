#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::fs;
use std::path::Path;

use super::*;

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn tree() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    let core = |n: u32, mhz: &str| {
        format!("processor\t: {n}\nmodel name\t: Example CPU @ 2.60GHz\ncpu MHz\t\t: {mhz}\n\n")
    };
    put(root, "proc/cpuinfo", &(core(0, "2599.998") + &core(1, "1200.1")));
    put(root, "proc/meminfo", "MemTotal:       16384 kB\nMemFree:  1 kB\n");
    put(root, "proc/sys/kernel/ostype", "Linux\n");
    put(root, "proc/sys/kernel/osrelease", "6.18.44\n");
    put(root, "proc/sys/kernel/hostname", "edge-7\n");
    put(root, "etc/os-release", "PRETTY_NAME=\"X\"\nID=debian\nVERSION_ID=\"13\"\n");
    put(root, "sys/fs/cgroup/cgroup.controllers", "memory cpu\n");
    put(root, "sys/devices/system/node/online", "0-1\n");
    put(root, "sys/devices/system/node/node0/cpulist", "0\n");
    put(root, "sys/devices/system/node/node1/cpulist", "1\n");
    put(root, "sys/class/net/eth0/speed", "10000\n");
    put(
        root,
        "proc/net/route",
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n\
         docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\n\
         eth0\t00000000\t0102A8C0\t0003\t0\t0\t100\t00000000\t0\n\
         eth0\t0002A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\n",
    );
    put(
        root,
        "proc/net/fib_trie",
        "Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
         |-- 172.17.0.1\n        /32 host LOCAL\n     |-- 192.168.2.0\n        /24 link UNICAST\n     \
         |-- 192.168.2.15\n        /32 host LOCAL\n     |-- 192.168.2.255\n        /32 link BROADCAST\n",
    );
    put(root, "proc/self/mounts", "/dev/root / ext4 rw 0 0\nproc /proc proc rw 0 0\n");
    dir
}

fn found(root: &Path, data_dir: &Path) -> Facts {
    collect_facts(root, data_dir, &ClientConfig::default())
}

#[test]
fn what_the_configuration_states_of_the_node_takes_the_place_of_what_was_found() {
    let dir = tree();
    let client = ClientConfig {
        cpu_total_compute: Some(40_000),
        memory_total_mb: Some(65_536),
        ..ClientConfig::default()
    };
    let facts = collect_facts(dir.path(), dir.path(), &client);
    assert_eq!(text(&facts, "cpu.totalcompute").as_deref(), Some("40000"));
    assert_eq!(text(&facts, "cpu.usablecompute").as_deref(), Some("40000"));
    assert_eq!(text(&facts, "memory.totalbytes"), Some((65_536_u64 << 20).to_string()));
    assert_eq!(text(&facts, "cpu.numcores").as_deref(), Some("2"), "what is not stated is found");
}

fn text(facts: &Facts, name: &str) -> Option<String> {
    facts.get(name).map(ToString::to_string)
}

#[test]
fn a_whole_tree_gives_every_fact() {
    let dir = tree();
    let facts = found(dir.path(), dir.path());
    for (name, value) in [
        ("cpu.numcores", "2"),
        ("cpu.modelname", "Example CPU @ 2.60GHz"),
        ("cpu.frequency", "2600"),
        ("cpu.totalcompute", "5200"),
        ("cpu.usablecompute", "5200"),
        ("numa.node.count", "2"),
        ("numa.node0.cores", "0"),
        ("numa.node1.cores", "1"),
        ("os.cgroups.controllers", "cpu,memory"),
        ("unique.cgroup.version", "v2"),
        ("unique.cgroup.mountpoint", "/sys/fs/cgroup"),
        ("unique.network.interface", "eth0"),
        ("unique.network.mbits", "10000"),
        ("memory.totalbytes", "16777216"),
        ("kernel.name", "linux"),
        ("kernel.version", "6.18.44"),
        ("os.name", "debian"),
        ("os.version", "13"),
        ("os.cgroups.version", "2"),
        ("unique.hostname", "edge-7"),
        ("unique.network.ip-address", "192.168.2.15"),
        ("unique.storage.volume", "/dev/root"),
    ] {
        assert_eq!(text(&facts, name).as_deref(), Some(value), "{name}");
    }
    assert_eq!(facts.get("kernel.landlock"), None, "of a tree that is not this machine");
    for name in ["cpu.arch", "unique.storage.bytestotal", "unique.storage.bytesfree"] {
        assert!(facts.contains_key(name), "{name}");
    }
}

#[test]
fn an_empty_tree_gives_no_facts_about_hardware_and_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let facts = found(dir.path(), &dir.path().join("gone"));
    let names: Vec<&str> = facts.keys().map(String::as_str).collect();
    assert_eq!(names, ["cpu.arch", "kernel.arch", "os.signals", "ostler.version"]);
}

#[test]
fn garbage_gives_no_facts() {
    let dir = tempfile::tempdir().unwrap();
    for path in [
        "proc/cpuinfo",
        "proc/meminfo",
        "proc/net/route",
        "proc/net/fib_trie",
        "proc/self/mounts",
        "etc/os-release",
        "sys/devices/system/node/online",
    ] {
        let full = dir.path().join(path);
        fs::create_dir_all(full.parent().unwrap()).unwrap();
        fs::write(full, b"\xff\xfe:\n: \0\n|-- x\nMemTotal: -1 kB\neth0 zz\n").unwrap();
    }
    let facts = found(dir.path(), dir.path());
    for name in ["cpu.numcores", "memory.totalbytes", "unique.network.ip-address", "os.name"] {
        assert_eq!(facts.get(name), None, "{name}");
    }
}

#[test]
fn the_nominal_frequency_is_preferred_and_an_unknown_one_is_a_thousand() {
    let dir = tree();
    put(dir.path(), "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000\n");
    assert_eq!(text(&found(dir.path(), dir.path()), "cpu.totalcompute").as_deref(), Some("7000"));
    let dir = tree();
    put(dir.path(), "proc/cpuinfo", "processor\t: 0\nprocessor\t: 1\n");
    let facts = found(dir.path(), dir.path());
    assert_eq!(text(&facts, "cpu.totalcompute").as_deref(), Some("2000"));
    assert_eq!(facts.get("cpu.frequency"), None);
}

#[test]
fn the_frequency_is_the_nominal_one_before_the_present_one() {
    let frequency = |model: &str| {
        let dir = tree();
        let info = format!("processor\t: 0\nmodel name\t: {model}\ncpu MHz\t\t: 1234.5\n\n");
        put(dir.path(), "proc/cpuinfo", &info);
        text(&found(dir.path(), dir.path()), "cpu.frequency").unwrap()
    };
    assert_eq!(frequency("X @ 2.05GHz"), "2050");
    for model in ["X", "X @ 2GHz", "X @ 0.00GHz", "X @ 2.éGHz", "X @ -1.00GHz", "X @ 2.600GHz"] {
        assert_eq!(frequency(model), "1234", "{model}");
    }
}

#[test]
fn a_speed_that_is_not_known_is_absent() {
    for speed in ["-1\n", "", "x\n"] {
        let dir = tree();
        put(dir.path(), "sys/class/net/eth0/speed", speed);
        let facts = found(dir.path(), dir.path());
        assert_eq!(facts.get("unique.network.mbits"), None, "{speed:?}");
        assert_eq!(text(&facts, "unique.network.interface").as_deref(), Some("eth0"));
    }
}

#[test]
fn a_long_text_is_cut_between_characters() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "proc/sys/kernel/hostname", &"é".repeat(10_000));
    let facts = found(dir.path(), dir.path());
    assert_eq!(text(&facts, "unique.hostname").map(|name| name.len()), Some(TEXT_BYTES_MAX));
}

#[test]
fn the_first_version_of_control_groups_is_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("sys/fs/cgroup/memory")).unwrap();
    assert_eq!(text(&found(dir.path(), dir.path()), "os.cgroups.version").as_deref(), Some("1"));
}

#[test]
fn this_machine_can_be_fingerprinted() {
    let facts = found(Path::new("/"), &std::env::temp_dir());
    for name in ["cpu.numcores", "memory.totalbytes", "kernel.version", "unique.hostname"] {
        assert!(facts.contains_key(name), "{name}");
    }
}
