//! The only source of randomness.
//!
//! [`Rng::system`] asks the kernel; [`Rng::from_seed`] is a reproducible stream for tests and
//! simulation (SplitMix64, public domain algorithm by Sebastiano Vigna).

use std::sync::{Arc, Mutex, PoisonError};

/// A source of random numbers; clones share one stream.
#[derive(Clone, Debug)]
pub struct Rng(RngSource);

#[derive(Clone)]
enum RngSource {
    System(Arc<Mutex<SystemBuffer>>),
    Seeded(Arc<Mutex<u64>>),
}

impl std::fmt::Debug for RngSource {
    /// Without what will be drawn.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::System(_) => "System",
            Self::Seeded(_) => "Seeded",
        })
    }
}

/// Bytes that are asked of the kernel at once. Most numbers are ids of 8 or 16 bytes.
const BUFFER_BYTES: usize = 512;

/// Random bytes of the kernel that nobody has drawn yet. Processes that are forked without being
/// executed anew (supervisors) draw no numbers: they would draw the same ones.
struct SystemBuffer {
    bytes: [u8; BUFFER_BYTES],
    /// How many of them were drawn.
    drawn: usize,
}

impl Default for SystemBuffer {
    fn default() -> Self {
        Self { bytes: [0; BUFFER_BYTES], drawn: BUFFER_BYTES }
    }
}

impl SystemBuffer {
    fn fill(&mut self, wanted: &mut [u8]) {
        if wanted.len() > BUFFER_BYTES / 4 {
            return system_fill(wanted);
        }
        if self.bytes.len() - self.drawn < wanted.len() {
            system_fill(&mut self.bytes);
            self.drawn = 0;
        }
        let end = self.drawn + wanted.len();
        if let Some(drawn) = self.bytes.get_mut(self.drawn..end) {
            wanted.copy_from_slice(drawn);
            // What was drawn may be a secret, and is nowhere but with whoever drew it.
            drawn.fill(0);
        }
        self.drawn = end;
    }
}

impl Rng {
    /// The kernel's randomness.
    #[must_use]
    pub fn system() -> Self {
        Self(RngSource::System(Arc::default()))
    }

    /// A reproducible stream.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        Self(RngSource::Seeded(Arc::new(Mutex::new(seed))))
    }

    /// Fill `buffer` with random bytes.
    pub fn fill(&self, buffer: &mut [u8]) {
        match &self.0 {
            RngSource::System(drawn) => {
                drawn.lock().unwrap_or_else(PoisonError::into_inner).fill(buffer);
            }
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn numbers_of_the_kernel_are_all_different_also_where_the_buffer_is_filled_anew() {
        let rng = Rng::system();
        let drawn: BTreeSet<u64> = (0..1_000).map(|_| rng.next_u64()).collect();
        assert_eq!(drawn.len(), 1_000);
        let mut long = [0; 3 * BUFFER_BYTES];
        rng.fill(&mut long);
        assert!(long.chunks(16).all(|part| part != [0; 16]));
    }

    #[test]
    fn what_was_drawn_is_not_in_the_buffer_any_more() {
        let mut buffer = SystemBuffer::default();
        let mut drawn = [0; 32];
        buffer.fill(&mut drawn);
        assert_ne!(drawn, [0; 32]);
        assert!(!buffer.bytes.windows(8).any(|part| drawn.windows(8).any(|one| one == part)));
    }
}
