//! `ostler plugin status`

use super::check::costs_text;
use super::upgrade;
use crate::answer;
use crate::args::PluginStatusArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::human;
use crate::output::{self, age_text, section, table};
use crate::terminal::{TerminalInfo, one_line};
use ostler_agent::offline::Costs;
use ostler_agent::{
    AgentHandle, PluginActivity, PluginState, PluginStatus, PluginStatusReport, Quarantine,
    UpgradeStatus,
};
use ostler_api::routes::endpoints as routes;
use ostler_model::clock::Clock;
use ostler_model::device::HealthState;
use ostler_model::time::Timestamp;
use ostler_model::words::{count_noun, format_bytes, format_nanos, format_seconds};

/// Show the health of the plugins, or of one.
pub(super) async fn status(
    args: &PluginStatusArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let request = routes::ListPluginStates::request([]);
    let all = connect::ask_agent(&args.of, &request, AgentHandle::plugins_status).await?;
    let now = Clock::system().now();
    match &args.plugin {
        None => answer::show(&all, || list_text(&all, now, terminal), terminal),
        Some(name) => {
            let one = find(&all, name)?;
            answer::show(one, || one_text(one, now, terminal), terminal)
        }
    }
}

/// Find the plugin with this name or block; one that is in use comes before others.
pub(super) fn find<'a>(
    all: &'a [PluginStatusReport],
    name: &str,
) -> Result<&'a PluginStatusReport, CliError> {
    let mut found: Vec<_> =
        all.iter().filter(|one| one.name == name || one.block == name).collect();
    if found.iter().any(|one| one.activity.is_some()) {
        found.retain(|one| one.activity.is_some());
    }
    let name = one_line(name);
    connect::single_match(
        found,
        &format!("there is no plugin {name}; `ostler plugin status` lists them"),
        &format!("plugins are called {name}"),
        |one| format!("{} (block {}, {})", one.name, one.block, one.source),
    )
}

/// The state of a plugin in a word or two: whether it is in use, and its health.
pub(super) fn state(report: &PluginStatusReport) -> &'static str {
    match (&report.status, &report.activity) {
        (PluginStatus::Refused(_), _) => "refused",
        (PluginStatus::Disabled, _) => "disabled",
        (PluginStatus::Loading, _) => "loading",
        (PluginStatus::Waiting, _) => "waiting",
        (PluginStatus::Loaded, None) => "loaded",
        (PluginStatus::Loaded, Some(activity)) => match activity.state {
            PluginState::Starting => "starting",
            PluginState::Running => match report.health.as_ref().map(|health| health.state) {
                Some(HealthState::Undetected) => "found nothing",
                Some(HealthState::Unhealthy) => "unhealthy",
                Some(HealthState::Healthy) | None => "running",
            },
            PluginState::BackingOff => "backing off",
            PluginState::Quarantined => "quarantined",
        },
    }
}

fn list_text(all: &[PluginStatusReport], now: Timestamp, terminal: &TerminalInfo) -> String {
    let rows = all.iter().map(|report| {
        let activity = report.activity.clone().unwrap_or_default();
        let calls = || activity.calls.values();
        let used = |text: String| if report.activity.is_some() { text } else { String::new() };
        let sum = |field: fn(&_) -> u64| calls().map(field).fold(0, u64::saturating_add);
        let worst = calls().map(|call| call.p99_nanos).max();
        let error = match &report.status {
            // The other lines, with what to do about it, are in `plugin list`.
            PluginStatus::Refused(reason) => {
                let line = reason.lines().next().unwrap_or_default();
                line.trim_end_matches(':').to_owned()
            }
            _ => last_error(&activity, now),
        };
        [
            report.name.clone(),
            report.kind.map(|kind| kind.to_string()).unwrap_or_default(),
            state(report).to_owned(),
            used(activity.strikes.to_string()),
            used(sum(|call| call.calls).to_string()),
            used(sum(|call| call.failed).to_string()),
            worst.map(format_nanos).unwrap_or_default(),
            used(format_bytes(sum(|call| call.bytes_in))),
            used(format_bytes(sum(|call| call.bytes_out))),
            error,
        ]
    });
    let header =
        ["NAME", "KIND", "STATE", "STRIKES", "CALLS", "FAILED", "P99", "IN", "OUT", "LAST ERROR"];
    table(header, rows, terminal)
}

fn last_error(activity: &PluginActivity, now: Timestamp) -> String {
    let error = activity.last_error.as_ref();
    error.map(|error| format!("{}: {}", age_text(error.at, now), error.reason)).unwrap_or_default()
}

