//! `ostler node drain` and `node eligibility`.
//!
//! ```text
//!   enable ─► PUT drain ─► follow: allocations of the node ─ no drain any more ─► the allocations once more ─► done
//!   monitor ──────────────────┘          ▲ a line for each that ends
//! ```
//! Allocations that a drain lets run on do not count as left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use crate::answer;
use crate::args::node::{DrainArgs, EligibilityArgs};
use crate::connect::{self, CliError, run_until_interrupted};
use crate::exit::Exit;
use crate::output::{self, say};
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_api::routes::endpoints as routes;
use ostler_model::alloc::{ClientStatus, DesiredStatus};
use ostler_model::ids::AllocId;
use ostler_model::words::count_noun;
use ostler_wire::{Alloc, DrainRequest, DrainSpec, EligibilityRequest, WireNode};

/// Switch on or off whether new allocations are placed on the node.
pub(super) async fn eligibility(
    args: &EligibilityArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let id = own_id(&client).await?;
    let eligibility = if args.enable { "eligible" } else { "ineligible" };
    let request = EligibilityRequest { node_id: id.clone(), eligibility: eligibility.to_owned() };
    let report = |_| say(&format!("node {} is {eligibility}", shown_id(&id)));
    answer::put(&client, routes::SetEligibility::request([&id]), &request, report, terminal).await
}

/// Begin, end or follow a drain of the node.
pub(super) async fn drain(args: &DrainArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    if !(args.enable || args.disable || args.monitor) {
        let message = "say what to do: --enable, --disable or --monitor";
        return Err(CliError::Wrong(message.to_owned()));
    }
    let client = connect::connect(&args.answer.agent)?;
    let id = own_id(&client).await?;
    let mut ignores_system = args.ignore_system;
    if args.monitor {
        let node = client.send(&routes::ReadNode::request([&id])).await?;
        if !node.drain {
            say(&no_drain_text(&node));
            return Ok(Exit::Success);
        }
        ignores_system = node.drain_strategy.is_some_and(|drain| drain.ignore_system_jobs);
    } else {
        let request = DrainRequest {
            node_id: id.clone(),
            drain_spec: args.enable.then(|| drain_spec(args)),
            mark_eligible: args.disable && !args.keep_ineligible,
        };
        let drain = routes::DrainNode::request([&id]).read_as::<Value>();
        let answer = client.send_body(&drain, &request).await?;
        let json = terminal.json;
        match (args.disable, args.keep_ineligible) {
            _ if json && (args.disable || args.detach) => output::print_json(&answer, terminal)?,
            (true, true) => say(&format!("node {} is no longer being drained", shown_id(&id))),
            (true, false) => {
                say(&format!("node {} is no longer being drained, and is eligible", shown_id(&id)));
            }
            _ if json => {}
            _ => say(&format!("node {} is being drained", shown_id(&id))),
        }
        if args.disable || args.detach {
            return Ok(Exit::Success);
        }
    }
    let hint = "the drain continues; `ostler node drain --disable` ends it";
    let mut follow = DrainFollower { seen: DrainState::new(ignores_system), terminal };
    run_until_interrupted(hint, follow.follow_to_the_end(&client, &id)).await?;
    Ok(Exit::Success)
}

fn drain_spec(args: &DrainArgs) -> DrainSpec {
    let deadline = match (args.force, args.no_deadline) {
        (true, _) => -1,
        (_, true) => 0,
        // Zero would mean that there is no deadline.
        _ if args.deadline == Duration::ZERO => -1,
        _ => i64::try_from(args.deadline.as_nanos()).unwrap_or(i64::MAX),
    };
    DrainSpec { deadline, ignore_system_jobs: args.ignore_system }
}

async fn own_id(client: &ApiClient) -> Result<String, CliError> {
    let nodes = client.send(&routes::ListNodes::request([])).await?;
    let own = nodes.into_iter().next();
    own.map(|node| node.id.into_owned())
        .ok_or_else(|| CliError::Cannot("the agent reports no node".to_owned()))
}

/// The message that there is no drain to follow: it has ended, or never began.
fn no_drain_text(node: &WireNode) -> String {
    let (id, eligibility) = (shown_id(&node.id), one_line(&node.scheduling_eligibility));
    let next = match eligibility.as_str() {
        "eligible" => "`ostler node drain --enable` empties it",
        _ => "`ostler node eligibility --enable` lets it take new allocations again",
    };
    format!(
        "node {id} is not being drained, and is {eligibility}: there is nothing to follow; {next}"
    )
}

