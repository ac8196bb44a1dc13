//! What real cards printed; `fixtures/README.md` says which.

use super::*;

#[test]
fn what_real_cards_print_is_read_as_it_stands() {
    for (fingerprint, idle, busy, name, memory, memory_clock, watts) in [
        (
            fixture!("recorded/h200.fingerprint.csv"),
            fixture!("recorded/h200.stats.csv"),
            fixture!("recorded/h200.busy.csv"),
            "NVIDIA H200",
            143_771,
            3201,
            (79.53, 479.78),
        ),
        (
            fixture!("recorded/h100.fingerprint.csv"),
            fixture!("recorded/h100.stats.csv"),
            fixture!("recorded/h100.busy.csv"),
            H100,
            81_559,
            2619,
            (72.26, 438.9),
        ),
    ] {
        prints(0, fingerprint);
        let group = only_group();
        assert_eq!(group.name, name);
        let number = |name| attribute(&group, name).unwrap().value;
        assert_eq!(number("memory"), Scalar::Int(memory));
        assert_eq!(number("memory_clock"), Scalar::Int(memory_clock));
        assert_eq!(number("pci_bandwidth"), Scalar::Int(63_008));
        assert_eq!(number("driver_version"), Scalar::from("580.159.04"));
        assert_eq!(group.instances[0].health, Health::healthy());
        for (text, watts, used, busy) in [(idle, watts.0, 0, 0), (busy, watts.1, 6671, 100)] {
            prints(0, text);
            let stats = Nvidia::stats().unwrap();
            let card = &stats[0].instances[0];
            assert_eq!((&stats[0].name, &card.id), (&group.name, &group.instances[0].id));
            let whole = |path: [&str; 2]| value(card, &path).unwrap().int_numerator;
            assert_eq!(whole(["memory", "used"]), Some(used));
            assert_eq!(whole(["utilization", "gpu"]), Some(busy));
            assert_eq!(value(card, &["power", "draw"]).unwrap().float_numerator, Some(watts));
            assert_eq!(value(card, &["fan", "speed"]), None, "it has no fan");
        }
    }
}

#[test]
fn a_real_card_of_a_virtual_machine_is_reserved_with_its_nodes_and_its_place() {
    let tree = Tree::new("nvidia-recorded");
    let host = prints(0, fixture!("recorded/h200.fingerprint.csv"));
    let (proc, sysfs) = (tree.path("proc"), tree.path("sys"));
    let (proc, sysfs) = (proc.display(), sysfs.display());
    host.set_config(&format!(r#"{{"proc": "{proc}", "sysfs": "{sysfs}"}}"#));
    let information = fixture!("recorded/h200.information.txt");
    tree.file("proc/gpus/0000:00:06.0/information", information)
        .file("sys/module/nvidia_uvm/refcnt", "0")
        .file("sys/bus/pci/devices/0000:00:06.0/numa_node", "-1");
    let place = || only_group().instances[0].locality.clone().unwrap();
    assert_eq!(place().numa_node, None);
    // The kernel does not say where the card is, but there is only one place.
    tree.file("sys/devices/system/node/online", "0\n");
    assert_eq!(place().numa_node, Some(0));
    assert_eq!(place().pci_bus_id.as_deref(), Some("0000:00:06.0"));
    let id = only_group().instances[0].id.clone();
    let reservation = Nvidia::reserve(claim("NVIDIA H200", &[&id])).unwrap();
    let nodes: Vec<_> = reservation.device_nodes.iter().map(|n| n.host_path.as_str()).collect();
    let expected = ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia0", "/dev/nvidiactl"];
    assert_eq!(nodes, expected);
}

#[test]
fn what_the_program_says_without_nodes_or_cards_is_no_failure() {
    for (exit_code, text, why) in [
        (9, fixture!("recorded/no-nodes.txt"), "the driver is not loaded"),
        (6, fixture!("recorded/no-such-card.txt"), "finds no card"),
    ] {
        prints(exit_code, text);
        let found = Nvidia::fingerprint().unwrap();
        assert_eq!(found.health.state, HealthState::Undetected);
        assert!(found.health.reason.contains(why), "{:?}", found.health);
    }
}