/// Lines about the upgrades of a plugin: names and values.
fn upgrades(status: Option<&UpgradeStatus>, now: Timestamp) -> Vec<(&'static str, String)> {
    let Some(status) = status else { return Vec::new() };
    let mut lines = Vec::new();
    if let Some(at) = status.upgraded_at {
        let previous = status.previous.as_ref().map(upgrade::release);
        let was = previous.map(|was| format!(", was {was}")).unwrap_or_default();
        lines.push(("upgraded", format!("{}{was}", age_text(at, now))));
    }
    if let Some(until) = status.proving_until {
        lines.push((
            "proving",
            format!("for another {}", format_seconds(until.since(now).as_secs())),
        ));
    }
    if let Some(last) = &status.last {
        let how = upgrade::text(last).trim_end().replace('\n', "; ");
        lines.push(("last offer", format!("{}: {how}", age_text(last.at, now))));
    }
    let back = status.rolled_back.as_ref().filter(|_| status.rolled_back != status.last);
    if let Some(back) = back {
        let how = upgrade::text(back).trim_end().to_owned();
        lines.push(("rolled back", format!("{}: {how}", age_text(back.at, now))));
    }
    lines
}

/// The number of strikes that have not expired, and how many of them count towards the quarantine.
fn strikes(activity: &PluginActivity) -> String {
    let PluginActivity { strikes, strikes_counted, strikes_max, .. } = activity;
    format!("{strikes}, of which {strikes_counted} of {strikes_max} count against the plugin")
}

fn quarantine_text(quarantine: &Quarantine, name: &str, now: Timestamp) -> String {
    let since = age_text(quarantine.since, now);
    let end = match quarantine.until {
        None => format!("until `ostler plugin lift {name}`"),
        Some(until) => format!("tried again in {}", format_seconds(until.since(now).as_secs())),
    };
    let relapses = match quarantine.relapses {
        0 => String::new(),
        some => format!(", after {}", count_noun(some, "relapse")),
    };
    format!("since {since}, {end}{relapses}")
}

