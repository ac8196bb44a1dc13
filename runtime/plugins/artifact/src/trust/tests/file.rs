//! Tests of the trust file: its content, and the place of each mistake.

use proptest::prelude::*;

use super::*;
use ostler_model::digest::Digest;
use ostler_model::plugin::PluginKind;
use ostler_model::trust::PublicKey;

const KEY: &str = "RWQBAgMEBQYHCOpKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs";

/// `line:column message` of every problem.
fn problems(text: &str) -> Vec<String> {
    let found = parse_trust_file(text.as_bytes(), Path::new("trust.hcl")).unwrap_err();
    found.iter().map(|d| format!("{}:{} {}", d.line, d.column, d.message)).collect()
}

#[test]
fn everything_that_can_be_said_is_read() {
    let (good, bad) = (Digest::compute(b"good"), Digest::compute(b"bad"));
    let found = trust(&format!(
        "# whom we trust\nkey \"release\" {{\n  public_key = \"{KEY}\"\n  plugins = [\"acme-*\", \
         \"x\"]\n  kinds = [\"device\"]\n  revoked = \"lost\"\n}}\ndigest \"{}\" {{\n  plugins = \
         [\"x\"]\n}}\ndigest \"{bad}\" {{ revoked = \"loses files\" }}\n",
        good.to_tagged()
    ));
    let key = &found.keys[0];
    assert_eq!((key.name.as_str(), key.line), ("release", 2));
    assert_eq!(key.key, PublicKey::parse(KEY).unwrap());
    assert_eq!(key.scope.plugins, ["acme-*", "x"]);
    assert_eq!(key.scope.kinds, [PluginKind::Device]);
    assert_eq!(key.revoked.as_deref(), Some("lost"));
    assert_eq!((found.digests[&good].line, &found.digests[&good].revoked), (8, &None));
    assert_eq!(found.digests[&bad].revoked.as_deref(), Some("loses files"));
    assert_eq!(found.place(8), "trust.hcl:8");
}

#[test]
fn an_empty_file_trusts_nobody() {
    let found = trust("");
    assert!(found.keys.is_empty() && found.digests.is_empty());
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let text = format!(
        "key \"a\" {{ public_key = \"RWnonsense\" }}\n\
         key \"b\" {{}}\n\
         key \"c\" {{\n  public_key = \"{KEY}\"\n  kinds = [\"volume\"]\n  plugins = []\n}}\n\
         key \"c\" {{ public_key = \"{KEY}\" }}\n\
         digest \"sha256:12\" {{}}\n\
         digest \"{0}\" {{ revoked = \"\" }}\n\
         digest \"{0}\" {{}}\n\
         digset \"{0}\" {{}}\n",
        Digest::compute(b"").to_tagged()
    );
    let found = problems(&text);
    let expected = [
        "1:24 public_key: a public key is the second line",
        "2:5 a key needs public_key",
        "5:12 \"volume\" is not a valid kind of plugins",
        "6:13 plugins must not be empty",
        "8:5 a key \"c\" is already defined",
        "8:5 this is the key of \"c\"",
        "9:8 a digest is sha256:",
        "10:94 revoked says why",
        "11:8 this digest is already listed",
        "12:1 \"digset\" is unknown",
    ];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (found, expected) in found.iter().zip(expected) {
        assert!(found.starts_with(expected), "{found} is not {expected}");
    }
}

#[test]
fn a_key_given_again_under_another_number_is_found() {
    let key = Signer::new(1).public_key();
    let other = Signer::new(1).public_key_numbered([9; 8]);
    let text = format!(
        "key \"a\" {{\n  public_key = \"{key}\"\n  revoked = \"lost\"\n}}\n\
         key \"b\" {{ public_key = \"{other}\" }}"
    );
    assert!(problems(&text)[0].contains("this is the key of \"a\""), "{:?}", problems(&text));
}

#[test]
fn too_many_keys_and_too_many_bytes_are_refused() {
    let many: String = (0..300).map(|n| format!("key \"k{n}\" {{}}\n")).collect();
    assert!(!problems(&many).is_empty());
    let large = " ".repeat(ostler_model::limits::TRUST_FILE_BYTES_MAX as usize + 1);
    assert!(problems(&large)[0].contains("the trust file has"), "{:?}", problems(&large));
    let not_text = parse_trust_file(b"key \xff", Path::new("t")).unwrap_err();
    assert!(not_text.to_string().contains("not UTF-8"), "{not_text}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn any_bytes_are_a_trust_file_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..256),
    ) {
        if let Err(found) = parse_trust_file(&bytes, Path::new("trust.hcl")) {
            prop_assert!(!found.is_empty());
        }
    }

    /// Tokens of the language in any order.
    #[test]
    fn any_words_are_a_trust_file_or_an_error(
        words in proptest::collection::vec(
            prop::sample::select(vec![
                "key", "digest", "\"a\"", "{", "}", "\n", "=", "public_key", "plugins", "kinds",
                "revoked", "[", "]", "\"driver\"", ",", "null", "${", "sha256:", "<<EOF\n", "EOF\n",
            ]),
            0..40,
        ),
    ) {
        if let Err(found) = parse_trust_file(words.join(" ").as_bytes(), Path::new("t")) {
            prop_assert!(!found.is_empty());
        }
    }
}
