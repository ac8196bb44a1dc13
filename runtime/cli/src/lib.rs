//! The command line of Ostler; [`main`] is the whole program.
//!
//! ```text
//! args ─► clap ─► command ─┬► client ─ HTTP on the agent's socket ─► ostler_wire ─► output
//!                    │     ├► agent: the process that keeps jobs, and its API
//!                    │     └► start (config, data directory, embedded agent) ─► AgentHandle
//!                    │                                                            │
//!                    │          run: watchers, followers ◄── AllocHandle ◄────────┘
//!                    ▼                 │ Report (bounded queue)
//!                  Exit ◄──────────────┴──► printer thread ─► stdout, stderr
//! ```
//! A command prints through `output` or `printer` (never with `println!`: a closed standard
//! output is an ordinary end, not a panic) and returns an [`Exit`]. Start with `args`.

mod agent;
mod agent_config;
mod agent_place;
mod agent_reload;
mod alloc;
mod api_face;
mod api_reload;
mod args;
mod complete;
mod connect;
mod consent;
mod credentials;
mod debug;
mod deployment;
mod device;
mod events;
mod exit;
mod explain;
mod failure;
mod follow;
mod human;
mod input;
mod interrupt;
mod job;
mod join;
mod lines;
mod logging;
mod logging_file;
mod logging_followed;
mod logging_hclog;
mod logging_lines;
mod logging_traces;
mod man;
mod node;
mod node_drain;
mod node_join_check;
mod node_stats;
mod nomad_plugin;
mod notify;
mod output;
mod plugin;
mod plugin_check;
mod plugin_lift;
mod plugin_pull;
mod plugin_record;
mod plugin_replay;
mod plugin_status;
mod plugin_upgrade;
mod plugin_verify;
mod printer;
mod progress;
mod report;
mod run;
mod service;
mod shell;
mod start;
mod stat_values;
mod state;
mod table;
mod terminal;
mod token;
mod top;
mod traces;
mod vars;
mod watchdog;

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _};

use args::{Cli, Command, NodeCommand, PluginCommand};
use connect::Stop;
pub use exit::Exit;
use failure::Failure;
use terminal::Terminal;

/// How long threads that still block may hold up the end of the program.
const RUNTIME_END_WAIT: Duration = Duration::from_secs(1);
/// First argument of the compile child, which is this program.
const COMPILE_CHILD: &str = "__compile";
/// First argument of the process that starts native tasks, which is this program too.
const SUPERVISE: &str = "__supervise";
/// The option of every command that prints JSON.
const JSON: &str = "json";

/// Run the program. `args` begin with the program's own name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<OsString> = args.into_iter().collect();
    // Before anything else is set up: the child limits itself first of all.
    if args.get(1).is_some_and(|first| first == COMPILE_CHILD) {
        return ostler_sandbox::compile_child_main(args.into_iter().skip(2));
    }
    if args.get(1).is_some_and(|first| first == SUPERVISE) {
        return ostler_process::supervise::main();
    }
    if args.get(1).is_some_and(|first| first == ostler_worker::ARGUMENT) {
        return ostler_worker::main(|| logging::start(1, &Terminal::detect()));
    }
    if args.get(1).is_some_and(|first| first == ostler_fetch::ARGUMENT) {
        return ostler_fetch::main();
    }
    complete::answer_shell();
    let args = nomad_plugin::by_name(&args).unwrap_or(args);
    let args = with_two_dashes(args);
    let (cli, json) = match read(&args) {
        Ok(read) => read,
        Err(error) => return not_read(&error, &args),
    };
    let terminal = Terminal { json, ..Terminal::detect() };
    let _log = match &cli.command {
        Command::NomadPlugin(_) => logging::start_for_nomad(log_level(&cli), &terminal),
        _ => logging::start(log_level(&cli), &terminal),
    };
    let runtime = match ostler_sandbox::threads::control_runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            output::error(&terminal, &format!("cannot start threads: {error}"));
            return Exit::Agent.into();
        }
    };
    let exit = runtime.block_on(dispatch(cli, terminal));
    runtime.shutdown_timeout(RUNTIME_END_WAIT);
    exit.into()
}

/// The arguments, and whether they ask for JSON.
fn read(args: &[OsString]) -> Result<(Cli, bool), clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut last = &matches;
    while let Some((_, of)) = last.subcommand() {
        last = of;
    }
    let json = last.try_get_one::<bool>(JSON).ok().flatten().is_some_and(|json| *json);
    Ok((Cli::from_arg_matches(&matches)?, json))
}

/// Arguments that cannot be read, or that ask for help or the version.
fn not_read(error: &clap::Error, args: &[OsString]) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(1);
    let mut asked = args.iter().take_while(|arg| *arg != "--");
    let json = asked.any(|arg| arg.to_str() == Some("--json"));
    if json && code != 0 {
        let text = error.render().to_string();
        let text = text.trim().strip_prefix("error: ").unwrap_or(text.trim()).to_owned();
        let failure = Failure { exit_code: Some(code), ..Failure::new(&text) };
        output::failure(&failure);
    } else {
        // A closed terminal is no reason to fail.
        let _closed = error.print();
    }
    ExitCode::from(code)
}

