//! Which environment variables of tasks a plugin may set, and which ones decide the code that a
//! program loads and the programs that it finds. Pure.
//!
//! A device plugin may tell a task where its device is; it may not change what the task runs. The
//! variables that libraries read cannot be listed, and many begin with a name that a plugin may
//! have (`GST_PLUGIN_PATH`, `DOTNET_STARTUP_HOOKS`). So a plugin without a grant may set only its
//! name with an ending of `OWN_FORMS`: such a variable names a device, and no program loads code by
//! it.

/// Endings that may follow the name of a plugin: whole endings, or beginnings of them (`…*`).
const OWN_FORMS: [&str; 6] = ["DEVICE", "DEVICES", "DEVICE_*", "ID", "IDS", "VISIBLE_DEVICES"];

/// Names, or beginnings of names (`…*`), of variables that make loaders and interpreters load code.
const LOADERS: &[&str] = &[
    "LD_*",
    "DYLD_*",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "GETCONF_DIR",
    "LOCPATH",
    "NLSPATH",
    "MALLOC_*",
    "BASH_*",
    "BASHOPTS",
    "ENV",
    "SHELLOPTS",
    "PROMPT_COMMAND",
    "PS1",
    "PS4",
    "ZDOTDIR",
    "FPATH",
    "PYTHON*",
    "PERL*",
    "RUBYOPT",
    "RUBYLIB",
    "GEM_*",
    "NODE_OPTIONS",
    "NODE_PATH",
    "JAVA_TOOL_OPTIONS",
    "JDK_JAVA_OPTIONS",
    "_JAVA_OPTIONS",
    "CLASSPATH",
    "LUA_*",
    "PHPRC",
    "PHP_INI_SCAN_DIR",
    "OPENSSL_*",
    "GIT_*",
];

/// Names of variables that tell a program where to find programs and files.
const PLACES: &[&str] = &[
    "PATH",
    "IFS",
    "CDPATH",
    "HOME",
    "SHELL",
    "USER",
    "LOGNAME",
    "PWD",
    "OLDPWD",
    "TMPDIR",
    "TMP",
    "TEMP",
    "EDITOR",
    "VISUAL",
    "PAGER",
    "BROWSER",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "RES_OPTIONS",
    "NOMAD_*",
    "OSTLER_*",
];

fn among(list: &[&str], name: &str) -> bool {
    list.iter().any(|known| match known.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *known,
    })
}

/// Whether a program loads code because of this variable.
#[must_use]
pub fn loads_code(name: &str) -> bool {
    among(LOADERS, name)
}

/// Whether no plugin may set this variable for a task, whatever is granted.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    loads_code(name) || among(PLACES, name)
}

/// Whether the plugin `plugin` may set the variable `name` without a grant.
#[must_use]
pub fn is_own(plugin: &str, name: &str) -> bool {
    let below = name.strip_prefix(&prefix_of(plugin));
    below.is_some_and(|below| among(&OWN_FORMS, below)) && !is_reserved(name)
}

/// Patterns of the variables that a plugin may set without a grant: `MY_GPU_DEVICES` and others for
/// `my-gpu`.
#[must_use]
pub fn own_of(plugin: &str) -> Vec<String> {
    let prefix = prefix_of(plugin);
    let own = OWN_FORMS.iter().map(|form| format!("{prefix}{form}"));
    own.filter(|name| !is_reserved(name)).collect()
}

/// Beginning of the variables of the plugin `name`: `MY_GPU_` for `my-gpu`.
fn prefix_of(name: &str) -> String {
    let letters = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' });
    let mut prefix: String = letters.collect::<String>().to_ascii_uppercase();
    prefix.push('_');
    prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_loaders_shells_and_interpreters_are_reserved() {
        for name in [
            "LD_PRELOAD",
            "LD_DEBUG_OUTPUT",
            "LD_AUDIT",
            "PATH",
            "BASH_ENV",
            "ENV",
            "IFS",
            "BASH_FUNC_ls%%",
            "GLIBC_TUNABLES",
            "PYTHONPATH",
            "PERL5LIB",
            "NODE_OPTIONS",
            "JAVA_TOOL_OPTIONS",
            "NOMAD_TASK_DIR",
            "HOME",
        ] {
            assert!(is_reserved(name), "{name}");
        }
        for name in ["CUDA_VISIBLE_DEVICES", "FILE_DEVICE_PATHS", "ENVIRONMENT", "PATHS", "LDX"] {
            assert!(!is_reserved(name), "{name}");
        }
        assert!(!loads_code("PATH") && loads_code("LD_LIBRARY_PATH"));
    }

    #[test]
    fn a_name_owns_what_says_which_device_and_nothing_that_a_library_reads() {
        for own in ["DEVICE", "DEVICES", "DEVICE_PATHS", "ID", "IDS", "VISIBLE_DEVICES"] {
            assert!(is_own("my-gpu.2", &format!("MY_GPU_2_{own}")), "{own}");
        }
        // Each makes programs load code.
        for (plugin, name) in [
            ("cuda", "CUDA_INJECTION64_PATH"),
            ("dotnet", "DOTNET_STARTUP_HOOKS"),
            ("gst", "GST_PLUGIN_PATH"),
            ("gtk", "GTK_MODULES"),
            ("julia", "JULIA_LOAD_PATH"),
            ("npm", "NPM_CONFIG_PREFIX"),
            ("qt", "QT_PLUGIN_PATH"),
            ("r", "R_PROFILE_USER"),
            ("ssl", "SSL_CERT_FILE"),
            ("vk", "VK_LAYER_PATH"),
            ("xdg-data", "XDG_DATA_DIRS"),
            ("my-gpu", "MY_GPU_"),
            ("my-gpu", "MY_GPU_DEVICESX"),
            ("my-gpu", "YOUR_GPU_DEVICES"),
        ] {
            assert!(!is_own(plugin, name), "{name}");
        }
        for reserved in ["ld", "nomad", "node-options"] {
            assert!(own_of(reserved).iter().all(|name| !is_reserved(name)), "{reserved}");
        }
        assert!(!is_own("ld", "LD_DEVICES") && own_of("ld").is_empty(), "whatever it is called");
        assert_eq!(own_of("my-gpu").first().map(String::as_str), Some("MY_GPU_DEVICE"));
    }
}
