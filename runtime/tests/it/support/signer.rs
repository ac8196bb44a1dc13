//! Somebody who signs plugins: minisign's file formats, written for the tests; those beside the code
//! use this file too.
#![allow(dead_code, reason = "each of the two uses a part")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// A key pair with a number.
pub struct Signer {
    pair: Ed25519KeyPair,
    number: [u8; 8],
}

impl Signer {
    /// Another one for each `seed`.
    pub fn new(seed: u8) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        Self { pair, number: [seed; 8] }
    }

    /// The second line of its `.pub` file.
    pub fn public_key(&self) -> String {
        self.public_key_numbered(self.number)
    }

    /// The same key under another number.
    pub fn public_key_numbered(&self, number: [u8; 8]) -> String {
        let point = self.pair.public_key();
        STANDARD.encode([&b"Ed"[..], &number, point.as_ref()].concat())
    }

    /// The `.minisig` file of `bytes`.
    pub fn sign(&self, bytes: &[u8], comment: &str) -> String {
        let hash = blake2b_simd::blake2b(bytes);
        self.file(*b"ED", self.number, hash.as_bytes(), comment)
    }

    /// The same in the form of older days: the whole of `bytes` is signed, not its hash.
    pub fn sign_old(&self, bytes: &[u8], comment: &str) -> String {
        self.file(*b"Ed", self.number, bytes, comment)
    }

    /// A signature that claims to be by the key with another number.
    pub fn sign_as(&self, number: [u8; 8], bytes: &[u8], comment: &str) -> String {
        self.file(*b"ED", number, blake2b_simd::blake2b(bytes).as_bytes(), comment)
    }

    /// Its number.
    pub fn number(&self) -> [u8; 8] {
        self.number
    }

    fn file(&self, form: [u8; 2], number: [u8; 8], signed: &[u8], comment: &str) -> String {
        let signature = self.pair.sign(signed);
        let first = [&form[..], &number, signature.as_ref()].concat();
        let both = self.pair.sign(&[signature.as_ref(), comment.as_bytes()].concat());
        format!(
            "untrusted comment: signature of a test\n{}\ntrusted comment: {comment}\n{}\n",
            STANDARD.encode(first),
            STANDARD.encode(both.as_ref())
        )
    }
}
