//! `ostler deployment …`

use serde_json::Value;

use super::answer;
use super::args::client::AddressArgs;
use super::args::deployment::{
    DeploymentChangeArgs, DeploymentCommand, DeploymentListArgs, DeploymentOneArgs,
    DeploymentPromoteArgs,
};
use super::connect::{self, CliError, single_match};
use super::consent::{ChangeTarget, ConsentRequest, require_consent};
use super::exit::Exit;
use super::output::{self, age_text, say, section, short_id, table};
use super::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_api::routes::{QueryKey, endpoints as routes};
use ostler_model::clock::Clock;
use ostler_wire::{Alloc, DeploymentUpdateResponse, PauseRequest, PromoteRequest, WireDeployment};

/// Run one of the commands.
pub(super) async fn run(
    command: &DeploymentCommand,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    match command {
        DeploymentCommand::List(args) => list(args, terminal).await,
        DeploymentCommand::Status(args) => status(args, terminal).await,
        DeploymentCommand::Promote(args) => promote(args, terminal).await,
        DeploymentCommand::Fail(args) => fail(args, terminal).await,
        DeploymentCommand::Pause(args) => pause(args, true, terminal).await,
        DeploymentCommand::Resume(args) => pause(args, false, terminal).await,
    }
}

/// Find the deployment whose id begins with `given`.
async fn find(client: &ApiClient, given: &str) -> Result<String, CliError> {
    let prefix = connect::id_prefix(given).ok_or_else(|| {
        CliError::Wrong(format!(
            "{given:?} is not the id of a deployment; `ostler deployment list` lists them"
        ))
    })?;
    let request = connect::in_namespaces(client, routes::ListDeployments::request([]));
    let found = client.send(&request.with(QueryKey::Prefix, &prefix)).await?;
    let one = single_match(
        found,
        &format!("no deployment's id begins with {prefix}; `ostler deployment list` lists them"),
        &format!("deployments' ids begin with {prefix}"),
        |one| format!("{} {} version {} ({})", one.id, one.job_id, one.job_version, one.status),
    )?;
    Ok(one.id.into_owned())
}

/// Find the deployment to be changed, and make a client of its agent.
async fn find_for_change(
    agent: &AddressArgs,
    given: &str,
    change: ConsentRequest<'_>,
) -> Result<(ApiClient, String), CliError> {
    let client = connect::connect(agent)?;
    let id = find(&client, given).await?;
    require_consent(&ChangeTarget { what: "deployment", given, meant: &id, drawn: true }, change)?;
    Ok((client, id))
}

async fn list(args: &DeploymentListArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let request = connect::in_namespaces(&client, routes::ListDeployments::request([]));
    answer::get(&client, request, |all| list_text(&all, terminal), terminal).await
}

fn list_text(all: &[WireDeployment], terminal: &TerminalInfo) -> String {
    if all.is_empty() {
        return "no deployments\n".to_owned();
    }
    let rows = all.iter().map(|one| {
        [
            short_id(&one.id),
            one.job_id.to_string(),
            one.namespace.to_string(),
            one.job_version.to_string(),
            one.status.to_string(),
            one.status_description.to_string(),
        ]
    });
    table(["ID", "JOB", "NAMESPACE", "VERSION", "STATUS", "DESCRIPTION"], rows, terminal)
}

async fn status(args: &DeploymentOneArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let id = find(&client, &args.deployment).await?;
    let request = routes::ReadDeployment::request([&id]);
    if terminal.json {
        let one = client.send(&request.read_as::<Value>()).await?;
        output::print_json(&one, terminal)?;
        return Ok(Exit::Success);
    }
    let one = client.send(&request).await?;
    let allocs = client.send(&routes::ListDeploymentAllocs::request([&id])).await?;
    output::print(&status_text(&one, &allocs, terminal), terminal)?;
    Ok(Exit::Success)
}

