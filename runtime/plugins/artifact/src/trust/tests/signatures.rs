//! Tests of signatures against keys and bytes, with the real cryptography.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;

const OLD_KEY: &str = "RWQBAgMEBQYHCOpKbGPinFIKvvVQexMuxfmVR3auvr57kkIe6mkURtIs";
/// A signature that was made once by another program. The whole file is signed, not its hash.
const OLD_FORM: &str = "untrusted comment: old form\n\
    RWQBAgMEBQYHCJ3oFnEdcsD7AENIw1sW7mhuHab8F0V8/tEundcrDAyuVI6VuBEdl8sXVRjgjx84yHSUdiWfxFy+hcBashYiUgg=\n\
    trusted comment: timestamp:1700000000\tfile:old.wasm\n\
    sLeMGz+rsVXNUvorGXAoDdeGJ6BaG5TgSS63INE0w2TdOVkbhsjbvNoutcsafTHWtOPpu7feq/fBjHDzXMNdCQ==\n";
const OLD_BYTES: &[u8] = b"a plugin of older days\n";
const BYTES: &[u8] = b"\0asm plugin";

/// A trust file with one key, and that key's signature of [`BYTES`].
static SIGNED: LazyLock<(TrustFile, String)> = LazyLock::new(|| {
    let signer = Signer::new(1);
    (trust(&key_block("release", &signer, "")), signer.sign(BYTES, "version 1"))
});

fn said<'a>(bytes: &[u8], signature: &str, trust: &'a TrustFile) -> SignatureCheck<'a> {
    check(bytes, Some(&Signature::parse(signature.as_bytes())), Some(trust))
}

#[test]
fn a_signature_by_a_known_key_is_trusted_with_its_comment() {
    let (trust, signature) = &*SIGNED;
    match said(BYTES, signature, trust) {
        SignatureCheck::By { key, comment } => {
            assert_eq!((key.name.as_str(), comment.as_str()), ("release", "version 1"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_old_form_is_read_too() {
    let trust = trust(&format!("key \"old\" {{ public_key = \"{OLD_KEY}\" }}"));
    assert!(matches!(said(OLD_BYTES, OLD_FORM, &trust), SignatureCheck::By { .. }));
    assert!(matches!(said(b"another", OLD_FORM, &trust), SignatureCheck::Wrong { .. }));
    let signature = Signer::new(1).sign_old(BYTES, "");
    assert!(matches!(said(BYTES, &signature, &SIGNED.0), SignatureCheck::By { .. }));
    assert_eq!(
        Signature::parse(OLD_FORM.as_bytes()).unwrap().key().to_string(),
        "0807060504030201"
    );
}

#[test]
fn other_bytes_and_another_comment_are_not_what_was_signed() {
    let (trust, signature) = &*SIGNED;
    assert!(matches!(said(b"\0asm plugim", signature, trust), SignatureCheck::Wrong { .. }));
    let comment = signature.replace("version 1", "version 2");
    assert!(matches!(said(BYTES, &comment, trust), SignatureCheck::Wrong { .. }));
}

#[test]
fn a_key_that_is_not_listed_is_named_by_its_number() {
    let signature = Signer::new(2).sign(BYTES, "");
    let number = Signature::parse(signature.as_bytes()).unwrap().key();
    assert_eq!(said(BYTES, &signature, &SIGNED.0), SignatureCheck::Unknown { key: number });
    let signature = Signature::parse(signature.as_bytes());
    assert_eq!(check(BYTES, Some(&signature), None), SignatureCheck::Unknown { key: number });
}

#[test]
fn a_signature_under_the_number_of_another_key_is_wrong() {
    // This is another signer's signature that claims to be by the trusted key.
    let forged = Signer::new(2).sign_as(Signer::new(1).number(), BYTES, "version 1");
    assert!(matches!(said(BYTES, &forged, &SIGNED.0), SignatureCheck::Wrong { .. }));
}

#[test]
fn what_is_no_signature_is_said_to_be_none_and_where() {
    let (_, signature) = &*SIGNED;
    let lines: Vec<&str> = signature.trim_end().lines().collect();
    let error = |text: &str| Signature::parse(text.as_bytes()).unwrap_err().to_string();
    assert!(error("").contains("0 lines"));
    assert!(error(&lines[..3].join("\n")).contains("3 lines"));
    assert!(error(&format!("{signature}\nmore")).contains("lines"));
    assert!(error(&[lines[0], "RW", lines[2], lines[3]].join("\n")).contains("line 2"));
    assert!(error(&[lines[0], lines[1], "comment", lines[3]].join("\n")).contains("line 3"));
    assert!(error(&[lines[0], lines[1], lines[2], lines[1]].join("\n")).contains("line 4"));
    assert!(Signature::parse(b"\xff").unwrap_err().to_string().contains("not text"));
    let large = vec![b'a'; ostler_model::limits::SIGNATURE_FILE_BYTES_MAX as usize + 1];
    assert!(Signature::parse(&large).unwrap_err().to_string().contains("at most"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Everything after the first line is signed or part of the signature.
    #[test]
    fn no_changed_byte_of_a_signature_is_trusted(at in 0_usize..1_000, flip in 1_u8..=255) {
        let (trust, signature) = &*SIGNED;
        let start = signature.find('\n').unwrap() + 1;
        let mut bytes = signature.trim_end().as_bytes().to_vec();
        let at = start + at % (bytes.len() - start);
        bytes[at] ^= flip;
        let said = check(BYTES, Some(&Signature::parse(&bytes)), Some(trust));
        prop_assert!(!matches!(said, SignatureCheck::By { .. }), "{said:?}");
    }

    #[test]
    fn no_changed_byte_of_a_plugin_is_trusted(at in 0..BYTES.len(), flip in 1_u8..=255) {
        let (trust, signature) = &*SIGNED;
        let mut bytes = BYTES.to_vec();
        bytes[at] ^= flip;
        prop_assert!(matches!(said(&bytes, signature, trust), SignatureCheck::Wrong { .. }), "wrong");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_is_put_into_a_signature_is_refused_or_part_of_its_comments(
        at: prop::sample::Index, more in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let mut bytes = SIGNED.1.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes.splice(at..at, more);
        if let Ok(read) = Signature::parse(&bytes) {
            let text = String::from_utf8(bytes).unwrap();
            let comment = text.lines().nth(2).and_then(|line| line.strip_prefix("trusted comment: "));
            prop_assert_eq!(comment, Some(read.comment()));
            prop_assert_eq!(read.key(), Signature::parse(SIGNED.1.as_bytes()).unwrap().key());
        }
    }

    /// These have the right shape with any content, which reaches the decoders behind.
    #[test]
    fn any_lines_are_a_signature_or_an_error(
        second in "[A-Za-z0-9+/=]{0,120}", third in "(trusted comment: )?\\PC{0,40}",
        fourth in "[A-Za-z0-9+/=]{80,90}",
    ) {
        let read = Signature::parse(format!("x\n{second}\n{third}\n{fourth}\n").as_bytes());
        prop_assert!(third.starts_with("trusted comment: ") || read.is_err(), "{}", third);
    }
}
