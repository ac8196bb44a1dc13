//! Environment variables that decide what a program is: which code it loads, which programs it finds.
//!
//! A device plugin may tell a task where its device is; it may not change what the task runs. Pure.

/// Names, or beginnings of names (`…*`), by which loaders and interpreters are told to load code.
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

/// Names by which shells and the host say where a program finds things.
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

/// Is a program told by it to load code?
#[must_use]
pub fn loads_code(name: &str) -> bool {
    among(LOADERS, name)
}

/// Is it one that no plugin sets for a task, whatever is granted?
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    loads_code(name) || among(PLACES, name)
}

/// The beginning of the variables that belong to what is called `name`: `MY_GPU_` for `my-gpu`.
#[must_use]
pub fn prefix_of(name: &str) -> String {
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
    fn a_name_owns_the_variables_that_begin_with_it() {
        assert_eq!(prefix_of("my-gpu.2"), "MY_GPU_2_");
        assert!(is_reserved(&format!("{}PRELOAD", prefix_of("ld"))), "whatever it is called");
    }
}
