//! Grants as the configuration writes them: what an operator pastes to add one. Pure.

use std::fmt::Write as _;

use super::capability::{ANY_MORE, Added, Authority, CommandGrant, FileGrant, Grants};

/// Stands for a directory or place that only the operator knows.
const EXAMPLE_DIR: &str = "/path/it/needs";
const EXAMPLE_PROGRAM: &str = "/usr/bin/program";
const EXAMPLE_PLACE: &str = "192.0.2.1:443";

/// The plugin's block of the configuration, with what is granted already and what is added: a block
/// replaces what the agent grants by itself, so less would take something away. Empty when there is
/// nothing to write.
#[must_use]
pub fn grant_lines(plugin: &str, granted: &Grants, added: &[Added]) -> String {
    let mut grants = granted.clone();
    let mut asked = false;
    for one in added {
        asked |= add(&mut grants, one);
    }
    if !asked {
        return String::new();
    }
    format!("plugin {} {{\n  grants {{\n{}  }}\n}}\n", quoted(plugin), body(&grants))
}

/// Whether there is a grant for it.
fn add(grants: &mut Grants, added: &Added) -> bool {
    match added {
        Added::Ask(Authority::Files) => {
            grants.files.push(FileGrant { path: EXAMPLE_DIR.into(), write: false });
        }
        Added::Ask(Authority::Command) => grants.commands.push(CommandGrant {
            program: EXAMPLE_PROGRAM.into(),
            args: vec![vec!["--query".to_owned(), "*".to_owned()]],
        }),
        Added::Ask(Authority::Process) => grants.process = true,
        Added::Ask(Authority::WasmTask) => grants.wasm_task = true,
        Added::Ask(Authority::Network) => grants.connect.extend(EXAMPLE_PLACE.parse()),
        Added::Ask(_) => return false,
        Added::Command { program, args } => add_command(grants, program, args),
        Added::User(user) => grants.users.push(user.clone()),
        Added::Program(program) => {
            grants.programs.get_or_insert_default().push(program.clone());
        }
    }
    true
}

/// To the program's block where there is one: a second would be refused.
fn add_command(grants: &mut Grants, program: &str, args: &[String]) {
    let known = grants.commands.iter_mut().find(|grant| {
        grant.program.as_path() == std::path::Path::new(program)
            || grant.program.file_name().is_some_and(|name| name == program)
    });
    match known {
        Some(grant) => grant.args.push(args.to_vec()),
        None => {
            let full = match program.starts_with('/') {
                true => program.to_owned(),
                false => format!("/usr/bin/{program}"),
            };
            grants.commands.push(CommandGrant { program: full.into(), args: vec![args.to_vec()] });
        }
    }
}

fn body(grants: &Grants) -> String {
    let Grants { files, commands, process, users, programs, wasm_task, connect, env } = grants;
    let mut text = String::new();
    for FileGrant { path, write } in files {
        let _ =
            writeln!(text, "    files {} {{ write = {write} }}", quoted(&path.to_string_lossy()));
    }
    for CommandGrant { program, args } in commands {
        let lists: Vec<String> = args.iter().map(|list| texts(list)).collect();
        let program = quoted(&program.to_string_lossy());
        let _ = writeln!(text, "    command {program} {{ args = [{}] }}", lists.join(", "));
    }
    if *process {
        text.push_str("    process = true\n");
    }
    if !users.is_empty() {
        let _ = writeln!(text, "    users = {}", texts(users));
    }
    if let Some(programs) = programs {
        let _ = writeln!(text, "    programs = {}", texts(programs));
    }
    if *wasm_task {
        text.push_str("    wasm_task = true\n");
    }
    if !connect.is_empty() {
        let places: Vec<String> = connect.iter().map(ToString::to_string).collect();
        let _ = writeln!(text, "    connect = {}", texts(&places));
    }
    if !env.is_empty() {
        let _ = writeln!(text, "    env = {}", texts(env));
    }
    text
}

fn texts(list: &[String]) -> String {
    let quoted: Vec<String> = list.iter().map(|text| quoted(text)).collect();
    format!("[{}]", quoted.join(", "))
}

/// A text of the configuration's language.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(c);
            }
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted.replace("${", "$${").replace("%{", "%%{")
}

/// What of an authority is granted, in a few words: `files(/sys, /run/x rw)`. Empty when nothing.
#[must_use]
pub fn granted_words(grants: &Grants, authority: Authority) -> String {
    let listed = |items: Vec<String>| match items.is_empty() {
        true => String::new(),
        false => format!("{}({})", authority.word(), items.join(", ")),
    };
    match authority {
        Authority::Files => listed(
            grants
                .files
                .iter()
                .map(|grant| {
                    format!("{}{}", grant.path.display(), if grant.write { " rw" } else { "" })
                })
                .collect(),
        ),
        Authority::Command => listed(
            grants
                .commands
                .iter()
                .map(|grant| {
                    let any =
                        grant.args.iter().any(|list| list.first().is_some_and(|a| a == ANY_MORE));
                    format!("{}{}", grant.program.display(), if any { " …" } else { "" })
                })
                .collect(),
        ),
        Authority::Process if grants.process => {
            let users = grants.users.iter().map(|user| format!("as {user}"));
            let programs = grants.programs.iter().flatten().cloned();
            let narrowed: Vec<String> = programs.chain(users).collect();
            match narrowed.is_empty() {
                true => authority.word().to_owned(),
                false => listed(narrowed),
            }
        }
        Authority::WasmTask if grants.wasm_task => authority.word().to_owned(),
        Authority::Network => listed(grants.connect.iter().map(ToString::to_string).collect()),
        _ => String::new(),
    }
}
