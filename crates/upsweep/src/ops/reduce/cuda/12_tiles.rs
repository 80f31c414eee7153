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

        // Copies of whole tiles take addresses and lengths of 16 bytes: first the elements before such an address, then the
        // body, whole groups of four, then what is left.
        let words: PointerTile<*mut i64, { [] }> = ptr_to_ptr(start);
        let address: Tile<i64, { [] }> = ptr_to_int(words);
        let sixteen: Tile<i64, { [] }> = scalar_to_tile(16i64);
        let past: Tile<i64, { [] }> = remi(address, sixteen);
        let past: Tile<i32, { [] }> = trunci(past, overflow::NoWrap);
        let past: i32 = tile_to_scalar(past);
        let head: i32 = (16i32 - past) / 4i32 % 4i32;
        let head: i32 = min(head, n);
        let body: i32 = (n - head) / 4i32 * 4i32;
        let rest: i32 = head + body;

        let moved: PointerTile<*mut f32, { [] }> = start.offset(head);
        let aligned: PointerTile<*mut i64, { [] }> = ptr_to_ptr(moved);
        let aligned: Tile<i64, { [] }> = ptr_to_int(aligned);
        let aligned: Tile<i64, { [] }> = unsafe { assume_div_by::<_, 16>(aligned) };
        let aligned: PointerTile<*mut f32, { [] }> = int_to_ptr(aligned);
        let body: i32 = unsafe { assume_div_by::<_, 4>(body) };
        let shape: Shape<{ [-1] }> = Shape::<{ [-1] }> { dims: &[body] };
        let strides: Array<{ [1] }> = Array::<{ [1] }> { dims: &[] };
        let view: Tensor<f32, { [-1] }> = unsafe { make_tensor_view(aligned, shape, strides, new_token_unordered()) };
        // Beyond the end a tile holds zeros.
        let tiles = view.partition(const_shape![TILE]);
        let count: i32 = ceil_div(body, TILE);
        let mut sums: Tile<f32, { [TILE] }> = constant(0.0f32, const_shape![TILE]);
        for index in (block..count).step_by(blocks as usize) {
            let tile: Tile<f32, { [TILE] }> = tiles.load([index]);
            sums = sums + tile;
        }
        let sum: Tile<f32, { [] }> = reduce_sum(sums, 0i32);

        // The first block adds the ends: of eight values, four stand for the elements before the body, four for those behind.
        let lane: Tile<i32, { [8] }> = iota(const_shape![8]);
        let four: Tile<i32, { [8] }> = constant(4i32, const_shape![8]);
        let heads: Tile<i32, { [8] }> = broadcast_scalar(head, const_shape![8]);
        let rests: Tile<i32, { [8] }> = broadcast_scalar(rest, const_shape![8]);
        let ns: Tile<i32, { [8] }> = broadcast_scalar(n, const_shape![8]);
        let behind: Tile<i32, { [8] }> = lane - four + rests;
        let is_behind: Tile<bool, { [8] }> = ge_tile(lane, four);
        let in_head: Tile<bool, { [8] }> = lt_tile(lane, heads);
        let in_rest: Tile<bool, { [8] }> = lt_tile(behind, ns);
        let in_ends: Tile<bool, { [8] }> = select(is_behind, in_rest, in_head);
        let index: Tile<i32, { [8] }> = select(is_behind, behind, lane);
        let zero: Tile<i32, { [8] }> = constant(0i32, const_shape![8]);
        let mine: Tile<i32, { [8] }> = broadcast_scalar(block, const_shape![8]);
        let is_first: Tile<bool, { [8] }> = eq_tile(mine, zero);
        let mask: Tile<bool, { [8] }> = andi(is_first, in_ends);
        let pointers: PointerTile<*mut f32, { [1] }> = start.reshape(const_shape![1]);
        let pointers: PointerTile<*mut f32, { [8] }> = pointers.broadcast(const_shape![8]);
        let pointers: PointerTile<*mut f32, { [8] }> = pointers.offset_tile(index);
        let (ends, _): (Tile<f32, { [8] }>, Token) = unsafe {
            load_ptr_tko(pointers, ordering::Weak, None::<scope::TileBlock>, Some(mask), Some(0.0f32), None, Latency::<0>)
        };
        let ends: Tile<f32, { [] }> = reduce_sum(ends, 0i32);

        let target: PointerTile<*mut f32, { [] }> = pointer_to_tile(output);
        let target: PointerTile<*mut f32, { [] }> = target.offset(block);
        unsafe { store_ptr_tko(target, sum + ends, ordering::Weak, None::<scope::TileBlock>, None, None, Latency::<0>) };
    }
}
