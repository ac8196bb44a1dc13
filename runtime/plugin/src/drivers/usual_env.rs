//! What programs look for in their environment, for tasks that do not say it. The host gives it before a
//! task is prepared, so that its templates and texts have what its program has; a driver adds nothing to
//! what is there.

use crate::driver::DriverPlugin;
use ostler_model::clock;
use ostler_model::isolation::USER_DEFAULT;
use ostler_model::ports::{AllocUser, FsIsolation};
use ostler_process::user::{LANG_USUAL, NAMES, PATH_USUAL, environment_of, name_of_id};

/// Of a task of this driver that runs as `user`: nothing where its tasks are no processes of this node.
pub(super) async fn of(
    plugin: &DriverPlugin,
    user: Option<String>,
    of_alloc: AllocUser,
) -> Vec<(String, String)> {
    let isolation = plugin.capabilities.fs_isolation;
    if !plugin.starts_processes() || isolation == FsIsolation::Preopen {
        return Vec::new();
    }
    let mut env = vec![pair("PATH", PATH_USUAL), pair("LANG", LANG_USUAL)];
    if isolation == FsIsolation::Chroot {
        // Its user's own directory is not among those that it sees.
        env.push(pair("HOME", "/local"));
    }
    let user = match default_user(plugin).filter(|_| user.is_none()) {
        None => user,
        Some(DefaultUser::Named(name)) => Some(name),
        Some(DefaultUser::OfAlloc) => match of_alloc {
            AllocUser::Shared => Some(USER_DEFAULT.to_owned()),
            AllocUser::Own(id) => {
                let who = NAMES.map(|name| pair(name, &name_of_id(id)));
                env.extend(who);
                return env;
            }
            AllocUser::NotKnown => return env,
        },
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

enum DefaultUser {
    Named(String),
    OfAlloc,
}

/// Whom isolated tasks run as whose job does not say; none where they are the agent's user.
fn default_user(plugin: &DriverPlugin) -> Option<DefaultUser> {
    let isolated = plugin.capabilities.fs_isolation == FsIsolation::Chroot;
    if !isolated || !rustix::process::geteuid().is_root() {
        return None;
    }
    let named = plugin.grants().isolated_user();
    Some(named.map_or(DefaultUser::OfAlloc, |user| DefaultUser::Named(user.to_owned())))
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
