#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use clap::CommandFactory as _;

use super::*;

fn help(path: &[&str]) -> String {
    let mut command = Cli::command();
    command.build();
    let mut at = &mut command;
    for name in path {
        at = at.find_subcommand_mut(name).unwrap();
    }
    at.render_long_help().to_string()
}

fn parse(args: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from([&["ostler"], args].concat())
}

#[test]
fn the_tree_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn a_flag_that_sets_what_a_key_sets_says_what_the_key_says() {
    let commands = Cli::command();
    for (command, keys) in [
        ("agent", &["data_dir", "jobs_dir", "plugin_dir", "log_level", "region"][..]),
        ("run", &["plugin_dir", "data_dir"]),
    ] {
        let command = commands.find_subcommand(command).unwrap();
        let described = command.get_arguments().filter(|arg| {
            let Some(text) = ostler_jobspec::agent_key(arg.get_id().as_str()) else { return false };
            let help = arg.get_help().unwrap().to_string();
            assert!(help.starts_with(&text.replace('`', "")), "{help} does not begin with {text}");
            true
        });
        let described: Vec<&str> = described.map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(described, keys);
    }
    assert_eq!(ostler_jobspec::agent_key("consul"), None, "a key that is not supported");
}

#[test]
fn every_command_teaches_with_examples() {
    let commands: [&[&str]; 28] = [
        &[],
        &["run"],
        &["agent"],
        &["job", "run"],
        &["job", "stop"],
        &["job", "status"],
        &["job", "plan"],
        &["job", "validate"],
        &["alloc", "status"],
        &["alloc", "logs"],
        &["alloc", "stop"],
        &["alloc", "restart"],
        &["alloc", "signal"],
        &["gc"],
        &["plugin", "list"],
        &["plugin", "inspect"],
        &["plugin", "status"],
        &["plugin", "record"],
        &["device", "list"],
        &["device", "status"],
        &["node", "status"],
        &["state", "check"],
        &["state", "dump"],
        &["state", "compact"],
        &["state", "stats"],
        &["top"],
        &["completions"],
        &["man"],
    ];
    for command in commands {
        let help = help(command);
        let example = format!("\n  ostler {}", command.join(" "));
        assert!(help.contains("Examples:") && help.contains(example.trim_end()), "{help}");
    }
}

#[test]
fn every_command_that_an_explanation_advises_is_one() {
    let all = ostler_explain::commands::all();
    assert!(all.len() > 20, "{all:?}");
    for advised in all {
        let line = advised.strip_prefix('`').and_then(|line| line.strip_suffix('`')).unwrap();
        let words = line.split(' ');
        if let Err(error) = Cli::try_parse_from(words) {
            panic!("{advised} is advised, and no such command: {error}");
        }
    }
}

/// All files with this ending below a directory, but for those of tests.
fn files(dir: &std::path::Path, ending: &str, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && name != "tests" && name != "target" {
            files(&path, ending, into);
        } else if name.ends_with(ending) && !name.contains("tests") {
            into.push(path);
        }
    }
}

/// What is named may want more words, and no others.
fn is_named_rightly(words: &[&str]) -> Result<(), String> {
    use clap::error::ErrorKind as Kind;
    let kinds = [
        Kind::MissingRequiredArgument,
        Kind::MissingSubcommand,
        Kind::DisplayHelpOnMissingArgumentOrSubcommand,
        Kind::ValueValidation,
        Kind::InvalidValue,
        Kind::DisplayHelp,
        Kind::DisplayVersion,
    ];
    match Cli::try_parse_from(words) {
        Err(error) if !kinds.contains(&error.kind()) => Err(format!("{words:?}: {error}")),
        _ => Ok(()),
    }
}

