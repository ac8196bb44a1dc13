//! The variables that programs usually look for, for tasks that do not set them. The host adds them
//! before a task is prepared, so that its templates and texts see the same variables as its
//! program. A driver adds nothing to them.

use crate::driver::LoadedDriver;
use ostler_model::clock;
use ostler_model::isolation::USER_DEFAULT;
use ostler_model::ports::{AllocUser, FsIsolation};
use ostler_process::user::{LANG_USUAL, NAMES, PATH_USUAL, name_of_id, user_environment};

/// The usual variables of a task of this driver that runs as `user`. There are none where the
/// driver's tasks are not processes of this node.
pub(super) async fn build_usual_env(
    plugin: &LoadedDriver,
    user: Option<String>,
    of_alloc: AllocUser,
) -> Vec<(String, String)> {
    let isolation = plugin.capabilities.fs_isolation;
    if !plugin.starts_processes() || isolation == FsIsolation::Preopen {
        return Vec::new();
    }
    let mut env = vec![pair("PATH", PATH_USUAL), pair("LANG", LANG_USUAL)];
    if isolation == FsIsolation::Chroot {
        // The home directory of the user is not among the directories that the task sees.
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
        None => user_environment(None),
        Some(user) => {
            clock::run_blocking(move || user_environment(Some(&user))).await.unwrap_or_default()
        }
    };
    env.extend(
        who.into_iter().filter(|(name, _)| !(isolation == FsIsolation::Chroot && name == "HOME")),
    );
    env
}

/// Is the agent root? If not, isolated tasks run as the agent's user, whatever the default.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
