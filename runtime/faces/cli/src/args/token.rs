//! `ostler token …`

use clap::{Args, Subcommand};

use super::client::{AddressArgs, AgreeArgs, AnswerArgs, examples};

/// Commands on tokens of the API.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// Make the first token, which may do everything; once, at the machine itself
    Bootstrap(AnswerArgs),
    /// Make a token and show its secret
    Create(TokenCreateArgs),
    /// List the tokens, without their secrets
    List(AnswerArgs),
    /// Show what the token in use may do
    #[command(name = "self")]
    Own(AnswerArgs),
    /// Remove a token: what its bearers are doing ends at once
    Delete(TokenDeleteArgs),
}

/// `ostler token create`.
#[derive(Debug, Args)]
#[command(
    long_about = "Make a token of the agent's API. Its secret is shown once: the agent keeps only a hash of it.\n\n\
        A policy is read, submit, operate or admin, each of which includes those before it; submit@web allows \
        it in namespace \
        web alone. What belongs to no namespace, such as the node, its devices and plugins, needs a policy \
        without one. Tokens are asked for over TCP, where the agent's configuration says acl { enabled = true }; \
        over its socket, which only its user can open, none is needed.",
    after_long_help = examples!("\
Examples:
  ostler token create --name ci --policy submit@web     change jobs of namespace web
  ostler token create --name ops --policy operate --ttl 8h
  ostler token create --name me --policy admin --json | jq -r .SecretID
")
)]
pub(crate) struct TokenCreateArgs {
    /// A name that says what it is for
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub name: String,

    /// What its bearer may do; may be given several times
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    pub policies: Vec<String>,

    /// When it expires, such as 8h; default: never
    #[arg(long, value_name = "TIME", default_value = "")]
    pub ttl: String,

    #[command(flatten)]
    pub answer: AnswerArgs,
}

/// `ostler token delete`.
#[derive(Debug, Args)]
pub(crate) struct TokenDeleteArgs {
    /// The accessor of the token, or the beginning of it; `ostler token list` shows them
    #[arg(value_name = "ACCESSOR")]
    pub accessor: String,

    #[command(flatten)]
    pub agree: AgreeArgs,

    #[command(flatten)]
    pub agent: AddressArgs,
}
