//! `ostler job plan`

use std::fmt::Write as _;

use serde_json::Value;

use super::next_command::{next_command, own_words};
use super::plan_devices;
use crate::args::job::JobPlanArgs;
use crate::connect::{self, CliError};
use crate::exit::Exit;
use crate::output::{self, table};
use crate::terminal::{TerminalInfo, one_line, plain};
use ostler_agent::DeviceExplanation;
use ostler_api::routes::endpoints as routes;
use ostler_wire::JobRequest;

/// The agent's answer to a plan.
type Plan<'a> = ostler_wire::JobPlanResponse<'a, Vec<DeviceExplanation>>;

/// Say what a job file would change.
pub(super) async fn plan(args: &JobPlanArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let input = super::read_with_warnings(&args.source, terminal)?;
    let job = input.job();
    let client = client.or_in_namespace(job.namespace());
    let body = JobRequest { diff: Some(true), ..super::job_request(job) };
    let request = routes::PlanJob::request([&job.id]).read_as::<Value>();
    let answer = client.send_body(&request, &body).await;
    let answer = super::check_answer(answer, &client, &input).await?;
    let plan: Plan = serde_json::from_value(answer.clone())
        .map_err(|error| CliError::Cannot(format!("the agent's plan cannot be read: {error}")))?;
    let text = || {
        let run = format!("run --check-index {}", plan.job_modify_index);
        let command = next_command(own_words(), "plan", &run);
        text(job.id.as_str(), &command, &plan, terminal)
    };
    crate::answer::show(&answer, text, terminal)?;
    Ok(exit(&plan))
}

/// The exit code of the program after this plan.
fn exit(plan: &Plan) -> Exit {
    let changes = plan.annotations.groups.values().any(|group| group.has_changes());
    match (plan.waiting.is_empty(), changes || !plan.changes.is_empty()) {
        (false, _) => Exit::Agent,
        (true, true) => Exit::Changes,
        (true, false) => Exit::Success,
    }
}

fn text(job: &str, command: &str, plan: &Plan, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let state = if plan.job_modify_index == 0 { "new" } else { "known" };
    let _ = writeln!(text, "job {} ({state})", one_line(job));
    let section =
        |text: &mut String, title: &str| text.push_str(&output::section(title, "", terminal));
    if !plan.changes.is_empty() {
        section(&mut text, "what differs");
        for line in plan.changes.iter().flat_map(|change| change.lines()) {
            let _ = writeln!(text, "  {}", one_line(line));
        }
    }
    section(&mut text, "allocations");
    text.push_str(&groups(plan, terminal));
    if !plan.devices.is_empty() {
        section(&mut text, "devices");
        text.push_str(&plan_devices::text(&plan.devices));
    }
    if !plan.new_warnings().is_empty() {
        section(&mut text, "warnings");
        let _ = writeln!(text, "{}", plain(&plan.new_warnings()));
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
            let _ = writeln!(
                text,
                "\nto run it only if the job is not changed meanwhile:\n  {command}"
            );
        }
    }
    text
}

/// A table of what happens to each group at once, and what later.
fn groups(plan: &Plan, terminal: &TerminalInfo) -> String {
    let all = plan.annotations.groups.iter();
    let rows: Vec<(String, [u32; 8])> = all
        .map(|(name, group)| {
            let counts = [
                group.place.saturating_sub(group.waiting),
                group.canary,
                group.in_place_update,
                group.destructive_update,
                group.later,
                group.stop,
                group.waiting,
                group.ignore.saturating_sub(group.later),
            ];
            (name.to_string(), counts)
        })
        .collect();
    let shown = table(
        [
            "GROUP",
            "NEW",
            "CANARY",
            "IN PLACE",
            "REPLACED",
            "LATER",
            "STOPPED",
            "WAITING",
            "UNCHANGED",
        ],
        rows.iter().map(|(name, counts)| {
            let [a, b, c, d, e, f, g, h] = counts.map(|count| count.to_string());
            [name.clone(), a, b, c, d, e, f, g, h]
        }),
        terminal,
    );
    let later = rows.iter().any(|(_, [_, _, _, _, later, ..])| *later > 0);
    let note = "later: replaced or stopped step by step, as the update block says, after what is done at once\n";
    if later { shown + note } else { shown }
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
        text("j", "ostler job run --check-index 42 j.hcl", plan, &TerminalInfo::default())
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
        assert_eq!(row, ["web", "1", "0", "0", "0", "0", "0", "0", "2"]);
        assert!(text.contains("warnings\nhm\n"), "{text}");
        assert!(text.ends_with("  ostler job run --check-index 42 j.hcl\n"), "{text}");
    }

    #[test]
    fn what_would_wait_is_shown_with_the_reason_and_how_to_run_it_all_the_same() {
        let text = shown(&plan(json!({ "Waiting": ["group web: no\x1b memory"] })));
        assert!(text.contains("what would wait\n  group web: no\\u{1b} memory\n"), "{text}");
        assert!(text.contains("check-index"), "{text}");
    }

    #[test]
    fn what_comes_later_waits_or_is_tried_first_is_counted_apart() {
        let updates = json!({ "DesiredTGUpdates": {
            "web": { "Place": 3, "Waiting": 1, "Ignore": 4, "Later": 3, "DestructiveUpdate": 1 },
            "try": { "Canary": 2, "Ignore": 4, "Later": 4 },
        } });
        let both = plan(json!({ "Annotations": updates }));
        assert_eq!(exit(&both), Exit::Changes);
        let text = shown(&both);
        let row = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().skip(1).map(str::to_owned).collect()
        };
        assert_eq!(row("web"), ["2", "0", "0", "1", "3", "0", "1", "1"], "{text}");
        assert_eq!(row("try"), ["0", "2", "0", "0", "4", "0", "0", "0"], "{text}");
        assert!(text.contains("\nlater: replaced or stopped"), "{text}");
    }

    #[test]
    fn a_difference_of_several_lines_is_shown_line_by_line() {
        let change = "group \"g\" task \"t\" template \"x\" data:\n  - a\x1b\n  + b";
        let text = shown(&plan(json!({ "Changes": [change] })));
        let expected = "  group \"g\" task \"t\" template \"x\" data:\n    - a\\u{1b}\n    + b\n";
        assert!(text.contains(expected), "{text}");
    }
}
