//! Readers of what is packed, each with a bound on the memory it may use.

use std::io::{self, BufRead, BufReader, Read};

use bzip2::bufread::MultiBzDecoder;
use flate2::bufread::MultiGzDecoder;
use lzma_rust2::XzReader;
use ostler_model::artifact::Packing;
use ostler_model::limits::{ARTIFACT_DECOMPRESSOR_BYTES_MAX, KIB};
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

/// Read `from` as what it is packed as.
pub(crate) fn unpacked<'a>(
    from: impl Read + 'a,
    packing: Packing,
) -> Result<Box<dyn Read + 'a>, io::Error> {
    let from = BufReader::new(from);
    Ok(match packing {
        Packing::Plain => Box::new(from),
        Packing::Gz => Box::new(MultiGzDecoder::new(from)),
        Packing::Bz2 => Box::new(MultiBzDecoder::new(from)),
        Packing::Xz => {
            let kib = u32::try_from(ARTIFACT_DECOMPRESSOR_BYTES_MAX / KIB).unwrap_or(u32::MAX);
            Box::new(XzReader::new_mem_limit(from, true, kib))
        }
        Packing::Zst => Box::new(Zst::new(from)),
    })
}

/// Frames of Zstandard, one behind the other.
struct Zst<R> {
    from: R,
    decoder: FrameDecoder,
    state: ZstState,
}

/// Where it is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ZstState {
    Between,
    Within,
    Ended,
}

fn invalid(error: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

impl<R: BufRead> Zst<R> {
    fn new(from: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(ARTIFACT_DECOMPRESSOR_BYTES_MAX);
        Self { from, decoder, state: ZstState::Between }
    }

    /// Begin the next frame; what is to be skipped is.
    fn begin(&mut self) -> io::Result<ZstState> {
        loop {
            if self.from.fill_buf()?.is_empty() {
                return Ok(ZstState::Ended);
            }
            match self.decoder.init(&mut self.from) {
                Ok(()) => return Ok(ZstState::Within),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let mut skipped = self.from.by_ref().take(length.into());
                    if io::copy(&mut skipped, &mut io::sink())? < u64::from(length) {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(invalid(error)),
            }
        }
    }

    /// Where the frame says its sum, it must have it.
    fn check(&self) -> io::Result<()> {
        let said = self.decoder.get_checksum_from_data();
        if said.is_some() && said != self.decoder.get_calculated_checksum() {
            return Err(invalid("the sum of what was unpacked is another one"));
        }
        Ok(())
    }
}

impl<R: BufRead> Read for Zst<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            match self.state {
                ZstState::Ended => return Ok(0),
                ZstState::Between => self.state = self.begin()?,
                ZstState::Within if self.decoder.can_collect() > 0 => {
                    return self.decoder.read(into);
                }
                ZstState::Within if self.decoder.is_finished() => {
                    self.check()?;
                    self.state = ZstState::Between;
                }
                ZstState::Within => {
                    let one = BlockDecodingStrategy::UptoBlocks(1);
                    self.decoder.decode_blocks(&mut self.from, one).map_err(invalid)?;
                }
            }
        }
    }
}
