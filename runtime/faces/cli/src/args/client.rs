//! Options of all commands that ask a running agent.

use std::path::PathBuf;

use clap::Args;

/// Examples, followed by the exit codes of the commands that ask a running agent. With `agreed`
/// also the code of the commands that need consent before they change something.
macro_rules! examples {
    (agreed $examples:literal) => {
        examples!(
            $examples,
            "
  4    only the beginning of a name was given, and its meaning was not confirmed"
        )
    };
    ($examples:literal) => {
        examples!($examples, "")
    };
    ($examples:literal, $agreed:literal) => {
        concat!(
            $examples,
            "
Exit codes:
  0    all went well
  2    the usage is wrong, or an id matches nothing or several things
  3    no agent runs there, or it cannot do it",
            $agreed,
            "
  130  Ctrl-C ended the wait; what was asked goes on
  141  the reader of standard output closed it"
        )
    };
}
pub(super) use examples;

/// What a command says of itself, and by what it knows the agent.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CredentialArgs {
    /// A file that holds only the secret of a token. Default: OSTLER_TOKEN; at a URL also NOMAD_TOKEN
    #[arg(long, value_name = "FILE", env = "OSTLER_TOKEN_FILE", hide_env_values = true)]
    pub token_file: Option<PathBuf>,

    /// Certificate authorities of an agent at an https URL (PEM). Default: NOMAD_CACERT, or the system's authorities
    #[arg(long, value_name = "FILE", env = "OSTLER_CACERT", hide_env_values = true)]
    pub ca_cert: Option<PathBuf>,
}

/// Where the agent is.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct AddressArgs {
    /// Where the agent is: its socket, as unix:///path/of/ostler.sock, or a URL, as
    /// https://node1.example:4646
    #[arg(long, value_name = "ADDRESS", env = "OSTLER_ADDR", hide_env_values = true)]
    pub address: Option<String>,

    /// The agent's data directory, which has its socket. Default: /var/lib/ostler for root, else
    /// ~/.local/state/ostler
    #[arg(long, value_name = "DIR", env = "OSTLER_DATA_DIR", hide_env_values = true)]
    pub data_dir: Option<PathBuf>,

    /// The namespace of what is named. Default: that of the job file, or the only one that has such a
    /// job; of variables `default`; lists show all
    #[arg(long, value_name = "NAMESPACE", env = "OSTLER_NAMESPACE", hide_env_values = true)]
    pub namespace: Option<String>,

    #[command(flatten)]
    pub credentials: CredentialArgs,
}

impl AddressArgs {
    /// The address that these words name, else the environment, for callers without such options of
    /// their own. `None` where the words are wrong.
    pub(crate) fn from_words(words: impl IntoIterator<Item = String>) -> Option<Self> {
        #[derive(clap::Parser)]
        struct AddressParser {
            #[command(flatten)]
            at: AddressArgs,
        }
        let words = std::iter::once("ostler".to_owned()).chain(words);
        let given = <AddressParser as clap::Parser>::try_parse_from(words);
        given.ok().map(|given| given.at)
    }
}

/// Whether somebody agrees beforehand to what the beginning of a name means.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct AgreeArgs {
    /// If only the beginning of a name, or less of an id than lists show, was given: do what it means and do
    /// not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// Where the agent is, and whether people read what it answers.
#[derive(Debug, Args)]
pub(crate) struct AnswerArgs {
    /// Print the agent's answer as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}

/// `ostler gc`.
#[derive(Debug, Args)]
#[command(
    long_about = "Remove allocations that have ended, with their directories, logs and records: one, \
        or all of them. The agent does so by itself when there are too many or the disk gets full.",
    after_long_help = examples!(agreed "\
Examples:
  ostler gc                  every allocation that has ended
  ostler gc 0f01c0de         this one
")
)]
pub(crate) struct GcArgs {
    /// The allocation: its id or the beginning of it; default: all
    #[arg(value_name = "ALLOC")]
    pub alloc: Option<String>,

    #[command(flatten)]
    pub agree: AgreeArgs,

    /// Print the ids of what was removed as JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub agent: AddressArgs,
}
