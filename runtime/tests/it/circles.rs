//! Circles of files that import one another: nobody understands one file of them without all others.

use std::collections::{BTreeMap, BTreeSet};

use super::architecture::shipped_sources;

/// Most files of a circle.
const CIRCLE_MAX: usize = 5;

/// `a::{b, c::{d}}` as `a::b` and `a::c::d`.
fn expand(path: &str) -> Vec<String> {
    let Some((start, rest)) = path.split_once('{') else {
        return vec![path.split(" as ").next().unwrap().trim().to_owned()];
    };
    let inside = &rest[..rest.rfind('}').unwrap_or(rest.len())];
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for letter in inside.chars() {
        match letter {
            ',' if depth == 0 => parts.push(String::new()),
            _ => parts.last_mut().unwrap().push(letter),
        }
        depth += i32::from(letter == '{') - i32::from(letter == '}');
    }
    let all = parts.iter().filter(|part| !part.trim().is_empty());
    all.flat_map(|part| expand(&format!("{}{}", start.trim(), part.trim()))).collect()
}

/// The paths that some code names: those of its imports, and each that stands in it as a word.
pub(crate) fn named_paths(code: &str) -> Vec<String> {
    let flat = code.split_whitespace().collect::<Vec<_>>().join(" ");
    let imports = flat.split("use ").skip(1).filter_map(|part| part.split_once(';'));
    let mut found: Vec<String> = imports.flat_map(|(import, _)| expand(import)).collect();
    let words = flat.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    let paths = words.map(|word| word.trim_end_matches(':')).filter(|word| word.contains("::"));
    found.extend(paths.map(str::to_owned));
    found
}

/// The module of the crate that a path in `module` leads to; none where it leads out of the crate.
fn resolve<'a>(all: &BTreeSet<&'a str>, module: &str, path: &str) -> Option<&'a str> {
    let mut parts = path.split("::").peekable();
    let mut at: Vec<&str> = module.split("::").filter(|part| !part.is_empty()).collect();
    match *parts.peek()? {
        "crate" => {
            at.clear();
            parts.next();
        }
        "super" => {
            while parts.next_if_eq(&"super").is_some() {
                at.pop();
            }
        }
        child if !all.contains([&at[..], &[child]].concat().join("::").as_str()) => return None,
        _ => {}
    }
    for part in parts {
        let longer = [&at[..], &[part]].concat();
        if !all.contains(longer.join("::").as_str()) {
            break;
        }
        at = longer;
    }
    all.get(at.join("::").as_str()).copied()
}

/// Everything that can be reached from `from`.
fn reached<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let (mut found, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(next) = left.pop() {
        left.extend(edges[next].iter().filter(|to| found.insert(**to)));
    }
    found
}

#[test]
fn few_files_of_the_api_import_one_another_in_a_circle() {
    let of_api = shipped_sources().iter().filter(|source| source.top() == "api");
    let files: BTreeMap<String, &str> = of_api
        .map(|source| {
            let module = source.module();
            let module = module.strip_prefix("api::").unwrap_or(&module);
            (if module == "lib" { String::new() } else { module.to_owned() }, &*source.code)
        })
        .collect();
    let all: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let edges: BTreeMap<&str, BTreeSet<&str>> = files
        .iter()
        .map(|(module, code)| {
            let to = named_paths(code).into_iter().filter_map(|path| resolve(&all, module, &path));
            (module.as_str(), to.filter(|to| to != module).collect())
        })
        .collect();
    let reached: BTreeMap<&str, _> =
        all.iter().map(|from| (*from, reached(&edges, from))).collect();
    for from in &all {
        let circle: Vec<_> =
            reached[from].iter().filter(|to| reached[*to].contains(from)).collect();
        assert!(circle.len() <= CIRCLE_MAX, "{circle:?}");
    }
    assert!(reached["server"].contains("server::state"), "the imports are read");
}