fn shown_id(id: &str) -> String {
    one_line(&output::short_id(id))
}

/// Follows a drain.
struct DrainFollower<'a> {
    seen: DrainState,
    terminal: &'a TerminalInfo,
}

impl DrainFollower<'_> {
    /// Print which allocations end, until the node is not drained any more.
    async fn follow_to_the_end(&mut self, client: &ApiClient, id: &str) -> Result<(), CliError> {
        let (node, allocs) =
            (routes::ReadNode::request([&id]), routes::ListNodeAllocs::request([&id]));
        client
            .watch_until(&allocs, async |allocs: Vec<Alloc>| -> Result<Option<()>, CliError> {
                self.report_news(&allocs)?;
                let drains = client.send(&node).await?.drain;
                Ok((!drains).then_some(()))
            })
            .await?;
        // The last list may be older than the end of the drain.
        self.report_news(&client.send(&allocs).await?)?;
        if !self.terminal.json {
            say(&self.seen.end_text());
        }
        Ok(())
    }

    /// Print the news of the allocations, and how many are left when one has ended.
    fn report_news(&mut self, allocs: &[Alloc]) -> Result<(), CliError> {
        let found = self.seen.update(allocs);
        for news in &found {
            if self.terminal.json {
                let line = output::visible_json(news.json().to_string());
                output::print(&(line + "\n"), self.terminal)?;
            } else {
                say(&news.text());
            }
        }
        let left = self.seen.count_left();
        if !self.terminal.json && left > 0 && found.iter().any(|news| news.what == "ended") {
            say(&format!("{} left", count_noun(left, "allocation")));
        }
        Ok(())
    }
}

/// The last known states of the allocations of the node.
#[derive(Default)]
struct DrainState {
    allocs: BTreeMap<AllocId, (DesiredStatus, ClientStatus)>,
    /// Whether the drain lets allocations of system jobs run on.
    ignores_system: bool,
    /// The allocations that run on.
    system: BTreeSet<AllocId>,
}

/// A piece of news about an allocation.
#[derive(Debug, PartialEq, Eq)]
struct DrainNews {
    alloc: AllocId,
    name: String,
    what: &'static str,
    status: ClientStatus,
}

impl DrainNews {
    fn text(&self) -> String {
        let status = match self.what {
            "ended" => format!(" ({})", self.status),
            _ => String::new(),
        };
        format!("{} {} {}{status}", self.alloc.short(), one_line(&self.name), self.what)
    }

    fn json(&self) -> Value {
        json!({
            "alloc": self.alloc, "name": self.name, "what": self.what, "status": self.status,
        })
    }
}

impl DrainState {
    /// The state at the beginning, without any allocation.
    fn new(ignores_system: bool) -> Self {
        Self { ignores_system, ..Self::default() }
    }

    /// The news since the last call. The first call reports the allocations that
    /// are already stopping.
    fn update(&mut self, allocs: &[Alloc]) -> Vec<DrainNews> {
        let mut found = Vec::new();
        for alloc in allocs {
            let now = (alloc.desired_status, alloc.client_status);
            let before = self.allocs.insert(alloc.id, now);
            if self.ignores_system && alloc.desired_status == DesiredStatus::Run && is_system(alloc)
            {
                self.system.insert(alloc.id);
            } else {
                self.system.remove(&alloc.id);
            }
            let live = |seen: &(DesiredStatus, ClientStatus)| !seen.1.is_terminal();
            let news = |what| DrainNews {
                alloc: alloc.id,
                name: alloc.name.to_string(),
                what,
                status: alloc.client_status,
            };
            let stops = now.0 == DesiredStatus::Stop && live(&now);
            let stopped = before.is_some_and(|before| before.0 == DesiredStatus::Stop);
            if stops && !stopped {
                found.push(news("stops"));
            } else if before.as_ref().is_some_and(live) && !live(&now) {
                found.push(news("ended"));
            }
        }
        found
    }

    /// The number of allocations that still have to end.
    fn count_left(&self) -> usize {
        self.live_ids().filter(|id| !self.system.contains(id)).count()
    }

    fn live_ids(&self) -> impl Iterator<Item = &AllocId> {
        self.allocs.iter().filter(|(_, (_, status))| !status.is_terminal()).map(|(id, _)| id)
    }

