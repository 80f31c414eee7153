//! Reads the assembler's `-v` log: registers, stack and spills of each kernel.

use std::fmt;

/// What one kernel uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) registers: u64,
    pub(crate) stack: u64,
    pub(crate) spill_stores: u64,
    pub(crate) spill_loads: u64,
}

/// A kernel's symbol with its usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) symbol: String,
    pub(crate) usage: Usage,
}

/// Why a log cannot be trusted: the line and what is wrong with it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed {
    pub(crate) line: usize,
    pub(crate) why: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} of the assembler's log: {}", self.line, self.why)
    }
}

impl std::error::Error for Malformed {}

/// The entry being read, with what was seen of it so far.
struct Open {
    symbol: String,
    line: usize,
    usage: Usage,
    own_properties: bool,
    registers: bool,
}

/// The kernels of a log, in its order. Functions that were not inlined are printed below the kernel that calls them:
/// their spills are added to it, and their stack counts where it is the deeper one.
pub(crate) fn parse(log: &str) -> Result<Vec<Entry>, Malformed> {
    let mut entries = Vec::new();
    let mut open: Option<Open> = None;
    let mut properties_of: Option<String> = None;
    for (index, line) in log.lines().enumerate() {
        let line_number = index + 1;
        let malformed = |why: String| Malformed { line: line_number, why };
        if let Some(rest) = after(line, "Compiling entry function '") {
            entries.extend(open.take().map(close).transpose()?);
            let symbol = rest.split('\'').next().filter(|s| !s.is_empty() && rest.contains('\''));
            let symbol = symbol.ok_or_else(|| malformed(format!("no symbol in {line:?}")))?.to_string();
            open = Some(Open { symbol, line: line_number, usage: Usage::default(), own_properties: false, registers: false });
        } else if let Some(rest) = after(line, "Function properties for ") {
            properties_of = Some(rest.trim().to_string());
        } else if line.contains("bytes stack frame") {
            let [stack, stores, loads] =
                properties(line).ok_or_else(|| malformed(format!("three byte counts expected in {line:?}")))?;
            let entry = open.as_mut().ok_or_else(|| malformed("function properties outside a kernel".into()))?;
            let function = properties_of.take().ok_or_else(|| malformed("byte counts of no function".into()))?;
            entry.own_properties |= function == entry.symbol;
            entry.usage.stack = entry.usage.stack.max(stack);
            entry.usage.spill_stores += stores;
            entry.usage.spill_loads += loads;
        } else if let Some(rest) = after(line, ": Used ") {
            let entry = open.as_mut().ok_or_else(|| malformed("registers outside a kernel".into()))?;
            let count = rest.split_once(" registers").and_then(|(count, _)| count.trim().parse().ok());
            entry.usage.registers = count.ok_or_else(|| malformed(format!("no register count in {line:?}")))?;
            entry.registers = true;
        }
    }
    entries.extend(open.take().map(close).transpose()?);
    Ok(entries)
}

fn close(open: Open) -> Result<Entry, Malformed> {
    let missing = match (open.own_properties, open.registers) {
        (true, true) => return Ok(Entry { symbol: open.symbol, usage: open.usage }),
        (false, _) => "stack and spills",
        (_, false) => "registers",
    };
    Err(Malformed { line: open.line, why: format!("the log does not tell the {missing} of {}", open.symbol) })
}

fn after<'a>(line: &'a str, mark: &str) -> Option<&'a str> {
    line.split_once(mark).map(|(_, rest)| rest)
}

/// The numbers before `bytes stack frame`, `bytes spill stores` and `bytes spill loads`.
fn properties(line: &str) -> Option<[u64; 3]> {
    let number = |mark: &str| line.split_once(mark)?.0.split_whitespace().next_back()?.parse().ok();
    Some([number(" bytes stack frame")?, number(" bytes spill stores")?, number(" bytes spill loads")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "ptxas info    : 20 bytes gmem
ptxas info    : Compiling entry function '_Z1a' for 'sm_90a'
ptxas info    : Function properties for _Z1a
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 128 bytes smem
ptxas info    : Compile time = 187.212 ms
ptxas info    : Compiling entry function '_Z1b' for 'sm_90a'
ptxas info    : Function properties for _Z1b
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers
ptxas info    : Function properties for _Z6callee
    40 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
";

    #[test]
    fn kernels_and_their_callees_are_read() {
        let entries = parse(LOG).unwrap();
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[0].usage, Usage { registers: 32, ..Usage::default() });
        let usage = Usage { registers: 255, stack: 40, spill_stores: 12, spill_loads: 16 };
        assert_eq!(entries[1], Entry { symbol: "_Z1b".into(), usage });
        assert_eq!(parse("").unwrap(), []);
        assert_eq!(parse("k.cu(3): warning: unused variable\n").unwrap(), []);
    }

    #[test]
    fn a_log_that_leaves_something_out_or_garbles_it_is_an_error() {
        let without = |needle: &str| LOG.lines().filter(|l| !l.contains(needle)).collect::<Vec<_>>().join("\n");
        assert!(parse(&without("Used 32")).unwrap_err().why.contains("registers of _Z1a"));
        assert!(parse(&without("for _Z1a")).unwrap_err().why.contains("no function"));
        let orphan = without("for _Z1a").replace("ptxas         .     0 bytes", "");
        assert!(parse(&orphan).is_err());
        for (from, to) in [
            ("Used 32 registers", "Used many registers"),
            ("Used 32 registers", "Used -1 registers"),
            ("Used 32 registers", "Used 99999999999999999999999 registers"),
            ("0 bytes spill stores", "? bytes spill stores"),
            (", 0 bytes spill loads", ""),
            ("function '_Z1a'", "function '"),
            ("function '_Z1a'", "function ''"),
        ] {
            assert!(parse(&LOG.replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn any_cut_of_a_log_is_read_or_refused_but_never_invented() {
        let whole = parse(LOG).unwrap();
        for end in 0..LOG.len() {
            match parse(&LOG[..end]) {
                // A number that is cut can be a smaller number: only kernels before the last are held to the whole.
                Ok(entries) => assert!(entries.iter().zip(&whole).take(entries.len().saturating_sub(1)).all(|(a, b)| a == b)),
                Err(error) => assert!(error.line <= LOG.lines().count()),
            }
        }
    }
}
