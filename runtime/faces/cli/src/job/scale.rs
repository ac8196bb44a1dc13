//! `ostler job scale`

use serde_json::Value;

use crate::args::job::JobScaleArgs;
use crate::connect::{self, CliError};
use crate::consent::{self, ConsentRequest};
use crate::exit::Exit;
use crate::output::{self, say};
use crate::terminal::{TerminalInfo, one_line};
use ostler_api::client::{ApiClient, ClientError, ClientTrouble};
use ostler_api::routes::endpoints as routes;
use ostler_wire::{JobScaleStatus, ScalingRequest, WireDeployment};

/// The message that the agent keeps with the event.
const MESSAGE: &str = "submitted using ostler job scale";

/// Part of the agent's message, in Nomad's words, while a deployment goes on.
const BY_DEPLOYMENT: &str = "active deployment";

/// Change the count of a group.
pub(super) async fn scale(args: &JobScaleArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.answer.agent)?;
    let change = ConsentRequest { verb: "scale", agree: args.agree, terminal };
    let (client, job) = consent::find_job(client, &args.job, change).await?;
    let status = client.send(&routes::ReadJobScale::request([&job])).await?;
    let (group, count) = parse_target(&args.group_and_count, &status).map_err(CliError::Wrong)?;
    let target = [("Job", &job), ("Group", &group)];
    let body = ScalingRequest {
        count: Some(count.into()),
        target: target.map(|(key, name)| (key.to_owned(), name.clone())).into(),
        message: MESSAGE.to_owned(),
        job_modify_index: args.check_index.unwrap_or(0),
        ..ScalingRequest::default()
    };
    let request = routes::ScaleJob::request([&job]);
    if terminal.json {
        let answer = client.send_body(&request.read_as::<Value>(), &body).await?;
        output::print_json(&answer, terminal)?;
        return Ok(Exit::Success);
    }
    let answer = match client.send_body(&request, &body).await {
        Ok(answer) => answer,
        Err(error) => return Err(explain_refusal(&client, &job, error).await),
    };
    let (shown, group) = (one_line(&job), one_line(&group));
    let version = answer.registered.version;
    say(&format!(
        "group {group} of job {shown} has count {count}: the job is at version {version}"
    ));
    if !answer.new_warnings().is_empty() {
        output::warning(terminal, &answer.new_warnings());
    }
    Ok(Exit::Success)
}

/// The error of a request that was refused. If a deployment is in the way, the message names it and
/// says what to do about it.
async fn explain_refusal(client: &ApiClient, job: &str, error: ClientError) -> CliError {
    let by_deployment = matches!(
        &error,
        ClientError::Failed { trouble: ClientTrouble::Refused { text, .. }, .. } if text.contains(BY_DEPLOYMENT)
    );
    if !by_deployment {
        return error.into();
    }
    // Without the list the original error is reported.
    let all = client.send(&routes::ListJobDeployments::request([&job])).await.unwrap_or_default();
    match blocking_deployment(job, &all) {
        Some(message) => CliError::Failed(message, Exit::from(&error)),
        None => error.into(),
    }
}

/// The message about the deployment that goes on, with what to do about it.
fn blocking_deployment(job: &str, all: &[WireDeployment]) -> Option<String> {
    let over =
        |one: &&WireDeployment| ["successful", "failed", "cancelled"].contains(&&*one.status);
    let one = all.iter().find(|one| !over(one))?;
    let short = one_line(&output::short_id(&one.id));
    Some(format!(
        "job {} is not scaled while its deployment {short} is under way: wait for its end (`ostler deployment status \
         {short}` says how far it is), or end it with `ostler deployment fail {short}`",
        one_line(job)
    ))
}

/// The group and the count that the arguments name, or what is wrong with them.
fn parse_target(given: &[String], status: &JobScaleStatus) -> Result<(String, u32), String> {
    let known = || {
        let names: Vec<String> = status.task_groups.keys().map(|name| one_line(name)).collect();
        names.join(", ")
    };
    let (group, count) = match given {
        [count] => {
            let mut groups = status.task_groups.keys();
            match (groups.next(), groups.next()) {
                (Some(only), None) => (only.to_string(), count),
                _ => return Err(format!("which group? The job has {}", known())),
            }
        }
        [group, count] if status.task_groups.contains_key(group.as_str()) => (group.clone(), count),
        [group, _] => {
            return Err(format!("the job has no group {}; it has {}", one_line(group), known()));
        }
        _ => return Err("a group and a count are needed".to_owned()),
    };
    let count = count
        .parse()
        .map_err(|_| format!("the count must be a whole number from 0, not {}", one_line(count)))?;
    Ok((group, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[&str], groups: &[&str]) -> Result<(String, u32), String> {
        let groups = groups.iter().map(|name| ((*name).into(), Default::default()));
        let status = JobScaleStatus { task_groups: groups.collect(), ..Default::default() };
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        parse_target(&given, &status)
    }

    #[test]
    fn the_deployment_that_is_in_the_way_is_named() {
        let one = |id: &'static str, status: &'static str| WireDeployment {
            id: id.into(),
            status: status.into(),
            ..WireDeployment::default()
        };
        let all = [one("aaaaaaaa-0", "failed"), one("0d01c0de-0", "paused")];
        let said = blocking_deployment("web", &all).unwrap_or_default();
        assert!(
            said.starts_with("job web is not scaled while its deployment 0d01c0de is under way"),
            "{said}"
        );
        assert!(said.ends_with("`ostler deployment fail 0d01c0de`"), "{said}");
        assert_eq!(blocking_deployment("web", &all[..1]), None);
    }

    #[test]
    fn the_group_need_not_be_named_where_there_is_one() {
        assert_eq!(read(&["3"], &["web"]), Ok(("web".to_owned(), 3)));
        assert_eq!(read(&["db", "0"], &["web", "db"]), Ok(("db".to_owned(), 0)));
        let several = Err("which group? The job has db, web".to_owned());
        assert_eq!(read(&["3"], &["web", "db"]), several);
        assert!(read(&["x", "3"], &["web"]).is_err_and(|wrong| wrong.contains("no group x")));
        assert!(read(&["-1"], &["web"]).is_err_and(|wrong| wrong.contains("from 0")));
    }
}
