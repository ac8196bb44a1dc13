//! `ostler nomad-plugin`

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::args::nomad_plugin::NomadPluginArgs;
use super::connect::CliError;
use super::exit::Exit;
use super::input;
use super::output;
use super::start::absolute_path;
use super::terminal::TerminalInfo;
use ostler_agent::alone::LoneOptions;
use ostler_model::causes;
use ostler_model::plugin::PluginKind;
use ostler_nomad_plugin::PluginOptions;

/// Prefix of the name of a program that is a plugin by its name alone.
const BY_NAME: &str = "ostler-";

/// Serve a plugin to the Nomad client that executed this process.
pub(super) async fn serve(
    args: NomadPluginArgs,
    terminal: &TerminalInfo,
) -> Result<Exit, CliError> {
    let failed = |text: String| {
        output::error(terminal, &text);
        Ok(Exit::Failed)
    };
    let (which, kind) = match (args.driver, args.device, args.plugin) {
        (Some(driver), ..) => (driver, Some(PluginKind::Driver)),
        (_, Some(device), _) => (device, Some(PluginKind::Device)),
        (.., plugin) => (plugin.unwrap_or_default(), None),
    };
    let config = input::read_config(args.config.as_deref())?;
    let data_dir = match args.data_dir.map_or_else(|| default_data_dir(&which), Some) {
        Some(dir) => dir,
        None => return failed("there is no home directory: give --data-dir DIR".to_owned()),
    };
    let data_dir = match absolute_path(data_dir) {
        Ok(dir) => dir,
        Err(_) => return failed("there is no working directory: give --data-dir /DIR".to_owned()),
    };
    let plugin = LoneOptions { config, data_dir, which, program: None };
    match ostler_nomad_plugin::serve(PluginOptions { plugin, kind }).await {
        Ok(()) => Ok(Exit::Success),
        Err(error) => failed(causes::chain(&error)),
    }
}

/// The default data directory: below `/var/lib` for root, else in the user's directory for state.
fn default_data_dir(which: &str) -> Option<PathBuf> {
    let name = format!("{BY_NAME}nomad-{}", Path::new(which).file_stem()?.to_string_lossy());
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/var/lib").join(name));
    }
    let of = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join(name))
}

/// The arguments in place of none, if Nomad executed this program under the name of a plugin.
pub(super) fn args_by_name(args: &[OsString]) -> Option<Vec<OsString>> {
    let [program] = args else { return None };
    if !ostler_nomad_plugin::is_called_by_nomad() {
        return None;
    }
    let named = plugin_name(program.as_ref())?;
    Some([program.clone(), "nomad-plugin".into(), "--plugin".into(), named.into()].into())
}

fn plugin_name(program: &Path) -> Option<String> {
    let name = program.file_name()?.to_str()?.strip_prefix(BY_NAME)?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_after_its_plugin() {
        let named = |path| plugin_name(Path::new(path));
        assert_eq!(named("/opt/plugins/ostler-wasm").as_deref(), Some("wasm"));
        assert_eq!(named("/opt/plugins/ostler"), None);
        assert_eq!(named("ostler-"), None);
    }
}
