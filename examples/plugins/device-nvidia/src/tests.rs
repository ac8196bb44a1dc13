use super::*;
use ostler_sdk::host::command::{CommandError, Output};
use ostler_sdk::testing::FakeHost;
use plugin_support::testing::Tree;

const PROGRAM: &str = "/usr/bin/nvidia-smi";
const FIRST: &str = "GPU-3a1f9c02-7b44-4e6a-9e2d-1a2b3c4d5e6f";
const SECOND: &str = "GPU-8e2d4f11-9c3a-4b7e-a1f0-2b3c4d5e6f70";
const H100: &str = "NVIDIA H100 80GB HBM3";

/// A fixture; see the README beside them for where they come from.
macro_rules! fixture {
    ($name:literal) => {
        include_str!(concat!("../fixtures/", $name))
    };
}

fn output(exit_code: i32, stdout: &str) -> Output {
    Output {
        exit_code: Some(exit_code),
        signal: None,
        stdout: stdout.as_bytes().to_vec(),
        stderr: vec![],
        truncated: false,
    }
}

/// A node where nvidia-smi prints this, and nothing else is granted.
fn prints(exit_code: i32, stdout: &str) -> FakeHost {
    let host = FakeHost::install();
    host.answer_command(PROGRAM, Ok(output(exit_code, stdout)));
    host.set_config(r#"{"proc": "/nowhere", "sysfs": "/nowhere"}"#);
    host
}

/// The same with the directories of a driver and of the kernel.
fn machine(name: &str, exit_code: i32, stdout: &str) -> Tree {
    let tree = Tree::new(&format!("nvidia-{name}"));
    let host = prints(exit_code, stdout);
    let (proc, sysfs) = (tree.path("proc"), tree.path("sys"));
    let (proc, sysfs) = (proc.display(), sysfs.display());
    host.set_config(&format!(r#"{{"proc": "{proc}", "sysfs": "{sysfs}"}}"#));
    tree.file("proc/gpus/0000:af:00.0/information", fixture!("information.txt"))
        .file("proc/gpus/0000:19:00.0/information", "Device Minor: \t 1")
        .file("sys/bus/pci/devices/0000:af:00.0/numa_node", "1")
        .file("sys/bus/pci/devices/0000:19:00.0/numa_node", "-1");
    tree
}

fn only_group() -> Group {
    let mut groups = Nvidia::fingerprint().unwrap().groups;
    assert_eq!(groups.len(), 1, "{groups:?}");
    groups.pop().unwrap()
}

fn attribute(group: &Group, name: &str) -> Option<Attribute> {
    let found = group.attributes.iter().find(|attribute| attribute.name == name);
    found.map(|found| found.attribute.clone())
}

fn value(stats: &InstanceStats, path: &[&str]) -> Option<StatValue> {
    let found = stats.stats.iter().find(|entry| entry.path == path);
    found.map(|found| found.value.clone())
}

fn claim(model: &str, ids: &[&str]) -> Claim {
    Claim {
        vendor: "nvidia".to_owned(),
        type_: "gpu".to_owned(),
        name: model.to_owned(),
        ids: ids.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn recoverable<T: std::fmt::Debug>(result: Result<T>) -> String {
    match result {
        Err(Error::Recoverable(said)) => said,
        other => unreachable!("{other:?}"),
    }
}

#[test]
fn cards_of_one_model_form_a_group_with_what_the_model_can_do() {
    let _tree = machine("group", 0, fixture!("h100.fingerprint.csv"));
    let group = only_group();
    assert_eq!((group.vendor.as_str(), group.type_.as_str()), ("nvidia", "gpu"));
    assert_eq!(group.name, H100);
    let unit = |name, unit: &str, value: Scalar| {
        let expected = Attribute { value, unit: Some(unit.to_owned()) };
        assert_eq!(attribute(&group, name), Some(expected), "{name}");
    };
    unit("memory", "MiB", Scalar::Int(81559));
    unit("power", "W", Scalar::Float(700.0));
    unit("cores_clock", "MHz", Scalar::Int(1980));
    unit("memory_clock", "MHz", Scalar::Int(2619));
    unit("pci_bandwidth", "MB/s", Scalar::Int(63008));
    let text = |name| attribute(&group, name).unwrap().value;
    assert_eq!(text("driver_version"), Scalar::from("550.90.07"));
    assert_eq!(text("compute_capability"), Scalar::from("9.0"));
    assert_eq!(text("mig_mode"), Scalar::from("Disabled"));
    let [first, second] = group.instances.as_slice() else { unreachable!("{group:?}") };
    assert_eq!((first.id.as_str(), second.id.as_str()), (FIRST, SECOND));
    assert_eq!(first.health, Health::healthy());
    let place = |instance: &Instance| instance.locality.clone().unwrap();
    assert_eq!(place(first).pci_bus_id.as_deref(), Some("0000:19:00.0"));
    assert_eq!(place(first).numa_node, None, "-1 means unknown");
    assert_eq!(place(second).numa_node, Some(1));
}

#[test]
fn one_run_of_the_program_tells_all() {
    let host = prints(0, fixture!("h100.fingerprint.csv"));
    let found = Nvidia::fingerprint().unwrap();
    assert_eq!((found.next_check, found.watch.subsystems), (Some(60_000), vec!["pci".to_owned()]));
    let runs = host.commands_run();
    let [run] = runs.as_slice() else { unreachable!("{runs:?}") };
    assert!(
        run.starts_with("/usr/bin/nvidia-smi --query-gpu=index,uuid,name,pci.bus_id,"),
        "{run}"
    );
    assert!(run.ends_with(" --format=csv,noheader,nounits"), "{run}");
}

#[test]
fn what_a_card_does_not_have_is_absent_and_not_zero() {
    prints(0, fixture!("geforce.fingerprint.csv"));
    let group = only_group();
    assert_eq!(group.name, "NVIDIA GeForce RTX 3090");
    for name in ["ecc_mode", "mig_mode"] {
        assert_eq!(attribute(&group, name), None, "{name}");
    }
    assert_eq!(group.instances[0].health, Health::healthy(), "no ECC is no error");
    prints(0, fixture!("geforce.stats.csv"));
    let stats = Nvidia::stats().unwrap();
    let card = &stats[0].instances[0];
    for path in [["ecc", "corrected"], ["ecc", "uncorrected"], ["temperature", "memory"]] {
        assert_eq!(value(card, &path), None, "{path:?}");
    }
    assert_eq!(value(card, &["utilization", "gpu"]).unwrap().int_numerator, Some(0));
    assert_eq!(value(card, &["fan", "speed"]).unwrap().int_numerator, Some(0));
}

#[test]
fn everything_a_card_measures_is_measured_with_its_unit() {
    prints(0, fixture!("h100.stats.csv"));
    let stats = Nvidia::stats().unwrap();
    assert_eq!((stats.len(), stats[0].name.as_str()), (1, H100));
    let card = &stats[0].instances[0];
    assert_eq!(card.id, FIRST);
    let summary = card.summary.as_ref().unwrap();
    assert_eq!((summary.int_numerator, summary.int_denominator), (Some(61440), Some(81559)));
    assert_eq!(summary.unit.as_deref(), Some("MiB"));
    for (path, number, unit) in [
        (["utilization", "gpu"], 97, "%"),
        (["utilization", "memory"], 43, "%"),
        (["utilization", "encoder"], 0, "%"),
        (["utilization", "decoder"], 0, "%"),
        (["temperature", "gpu"], 64, "°C"),
        (["temperature", "memory"], 41, "°C"),
        (["clocks", "sm"], 1755, "MHz"),
        (["clocks", "memory"], 2619, "MHz"),
    ] {
        let value = value(card, &path).unwrap();
        assert_eq!((value.int_numerator, value.unit.as_deref()), (Some(number), Some(unit)));
    }
    let power = value(card, &["power", "draw"]).unwrap();
    assert_eq!((power.float_numerator, power.float_denominator), (Some(512.31), Some(700.0)));
    assert_eq!(value(card, &["ecc", "uncorrected"]).unwrap().int_numerator, Some(0));
    assert_eq!(value(card, &["performance", "state"]).unwrap().text.as_deref(), Some("P0"));
    assert_eq!(value(card, &["fan", "speed"]), None);
}

#[test]
fn statistics_are_told_of_the_groups_and_ids_that_fingerprints_tell_of() {
    type Names = Vec<(String, Vec<String>)>;
    for (fingerprint, stats) in [
        (fixture!("h100.fingerprint.csv"), fixture!("h100.stats.csv")),
        (fixture!("geforce.fingerprint.csv"), fixture!("geforce.stats.csv")),
        (fixture!("mig.fingerprint.csv"), fixture!("mig.stats.csv")),
        (fixture!("ill.fingerprint.csv"), fixture!("ill.stats.csv")),
    ] {
        prints(0, fingerprint);
        let found = Nvidia::fingerprint().unwrap().groups.into_iter();
        let found = found.map(|g| (g.name, g.instances.into_iter().map(|i| i.id).collect()));
        prints(0, stats);
        let measured = Nvidia::stats().unwrap().into_iter();
        let measured = measured.map(|g| (g.name, g.instances.into_iter().map(|i| i.id).collect()));
        assert_eq!(found.collect::<Names>(), measured.collect::<Names>());
    }
}

#[test]
fn a_card_that_is_cut_up_is_in_a_group_of_its_own() {
    prints(0, fixture!("mig.fingerprint.csv"));
    let groups = Nvidia::fingerprint().unwrap().groups;
    let names: Vec<_> = groups.iter().map(|group| group.name.as_str()).collect();
    assert_eq!(names, ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-40GB MIG"]);
    let mode = |group| attribute(group, "mig_mode").unwrap().value;
    assert_eq!(mode(&groups[0]), Scalar::from("Disabled"));
    assert_eq!(mode(&groups[1]), Scalar::from("Enabled"));
    prints(0, fixture!("mig.stats.csv"));
    let stats = Nvidia::stats().unwrap();
    assert_eq!(value(&stats[1].instances[0], &["utilization", "gpu"]), None);
}

#[test]
fn errors_of_a_card_make_it_unhealthy_with_the_reason() {
    let host = prints(0, fixture!("ill.fingerprint.csv"));
    let reasons = |group: &Group| {
        group.instances.iter().map(|one| one.health.reason.clone()).collect::<Vec<_>>()
    };
    let group = only_group();
    assert!(group.instances.iter().all(|one| one.health.state == HealthState::Unhealthy));
    assert!(reasons(&group)[0].contains("\"Unknown Error\" for ecc.errors"), "{group:?}");
    assert!(reasons(&group)[1].contains("2 memory errors"), "{group:?}");
    host.set_config(r#"{"proc": "/nowhere", "sysfs": "/nowhere", "ecc_uncorrected_max": 2}"#);
    assert_eq!(reasons(&only_group())[1], "");
    prints(0, fixture!("ill.stats.csv"));
    let stats = Nvidia::stats().unwrap();
    assert_eq!(stats[0].instances[0].summary, None, "broken is not zero");
    assert_eq!(
        value(&stats[0].instances[1], &["ecc", "uncorrected"]).unwrap().int_numerator,
        Some(2)
    );
}

#[test]
fn a_card_that_its_driver_wants_recovered_is_unhealthy() {
    let recorded = fixture!("recorded/h200.fingerprint.csv");
    for (healthy, ill, why) in [
        (", No, None", ", Yes, None", "could not be remapped"),
        (", No, None", ", No, Reset", "asks for a recovery of the card: Reset"),
        (", No, None", ", No, [GPU requires reset]", "\"GPU requires reset\" for gpu_recovery"),
    ] {
        prints(0, &recorded.replace(healthy, ill));
        let health = only_group().instances[0].health.clone();
        assert_eq!(health.state, HealthState::Unhealthy, "{ill}");
        assert!(health.reason.contains(why), "{health:?}");
    }
    for nothing_said in [", [N/A], [N/A]", ", N/A, None", ", No, [Not Supported]"] {
        prints(0, &recorded.replace(", No, None", nothing_said));
        assert_eq!(only_group().instances[0].health, Health::healthy(), "{nothing_said}");
    }
}

#[test]
fn a_lost_card_stays_known_as_unhealthy_and_the_others_stay_usable() {
    for exit_code in [0, 15] {
        let _tree = machine("lost", exit_code, fixture!("lost.fingerprint.csv"));
        let group = only_group();
        assert_eq!(group.instances[0].health, Health::healthy());
        let lost = &group.instances[1];
        assert_eq!((lost.id.as_str(), lost.health.state), (SECOND, HealthState::Unhealthy));
        assert!(lost.health.reason.contains("GPU1: 0000:AF:00.0: Unknown Error"), "{lost:?}");
        assert!(attribute(&group, "memory").is_some(), "what the other says holds");
        let refused = recoverable(Nvidia::reserve(claim(H100, &[SECOND])));
        assert!(refused.contains("is unhealthy: Unable to determine"), "{refused}");
    }
    let host = prints(15, fixture!("lost.fingerprint.csv"));
    assert_eq!(only_group().instances.len(), 1, "nothing tells who it was");
    assert!(host.log_lines()[0].contains("0000:AF:00.0"), "{:?}", host.log_lines());
}

#[test]
fn a_lost_card_named_on_standard_error_is_heard_too() {
    let (lost, rest) = fixture!("lost.fingerprint.csv").split_once('\n').unwrap();
    let tree = machine("stderr", 0, "");
    let answer = Output { stderr: format!("{lost}\n").into_bytes(), ..output(0, rest) };
    let host = FakeHost::install();
    host.answer_command(PROGRAM, Ok(answer));
    let proc = tree.path("proc");
    host.set_config(&format!(r#"{{"proc": "{}", "sysfs": "/nowhere"}}"#, proc.display()));
    assert_eq!(only_group().instances.len(), 2);
}

#[test]
fn a_driver_that_refuses_newer_columns_is_asked_for_those_it_knows() {
    let host = prints(2, fixture!("old.refusal.txt"));
    let asks = |columns: &[&str]| {
        format!("{PROGRAM} --query-gpu={} --format=csv,noheader,nounits", columns.join(","))
    };
    let known = query::FINGERPRINT.of(query::Ages::Known);
    host.answer_command(&asks(&known), Ok(output(0, fixture!("old.fingerprint.csv"))));
    let known = query::STATS.of(query::Ages::Known);
    host.answer_command(&asks(&known), Ok(output(0, fixture!("old.stats.csv"))));
    let group = only_group();
    assert_eq!(group.name, "Tesla K80");
    assert_eq!(attribute(&group, "compute_capability"), None);
    assert_eq!(attribute(&group, "memory").unwrap().value, Scalar::Int(11441));
    let stats = Nvidia::stats().unwrap();
    let card = &stats[0].instances[0];
    assert_eq!(value(card, &["utilization", "encoder"]), None);
    assert_eq!(value(card, &["memory", "used"]).unwrap().int_numerator, Some(0));
    assert_eq!(host.commands_run().len(), 5, "fingerprints ask for columns of three ages");
}

#[test]
fn a_driver_that_refuses_only_the_newest_columns_is_asked_for_the_others() {
    let host = prints(2, fixture!("recorded/refusal.txt"));
    let asks = query::FINGERPRINT.of(query::Ages::Newer).join(",");
    let asks = format!("{PROGRAM} --query-gpu={asks} --format=csv,noheader,nounits");
    let without_newest = fixture!("recorded/h200.fingerprint.csv").replace(", No, None", "");
    host.answer_command(&asks, Ok(output(0, &without_newest)));
    let group = only_group();
    assert_eq!(attribute(&group, "compute_capability").unwrap().value, Scalar::from("9.0"));
    assert_eq!(group.instances[0].health, Health::healthy());
    assert_eq!(host.commands_run().len(), 2);
}

#[test]
fn where_there_is_no_card_the_plugin_is_undetected_and_measures_nothing() {
    let said = |result: Result<Fingerprint>| {
        let found = result.unwrap();
        assert_eq!((found.health.state, found.groups), (HealthState::Undetected, vec![]));
        let again = (found.next_check, found.watch.subsystems);
        assert_eq!(again, (Some(60_000), vec!["pci".to_owned()]), "a driver may be loaded later");
        found.health.reason
    };
    FakeHost::install();
    let absent = said(Nvidia::fingerprint());
    assert_eq!(absent, "/usr/bin/nvidia-smi is missing");
    assert_eq!(Nvidia::stats().unwrap(), []);
    for (exit_code, text, why) in [
        (9, fixture!("no-driver.txt"), "the driver is not loaded: NVIDIA-SMI has failed"),
        (6, fixture!("no-devices.txt"), "finds no card: No devices were found"),
        (0, fixture!("no-devices.txt"), "finds no card"),
        (0, "", "finds no card"),
        (12, "NVIDIA-SMI couldn't find libnvidia-ml.so library\n", "library is missing"),
    ] {
        prints(exit_code, text);
        let undetected = said(Nvidia::fingerprint());
        assert!(undetected.contains(why), "{undetected}");
        assert!(!undetected.contains("undetected"), "who shows it says that: {undetected}");
        assert_eq!(Nvidia::stats().unwrap(), []);
    }
}

#[test]
fn a_program_that_fails_is_an_error_with_what_it_said() {
    prints(18, fixture!("mismatch.txt"));
    let said = recoverable(Nvidia::fingerprint());
    assert!(said.contains("code 18: Failed to initialize NVML: Driver/library"), "{said}");
    let host = FakeHost::install();
    host.answer_command(PROGRAM, Ok(Output { exit_code: None, signal: Some(9), ..output(0, "") }));
    assert!(recoverable(Nvidia::stats()).contains("was killed"));
    host.answer_command(PROGRAM, Err(CommandError::TimedOut));
    assert!(recoverable(Nvidia::fingerprint()).contains("call_wall"));
    host.deny();
    assert!(matches!(Nvidia::fingerprint(), Err(Error::PermissionDenied(_))));
}

#[test]
fn output_that_cannot_be_read_is_an_error_that_names_the_line() {
    let good = fixture!("h100.fingerprint.csv");
    let second = |text: &str, with: &str| {
        let (first, rest) = good.split_once('\n').unwrap();
        format!("{first}\n{}", rest.replacen(text, with, 1))
    };
    let cut = good.trim_end().strip_suffix("None").unwrap();
    let values = "a, ".repeat(10_000) + "\n";
    for (text, line, problem) in [
        (second("81559", "lots"), 2, "memory.total is \"lots\""),
        (second("81559", "-5"), 2, "memory.total is \"-5\""),
        (second("700.00", "NaN"), 2, "power.limit is \"NaN\""),
        (second("00000000:AF:00.0", "/../etc"), 2, "\"/../etc\" is not a PCI address"),
        (second("GPU-8e2d", "GPU_8e2d"), 2, "is not a GPU ID"),
        (second(SECOND, FIRST), 2, "is listed twice"),
        (second(", 81559", ""), 2, "19 values instead of 20"),
        (second(H100, "a, b"), 2, "21 values instead of 20"),
        (cut.to_owned(), 2, "is cut off"),
        (format!("{good}Segmentation fault\n"), 3, "1 values instead of 20: \"Segmentation"),
        (format!("{good}{values}"), 3, "10001 values instead of 20"),
        (format!("{good}\u{1b}[2J{values}"), 3, "10001 values"),
        (good.repeat(200), 257, "more than 256 cards"),
    ] {
        prints(0, &text);
        let said = recoverable(Nvidia::fingerprint());
        assert!(said.contains(&format!("line {line} of")) && said.contains(problem), "{said}");
        assert!(said.len() < 400 && !said.contains(char::is_control), "{said}");
    }
    let host = FakeHost::install();
    host.answer_command(PROGRAM, Ok(Output { truncated: true, ..output(0, good) }));
    assert!(recoverable(Nvidia::fingerprint()).contains("more than the plugin reads; line 2"));
}

#[test]
fn any_bytes_are_an_answer_or_an_error_and_never_a_trap() {
    let good = fixture!("lost.fingerprint.csv").as_bytes();
    let stats = fixture!("h100.stats.csv").as_bytes();
    let mut state = 7_u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        usize::try_from(state >> 33).unwrap()
    };
    let host = prints(0, "");
    for round in 0..2_000 {
        let mut bytes = if round % 2 == 0 { good.to_vec() } else { stats.to_vec() };
        for _ in 0..=random() % 4 {
            let at = random() % bytes.len();
            match random() % 3 {
                0 => bytes[at] = u8::try_from(random() % 256).unwrap(),
                1 => bytes.truncate(at.max(1)),
                _ => drop(bytes.remove(at)),
            }
            if bytes.is_empty() {
                bytes.push(b'x');
            }
        }
        host.answer_command(PROGRAM, Ok(Output { stdout: bytes, ..output(0, "") }));
        let _answer_or_error = (Nvidia::fingerprint(), Nvidia::stats());
    }
}

#[test]
fn a_reservation_names_the_cards_and_assigns_exactly_their_nodes() {
    let tree = machine("reserve", 0, fixture!("h100.fingerprint.csv"));
    let paths = |reservation: &Reservation| {
        let nodes = reservation.device_nodes.iter();
        nodes.map(|node| node.host_path.clone()).collect::<Vec<_>>()
    };
    let one = Nvidia::reserve(claim(H100, &[SECOND])).unwrap();
    assert_eq!(one.env[0], EnvVar::new("NVIDIA_VISIBLE_DEVICES", SECOND));
    assert_eq!(one.env[1], EnvVar::new("CUDA_VISIBLE_DEVICES", SECOND));
    assert_eq!(paths(&one), ["/dev/nvidia3", "/dev/nvidiactl"], "the node is not the index");
    tree.file("sys/module/nvidia_uvm/refcnt", "0");
    let both = Nvidia::reserve(claim(H100, &[FIRST, SECOND])).unwrap();
    assert_eq!(both.env[0].value, format!("{FIRST},{SECOND}"));
    assert_eq!(
        paths(&both),
        [
            "/dev/nvidia-uvm",
            "/dev/nvidia-uvm-tools",
            "/dev/nvidia1",
            "/dev/nvidia3",
            "/dev/nvidiactl"
        ]
    );
    assert!(both.device_nodes.iter().all(|node| node.permissions == "rw"));
    assert_eq!(both, Nvidia::reserve(claim(H100, &[FIRST, SECOND])).unwrap(), "same answer twice");
    for (model, id) in [(H100, "GPU-gone"), ("another", FIRST), (H100, "")] {
        let refused = Nvidia::reserve(claim(model, &[id]));
        assert!(matches!(refused, Err(Error::NotFound(_))), "{model} {id}");
    }
}

#[test]
fn a_card_whose_node_is_not_known_is_refused_and_the_way_out_named() {
    let host = prints(0, fixture!("h100.fingerprint.csv"));
    let refused = Nvidia::reserve(claim(H100, &[SECOND]));
    let Err(Error::Fatal(said)) = refused else { unreachable!("{refused:?}") };
    assert!(said.contains("/nowhere/gpus/0000:af:00.0/information"), "{said}");
    assert!(said.contains("nodes = \"index\""), "{said}");
    host.set_config(r#"{"nodes": "index", "proc": "/nowhere", "sysfs": "/nowhere"}"#);
    let nodes = Nvidia::reserve(claim(H100, &[SECOND])).unwrap().device_nodes;
    assert_eq!(nodes[0].host_path, "/dev/nvidia1");
    host.set_config(r#"{"nodes": "none"}"#);
    assert_eq!(Nvidia::reserve(claim(H100, &[SECOND])).unwrap().device_nodes, []);
}

#[test]
fn an_ignored_card_is_neither_found_nor_assigned_nor_measured() {
    let config = format!(r#"{{"ignored_gpu_ids": ["{FIRST}"], "fingerprint_period": "5s"}}"#);
    prints(0, fixture!("h100.fingerprint.csv")).set_config(&config);
    let found = Nvidia::fingerprint().unwrap();
    assert_eq!(found.next_check, Some(5_000));
    let ids: Vec<_> = found.groups[0].instances.iter().map(|one| one.id.as_str()).collect();
    assert_eq!(ids, [SECOND]);
    assert!(matches!(Nvidia::reserve(claim(H100, &[FIRST])), Err(Error::NotFound(_))));
    prints(0, fixture!("h100.stats.csv")).set_config(&config);
    assert_eq!(Nvidia::stats().unwrap()[0].instances.len(), 1);
}

#[test]
fn two_models_form_two_groups() {
    let first = fixture!("h100.fingerprint.csv").lines().next().unwrap();
    prints(0, &format!("{first}\n{}", fixture!("geforce.fingerprint.csv")));
    let groups = Nvidia::fingerprint().unwrap().groups;
    assert_eq!(groups.len(), 2);
    assert_eq!(attribute(&groups[0], "memory").unwrap().value, Scalar::Int(24576));
}

#[path = "tests_recorded.rs"]
mod recorded;
