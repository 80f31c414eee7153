// Rung 7, tiles: the stable softmax as a Rust tile kernel: whole rows are one tile, which stays on chip from the read to the write.
// input: rows of cols f32, pitch elements apart, at any alignment; output: rows * cols
// launch: grid ceil(rows / ROWS); block: what the cubin requires (kernels/tiles); cols at most COLS
// cost: one read and one write of every element; two trees a row
// source: NVIDIA, CUDA Tile IR specification (2026), sections on views and reductions

#[cutile::module]
pub mod kernels {
    use cutile::core::*;

    // Beyond a row's end a tile holds zeros; what a row needs there is -inf, whose exponential is zero.
    fn nothing_beyond<const ROWS: i32, const COLS: i32>(x: Tile<f32, { [ROWS, COLS] }>, cols: i32) -> Tile<f32, { [ROWS, COLS] }> {
        let column: Tile<i32, { [COLS] }> = iota(const_shape![COLS]);
        let end: Tile<i32, { [COLS] }> = broadcast_scalar(cols, const_shape![COLS]);
        let inside: Tile<bool, { [COLS] }> = lt_tile(column, end);
        let inside: Tile<bool, { [1, COLS] }> = inside.reshape(const_shape![1, COLS]);
        let inside: Tile<bool, { [ROWS, COLS] }> = inside.broadcast(const_shape![ROWS, COLS]);
        let none: Tile<f32, { [ROWS, COLS] }> = constant(f32::NEG_INFINITY, const_shape![ROWS, COLS]);
        select(inside, x, none)
    }

    // A row of only -inf is taken relative to 0: its sum is 0, and its outputs are 0 / 0, or 0 if that was asked for. The
    // maximum passes NaN over; a NaN makes the sum, and so the row, NaN.
    fn softmax_of<const ROWS: i32, const COLS: i32>(x: Tile<f32, { [ROWS, COLS] }>, zero_masked: i32) -> Tile<f32, { [ROWS, COLS] }> {
        let none: Tile<f32, { [ROWS] }> = constant(f32::NEG_INFINITY, const_shape![ROWS]);
        let zero: Tile<f32, { [ROWS] }> = constant(0.0f32, const_shape![ROWS]);
        let one: Tile<f32, { [ROWS] }> = constant(1.0f32, const_shape![ROWS]);
        let max: Tile<f32, { [ROWS] }> = reduce_max(x, 1i32);
        let is_masked: Tile<bool, { [ROWS] }> = eq_tile(max, none);
        let reference: Tile<f32, { [ROWS] }> = select(is_masked, zero, max);
        let reference: Tile<f32, { [ROWS, 1] }> = reference.reshape(const_shape![ROWS, 1]);
        let reference: Tile<f32, { [ROWS, COLS] }> = reference.broadcast(const_shape![ROWS, COLS]);
        let log2_e: Tile<f32, { [ROWS, COLS] }> = constant(1.4426950408889634f32, const_shape![ROWS, COLS]);
        // The difference first: see exp_of in kernels/softmax.cuh.
        let power: Tile<f32, { [ROWS, COLS] }> = (x - reference) * log2_e;
        let e: Tile<f32, { [ROWS, COLS] }> = exp2(power, ftz::Enabled);
        let sum: Tile<f32, { [ROWS] }> = reduce_sum(e, 1i32);
        let asked: Tile<i32, { [ROWS] }> = broadcast_scalar(zero_masked, const_shape![ROWS]);
        let yes: Tile<i32, { [ROWS] }> = constant(1i32, const_shape![ROWS]);
        let asked: Tile<bool, { [ROWS] }> = eq_tile(asked, yes);
        let is_empty: Tile<bool, { [ROWS] }> = eq_tile(sum, zero);
        let becomes_zero: Tile<bool, { [ROWS] }> = andi(is_empty, asked);
        let sum: Tile<f32, { [ROWS] }> = select(becomes_zero, one, sum);
        let factor: Tile<f32, { [ROWS] }> = one / sum;
        let factor: Tile<f32, { [ROWS, 1] }> = factor.reshape(const_shape![ROWS, 1]);
        let factor: Tile<f32, { [ROWS, COLS] }> = factor.broadcast(const_shape![ROWS, COLS]);
        e * factor
    }

    unsafe fn rows_at(base: PointerTile<*mut f32, { [] }>, rows: i32, cols: i32, pitch: i32) -> Tensor<f32, { [-1, -1] }> {
        let shape: Shape<{ [-1, -1] }> = Shape::<{ [-1, -1] }> { dims: &[rows, cols] };
        let strides: Array<{ [-1, 1] }> = Array::<{ [-1, 1] }> { dims: &[pitch] };
        let rows: Tensor<f32, { [-1, -1] }> = unsafe { make_tensor_view(base, shape, strides, new_token_unordered()) };
        rows
    }

    #[cutile::entry(unchecked_accesses = true)]
    pub unsafe fn softmax<const ROWS: i32, const COLS: i32>(
        input: *mut f32,
        output: *mut f32,
        rows: i32,
        cols: i32,
        pitch: i32,
        zero_masked: i32,
    ) {
        let (block, _, _) = get_tile_block_id();
        let first: PointerTile<*mut f32, { [] }> = pointer_to_tile(input);
        let inputs: Tensor<f32, { [-1, -1] }> = unsafe { rows_at(first, rows, cols, pitch) };
        let sources = inputs.partition(const_shape![ROWS, COLS]);
        let x: Tile<f32, { [ROWS, COLS] }> = sources.load([block, 0i32]);
        let x: Tile<f32, { [ROWS, COLS] }> = nothing_beyond(x, cols);
        let y: Tile<f32, { [ROWS, COLS] }> = softmax_of(x, zero_masked);
        let first: PointerTile<*mut f32, { [] }> = pointer_to_tile(output);
        let outputs: Tensor<f32, { [-1, -1] }> = unsafe { rows_at(first, rows, cols, cols) };
        let mut targets: PartitionMut<f32, { [ROWS, COLS] }> = unsafe { outputs.partition_full_mut(const_shape![ROWS, COLS]) };
        targets.store(y, [block, 0i32]);
    }
}
