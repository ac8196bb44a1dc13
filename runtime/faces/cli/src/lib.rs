//! The command line of Ostler; [`main`] is the whole program.
//!
//! ```text
//! args ─► clap ─► command ─┬► client ─ HTTP on the agent's socket ─► ostler_wire ─► output
//!                    │     ├► agent: the process that keeps jobs, and its API
//!                    │     └► start (config, data directory, embedded agent) ─► AgentHandle
//!                    │                                                            │
//!                    │          run: watchers, followers ◄── AllocHandle ◄────────┘
//!                    ▼                 │ RunReport (bounded queue)
//!                  Exit ◄──────────────┴──► printer thread ─► stdout, stderr
//! ```
//! A command prints through `output` or `printer` (never with `println!`: a closed standard
//! output is an ordinary end, not a panic) and returns an [`Exit`]. Start with `args`.

mod agent;
mod alloc;
mod answer;
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
mod human;
mod input;
mod interrupt;
mod job;
mod join;
mod lines;
mod logging;
mod man;
mod node;
mod nomad_plugin;
mod output;
mod plugin;
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

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{CommandFactory as _, FromArgMatches as _};

use args::{Cli, CliCommand};
pub use exit::Exit;
use failure::ErrorReport;
use terminal::TerminalInfo;

/// How long blocked threads may hold up the end of the program.
const RUNTIME_END_WAIT: Duration = Duration::from_secs(1);
/// First argument of the compile child, which is this program.
const COMPILE_CHILD: &str = "__compile";
/// First argument of the process that starts native tasks, which is this program too.
const SUPERVISE: &str = "__supervise";
/// The option of every command that prints JSON.
const JSON: &str = "json";

/// Run the program. `args` begin with the program's own name.
///
/// Not generic in them: the whole program would be compiled again into each binary that calls this.
pub fn main(args: Vec<OsString>) -> ExitCode {
    // Before anything else is set up: the child limits itself first of all.
    if args.get(1).is_some_and(|first| first == COMPILE_CHILD) {
        return ostler_sandbox::compile_child_main(args.into_iter().skip(2));
    }
    if args.get(1).is_some_and(|first| first == SUPERVISE) {
        return ostler_process::supervise::main();
    }
    if args.get(1).is_some_and(|first| first == ostler_worker::ARGUMENT) {
        return ostler_worker::main(|| logging::start(1, &TerminalInfo::detect()));
    }
    if args.get(1).is_some_and(|first| first == ostler_fetch::ARGUMENT) {
        return ostler_fetch::main();
    }
    complete::answer_shell();
    let args = nomad_plugin::args_by_name(&args).unwrap_or(args);
    let args = double_dashes(args);
    let (cli, json) = match parse_args(&args) {
        Ok(read) => read,
        Err(error) => return report_parse_error(&error, &args).into(),
    };
    let terminal = TerminalInfo { json, ..TerminalInfo::detect() };
    let _log = match &cli.command {
        CliCommand::NomadPlugin(_) => logging::start_for_nomad(log_level(&cli), &terminal),
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

/// Parse the arguments. The flag says whether they ask for JSON.
fn parse_args(args: &[OsString]) -> Result<(Cli, bool), clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    let mut last = &matches;
    while let Some((_, of)) = last.subcommand() {
        last = of;
    }
    let json = last.try_get_one::<bool>(JSON).ok().flatten().is_some_and(|json| *json);
    Ok((Cli::from_arg_matches(&matches)?, json))
}

/// Print the message about arguments that cannot be parsed, or the help or version that they ask
/// for.
fn report_parse_error(error: &clap::Error, args: &[OsString]) -> Exit {
    let exit = if error.use_stderr() { Exit::Input } else { Exit::Success };
    let mut asked = args.iter().take_while(|arg| *arg != "--");
    let json = asked.any(|arg| arg.to_str() == Some("--json"));
    if json && exit == Exit::Input {
        let text = error.render().to_string();
        let text = text.trim().strip_prefix("error: ").unwrap_or(text.trim()).to_owned();
        let failure = ErrorReport { exit_code: Some(exit.code()), ..ErrorReport::new(&text) };
        output::say_failure(&failure);
    } else {
        // A closed terminal is no reason to fail.
        let _closed = error.print();
    }
    exit
}

/// Turn `-var`, `-var-file` and `-yes`, which users of Nomad type, into options with two dashes.
fn double_dashes(args: Vec<OsString>) -> Vec<OsString> {
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

/// How much is logged: an agent logs what it does, commands only what is not as it should be.
fn log_level(cli: &Cli) -> u8 {
    match &cli.command {
        CliCommand::Agent(_) | CliCommand::NomadPlugin(_) => cli.verbose.saturating_add(1),
        // For these commands `-v` shows ids and times in full.
        CliCommand::Alloc(_) => cli.verbose.saturating_sub(1),
        _ => cli.verbose,
    }
}

async fn dispatch(cli: Cli, terminal: TerminalInfo) -> Exit {
    let (verbose, terminal) = (cli.verbose > 0, &terminal);
    let result = match cli.command {
        CliCommand::Agent(args) => agent::run(&Arc::new(args), cli.verbose).await,
        CliCommand::Run(args) => Ok(run::run(args, *terminal).await),
        CliCommand::Job(command) => job::run(&command, terminal).await,
        CliCommand::Deployment(command) => deployment::run(&command, terminal).await,
        CliCommand::Alloc(command) => alloc::run(&command, verbose, terminal).await,
        CliCommand::Events(args) => events::events(&args, terminal).await,
        CliCommand::Monitor(args) => events::monitor(&args, terminal).await,
        CliCommand::Debug(command) => debug::run(&command, terminal).await,
        CliCommand::Explain(args) => explain::explain(&args, terminal).await,
        CliCommand::Service(command) => service::run(&command, verbose, terminal).await,
        CliCommand::Token(command) => token::run(&command, terminal).await,
        CliCommand::Var(command) => vars::run(&command, terminal).await,
        CliCommand::Gc(args) => alloc::gc::gc(&args, terminal).await,
        CliCommand::Plugin(command) => plugin::run(&command, terminal).await,
        CliCommand::Device(command) => device::run(&command, terminal).await,
        CliCommand::Node(command) => node::run(&command, terminal).await,
        CliCommand::Top(args) => top::run(&args, terminal).await,
        CliCommand::NomadPlugin(args) => nomad_plugin::serve(args, terminal).await,
        CliCommand::State(command) => state::run(&command, terminal).await,
        CliCommand::Completions(args) => shell::completions(args.shell, terminal),
        CliCommand::Man(args) => shell::manual(args.dir.as_deref(), terminal),
    };
    connect::report_result(result, terminal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_nomad_with_one_dash_are_those_with_two() {
        let spelled = |args: &[&str]| -> Vec<String> {
            let args = args.iter().map(OsString::from).collect();
            let args = double_dashes(args).into_iter();
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
