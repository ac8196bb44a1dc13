//! `ostler device …`

use super::answer;
use super::args::device::{AgentSource, DeviceCommand, DeviceListArgs, DeviceStatusArgs};
use super::connect::{self, CliError};
use super::exit::Exit;
use super::human;
use super::output::{self, age_text, table};
use super::stat_values;
use super::terminal::{TerminalInfo, one_line};
use ostler_agent::{AgentHandle, DeviceGroupReport, DeviceHolder, DeviceReport};
use ostler_api::routes::endpoints as routes;
use ostler_model::clock::Clock;
use ostler_model::time::Timestamp;
use ostler_wire::WireStatValue;

/// Run one of the commands.
pub(super) async fn run(
    command: &DeviceCommand,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    match command {
        DeviceCommand::List(args) => list(args, terminal).await,
        DeviceCommand::Status(args) => status(args, terminal).await,
    }
}

/// Every device, from the running agent or from one that is started for this command alone.
async fn devices(of: &AgentSource) -> Result<Vec<DeviceGroupReport>, CliError> {
    connect::ask_agent(of, &routes::ListDevices::request([]), AgentHandle::devices).await
}

async fn list(args: &DeviceListArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let groups = devices(&args.of).await?;
    answer::show(&groups, || list_text(&groups, terminal), terminal)
}

fn list_text(groups: &[DeviceGroupReport], terminal: &TerminalInfo) -> String {
    let rows: Vec<_> = groups
        .iter()
        .flat_map(|group| group.instances.iter().map(move |device| row(group, device)))
        .collect();
    if rows.is_empty() {
        return "no devices; `ostler plugin list` shows the device plugins\n".to_owned();
    }
    let header = ["GROUP", "DEVICE", "HEALTH", "HELD BY", "LOCALITY", "MEASURED", "PLUGIN"];
    table(header, rows, terminal)
}

