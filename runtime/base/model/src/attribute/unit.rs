//! The closed list of units an attribute may have.

use std::fmt;

/// What a unit measures. Values are comparable only within one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// An amount of data; its smallest unit is the byte.
    Bytes,
    /// An amount of data in a second; its smallest unit is one byte per second.
    ByteRate,
    /// A frequency; its smallest unit is the megahertz.
    Frequency,
    /// A power; its smallest unit is the milliwatt.
    Power,
}

macro_rules! units {
    ($($variant:ident = $text:literal, $dimension:ident, $factor:expr;)*) => {
        /// A unit. The text is case-sensitive.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "each is its own text")]
        pub enum Unit {
            $($variant,)*
        }

        impl Unit {
            /// Every unit.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Text of the unit, for example `GiB/s`.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }

            /// What the unit measures.
            #[must_use]
            pub const fn dimension(self) -> Dimension {
                match self { $(Self::$variant => Dimension::$dimension,)* }
            }

            /// How many of the smallest unit of its dimension (B, B/s, MHz, mW) it is: a whole
            /// number below 2^60 + 1, so that an `i64` times it fits an `i128`.
            #[must_use]
            pub const fn factor(self) -> u64 {
                match self { $(Self::$variant => $factor,)* }
            }
        }
    };
}

units! {
    KiB = "KiB", Bytes, 1 << 10;
    MiB = "MiB", Bytes, 1 << 20;
    GiB = "GiB", Bytes, 1 << 30;
    TiB = "TiB", Bytes, 1 << 40;
    PiB = "PiB", Bytes, 1 << 50;
    EiB = "EiB", Bytes, 1 << 60;
    SmallKB = "kB", Bytes, 1_000;
    KB = "KB", Bytes, 1_000;
    MB = "MB", Bytes, 1_000_000;
    GB = "GB", Bytes, 1_000_000_000;
    TB = "TB", Bytes, 1_000_000_000_000;
    PB = "PB", Bytes, 1_000_000_000_000_000;
    EB = "EB", Bytes, 1_000_000_000_000_000_000;
    KiBPerSecond = "KiB/s", ByteRate, 1 << 10;
    MiBPerSecond = "MiB/s", ByteRate, 1 << 20;
    GiBPerSecond = "GiB/s", ByteRate, 1 << 30;
    TiBPerSecond = "TiB/s", ByteRate, 1 << 40;
    PiBPerSecond = "PiB/s", ByteRate, 1 << 50;
    EiBPerSecond = "EiB/s", ByteRate, 1 << 60;
    SmallKBPerSecond = "kB/s", ByteRate, 1_000;
    KBPerSecond = "KB/s", ByteRate, 1_000;
    MBPerSecond = "MB/s", ByteRate, 1_000_000;
    GBPerSecond = "GB/s", ByteRate, 1_000_000_000;
    TBPerSecond = "TB/s", ByteRate, 1_000_000_000_000;
    PBPerSecond = "PB/s", ByteRate, 1_000_000_000_000_000;
    EBPerSecond = "EB/s", ByteRate, 1_000_000_000_000_000_000;
    MHz = "MHz", Frequency, 1;
    GHz = "GHz", Frequency, 1_000;
    MilliWatt = "mW", Power, 1;
    Watt = "W", Power, 1_000;
    KiloWatt = "kW", Power, 1_000_000;
    MegaWatt = "MW", Power, 1_000_000_000;
    GigaWatt = "GW", Power, 1_000_000_000_000;
}

impl Unit {
    /// The unit with this text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|unit| unit.as_str() == text)
    }

    /// The longest unit that `text` ends with, and the text before it.
    #[must_use]
    pub fn split_suffix(text: &str) -> Option<(&str, Self)> {
        Self::ALL
            .iter()
            .copied()
            .filter_map(|unit| text.strip_suffix(unit.as_str()).map(|before| (before, unit)))
            .max_by_key(|(_, unit)| unit.as_str().len())
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
