//! `ostler job plan`

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::super::args::job::JobPlanArgs;
use super::super::connect::{self, Stop};
use super::super::exit::Exit;
use super::super::output::{self, table};
use super::super::terminal::{Terminal, one_line, plain};
use super::plan_devices;
use ostler_agent::DeviceExplanation;
use ostler_api::client::segment;
use ostler_wire::JobRequest;

/// What the agent says of a plan.
type Plan<'a> = ostler_wire::Plan<'a, Vec<DeviceExplanation>>;

/// Say what a job file would change.
pub(super) async fn plan(args: &JobPlanArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let client = connect::connect(&args.answer.agent)?;
    let input = super::read(&args.source, terminal)?;
    let job = input.job();
    let client = client.or_within(job.namespace());
    let path = format!("/v1/job/{}/plan", segment(job.id.as_str()));
    let body = JobRequest { diff: Some(true), ..super::request(job) };
    let answer: Result<Value, _> = client.put(&path, &body).await;
    let answer = super::told(answer, &client, &input).await?;
    let plan: Plan = serde_json::from_value(answer.clone())
        .map_err(|error| Stop::Cannot(format!("the agent's plan cannot be read: {error}")))?;
    let text = || text(job.id.as_str(), &args.source.file, &plan, terminal);
    output::show(args.answer.json, &answer, text, terminal)?;
    Ok(exit(&plan))
}

/// How the program ends on it.
fn exit(plan: &Plan) -> Exit {
    let changes = plan.annotations.groups.values().any(|group| group.changes());
    match (plan.waiting.is_empty(), changes || !plan.changes.is_empty()) {
        (false, _) => Exit::Agent,
        (true, true) => Exit::Changes,
        (true, false) => Exit::Success,
    }
}

fn text(job: &str, file: &Path, plan: &Plan, terminal: &Terminal) -> String {
    let mut text = String::new();
    let state = if plan.job_modify_index == 0 { "new" } else { "known" };
    let _ = writeln!(text, "job {} ({state})", one_line(job));
    let section =
        |text: &mut String, title: &str| text.push_str(&output::section(title, "", terminal));
    if !plan.changes.is_empty() {
        section(&mut text, "what differs");
        for change in plan.changes.iter() {
            let _ = writeln!(text, "  {}", one_line(change));
        }
    }
    section(&mut text, "allocations");
    let rows = plan.annotations.groups.iter().map(|(name, group)| {
        let counts = [
            group.place,
            group.in_place_update,
            group.destructive_update,
            group.stop,
            group.ignore,
        ];
        let [place, in_place, destructive, stop, ignore] = counts.map(|count| count.to_string());
        [name.to_string(), place, in_place, destructive, stop, ignore]
    });
    let header = ["GROUP", "NEW", "IN PLACE", "REPLACED", "STOPPED", "UNCHANGED"];
    text.push_str(&table(header, rows, terminal));
    if !plan.devices.is_empty() {
        section(&mut text, "devices");
        text.push_str(&plan_devices::text(&plan.devices));
    }
    if !plan.told().is_empty() {
        section(&mut text, "warnings");
        let _ = writeln!(text, "{}", plain(&plan.told()));
    }
    if !plan.waiting.is_empty() {
        section(&mut text, "what would wait");
        for waiting in &plan.waiting {
            let _ = writeln!(text, "  {}", one_line(waiting));
        }
    }
    match exit(plan) {
        Exit::Success => text.push_str("\nnothing would change\n"),
        _ => {
            let (index, file) = (plan.job_modify_index, one_line(&file.display().to_string()));
            let _ = writeln!(
                text,
                "\nto run it only if nobody changes the job meanwhile:\n  \
                 ostler job run --check-index {index} {file}"
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn plan(value: Value) -> Plan<'static> {
        serde_json::from_value(value).unwrap()
    }

    fn updates(place: u32, ignore: u32) -> Value {
        json!({ "DesiredTGUpdates": { "web": { "Place": place, "Ignore": ignore } } })
    }

    fn shown(plan: &Plan) -> String {
        text("j", Path::new("j.hcl"), plan, &Terminal::default())
    }

    #[test]
    fn the_exit_code_tells_unchanged_changed_and_waiting() {
        let none = plan(json!({ "Annotations": updates(0, 2), "JobModifyIndex": 9 }));
        assert_eq!(exit(&none), Exit::Success);
        assert!(shown(&none).ends_with("nothing would change\n"));
        let some =
            plan(json!({ "Annotations": updates(1, 2), "Changes": ["group web: count 2 -> 3"] }));
        assert_eq!(exit(&some), Exit::Changes);
        let quiet = plan(json!({ "Annotations": updates(0, 2), "Changes": ["priority 50 -> 60"] }));
        assert_eq!(exit(&quiet), Exit::Changes);
        let waits = plan(json!({ "Annotations": updates(1, 0), "Waiting": ["no\x1b memory"] }));
        assert_eq!(exit(&waits), Exit::Agent);
    }

    #[test]
    fn a_plan_shows_what_differs_what_happens_and_how_to_run_it() {
        let plan = plan(json!({
            "Annotations": updates(1, 2),
            "JobModifyIndex": 42,
            "Changes": ["group web: count 2 -> 3\x07"],
            "Warnings": "hm",
        }));
        let text = shown(&plan);
        assert!(text.starts_with("job j (known)\n"), "{text}");
        assert!(text.contains("\n  group web: count 2 -> 3\\u{7}\n"), "{text}");
        let row: Vec<&str> =
            text.lines().find(|l| l.starts_with("web")).unwrap().split_whitespace().collect();
        assert_eq!(row, ["web", "1", "0", "0", "0", "2"]);
        assert!(text.contains("warnings\nhm\n"), "{text}");
        assert!(text.ends_with("  ostler job run --check-index 42 j.hcl\n"), "{text}");
    }

    #[test]
    fn what_would_wait_is_shown_with_the_reason_and_how_to_run_it_all_the_same() {
        let text = shown(&plan(json!({ "Waiting": ["group web: no\x1b memory"] })));
        assert!(text.contains("what would wait\n  group web: no\\u{1b} memory\n"), "{text}");
        assert!(text.contains("check-index 0"), "{text}");
    }
}
