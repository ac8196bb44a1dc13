//! The only source of randomness.
//!
//! [`Rng::system`] asks the kernel; [`Rng::from_seed`] is a reproducible stream for tests and
//! simulation (SplitMix64, public domain algorithm by Sebastiano Vigna).

use std::sync::{Arc, Mutex, PoisonError};

/// A source of random numbers; clones share one stream.
#[derive(Clone, Debug)]
pub struct Rng(RngSource);

#[derive(Clone, Debug)]
enum RngSource {
    System,
    Seeded(Arc<Mutex<u64>>),
}

impl Rng {
    /// The kernel's randomness.
    #[must_use]
    pub fn system() -> Self {
        Self(RngSource::System)
    }

    /// A reproducible stream.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(RngSource::Seeded(Arc::new(Mutex::new(seed))))
    }

    /// Fill `buffer` with random bytes.
    pub fn fill(&self, buffer: &mut [u8]) {
        match &self.0 {
            RngSource::System => system_fill(buffer),
            RngSource::Seeded(state) => {
                let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                for chunk in buffer.chunks_mut(8) {
                    let word = split_mix(&mut state).to_le_bytes();
                    for (to, from) in chunk.iter_mut().zip(word) {
                        *to = from;
                    }
                }
            }
        }
    }

    /// A random 64-bit number.
    #[must_use]
    pub fn next_u64(&self) -> u64 {
        let mut bytes = [0; 8];
        self.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// A number in `0..bound`; 0 when `bound` is 0.
    #[must_use]
    pub fn number_below(&self, bound: u64) -> u64 {
        // 128-bit multiplication maps without the bias that matters here (2^-64 · bound).
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A random (version 4) UUID.
    #[must_use]
    pub fn uuid(&self) -> uuid::Uuid {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid()
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that asks the kernel for randomness")]
fn system_fill(mut buffer: &mut [u8]) {
    while !buffer.is_empty() {
        match rustix::rand::getrandom(&mut *buffer, rustix::rand::GetRandomFlags::empty()) {
            Ok(got) => buffer = buffer.get_mut(got..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            // The kernel has no randomness call (before 3.17): such a kernel cannot run the
            // agent for other reasons; leave the rest as it is rather than abort.
            Err(_) => return,
        }
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
