//! `ostler nomad-plugin`

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::args::nomad_plugin::NomadPluginArgs;
use super::connect::Stop;
use super::exit::Exit;
use super::input;
use super::output;
use super::start::absolute;
use super::terminal::Terminal;
use ostler_agent::alone::LoneOptions;
use ostler_model::causes;
use ostler_model::plugin::PluginKind;
use ostler_nomad_plugin::PluginOptions;

/// Begin of the name of a program that is a plugin by its name alone.
const BY_NAME: &str = "ostler-";

/// Serve a plugin to the Nomad client that executed this process.
pub(super) async fn serve(args: NomadPluginArgs, terminal: &Terminal) -> Result<Exit, Stop> {
    let failed = |text: String| {
        output::error(terminal, &text);
        Ok(Exit::Failed)
    };
    let (which, kind) = match (args.driver, args.device, args.plugin) {
        (Some(driver), ..) => (driver, Some(PluginKind::Driver)),
        (_, Some(device), _) => (device, Some(PluginKind::Device)),
        (.., plugin) => (plugin.unwrap_or_default(), None),
    };
    let config = input::config(args.config.as_deref())?;
    let data_dir = match args.data_dir.map_or_else(|| default_data_dir(&which), Some) {
        Some(dir) => dir,
        None => return failed("there is no home directory: give --data-dir DIR".to_owned()),
    };
    let data_dir = match absolute(data_dir) {
        Ok(dir) => dir,
        Err(_) => return failed("there is no working directory: give --data-dir /DIR".to_owned()),
    };
    let plugin = LoneOptions { config, data_dir, which, program: None };
    match ostler_nomad_plugin::serve(PluginOptions { plugin, kind }).await {
        Ok(()) => Ok(Exit::Success),
        Err(error) => failed(causes::chain(&error)),
    }
}

/// Below `/var/lib` for who may write there, else in the user's own directory for state.
fn default_data_dir(which: &str) -> Option<PathBuf> {
    let name = format!("{BY_NAME}nomad-{}", Path::new(which).file_stem()?.to_string_lossy());
    if rustix::process::geteuid().is_root() {
        return Some(Path::new("/var/lib").join(name));
    }
    let of = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let state = of("XDG_STATE_HOME").or_else(|| Some(of("HOME")?.join(".local/state")))?;
    Some(state.join(name))
}

/// The arguments that a program stands for which Nomad executed without any, by its own name.
pub(super) fn by_name(args: &[OsString]) -> Option<Vec<OsString>> {
    let [program] = args else { return None };
    if !ostler_nomad_plugin::is_called_by_nomad() {
        return None;
    }
    let named = named_by(program.as_ref())?;
    Some([program.clone(), "nomad-plugin".into(), "--plugin".into(), named.into()].into())
}

fn named_by(program: &Path) -> Option<String> {
    let name = program.file_name()?.to_str()?.strip_prefix(BY_NAME)?;
    (!name.is_empty()).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_named_after_its_plugin() {
        let named = |path| named_by(Path::new(path));
        assert_eq!(named("/opt/plugins/ostler-wasm").as_deref(), Some("wasm"));
        assert_eq!(named("/opt/plugins/ostler"), None);
        assert_eq!(named("ostler-"), None);
    }
}
