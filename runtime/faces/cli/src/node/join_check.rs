//! `ostler node join-check`

use std::fmt::Write as _;

use serde_json::json;

use crate::args::join_check::JoinCheckArgs;
use crate::connect::CliError;
use crate::exit::Exit;
use crate::input;
use crate::join;
use crate::output;
use crate::start::AgentStartError;
use crate::terminal::{TerminalInfo, one_line, paint};
use ostler_cluster::join_check::{JoinCheckRequest, JoinFinding, can_join, join_check};
use ostler_model::limits::CLUSTER_STEP_WALL_DEFAULT;
use ostler_model::rng::Rng;

/// The name of the imagined node that tries to join.
const NAME: &str = "ostler-join-check";
const GREEN: &str = "32";
const RED: &str = "1;31";

/// Go through the steps of joining the cluster, and print the result of each.
pub(super) async fn check(args: &JoinCheckArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let ask = ask(args)?;
    let rng = Rng::system();
    let (mut server, mut failed) = (String::new(), None);
    let findings = join_check(&ask, &rng, |finding| {
        if !terminal.json && failed.is_none() {
            let text = text(finding, &mut server, terminal);
            failed = output::print(&text, terminal).err();
        }
    })
    .await;
    if let Some(exit) = failed {
        return Ok(exit);
    }
    let joins = can_join(&findings);
    if terminal.json {
        output::print_json(&json!({ "can_join": joins, "findings": findings }), terminal)?;
    } else {
        let verdict = if joins { "a node can join" } else { "a node cannot join as it is" };
        output::print(&format!("\n{verdict}\n"), terminal)?;
    }
    Ok(if joins { Exit::Success } else { Exit::Failed })
}

fn ask(args: &JoinCheckArgs) -> Result<JoinCheckRequest, CliError> {
    let config = input::read_config(args.config.as_deref()).map_err(AgentStartError::Input)?;
    let cluster = args.to.override_cluster(config.cluster);
    if cluster.servers.is_empty() {
        let why =
            "no server is given: give --servers, or a configuration with client { servers = […] }";
        return Err(CliError::Wrong(why.to_owned()));
    }
    let datacenter = args.datacenter.clone().or(config.datacenter);
    Ok(JoinCheckRequest {
        region: cluster.region().to_owned(),
        datacenter: datacenter.unwrap_or_else(|| "dc1".to_owned()),
        name: NAME.to_owned(),
        tls: join::cluster_tls(&cluster)?.map(|tls| tls.servers),
        servers: cluster.servers,
        wall: CLUSTER_STEP_WALL_DEFAULT,
    })
}

/// The lines about a step, below the name of its server if that differs from the last one.
fn text(finding: &JoinFinding, last: &mut String, terminal: &TerminalInfo) -> String {
    let mut text = String::new();
    if *last != finding.server {
        let gap = if last.is_empty() { "" } else { "\n" };
        let _ = writeln!(text, "{gap}{}", output::headline(&one_line(&finding.server), terminal));
        last.clone_from(&finding.server);
    }
    let (word, colour) = if finding.works { ("works", GREEN) } else { ("fails", RED) };
    let word = paint(word, colour, terminal.stdout_colours());
    let found = one_line(&finding.found);
    let _ = writeln!(text, "  {:<13} {word}  {found}", finding.step.word());
    if let Some(advice) = &finding.advice {
        let _ = writeln!(text, "{:23}{}", "", one_line(advice));
    }
    text
}
