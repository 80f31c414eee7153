// Rung 12, tiles: the sum as a Rust tile kernel: a block adds tiles element by element and the last tile to one value; threads and copies are the compiler's choice.
// input: n elements, at any alignment; output: one partial sum a block (the second launch: the result)
// launch: any grid, then one block on its partials; block: what the cubin requires (kernels/tiles)
// cost: one read of n elements, one write a block; one tree of TILE values a block
// source: NVIDIA, CUDA Tile IR specification (2026), sections on views and reductions

#[cutile::module]
pub mod kernels {
    use cutile::core::*;

    #[cutile::entry(unchecked_accesses = true)]
    pub unsafe fn sum<const TILE: i32>(input: *mut f32, output: *mut f32, n: i32) {
        let (block, _, _) = get_tile_block_id();
        let (blocks, _, _) = get_num_tile_blocks();
        let start: PointerTile<*mut f32, { [] }> = pointer_to_tile(input);
        let shape: Shape<{ [-1] }> = Shape::<{ [-1] }> { dims: &[n] };
        let strides: Array<{ [1] }> = Array::<{ [1] }> { dims: &[] };
        let view: Tensor<f32, { [-1] }> = unsafe { make_tensor_view(start, shape, strides, new_token_unordered()) };
        // Beyond the end a tile holds zeros.
        let tiles = view.partition(const_shape![TILE]);
        let count: i32 = ceil_div(n, TILE);
        let mut sums: Tile<f32, { [TILE] }> = constant(0.0f32, const_shape![TILE]);
        for index in (block..count).step_by(blocks as usize) {
            let tile: Tile<f32, { [TILE] }> = tiles.load([index]);
            sums = sums + tile;
        }
        let sum: Tile<f32, { [] }> = reduce_sum(sums, 0i32);
        let target: PointerTile<*mut f32, { [] }> = pointer_to_tile(output);
        let target: PointerTile<*mut f32, { [] }> = target.offset(block);
        unsafe { store_ptr_tko(target, sum, ordering::Weak, None::<scope::TileBlock>, None, None, Latency::<0>) };
    }
}
