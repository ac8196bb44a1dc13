//! `ostler token …`
//!
//! The secret of a token is printed only when the token is made, and never in a message.

use super::answer;
use super::args::client::AnswerArgs;
use super::args::token::{TokenCommand, TokenCreateArgs, TokenDeleteArgs};
use super::connect::{self, CliError, single_match};
use super::consent::{ChangeTarget, ConsentRequest, require_consent};
use super::exit::Exit;
use super::output::{fact, say, short_id};
use super::table::table;
use super::terminal::{TerminalInfo, one_line};
use ostler_api::client::ApiClient;
use ostler_api::routes::endpoints as routes;
use ostler_model::access::AccessPolicy;
use ostler_wire::{AclToken, AclTokenRequest};

/// Width of the names of facts.
const FACTS_WIDTH: usize = 10;

/// Run one of the commands.
pub(super) async fn run(command: &TokenCommand, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    match command {
        TokenCommand::Bootstrap(args) => {
            let client = connect::connect(&args.agent)?;
            let made = client.send(&routes::BootstrapTokens::request([])).await?;
            show_new(&made, terminal)
        }
        TokenCommand::Create(args) => create(args, terminal).await,
        TokenCommand::List(args) => list(args, terminal).await,
        TokenCommand::Own(args) => {
            let client = connect::connect(&args.agent)?;
            let own = client.send(&routes::ReadOwnToken::request([])).await?;
            show(&own, terminal)
        }
        TokenCommand::Delete(args) => delete(args, terminal).await,
    }
}

async fn create(args: &TokenCreateArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    // Checked before the agent is asked, which may not be there.
    for policy in &args.policies {
        policy.parse::<AccessPolicy>().map_err(|error| CliError::Wrong(error.to_string()))?;
    }
    let asked = AclTokenRequest {
        name: args.name.clone(),
        policies: args.policies.clone(),
        expiration_ttl: args.ttl.clone(),
        ..AclTokenRequest::default()
    };
    let client = connect::connect(&args.answer.agent)?;
    let made = client.send_body(&routes::CreateToken::request([]), &asked).await?;
    show_new(&made, terminal)
}

fn show_new(made: &AclToken<'_>, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    if !terminal.json {
        say("the secret is shown this once; give it to commands by OSTLER_TOKEN or --token-file");
    }
    show(made, terminal)
}

fn show(token: &AclToken<'_>, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    answer::show(token, || token_text(token), terminal)
}

fn token_text(token: &AclToken<'_>) -> String {
    let mut text = String::new();
    let ends = token.expiration_time.as_deref().unwrap_or("never");
    for (name, value) in [
        ("accessor", &*token.accessor_id),
        ("secret", &token.secret_id),
        ("name", &token.name),
        ("policies", &policies(token)),
        ("made", &token.create_time),
        ("ends", ends),
    ] {
        fact(&mut text, FACTS_WIDTH, name, value);
    }
    text
}

fn policies(token: &AclToken<'_>) -> String {
    if token.policies.is_empty() {
        "admin".to_owned()
    } else {
        one_line(&token.policies.join(", "))
    }
}

async fn list(args: &AnswerArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let all = client.send(&routes::ListTokens::request([])).await?;
    if all.is_empty() && !terminal.json {
        say("there are no tokens; `ostler token create` makes one");
        return Ok(Exit::Success);
    }
    answer::show(&all, || list_text(&all, terminal), terminal)
}

fn list_text(all: &[AclToken<'_>], terminal: &TerminalInfo) -> String {
    let rows = all.iter().map(|token| {
        let ends = match (token.configured, &token.expiration_time) {
            (true, _) => "with the configuration".to_owned(),
            (false, Some(end)) => end.chars().take(19).collect(),
            (false, None) => "never".to_owned(),
        };
        [short_id(&token.accessor_id), one_line(&token.name), policies(token), ends]
    });
    table(["ACCESSOR", "NAME", "POLICIES", "ENDS"], rows, terminal)
}

async fn delete(args: &TokenDeleteArgs, terminal: &TerminalInfo) -> Result<Exit, CliError> {
    let client = connect::connect(&args.agent)?;
    let (accessor, given) = (find(&client, &args.accessor).await?, &args.accessor);
    let change = ConsentRequest { verb: "remove", agree: args.agree, terminal };
    require_consent(&ChangeTarget { what: "token", given, meant: &accessor, drawn: true }, change)?;
    client.send_only(&routes::DeleteToken::request([&accessor])).await?;
    say(&format!("token {accessor} is removed"));
    Ok(Exit::Success)
}

async fn find(client: &ApiClient, given: &str) -> Result<String, CliError> {
    let mut all = client.send(&routes::ListTokens::request([])).await?;
    all.retain(|token| !given.is_empty() && token.accessor_id.starts_with(given));
    let one = single_match(
        all,
        &format!("no token's accessor begins with {given:?}; `ostler token list` shows them"),
        &format!("tokens' accessors begin with {given}"),
        |token| format!("{} {}", token.accessor_id, token.name),
    )?;
    Ok(one.accessor_id.into_owned())
}