/// `-var`, `-var-file` and `-yes` are what people type who know Nomad; here options of more than a letter have
/// two dashes.
fn with_two_dashes(args: Vec<OsString>) -> Vec<OsString> {
    let of_jobs = args.get(1).is_some_and(|command| command == "job" || command == "run");
    let mut options = of_jobs;
    let known = |text: &str| {
        let name = text.split('=').next().unwrap_or_default();
        matches!(name, "-var" | "-var-file" | "-yes")
    };
    let spelled = |arg: OsString| {
        options &= arg != "--";
        match arg.to_str() {
            Some(text) if options && known(text) => format!("-{text}").into(),
            _ => arg,
        }
    };
    args.into_iter().map(spelled).collect()
}

/// What is logged: an agent says what it does; commands only what is not as it should be.
fn log_level(cli: &Cli) -> u8 {
    match &cli.command {
        Command::Agent(_) | Command::NomadPlugin(_) => cli.verbose.saturating_add(1),
        // Whole ids and times, no log.
        Command::Alloc(_) => cli.verbose.saturating_sub(1),
        _ => cli.verbose,
    }
}

async fn dispatch(cli: Cli, terminal: Terminal) -> Exit {
    let (verbose, terminal) = (cli.verbose > 0, &terminal);
    let result = match cli.command {
        Command::Agent(args) => agent::run(&Arc::new(args), cli.verbose).await,
        Command::Run(args) => Ok(run::run(args, *terminal).await),
        Command::Job(command) => job::run(&command, terminal).await,
        Command::Deployment(command) => deployment::run(&command, terminal).await,
        Command::Alloc(command) => alloc::run(&command, verbose, terminal).await,
        Command::Events(args) => events::events(&args, terminal).await,
        Command::Monitor(args) => events::monitor(&args, terminal).await,
        Command::Debug(command) => debug::run(&command, terminal).await,
        Command::Explain(args) => explain::explain(&args, terminal).await,
        Command::Service(command) => service::run(&command, verbose, terminal).await,
        Command::Token(command) => token::run(&command, terminal).await,
        Command::Var(command) => vars::run(&command, terminal).await,
        Command::Gc(args) => alloc::gc::gc(&args, terminal).await,
        Command::Plugin(command) => of_plugins(&command, terminal).await,
        Command::Device(command) => device::run(&command, terminal).await,
        Command::Node(NodeCommand::Status(args)) => node::status(&args, terminal).await,
        Command::Node(NodeCommand::Drain(args)) => node_drain::drain(&args, terminal).await,
        Command::Node(NodeCommand::Eligibility(args)) => {
            node_drain::eligibility(&args, terminal).await
        }
        Command::Node(NodeCommand::JoinCheck(args)) => {
            node_join_check::check(&args, terminal).await
        }
        Command::Top(args) => top::run(&args, terminal).await,
        Command::NomadPlugin(args) => nomad_plugin::serve(args, terminal).await,
        Command::State(command) => state::run(&command, terminal).await,
        Command::Completions(args) => shell::completions(args.shell, terminal),
        Command::Man(args) => shell::manual(args.dir.as_deref(), terminal),
    };
    connect::ended(result, terminal)
}

async fn of_plugins(command: &PluginCommand, terminal: &Terminal) -> Result<Exit, Stop> {
    match command {
        PluginCommand::List(args) => plugin::list(args, terminal).await,
        PluginCommand::Lift(args) => plugin_lift::lift(args, terminal).await,
        PluginCommand::Record(args) => plugin_record::record(args, terminal).await,
        PluginCommand::Upgrade(args) => plugin_upgrade::upgrade(args, terminal).await,
        PluginCommand::Inspect(args) => plugin::inspect(args, terminal),
        PluginCommand::Replay(args) => plugin_replay::replay(args, terminal).await,
        PluginCommand::Check(args) => plugin_check::check(args, terminal).await,
        PluginCommand::Verify(args) => plugin_verify::verify(args, terminal),
        PluginCommand::Pull(args) => plugin_pull::pull(args, terminal).await,
        PluginCommand::Status(args) => plugin_status::status(args, terminal).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_nomad_with_one_dash_are_those_with_two() {
        let spelled = |args: &[&str]| -> Vec<String> {
            let args = args.iter().map(OsString::from).collect();
            let args = with_two_dashes(args).into_iter();
            args.map(|arg| arg.to_string_lossy().into_owned()).collect()
        };
        for (given, expected) in [
            (
                "ostler job run -var a=1 -var-file=x -v f",
                "ostler job run --var a=1 --var-file=x -v f",
            ),
            ("ostler run -var=-var f", "ostler run --var=-var f"),
            ("ostler job stop -yes web", "ostler job stop --yes web"),
            ("ostler job run -- -var", "ostler job run -- -var"),
            ("ostler alloc exec -var", "ostler alloc exec -var"),
            ("ostler job run -vars -varx=1", "ostler job run -vars -varx=1"),
        ] {
            let given: Vec<&str> = given.split(' ').collect();
            assert_eq!(spelled(&given).join(" "), expected);
        }
    }
}