#[test]
fn the_commands_that_messages_name_are_there_with_their_options() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut sources, mut wrong, mut seen) = (Vec::new(), Vec::new(), 0);
    files(&root, ".rs", &mut sources);
    for file in sources {
        let text = std::fs::read_to_string(&file).unwrap();
        let own = text.split("#[cfg(test)]").next().unwrap_or_default();
        let mut code = String::new();
        for line in own.lines().filter(|line| !line.trim_start().starts_with("//")) {
            // A literal goes on in the next line.
            match line.trim_start().strip_suffix('\\') {
                Some(begin) => code.push_str(begin),
                None => code.extend([line.trim_start(), "\n"]),
            }
        }
        for piece in code.split("`ostler ").skip(1) {
            let Some((line, _)) = piece.split_once('`').filter(|(line, _)| !line.contains('\n'))
            else {
                continue;
            };
            // Of `node {}` the rest says what.
            let pieces = line.split('{').map(|part| part.rsplit('}').next().unwrap_or_default());
            let line = pieces.collect::<Vec<_>>().join("x").replace("node x", "node");
            let line = line.split(" < ").next().unwrap();
            let words: Vec<&str> = ["ostler"].into_iter().chain(line.split_whitespace()).collect();
            seen += 1;
            wrong.extend(
                is_named_rightly(&words).err().map(|why| format!("{}: {why}", file.display())),
            );
        }
    }
    assert!(seen > 50, "the sources are read: {seen}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_help_of_run_documents_every_exit_code() {
    let help = help(&["run"]);
    for code in ["0 ", "1-255", "2 ", "3 ", "129", "130", "141", "143"] {
        assert!(help.contains(&format!("\n  {code}")), "{code} in {help}");
    }
}

#[test]
fn the_help_of_state_commands_documents_every_exit_code() {
    for command in ["check", "dump", "compact", "stats"] {
        let help = help(&["state", command]);
        for code in ["0 ", "1 ", "2 ", "3 ", "141"] {
            assert!(help.contains(&format!("\n  {code}")), "{code} in {help}");
        }
    }
}

#[test]
fn the_help_of_commands_on_an_agent_documents_every_exit_code() {
    let own: [(&[&str], &[&str]); 3] = [
        (&["agent"], &["0 ", "2 ", "3 ", "130", "143"]),
        (&["job", "run"], &["0 ", "1 ", "2 ", "3 ", "130", "141"]),
        (&["job", "plan"], &["0 ", "1 ", "2 ", "3 ", "141"]),
    ];
    let usual: [&[&str]; 8] = [
        &["job", "stop"],
        &["job", "status"],
        &["alloc", "status"],
        &["alloc", "logs"],
        &["alloc", "stop"],
        &["alloc", "restart"],
        &["alloc", "signal"],
        &["gc"],
    ];
    let usual = usual.map(|command| (command, &["0 ", "2 ", "3 ", "130", "141"][..]));
    for (command, codes) in own.into_iter().chain(usual) {
        let help = help(command);
        for code in codes {
            assert!(help.contains(&format!("\n  {code}")), "{code} in {help}");
        }
    }
}

#[test]
fn a_task_is_named_once() {
    for command in [&["alloc", "logs", "x"][..], &["alloc", "restart", "x"]] {
        assert!(parse(&[command, &["t"]].concat()).is_ok());
        assert!(parse(&[command, &["--task", "t"]].concat()).is_ok());
        assert!(parse(&[command, &["t", "--task", "t"]].concat()).is_err());
    }
    assert!(parse(&["alloc", "restart", "--all", "x", "t"]).is_err());
}

#[test]
fn every_listing_has_json() {
    let listings: [&[&str]; 15] = [
        &["run", "x"],
        &["job", "run", "x"],
        &["job", "status"],
        &["job", "status", "x"],
        &["job", "plan", "x"],
        &["alloc", "status"],
        &["alloc", "status", "x"],
        &["job", "validate", "x"],
        &["plugin", "list"],
        &["plugin", "inspect", "x"],
        &["node", "status"],
        &["state", "check"],
        &["state", "dump"],
        &["state", "compact"],
        &["state", "stats"],
    ];
    for listing in listings {
        assert!(parse(&[listing, &["--json"]].concat()).is_ok(), "{listing:?}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_help_with_0() {
    for wrong in [&["rum"][..], &["run"], &["run", "a", "b"], &["plugin"], &[]] {
        assert_eq!(parse(wrong).unwrap_err().exit_code(), 2, "{wrong:?}");
    }
    for asked in [&["--help"][..], &["--version"], &["run", "--help"]] {
        assert_eq!(parse(asked).unwrap_err().exit_code(), 0, "{asked:?}");
    }
}

#[test]
fn options_of_run_are_read_wherever_they_stand() {
    let cli = parse(&["run", "-vv", "--data-dir", "d", "job.hcl", "--json"]).unwrap();
    let CliCommand::Run(run) = cli.command else { panic!("not run") };
    assert_eq!((cli.verbose, run.json), (2, true));
    assert_eq!(run.agent.data_dir, Some(PathBuf::from("d")));
    assert_eq!(run.source.file, PathBuf::from("job.hcl"));
}
