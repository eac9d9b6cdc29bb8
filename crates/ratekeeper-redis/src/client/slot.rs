//! The Cluster slot of a hash tag: its CRC16 (XMODEM) modulo the number of slots.

/// The number of slots of a Cluster.
pub(crate) const SLOTS: usize = 16_384;

const CRC16_TABLE: [u16; 256] = crc16_table();

/// The slot of a hash tag: the part of a key between braces, or the whole key if it has none.
pub(crate) fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        crc << 8 ^ CRC16_TABLE[usize::from(high ^ byte)]
    });
    crc & 0x3fff
}

/// A key in the slot `wanted`, with which to probe the server that serves the slot.
pub(crate) fn probe_key_in(wanted: u16) -> Vec<u8> {
    // Numbers hash to all slots: about ten thousand of them have to be tried, which takes a millisecond.
    let tags = (0_u32..).map(|number| number.to_string());
    let tag = tags.take(10_000_000).find(|tag| slot(tag.as_bytes()) == wanted).unwrap_or_default();
    format!("rk1:{{{tag}}}:probe").into_bytes()
}

const fn crc16_table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0_u16;
    while byte < 256 {
        let mut crc = byte << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
            bit += 1;
        }
        table[byte as usize] = crc;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_probe_key() {
        for wanted in [0, 1, 4711, 16_382, 16_383] {
            let key = probe_key_in(wanted);
            let key = std::str::from_utf8(&key).unwrap();
            let tag = key.strip_prefix("rk1:{").and_then(|rest| rest.strip_suffix("}:probe")).unwrap();
            assert_eq!(slot(tag.as_bytes()), wanted, "{key}");
        }
    }

    /// The standard check value of CRC16/XMODEM.
    #[test]
    fn the_checksum_is_the_one_of_redis_cluster() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b""), 0);
        assert_eq!(slot(b"foo"), 12_182);
    }
}
