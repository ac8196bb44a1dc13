//! `ostler service …`

use serde_json::Value;

use super::answer;
use super::args::service::{ServiceCommand, ServiceInfoArgs, ServiceListArgs};
use super::connect::{self, CliError};
use super::exit::Exit;
use super::output::{self, short_id, table};
use super::terminal::{TerminalInfo, one_line};
use ostler_api::routes::endpoints as routes;
use ostler_wire::{ServiceNamespace, ServiceRegistration};

/// Run one of the commands.
pub(super) async fn run(
    command: &ServiceCommand,
    verbose: bool,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    match command {
        ServiceCommand::List(args) => list(args, terminal).await,
        ServiceCommand::Info(args) => info(args, verbose, terminal).await,
    }
}

async fn list(args: &ServiceListArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let request = connect::in_namespaces(&client, routes::ListServices::request([]));
    answer::get(&client, request, |all| list_text(&all, terminal), terminal).await
}

fn list_text(all: &[ServiceNamespace], terminal: &TerminalInfo) -> String {
    let rows: Vec<_> = all
        .iter()
        .flat_map(|of| of.services.iter().map(move |service| (of, service)))
        .map(|(of, service)| {
            [service.service_name.to_string(), of.namespace.to_string(), service.tags.join(", ")]
        })
        .collect();
    if rows.is_empty() {
        return "no services run\n".to_owned();
    }
    table(["SERVICE", "NAMESPACE", "TAGS"], rows, terminal)
}

async fn info(
    args: &ServiceInfoArgs,
    verbose: bool,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let request = connect::in_namespaces(&client, routes::ReadService::request([&args.name]));
    let found = client.send(&request.read_as::<Value>()).await?;
    if found.as_array().is_none_or(Vec::is_empty) {
        let name = one_line(&args.name);
        let message = format!("no service {name} runs; `ostler service list` lists those that do");
        return Err(CliError::Wrong(message));
    }
    if terminal.json {
        output::print_json(&found, terminal)?;
        return Ok(Exit::Success);
    }
    let found: Vec<ServiceRegistration> = serde_json::from_value(found)
        .map_err(|error| CliError::Cannot(format!("the agent's answer cannot be read: {error}")))?;
    output::print(&info_text(&found, verbose, terminal), terminal)?;
    Ok(Exit::Success)
}

fn info_text(found: &[ServiceRegistration], verbose: bool, terminal: &TerminalInfo) -> String {
    let rows = found.iter().map(|of| {
        let alloc = if verbose { of.alloc_id.to_string() } else { short_id(&of.alloc_id) };
        let address = match (of.port, of.address.contains(':')) {
            (0, _) => of.address.to_string(),
            (port, true) => format!("[{}]:{port}", of.address),
            (port, false) => format!("{}:{port}", of.address),
        };
        let meta: Vec<_> = of.meta.iter().map(|(key, text)| format!("{key}={text}")).collect();
        let (job, namespace) = (of.job_id.to_string(), of.namespace.to_string());
        [job, namespace, address, of.tags.join(", "), meta.join(", "), alloc]
    });
    table(["JOB", "NAMESPACE", "ADDRESS", "TAGS", "META", "ALLOC"], rows, terminal)
}
