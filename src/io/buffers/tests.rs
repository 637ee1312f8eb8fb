//! Blocks are lent, given back and kept, and never overlap.

use super::*;

fn buffers() -> Buffers {
    Buffers::new(None, 0).expect("there is memory")
}

/// Takes `count` blocks of `bytes` bytes each.
fn take(buffers: &mut Buffers, count: usize, bytes: usize) -> Vec<Block> {
    let mut one = || if bytes == CHUNK { buffers.take_chunk() } else { buffers.take(bytes, bytes) };
    (0..count).map(|_| one().expect("there is memory")).collect()
}

#[test]
fn lent_bytes_are_counted_until_they_are_given_back() {
    let mut buffers = buffers();
    let mut lent = Vec::new();
    for bytes in [1, SMALL, SMALL + 1, MEDIUM, CHUNK, READ, 3 * READ] {
        let before = buffers.used();
        let block = buffers.take(bytes, bytes).expect("there is memory");
        assert!(block.capacity() >= bytes);
        assert!(block.weight() >= block.capacity() + 2 * PAD);
        assert_eq!(buffers.used(), before + block.weight());
        lent.push(block);
    }
    lent.into_iter().for_each(|block| buffers.give_back(block));
    assert_eq!(buffers.used(), 0);
}

#[test]
fn blocks_of_one_stretch_do_not_overlap_and_keep_their_bytes() {
    let mut buffers = buffers();
    let mut lent = take(&mut buffers, 100, SMALL);
    for (number, block) in lent.iter_mut().enumerate() {
        block.write(0, &[number as u8; SMALL]);
    }
    for (number, block) in lent.iter().enumerate() {
        assert!(block.bytes(0, SMALL).iter().all(|byte| *byte == number as u8));
        assert_eq!(block.window(0, SMALL).data().len(), SMALL);
    }
    lent.into_iter().for_each(|block| buffers.give_back(block));
}

#[test]
fn a_block_that_was_given_back_is_lent_again() {
    let mut buffers = buffers();
    for bytes in [SMALL, MEDIUM / 2, CHUNK, READ, 2 * READ] {
        let block = buffers.take(bytes, bytes).expect("there is memory");
        let address = block.at(0);
        buffers.give_back(block);
        let block = buffers.take(bytes, bytes).expect("there is memory");
        assert_eq!(block.at(0), address);
        buffers.give_back(block);
    }
}

#[test]
fn unneeded_spares_are_freed_and_those_in_use_stay() {
    let mut buffers = buffers();
    for bytes in [SMALL, MEDIUM / 2, CHUNK, READ, 2 * READ] {
        let lent = take(&mut buffers, 200, bytes);
        lent.into_iter().for_each(|block| buffers.give_back(block));
    }
    let spares = |buffers: &Buffers| {
        (buffers.small.free, buffers.medium.free, buffers.chunks[ORDINARY].blocks.len(), buffers.long.blocks.len())
    };
    assert!(buffers.has_spares());
    buffers.trim();
    let kept = spares(&buffers);
    assert!(kept.0 >= 200 && kept.1 >= 200 && kept.2 == SPARE_CHUNKS, "all of it was needed: {kept:?}");
    let lent = take(&mut buffers, 120, SMALL);
    lent.into_iter().for_each(|block| buffers.give_back(block));
    buffers.trim();
    assert!((120..200).contains(&buffers.small.free), "120 were needed: {:?}", spares(&buffers));
    buffers.trim();
    assert!(!buffers.has_spares());
    assert_eq!(spares(&buffers), (buffers.small.kept(), buffers.medium.kept(), KEPT, 0));
}

#[test]
fn spares_of_every_size_are_reported() {
    for bytes in [SMALL, MEDIUM / 2, CHUNK, READ, 2 * READ] {
        let mut buffers = buffers();
        let lent = take(&mut buffers, 200, bytes);
        assert!(!buffers.has_spares(), "{bytes}");
        lent.into_iter().for_each(|block| buffers.give_back(block));
        assert!(buffers.has_spares(), "{bytes}");
        buffers.trim();
        buffers.trim();
        assert!(!buffers.has_spares(), "{bytes}");
    }
}

#[test]
fn each_provided_buffer_has_an_entry_of_its_own() {
    let buffers = buffers();
    let base: *const BufRingEntry = buffers.receive.entries.start.as_ptr().cast();
    for buffer in 0..RECEIVE_BUFFERS {
        // SAFETY: there is an entry for each buffer, and no kernel shares them.
        let entry = unsafe { &*base.add(usize::from(buffer)) };
        assert_eq!((entry.bid(), entry.len()), (buffer, RECEIVE as u32));
        assert_eq!(entry.addr(), buffers.provided(buffer) as u64);
    }
}

#[test]
fn a_stretch_with_a_lent_block_stays_and_is_used_first() {
    let mut buffers = buffers();
    let mut lent = take(&mut buffers, 10 * SMALL_TOGETHER as usize, SMALL);
    let stays = lent.swap_remove(0);
    lent.into_iter().for_each(|block| buffers.give_back(block));
    buffers.drop_spares();
    assert_eq!(buffers.small.free, SMALL_TOGETHER as usize - 1);
    let lent = take(&mut buffers, SMALL_TOGETHER as usize - 1, SMALL);
    assert!(lent.iter().all(|block| Rc::ptr_eq(&block.pages, &stays.pages)));
    lent.into_iter().chain([stays]).for_each(|block| buffers.give_back(block));
    buffers.drop_spares();
    assert_eq!((buffers.small.free, buffers.used()), (0, 0));
}

#[test]
fn no_spares_are_kept_while_much_is_lent() {
    let mut buffers = buffers();
    buffers.keep_spares_below(10 * CHUNK);
    let mut lent = take(&mut buffers, 20, CHUNK);
    buffers.give_back(lent.remove(0));
    assert_eq!(buffers.chunks[ORDINARY].blocks.len(), 0);
    lent.into_iter().for_each(|block| buffers.give_back(block));
    assert!(!buffers.chunks[ORDINARY].blocks.is_empty());
}

#[test]
fn a_refused_allocation_is_none() {
    let mut buffers = buffers();
    assert!(buffers.take(usize::MAX / 4, usize::MAX / 4).is_none());
    assert_eq!(buffers.used(), 0);
}