fn status_text(one: &WireDeployment, allocs: &[Alloc], terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| output::fact(&mut text, 13, name, value);
    line("deployment", &one.id);
    line("job", &one.job_id);
    line("version", &one.job_version.to_string());
    line("status", &one.status);
    line("description", &one.status_description);
    let rows = one.task_groups.iter().map(|(name, group)| {
        let promoted = match (group.desired_canaries, group.promoted) {
            (0, _) => String::new(),
            (_, true) => "yes".to_owned(),
            (_, false) => "no".to_owned(),
        };
        let canaries = group.placed_canaries.len();
        [
            name.to_string(),
            promoted,
            format!("{canaries}/{}", group.desired_canaries),
            group.desired_total.to_string(),
            group.placed_allocs.to_string(),
            group.healthy_allocs.to_string(),
            group.unhealthy_allocs.to_string(),
            Some(&group.require_progress_by)
                .filter(|by| **by != ostler_wire::NEVER && one.status == "running")
                .map(ToString::to_string)
                .unwrap_or_default(),
        ]
    });
    let header = [
        "GROUP",
        "PROMOTED",
        "CANARIES",
        "DESIRED",
        "PLACED",
        "HEALTHY",
        "UNHEALTHY",
        "PROGRESS BY",
    ];
    text.push_str(&section("groups", &table(header, rows, terminal), terminal));
    let now = Clock::system().now();
    let rows = allocs.iter().map(|alloc| {
        let health = match alloc.healthy() {
            Some(true) => "healthy",
            Some(false) => "unhealthy",
            None => "",
        };
        [
            alloc.id.short(),
            alloc.task_group.to_string(),
            alloc.desired_word().to_owned(),
            alloc.client_status.to_string(),
            health.to_owned(),
            age_text(alloc.create_time, now),
        ]
    });
    let header = ["ID", "GROUP", "DESIRED", "STATUS", "HEALTH", "CREATED"];
    text.push_str(&section("allocations", &table(header, rows, terminal), terminal));
    text
}

async fn promote(args: &DeploymentPromoteArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let change = ConsentRequest { verb: "promote", agree: args.agree, terminal };
    let (client, id) = find_for_change(&args.answer.agent, &args.deployment, change).await?;
    promote_one(&client, &id, &args.group, terminal).await
}

/// Accept the canaries of these groups, or of all.
pub(super) async fn promote_one(
    client: &ApiClient,
    id: &str,
    groups: &[String],
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let body = PromoteRequest {
        deployment_id: id.to_owned(),
        all: groups.is_empty(),
        groups: groups.to_vec(),
    };
    let request = routes::PromoteDeployment::request([&id]);
    answer::put(client, request, &body, |done| report_change(id, "is promoted", &done), terminal)
        .await
}

async fn fail(args: &DeploymentChangeArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let change = ConsentRequest { verb: "fail", agree: args.agree, terminal };
    let (client, id) = find_for_change(&args.answer.agent, &args.deployment, change).await?;
    let request = routes::FailDeployment::request([&id]);
    answer::put(&client, request, &(), |done| report_change(&id, "was given up", &done), terminal)
        .await
}

/// Pause a deployment, or let it go on.
async fn pause(
    args: &DeploymentChangeArgs,
    pause: bool,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let (verb, state) = if pause { ("pause", "is paused") } else { ("resume", "goes on") };
    let change = ConsentRequest { verb, agree: args.agree, terminal };
    let (client, id) = find_for_change(&args.answer.agent, &args.deployment, change).await?;
    let (request, body) = (
        routes::PauseDeployment::request([&id]),
        PauseRequest { pause, ..PauseRequest::default() },
    );
    answer::put(&client, request, &body, |done| report_change(&id, state, &done), terminal).await
}

/// Say what was done with a deployment.
fn report_change(id: &str, state: &str, done: &DeploymentUpdateResponse) {
    say(&format!("deployment {} {state}", one_line(&short_id(id))));
    if let Some(version) = done.reverted_job_version {
        say(&format!("the job goes back to what it was at version {version}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_deployment_shows_how_far_its_groups_are() {
        let one: WireDeployment = serde_json::from_value(json!({
            "ID": "0f01c0de-0000-4000-8000-000000000000", "JobID": "web", "JobVersion": 3,
            "Namespace": "prod",
            "Status": "running", "StatusDescription": "Deployment is running but requires manual promotion",
            "TaskGroups": { "g": {
                "DesiredCanaries": 2, "PlacedCanaries": ["0f01c0de-0000-4000-8000-000000000001"],
                "DesiredTotal": 4, "PlacedAllocs": 1, "HealthyAllocs": 1, "UnhealthyAllocs": 0,
                "RequireProgressBy": "2026-11-20T15:20:14Z",
            } },
        }))
        .unwrap();
        let text = status_text(&one, &[], &TerminalInfo::default());
        let row = text.lines().find(|line| line.starts_with("g ")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells, ["g", "no", "1/2", "4", "1", "1", "0", "2026-11-20T15:20:14Z"]);
        let list = list_text(std::slice::from_ref(&one), &TerminalInfo::default());
        let cells: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().take(5).collect();
        assert_eq!(cells, ["0f01c0de", "web", "prod", "3", "running"], "{list}");
    }
}
