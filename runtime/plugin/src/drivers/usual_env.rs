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
    let by_default = user.is_none() && isolation == FsIsolation::Chroot && is_root();
    let user = match (by_default, plugin.grants().isolated_user(), of_alloc) {
        (false, ..) => user,
        (true, Some(named), _) => Some(named.to_owned()),
        (true, None, AllocUser::Shared) => Some(USER_DEFAULT.to_owned()),
        (true, None, AllocUser::Own(id)) => {
            env.extend(NAMES.map(|name| pair(name, &name_of_id(id))));
            return env;
        }
        (true, None, AllocUser::NotKnown) => return env,
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

/// Else isolated tasks are the agent's user, whatever the default.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
