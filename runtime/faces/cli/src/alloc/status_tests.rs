#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

const NOW: Timestamp = Timestamp::from_nanos(100_000_000_000);

fn style(verbose: bool) -> StatusStyle {
    StatusStyle { now: NOW, verbose, terminal: TerminalInfo::default() }
}

fn alloc() -> Alloc<'static> {
    serde_json::from_value(json!({
        "ID": "0f01c0de-0000-4000-8000-000000000001",
        "Name": "web.g[0]", "NodeName": "edge", "JobID": "web", "Job": { "Version": 3, "ID": "web" },
        "TaskGroup": "g", "DesiredStatus": "run", "DesiredDescription": "",
        "ClientStatus": "failed", "ClientDescription": "Failed\x1b tasks",
        "DeploymentStatus": { "Healthy": false, "Timestamp": null },
        "PreviousAllocation": null,
        "CreateTime": 40_000_000_000_u64, "ModifyTime": 90_000_000_000_u64,
        "TaskStates": {
            "init": { "State": "dead", "Failed": false, "Restarts": 0, "LastRestart": null,
                "StartedAt": "2026-11-20T15:20:52.123456789Z",
                "FinishedAt": "2026-11-20T15:20:53Z", "Events": null },
            "main": { "State": "dead", "Failed": true, "Restarts": 2,
                "StartedAt": "0001-01-01T00:00:00Z", "EventsTotal": 70,
                "Events": [
                    { "Type": "Started", "Time": 41_000_000_000_u64, "DisplayMessage": "" },
                    { "Type": "Terminated", "Time": 42_000_000_000_u64,
                      "DisplayMessage": "Exit Code: 1\n\x07", "FailsTask": true },
                ] },
        },
        "AllocatedResources": {
            "Tasks": {
                "main": { "Cpu": { "CpuShares": 100 }, "Memory": { "MemoryMB": 64 },
                    "Devices": [{ "Vendor": "v", "Type": "gpu", "Name": "n", "DeviceIDs": ["a", "b"] }] },
                "init": { "Cpu": { "CpuShares": 20 }, "Memory": { "MemoryMB": 10 }, "Devices": null },
            },
            "TaskLifecycles": { "init": { "Hook": "prestart", "Sidecar": false }, "main": null },
            "Shared": { "DiskMB": 300, "Ports": [
                { "Label": "http", "Value": 20001, "To": 80, "HostIP": "10.0.0.1" },
                { "Label": "admin", "Value": 20002, "To": 0, "HostIP": "10.0.0.1" },
            ] },
        },
    }))
    .unwrap()
}

fn rows(text: &str) -> Vec<Vec<String>> {
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect();
    text.lines().map(words).collect()
}

#[test]
fn the_facts_say_what_is_wanted_what_is_and_why() {
    let text = facts(&alloc(), style(false));
    for line in [
        "allocation  0f01c0de-0000-4000-8000-000000000001",
        "job         web (version 3)",
        "status      failed: Failed\\u{1b} tasks",
        "desired     run",
        "health      unhealthy",
        "created     1m00s ago",
        "disk        300 MiB",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} in {text}");
    }
    assert!(!text.contains("replaces"), "{text}");
    let verbose = facts(&alloc(), style(true));
    assert!(verbose.contains("created     1970-01-01T00:00:40Z\n"), "{verbose}");
}

#[test]
fn tasks_show_their_lifecycle_restarts_and_times() {
    let rows = rows(&tasks(&alloc(), style(false)));
    let expected = "init prestart dead 0 2026-11-20T15:20:52Z 2026-11-20T15:20:53Z 20 MHz 10 MiB";
    assert_eq!(rows[3].join(" "), expected);
    assert_eq!(rows[4].join(" "), "main main dead, failed 2 100 MHz 64 MiB");
}

#[test]
fn ports_and_devices_are_shown_where_there_are_some() {
    let mut alloc = alloc();
    let shown = rows(&ports(&alloc, style(false)));
    assert_eq!(shown[3], ["http", "10.0.0.1:20001", "80"]);
    assert_eq!(shown[4], ["admin", "10.0.0.1:20002"]);
    assert_eq!(rows(&devices(&alloc, style(false)))[3], ["main", "v/gpu/n", "a,", "b"]);
    alloc.allocated_resources = None;
    assert_eq!(ports(&alloc, style(false)) + &devices(&alloc, style(false)), "");
}

#[test]
fn events_stand_newest_last_with_their_times_and_say_what_is_not_kept() {
    let text = events(&alloc(), &[], style(false));
    let lines: Vec<&str> = text.lines().collect();
    let of_main = lines.iter().position(|line| *line == "events of main").unwrap();
    assert_eq!(lines[of_main + 1], "(68 older ones are not kept)");
    assert!(lines[of_main + 3].starts_with("1970-01-01T00:00:41Z  Started"), "{text}");
    assert!(lines[of_main + 4].starts_with("1970-01-01T00:00:42Z  Terminated"), "{text}");
    assert!(lines[of_main + 4].contains("Exit Code: 1; \\u{7}"), "{text}");
    assert!(lines[of_main + 4].ends_with("fails the task"), "{text}");
}

