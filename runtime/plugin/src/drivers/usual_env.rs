//! What programs look for in their environment, for tasks that do not say it. The host gives it before a
//! task is prepared, so that its templates and texts have what its program has; a driver adds nothing to
//! what is there.

use crate::driver::DriverPlugin;
use ostler_model::clock;
use ostler_model::isolation::USER_DEFAULT;
use ostler_model::ports::FsIsolation;
use ostler_process::user::{LANG_USUAL, PATH_USUAL, environment_of};

/// Of a task of this driver that runs as `user`: nothing where its tasks are no processes of this node.
pub(super) async fn of(plugin: &DriverPlugin, user: Option<String>) -> Vec<(String, String)> {
    let isolation = plugin.capabilities.fs_isolation;
    if !plugin.starts_processes() || isolation == FsIsolation::Preopen {
        return Vec::new();
    }
    let mut env = vec![pair("PATH", PATH_USUAL), pair("LANG", LANG_USUAL)];
    let user = match isolation {
        FsIsolation::Chroot => {
            // Its user's own directory is not among those that it sees.
            env.push(pair("HOME", "/local"));
            user.or_else(|| default_user(plugin))
        }
        FsIsolation::None | FsIsolation::Preopen => user,
    };
    let who = match user {
        None => environment_of(None),
        Some(user) => {
            clock::blocking(move || environment_of(Some(&user))).await.unwrap_or_default()
        }
    };
    env.extend(
        who.into_iter().filter(|(name, _)| !(isolation == FsIsolation::Chroot && name == "HOME")),
    );
    env
}

/// Whom isolated tasks run as whose job does not say.
fn default_user(plugin: &DriverPlugin) -> Option<String> {
    let root = rustix::process::geteuid().is_root();
    let granted = plugin.grants().isolation.as_ref().and_then(|grant| grant.user.clone());
    root.then(|| granted.unwrap_or_else(|| USER_DEFAULT.to_owned()))
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