    /// The message when the node is not drained any more.
    fn end_text(&self) -> String {
        let run_on = self.live_ids().filter(|id| self.system.contains(id)).count();
        match (self.count_left(), run_on) {
            (0, 0) => "the drain is complete: nothing runs".to_owned(),
            (0, run_on) => format!(
                "the drain is complete: {} of system jobs run{} on",
                count_noun(run_on, "allocation"),
                if run_on == 1 { "s" } else { "" },
            ),
            (left, _) => {
                format!(
                    "the node is no longer being drained: {} left",
                    count_noun(left, "allocation")
                )
            }
        }
    }
}

/// Is the allocation of a job that runs on every node?
fn is_system(alloc: &Alloc) -> bool {
    let of_alloc = alloc.job.as_ref().map(|job| &job.kind);
    matches!(of_alloc.or(alloc.job_type.as_ref()).map(|kind| &**kind), Some("system" | "sysbatch"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn alloc(desired: &str, status: &str) -> Alloc<'static> {
        serde_json::from_value(json!({
            "ID": "0f01c0de-0000-4000-8000-000000000000", "Name": "web.g[0]",
            "DesiredStatus": desired, "ClientStatus": status,
        }))
        .unwrap()
    }

    #[test]
    fn where_no_drain_is_under_way_that_is_said_and_not_that_one_is_complete() {
        let node = |eligibility: &str| {
            let node = json!({"ID": "0f01c0de-0000", "SchedulingEligibility": eligibility});
            no_drain_text(&serde_json::from_value(node).unwrap())
        };
        let text = node("eligible");
        assert!(text.starts_with("node 0f01c0de is not being drained, and is eligible"), "{text}");
        assert!(text.ends_with("`ostler node drain --enable` empties it"), "{text}");
        let text = node("ineligible");
        assert!(text.contains("is ineligible") && text.contains("eligibility --enable"), "{text}");
    }

    #[test]
    fn each_allocation_that_stops_and_ends_is_told_once() {
        let mut seen = DrainState::default();
        let mut texts = |one: Alloc<'static>| -> Vec<String> {
            seen.update(&[one]).iter().map(DrainNews::text).collect()
        };
        assert_eq!(texts(alloc("run", "running")), [""; 0]);
        assert_eq!(texts(alloc("stop", "running")), ["0f01c0de web.g[0] stops"]);
        assert_eq!(texts(alloc("stop", "running")), [""; 0]);
        assert_eq!(texts(alloc("stop", "complete")), ["0f01c0de web.g[0] ended (complete)"]);
        assert_eq!(texts(alloc("stop", "complete")), [""; 0]);
        assert_eq!(
            (seen.count_left(), seen.end_text().as_str()),
            (0, "the drain is complete: nothing runs")
        );
    }

    /// Of a job of this type, one that nobody stopped.
    fn runs(number: u32, kind: &str) -> Alloc<'static> {
        serde_json::from_value(json!({
            "ID": format!("{number:08x}-0000-4000-8000-000000000000"), "Name": "j.g[0]",
            "DesiredStatus": "run", "ClientStatus": "running", "Job": { "ID": "j", "Type": kind },
        }))
        .unwrap()
    }

    #[test]
    fn what_a_drain_lets_run_on_is_not_left_of_it() {
        let allocs = [runs(1, "system"), runs(2, "sysbatch"), runs(3, "service")];
        let said = |ignores_system: bool, allocs: &[Alloc]| {
            let mut seen = DrainState::new(ignores_system);
            seen.update(allocs);
            (seen.count_left(), seen.end_text())
        };
        let ended = |end: &str| format!("the drain is complete: {end}");
        assert_eq!(said(true, &allocs[..2]), (0, ended("2 allocations of system jobs run on")));
        assert_eq!(said(true, &allocs[..1]), (0, ended("1 allocation of system jobs runs on")));
        let left = |count: &str| format!("the node is no longer being drained: {count} left");
        assert_eq!(said(true, &allocs), (1, left("1 allocation")));
        assert_eq!(said(false, &allocs), (3, left("3 allocations")));
        // One that somebody stops meanwhile has to end.
        let mut stopping = runs(1, "system");
        stopping.desired_status = DesiredStatus::Stop;
        assert_eq!(said(true, &[stopping]), (1, left("1 allocation")));
    }
}