fn row(group: &DeviceGroupReport, device: &DeviceReport) -> [String; 7] {
    let measured = device.stats.as_ref().map_or_else(String::new, |stats| {
        let summary = stats.summary.as_ref().map(WireStatValue::from);
        let value = stat_values::value(summary.as_ref());
        if group.stale.is_some() { format!("{value} (stale)") } else { value }
    });
    [
        group.group.to_string(),
        device.id.clone(),
        human::health(&device.health),
        device.holder.as_ref().map(holder).unwrap_or_default(),
        human::locality(device.locality.as_ref()),
        measured,
        group.plugin.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}

fn holder(holder: &DeviceHolder) -> String {
    let DeviceHolder { alloc, task, job, note: _ } = holder;
    match job {
        Some(job) => format!("{job} {task} {}", alloc.short()),
        None => format!("{task} {}", alloc.short()),
    }
}

async fn status(args: &DeviceStatusArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let groups = devices(&args.of).await?;
    let (group, device) = find(&groups, &args.device)?;
    let one = DeviceGroupReport { instances: vec![device.clone()], ..group.clone() };
    let text = || status_text(group, device, Clock::system().now(), terminal);
    answer::show(&one, text, terminal)
}

/// A group and one of its devices.
type GroupedDevice<'a> = (&'a DeviceGroupReport, &'a DeviceReport);

/// The device that is meant: by group and id, by id, or by the beginning of an id.
fn find<'a>(groups: &'a [DeviceGroupReport], given: &str) -> Result<GroupedDevice<'a>, CliError> {
    let all =
        || groups.iter().flat_map(|group| group.instances.iter().map(move |one| (group, one)));
    let full = |(group, one): &GroupedDevice<'a>| format!("{}/{}", group.group, one.id);
    let begins = |one: &DeviceReport| !given.is_empty() && one.id.starts_with(given);
    let ways: [&dyn Fn(&GroupedDevice<'a>) -> bool; 3] =
        [&|found| full(found) == given, &|(_, one)| one.id == given, &|(_, one)| begins(one)];
    let found = ways.iter().map(|way| all().filter(way).collect::<Vec<_>>());
    let found = found.into_iter().find(|found| !found.is_empty()).unwrap_or_default();
    let given = one_line(given);
    connect::single_match(
        found,
        &format!("there is no device {given}; `ostler device list` lists them"),
        &format!("devices are called {given}"),
        full,
    )
}

fn status_text(
    group: &DeviceGroupReport,
    device: &DeviceReport,
    now: Timestamp,
    terminal: &TerminalInfo,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 12, name, value);
    line("device", &device.id);
    line("group", &group.group.to_string());
    line("plugin", &group.plugin.as_ref().map(ToString::to_string).unwrap_or_default());
    line("health", &human::health(&device.health));
    line("locality", &human::locality(device.locality.as_ref()));
    match &device.holder {
        None => line("held by", "no task"),
        Some(DeviceHolder { alloc, task, job, note }) => {
            let job = job.as_ref().map(|job| format!(" of job {job}")).unwrap_or_default();
            line("held by", &format!("task {task} of allocation {alloc}{job}"));
            line("", note.as_deref().unwrap_or_default());
        }
    }
    match &device.stats {
        None => line("measured", "never"),
        Some(stats) => line("measured", &age_text(stats.taken_at, now)),
    }
    line("stale", group.stale.as_deref().filter(|_| device.stats.is_some()).unwrap_or_default());
    let mut section = |title: &str, rows: Vec<[String; 2]>| {
        if !rows.is_empty() {
            let rows = table(["NAME", "VALUE"], rows, terminal);
            text.push_str(&output::section(title, &rows, terminal));
        }
    };
    let attributes = group.attributes.iter().map(|a| [a.name.clone(), a.attribute.to_string()]);
    section("attributes of the group", attributes.collect());
    if let Some(stats) = &device.stats {
        let summary = stats
            .summary
            .as_ref()
            .map(|one| ["summary".to_owned(), stat_values::value(Some(&WireStatValue::from(one)))]);
        let rows = summary.into_iter().chain(stat_values::rows(&(&stats.stats).into()));
        section("statistics", rows.collect());
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn groups() -> Vec<DeviceGroupReport> {
        let group = |name: &str, ids: &[&str]| {
            let instances: Vec<_> = ids
                .iter()
                .map(|id| json!({ "id": id, "health": { "state": "healthy", "reason": "" } }))
                .collect();
            json!({
                "group": { "vendor": "acme", "type": "gpu", "name": name },
                "plugin": "acme",
                "attributes": [
                    { "name": "memory", "attribute": { "value": 80, "unit": "GiB" } },
                ],
                "stale": null,
                "instances": instances,
            })
        };
        let mut groups = json!([group("a/1", &["0", "01"]), group("b", &["0", "x7\u{1b}"])]);
        groups[0]["instances"][0]["health"] = json!({ "state": "unhealthy", "reason": "no fan" });
        groups[0]["instances"][0]["locality"] = json!({ "pci_bus_id": "3b:0", "numa_node": 1 });
        groups[0]["instances"][0]["holder"] = json!({ "alloc": "00000007-0000-0000-0000-000000000000", "task": "train", "job": "web",
                "note": "its plugin is being asked" });
        groups[0]["stale"] = json!("plugin acme hangs");
        groups[0]["instances"][0]["stats"] = json!({
            "summary": { "int_numerator": 45, "unit": "C" },
            "stats": {
                "nested": { "fan": { "nested": {}, "attributes": { "0": { "boolean": false } } } },
                "attributes": {},
            },
            "taken_at": 1_000_000_000,
        });
        serde_json::from_value(groups).unwrap()
    }

    fn found(given: &str) -> Result<String, String> {
        let groups = groups();
        match find(&groups, given) {
            Ok((group, device)) => Ok(format!("{}:{}", group.group.name, device.id)),
            Err(CliError::Wrong(message)) => Err(message),
            Err(other) => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_device_is_found_by_group_and_id_by_id_and_by_the_beginning_of_its_id() {
        assert_eq!(found("acme/gpu/a/1/0").unwrap(), "a/1:0");
        assert_eq!(found("01").unwrap(), "a/1:01");
        assert_eq!(found("x").unwrap(), "b:x7\u{1b}");
        let two = found("0").unwrap_err();
        assert!(two.contains("acme/gpu/a/1/0\n  acme/gpu/b/0"), "{two}");
        for none in ["", "y", "acme/gpu/a/1"] {
            assert!(found(none).unwrap_err().contains("ostler device list"), "{none}");
        }
    }

    #[test]
    fn a_list_shows_health_holder_place_and_what_is_measured() {
        let text = list_text(&groups(), &TerminalInfo::default());
        let row = |at: usize| {
            let words: Vec<&str> = text.lines().nth(at).unwrap().split_whitespace().collect();
            words.join(" ")
        };
        assert_eq!(
            row(1),
            "acme/gpu/a/1 0 unhealthy: no fan web train 00000007 3b:0 numa 1 45 C (stale) acme"
        );
        assert_eq!(row(2), "acme/gpu/a/1 01 healthy acme");
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(list_text(&[], &TerminalInfo::default()).starts_with("no devices"));
    }

    #[test]
    fn a_status_shows_everything_and_says_what_is_stale() {
        let groups = groups();
        let now = Timestamp::from_nanos(5_000_000_000);
        let shown = |at: usize| {
            let device = &groups[0].instances[at];
            status_text(&groups[0], device, now, &TerminalInfo::default())
        };
        let text = shown(0);
        for part in [
            "health      unhealthy: no fan\n",
            "locality    3b:0 numa 1\n",
            "task train of allocation 00000007-0000-0000-0000-000000000000 of job web\n",
            "            its plugin is being asked\n",
            "measured    4s ago\n",
            "stale       plugin acme hangs\n",
            "memory  80 GiB\n",
            "summary  45 C\n",
            "fan.0    false\n",
        ] {
            assert!(text.contains(part), "no {part:?} in\n{text}");
        }
        let text = shown(1);
        assert!(text.contains("held by     no task\nmeasured    never\n"), "{text}");
        assert!(!text.contains("stale") && !text.contains("statistics"), "{text}");
    }
}