#[test]
fn what_is_not_measured_is_not_zero() {
    let usage: AllocUsage = serde_json::from_value(json!({ "Tasks": {
        "main": { "ResourceUsage": {
            "MemoryStats": { "RSS": 33_554_432, "Measured": ["RSS"] },
            "CpuStats": { "Percent": 12.5, "TotalTicks": 250.0, "Measured": ["Percent"] },
        } },
        "init": { "ResourceUsage": {
            "MemoryStats": { "RSS": 0, "Measured": [] }, "CpuStats": { "Measured": null },
        } },
    } }))
    .unwrap();
    let rows = rows(&usage_text(&alloc(), &usage, style(false)));
    assert_eq!(rows[3].join(" "), "init not measured not measured");
    assert_eq!(rows[4].join(" "), "main 12.5 % of a core, 250 of 100 MHz 32.0 MiB of 64.0 MiB");
}

#[test]
fn a_list_has_one_line_per_allocation_newest_first() {
    let mut newer = alloc();
    newer.create_time = NOW;
    newer.id = "0f02c0de-0000-4000-8000-000000000002".parse().unwrap();
    let text = list_text(&mut [alloc(), newer], style(false));
    let rows = rows(&text);
    assert_eq!(rows[1][..7].join(" "), "0f02c0de web.g[0] 3 run failed unhealthy 2");
    assert_eq!(rows[2][0], "0f01c0de");
    assert!(text.lines().all(|line| !line.contains('\x1b')), "{text}");
    assert_eq!(list_text(&mut [], style(false)), "no allocations\n");
}

#[test]
fn devices_in_use_show_one_number_each_and_with_verbose_everything() {
    let device = json!([{
        "Vendor": "acme", "Type": "gpu", "Name": "a", "Stale": "it hangs\u{1b}",
        "InstanceStats": {
            "0": {
                "Summary": { "IntNumeratorVal": 45, "Unit": "C" },
                "Stats": { "Nested": null, "Attributes": { "idle": { "BoolVal": false } } },
                "Timestamp": "2026-11-20T15:20:53Z",
            },
            "1": { "Summary": null, "Stats": null, "Timestamp": "2026-11-20T15:20:53Z" },
        },
    }]);
    let usage: AllocUsage = serde_json::from_value(json!({
        "Tasks": { "main": { "ResourceUsage": { "DeviceStats": device } } },
    }))
    .unwrap();
    let lines = |verbose| rows(&device_usage_text(&usage, style(verbose)));
    let few: Vec<String> = lines(false).iter().map(|row| row.join(" ")).collect();
    assert_eq!(few[3], "main acme/gpu/a 0 summary 45 C stale: it hangs\\u{1b}");
    assert_eq!(few[4], "main acme/gpu/a 1 summary <none> stale: it hangs\\u{1b}");
    let all: Vec<String> = lines(true).iter().map(|row| row.join(" ")).collect();
    assert_eq!(all[4], "main acme/gpu/a 0 idle false stale: it hangs\\u{1b}");
    assert_eq!(device_usage_text(&AllocUsage::default(), style(true)), "");
}

#[test]
fn the_same_event_again_and_again_is_one_line_with_a_count() {
    let event = |kind: &str, at: u64, message: &str| json!({ "Type": kind, "Time": at * 1_000_000_000, "DisplayMessage": message });
    let alloc: Alloc = serde_json::from_value(json!({ "TaskStates": { "web": { "Events": [
        event("Started", 60, "Task started by client"),
        event("Terminated", 61, "Exit Code: 3"),
        event("Restarting", 61, "Restart within policy - Task restarting in 1s"),
        event("Started", 70, "Task started by client"),
        event("Terminated", 80, "Exit Code: 3"),
        event("Restarting", 80, "Restart within policy - Task restarting in 2s"),
    ] } } }))
    .unwrap();
    let text = events(&alloc, &[], style(false));
    for line in [
        "Task started by client (x2, last 30s ago)",
        "Exit Code: 3 (x2, last 20s ago)",
        "Task restarting in 2s (x2, last 20s ago)",
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    assert_eq!(text.lines().count(), 6, "{text}");
    // The agent has seen more of them than the allocation keeps.
    let kept: Vec<KeptEvent> = serde_json::from_value(json!([
        { "seq": 9, "times": 37, "kind": "Terminated", "task": "web", "message": "Exit Code: 3" },
    ]))
    .unwrap();
    let text = events(&alloc, &kept, style(false));
    assert!(text.contains("Exit Code: 3 (x37, last 20s ago)"), "{text}");
}
