//! Which of a Cluster's slots a tag is in: CRC16 by XMODEM, modulo the number of slots.

/// How many slots a Cluster has.
pub(in crate::redis) const SLOTS: usize = 16_384;

const TABLE: [u16; 256] = table();

/// The slot that a hash tag is in: a key's own, or the part of it between braces.
pub(in crate::redis) fn slot(tag: &[u8]) -> u16 {
    let crc = tag.iter().fold(0_u16, |crc, byte| {
        let [high, _] = crc.to_be_bytes();
        crc << 8 ^ TABLE[usize::from(high ^ byte)]
    });
    crc & 0x3fff
}

/// A key of ours in a slot, by which a server can be tried that has the slot.
pub(in crate::redis) fn key_in(wanted: u16) -> Vec<u8> {
    // Numbers are spread over all slots: it takes some ten thousand of them to find one, which is a millisecond.
    let tags = (0_u32..).map(|number| number.to_string());
    let tag = tags.take(10_000_000).find(|tag| slot(tag.as_bytes()) == wanted).unwrap_or_default();
    format!("rk1:{{{tag}}}:probe").into_bytes()
}

const fn table() -> [u16; 256] {
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
    fn every_slot_has_a_key_to_try_it_by() {
        for wanted in [0, 1, 4711, 16_382, 16_383] {
            let key = key_in(wanted);
            let key = std::str::from_utf8(&key).unwrap();
            let tag = key.strip_prefix("rk1:{").and_then(|rest| rest.strip_suffix("}:probe")).unwrap();
            assert_eq!(slot(tag.as_bytes()), wanted, "{key}");
        }
    }

    /// The check value that every catalogue of checksums gives for this one.
    #[test]
    fn the_checksum_is_the_one_that_clusters_use() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b""), 0);
        assert_eq!(slot(b"foo"), 12_182);
    }
}
