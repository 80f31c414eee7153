//! Numbers as people type them: `2^28`, `1e6`, `64Mi`, `2^20+13`.

/// What [`parse_count`] accepts, for error messages and help texts.
pub const ALLOWED: &str = "a whole number below 2^63: plain (65536), a power (2^28), scientific (1e6), with K, M, G (powers of 1000) or Ki, Mi, Gi (powers of 1024), each optionally followed by +k or -k";

/// Parses a count.
///
/// # Errors
/// A message that says what came and what is allowed.
///
/// ```
/// use upsweep_cli::number::parse_count;
/// assert_eq!(parse_count("2^28"), Ok(268_435_456));
/// assert_eq!(parse_count("1.5e6"), Ok(1_500_000));
/// assert_eq!(parse_count("64Mi"), Ok(67_108_864));
/// assert_eq!(parse_count("2^20+13"), Ok(1_048_589));
/// assert!(parse_count("2^64").is_err());
/// ```
pub fn parse_count(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a count; allowed is {ALLOWED}");
    let compact: String = text.trim().chars().filter(|c| *c != '_').collect();
    // A sign after the first character ends the base number, except where it belongs to an exponent (1e+6).
    let split = compact.char_indices().skip(1).find(|&(at, c)| matches!(c, '+' | '-') && !compact[..at].ends_with(['e', 'E']));
    let value = match split {
        None => base(&compact),
        Some((at, sign)) => {
            let (left, right) = (base(&compact[..at]), plain(&compact[at + 1..]));
            match (left, right, sign) {
                (Some(l), Some(r), '+') => l.checked_add(r),
                (Some(l), Some(r), _) => l.checked_sub(r),
                _ => None,
            }
        }
    };
    value.filter(|v| *v < 1 << 63).ok_or_else(wrong)
}

fn plain(text: &str) -> Option<u64> {
    // `u64::from_str` takes a leading plus, which would let `2^3++1` through.
    (text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

fn base(text: &str) -> Option<u64> {
    if let Some((root, exponent)) = text.split_once('^') {
        return plain(root)?.checked_pow(u32::try_from(plain(exponent)?).ok()?);
    }
    const SUFFIXES: [(&str, u64); 6] =
        [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("K", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];
    for (suffix, factor) in SUFFIXES {
        if let Some(digits) = text.strip_suffix(suffix) {
            return plain(digits)?.checked_mul(factor);
        }
    }
    if text.contains(['e', 'E']) {
        let (mantissa, exponent) = text.split_once(['e', 'E'])?;
        return scientific(mantissa, plain(exponent.strip_prefix('+').unwrap_or(exponent))?);
    }
    plain(text)
}

/// `mantissa * 10^exponent`, exactly, or nothing.
fn scientific(mantissa: &str, exponent: u64) -> Option<u64> {
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let fraction = fraction.trim_end_matches('0');
    let digits = plain(if whole.is_empty() { return None } else { whole })?
        .checked_mul(10u64.checked_pow(u32::try_from(fraction.len()).ok()?)?)?
        .checked_add(if fraction.is_empty() { 0 } else { plain(fraction)? })?;
    let left = exponent.checked_sub(fraction.len() as u64)?;
    digits.checked_mul(10u64.checked_pow(u32::try_from(left).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_spellings() {
        for (text, value) in [
            ("0", 0),
            ("1_000", 1000),
            ("2^28", 1 << 28),
            ("10^3", 1000),
            ("1e6", 1_000_000),
            ("1e+6", 1_000_000),
            ("2.50e1", 25),
            ("4K", 4000),
            ("4Ki", 4096),
            ("3M", 3_000_000),
            ("2Gi", 1 << 31),
            ("2^20+13", (1 << 20) + 13),
            ("2^31-1", (1 << 31) - 1),
        ] {
            assert_eq!(parse_count(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_no_count_is_refused_with_the_allowed_forms() {
        for text in [
            "",
            "-1",
            "2^",
            "^2",
            "1.5",
            "1.55e1",
            "e6",
            "1e",
            "2^64",
            "9223372036854775808",
            "1e30",
            "4k",
            "5-6",
            "1+",
            "a",
            "2^3++1",
            "2^3^2",
        ] {
            let message = parse_count(text).expect_err(text);
            assert!(message.contains("2^28"), "{message}");
        }
    }
}
