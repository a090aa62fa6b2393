//! Groups made of ranks of a group.

mod support;

use support::{fails, ranks, WORLDS};
use trireme::{Communicator, GroupOptions, Status};

/// The members of a group, told by its ranks themselves.
fn members(group: &Communicator) -> Vec<i32> {
    let numbers = group.ranks().unwrap();
    let mut seen = vec![0; numbers.len()];
    group.all_gather(&[numbers[group.rank() as usize]], &mut seen).unwrap();
    assert_eq!(seen, numbers);
    seen
}

#[test]
fn a_split_groups_by_color_and_orders_by_key() {
    let options = GroupOptions { name: Some("half".into()), timeout: Some(support::LONG) };
    for world in WORLDS {
        let color = |rank: i32| (rank > 0 || world < 3).then_some(rank as u32 % 2);
        let found = ranks(world, |group| {
            assert_eq!(group.ranks().unwrap(), (0..world).collect::<Vec<_>>());
            let rank = group.rank();
            group.split(color(rank), -rank, &options).unwrap().as_ref().map(members)
        });
        for rank in 0..world {
            let same = |other: &i32| color(*other) == color(rank);
            let want = color(rank).map(|_| (0..world).rev().filter(same).collect::<Vec<_>>());
            assert_eq!(found[rank as usize], want, "rank {rank} of {world}");
        }
    }
}

#[test]
fn a_subgroup_has_the_order_of_its_list_and_a_duplicate_all_ranks() {
    let defaults = GroupOptions::default();
    let found = ranks(4, |group| {
        let twin = group.duplicate(&defaults).unwrap();
        assert_eq!(members(&twin), [0, 1, 2, 3]);
        group.subgroup(&[3, 0, 2], &defaults).unwrap().as_ref().map(members)
    });
    let list = Some(vec![3, 0, 2]);
    assert_eq!(found, [list.clone(), None, list.clone(), list]);
}

#[test]
fn a_failed_parent_ends_its_child() {
    ranks(2, |group| {
        let twin = group.duplicate(&GroupOptions::default()).unwrap();
        twin.barrier().unwrap();
        if group.rank() == 0 {
            group.abort("the parent").unwrap();
        }
        fails(group.barrier(), Status::Aborted);
        while twin.barrier().is_ok() {} // until it has heard
        fails(twin.barrier(), Status::Aborted);
        assert_eq!(members(&twin.shrink(&GroupOptions::default()).unwrap()), [0, 1]);
    });
}

#[test]
fn lists_that_differ_are_a_mismatch_on_all_ranks() {
    ranks(3, |group| {
        let list = [0, 1 + group.rank() % 2];
        fails(group.subgroup(&list, &GroupOptions::default()), Status::Mismatch);
    });
}

#[test]
fn an_aborted_group_agrees_and_shrinks() {
    let found = ranks(3, |group| {
        if group.rank() == 2 {
            group.abort("revoked").unwrap();
        }
        fails(group.barrier(), Status::Aborted);
        assert_eq!(group.agree(6 + group.rank() as u64 % 2).unwrap(), 6);
        assert_eq!(group.within(support::LONG).agree(u64::MAX).unwrap(), u64::MAX);
        members(&group.shrink(&GroupOptions::default()).unwrap())
    });
    assert_eq!(found, [[0, 1, 2]; 3]);
}

#[test]
fn the_others_go_on_without_one_that_left() {
    let rendezvous = support::rendezvous();
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|rank| support::join(&rendezvous, rank, 4))
            .map(|group| {
                scope.spawn(move || {
                    if group.rank() == 1 {
                        return Vec::new(); // leaves
                    }
                    fails(group.barrier(), Status::PeerLost);
                    members(&group.shrink(&GroupOptions::default()).unwrap())
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(found, [vec![0, 2, 3], vec![], vec![0, 2, 3], vec![0, 2, 3]]);
}

#[test]
fn wrong_arguments_are_refused() {
    let defaults = GroupOptions::default();
    ranks(1, |group| {
        for list in [&[][..], &[1], &[-1], &[0, 0]] {
            fails(group.subgroup(list, &defaults), Status::InvalidArgument);
        }
        fails(group.split(Some(1 << 31), 0, &defaults), Status::InvalidArgument);
        let long = GroupOptions { name: Some("n".repeat(64)), ..GroupOptions::default() };
        fails(group.duplicate(&long), Status::InvalidArgument);
        let cut = GroupOptions { name: Some("a\0b".into()), ..GroupOptions::default() };
        fails(group.duplicate(&cut), Status::InvalidArgument);
    });
}
