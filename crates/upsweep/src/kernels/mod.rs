//! Device code that kernels share: the layer (all that kernels use beyond plain CUDA), the operators, the collectives of
//! reductions and of scans, the rows of a softmax.

use crate::flow::KernelFile;

pub mod tiles;

/// The headers, in the order in which they are put before a kernel file's text.
pub const HEADERS: [(&str, &str); 5] = [
    ("kernels/layer.cuh", include_str!("layer.cuh")),
    ("kernels/operators.cuh", include_str!("operators.cuh")),
    ("kernels/collectives.cuh", include_str!("collectives.cuh")),
    ("kernels/softmax.cuh", include_str!("softmax.cuh")),
    ("kernels/scan.cuh", include_str!("scan.cuh")),
];

/// The files whose texts are compiled for a kernel file, in their order: the shared headers, the struct of a user operator where
/// there is one ([`crate::flow::Program::operator`]), then the file.
pub fn sources(file: KernelFile, operator: Option<&str>) -> impl Iterator<Item = (&str, &str)> {
    let operator = operator.map(|text| ("a user operator", text));
    HEADERS.into_iter().chain(operator).chain([(file.path, file.text)])
}

/// The text that is compiled for a kernel file: [`sources`], each with its name for messages.
pub fn full_source(file: KernelFile, operator: Option<&str>) -> String {
    sources(file, operator).map(|(path, text)| format!("#line 1 \"{path}\"\n{text}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_names_its_parts_for_messages() {
        let file = KernelFile::cuda("ops/reduce/cuda/x.cu", "// x");
        let source = full_source(file, None);
        assert!(source.starts_with("#line 1 \"kernels/layer.cuh\"\n"));
        assert!(source.ends_with("#line 1 \"ops/reduce/cuda/x.cu\"\n// x\n"));
        let with_operator = full_source(file, Some("struct Y;"));
        assert!(with_operator.ends_with("struct Y;\n#line 1 \"ops/reduce/cuda/x.cu\"\n// x\n"));
    }
}