fn one_text(report: &PluginStatusReport, now: Timestamp, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 12, name, value);
    line("plugin", &report.name);
    line("block", &report.block);
    let version = report.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
    line("kind", &report.kind.map(|kind| format!("{kind} plugin{version}")).unwrap_or_default());
    line("source", &report.source);
    line("digest", &report.digest.as_ref().map(|d| format!("sha256:{d}")).unwrap_or_default());
    line("trust", &report.trust.as_ref().map(ToString::to_string).unwrap_or_default());
    if let PluginStatus::Refused(reason) = &report.status {
        line("refused", reason);
    }
    line("state", state(report));
    let health = report.health.as_ref().filter(|health| health.state != HealthState::Healthy);
    line("health", &health.map(human::health).unwrap_or_default());
    for (name, value) in upgrades(report.upgrade.as_ref(), now) {
        line(name, &value);
    }
    let Some(activity) = &report.activity else { return text };
    match activity.failures_in_a_row {
        0 => {}
        1 => line("fingerprint", "failed once"),
        more => line("fingerprint", &format!("failed {more} times in a row")),
    }
    line("strikes", &strikes(activity));
    if let Some(quarantine) = &activity.quarantine {
        line("quarantine", &quarantine_text(quarantine, &report.name, now));
        line("because", &quarantine.reason);
    } else if activity.quarantines > 0 {
        line("quarantine", &format!("none now; {} so far", activity.quarantines));
    }
    for (task, count) in &activity.strikes_by_task {
        line("struck by", &format!("{task}: {count}"));
    }
    line("last error", &last_error(activity, now));
    line(
        "last answer",
        &activity.last_ok.map_or_else(|| "never".to_owned(), |at| age_text(at, now)),
    );
    let next = activity.next_check.map(|at| format!("in {} s", at.since(now).as_secs()));
    line("asked again", &next.unwrap_or_else(|| "when what it watches changes".to_owned()));
    line("processor", &format_nanos(activity.cpu_nanos));
    if activity.calls.is_empty() {
        return text;
    }
    let (peak_memory_bytes, peak_host_calls) =
        (activity.peak_memory_bytes, activity.peak_host_calls);
    let costs = Costs { peak_memory_bytes, peak_host_calls, calls: activity.calls.clone() };
    text + &section("calls", &costs_text("FUNCTION", &costs, terminal), terminal)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

    use serde_json::json;

    use super::*;
    use ostler_model::device::Health;

    const NOW: Timestamp = Timestamp::from_nanos(100_000_000_000);

    fn reports() -> Vec<PluginStatusReport> {
        let call = |calls: u64, failed: u64, p50: u64, p99: u64| {
            json!({
                "calls": calls, "failed": failed, "p50_nanos": p50, "p99_nanos": p99,
                "bytes_in": 1_024, "bytes_out": 2_048,
            })
        };
        serde_json::from_value(json!([
            {
                "name": "nvidia", "block": "nvidia", "kind": "device", "version": "1.0.0",
                "source": "built-in", "status": { "state": "loaded" },
                "activity": {
                    "state": "quarantined", "strikes": 7, "failures_in_a_row": 3,
                    "strikes_counted": 5, "strikes_max": 5,
                    "strikes_by_task": { "task t of group g of job j": 2 },
                    "quarantine": {
                        "since": 90_000_000_000_u64, "until": 690_000_000_000_u64,
                        "reason": "5 strikes\u{1b}", "relapses": 1,
                    },
                    "last_error": { "at": 90_000_000_000_u64, "reason": "it hangs\u{1b}" },
                    "last_ok": 40_000_000_000_u64, "next_check": 104_000_000_000_u64,
                    "cpu_nanos": 1_500_000,
                    "calls": {
                        "fingerprint": call(7, 3, 40_000, 5_000_000_000),
                        "reserve": call(1, 0, 2_000_000, 2_000_000),
                    },
                },
            },
            {
                "name": "nvidia", "block": "other", "kind": "device", "version": "0.9.0",
                "source": "/p/old.wasm", "status": { "state": "refused", "reason": "a newer one is there" },
                "activity": null,
            },
            {
                "name": "mock", "block": "mock", "kind": null, "version": null,
                "source": "built-in", "status": { "state": "disabled" }, "activity": null,
            },
        ]))
        .unwrap()
    }

    #[test]
    fn the_list_shows_state_strikes_cost_and_the_last_error() {
        let text = list_text(&reports(), NOW, &TerminalInfo::default());
        let row = |at: usize| {
            let words: Vec<&str> = text.lines().nth(at).unwrap().split_whitespace().collect();
            words.join(" ")
        };
        assert_eq!(
            row(1),
            "nvidia device quarantined 7 8 3 5.0 s 2.0 KiB 4.0 KiB 10s ago: it hangs\\u{1b}"
        );
        assert_eq!(row(2), "nvidia device refused a newer one is there");
        assert_eq!(row(3), "mock disabled");
    }

    #[test]
    fn a_plugin_that_found_nothing_is_not_said_to_run() {
        let mut reports = reports();
        let report = reports.get_mut(0).unwrap();
        report.activity.as_mut().unwrap().state = PluginState::Running;
        for (state, word) in [
            (HealthState::Healthy, "running"),
            (HealthState::Undetected, "found nothing"),
            (HealthState::Unhealthy, "unhealthy"),
        ] {
            let reason = "there is no /usr/bin/nvidia-smi".to_owned();
            report.health = Some(Health { state, reason });
            assert_eq!(super::state(report), word);
        }
        let text = one_text(report, NOW, &TerminalInfo::default());
        assert!(
            text.contains("health      unhealthy: there is no /usr/bin/nvidia-smi\n"),
            "{text}"
        );
        report.activity.as_mut().unwrap().state = PluginState::BackingOff;
        assert_eq!(super::state(report), "backing off", "how it does goes before what it says");
    }

    #[test]
    fn a_refusal_of_many_lines_is_one_line_in_the_list() {
        let mut reports = reports();
        let reason = "imports x; to grant it:\nplugin \"x\" {\n}\n".to_owned();
        reports.get_mut(1).unwrap().status = PluginStatus::Refused(reason);
        let text = list_text(&reports, NOW, &TerminalInfo::default());
        assert!(text.contains("imports x; to grant it\n"), "{text}");
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn one_plugin_shows_what_each_function_costs_and_when_it_is_asked_again() {
        let reports = reports();
        let text = one_text(find(&reports, "nvidia").unwrap(), NOW, &TerminalInfo::default());
        for part in [
            "kind        device plugin 1.0.0\n",
            "state       quarantined\n",
            "strikes     7, of which 5 of 5 count against the plugin\n",
            "quarantine  since 10s ago, tried again in 9m50s, after 1 relapse\n",
            "because     5 strikes\\u{1b}\n",
            "struck by   task t of group g of job j: 2\n",
            "fingerprint failed 3 times in a row\n",
            "last error  10s ago: it hangs\\u{1b}\n",
            "last answer 1m00s ago\n",
            "asked again in 4 s\n",
            "processor   1.5 ms\n",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let row = text.lines().find(|line| line.starts_with("fingerprint  ")).unwrap();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words.join(" "), "fingerprint 7 3 40.0 µs 5.0 s 1.0 KiB 2.0 KiB");
        let text = one_text(find(&reports, "other").unwrap(), NOW, &TerminalInfo::default());
        assert!(text.contains("refused     a newer one is there\n"), "{text}");
    }

    #[test]
    fn an_unknown_plugin_is_said_to_be_unknown() {
        let Err(CliError::Wrong(message)) = find(&reports(), "nope") else { panic!("found") };
        assert!(message.contains("no plugin nope"), "{message}");
    }
}
