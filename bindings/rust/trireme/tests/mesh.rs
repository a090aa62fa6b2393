//! Meshes: places, groups, and the communicators of axes.

mod support;

use support::{fails, ranks};
use trireme::{Communicator, GroupOptions, Mesh, MeshOptions, MeshOrder, Status};

fn members(group: &Communicator) -> Vec<i32> {
    let numbers = group.ranks().unwrap();
    let mut seen = vec![0; numbers.len()];
    group.all_gather(&[numbers[group.rank() as usize]], &mut seen).unwrap();
    seen
}

#[test]
fn tensor_is_fastest_and_an_open_size_is_inferred() {
    ranks(8, |group| {
        let options = MeshOptions { timeout: Some(support::LONG), ..MeshOptions::default() };
        let axes = [("tensor", 2), ("data", 0), ("pipeline", 2)];
        let mesh = Mesh::new(group, &axes, &options).unwrap();
        assert_eq!(mesh.axes(), ["tensor", "data", "pipeline"]);
        assert_eq!(mesh.axis_size("data").unwrap(), 2);
        for rank in 0..8 {
            let place = mesh.coordinates(rank).unwrap();
            assert_eq!(place, [rank & 1, rank >> 1 & 1, rank >> 2]);
            assert_eq!(mesh.rank(&place).unwrap(), rank);
        }
        let own = group.rank();
        for (number, axis) in mesh.axes().iter().enumerate() {
            let bit = 1 << number;
            let want = [own & !bit, own | bit];
            assert_eq!(mesh.group(&[axis], own).unwrap(), want);
            assert_eq!(members(&mesh.communicator(axis).unwrap()), want);
            assert_eq!(members(&mesh.communicator(axis).unwrap()), want);
        }
        let half: Vec<_> = (own & 4..(own & 4) + 4).collect();
        let both = ["data", "tensor"];
        assert_eq!(mesh.group(&both, own).unwrap(), half);
        let together = mesh.make_communicator(&both, &GroupOptions::default()).unwrap();
        drop(mesh);
        assert_eq!(members(&together), half);
    });
}

#[test]
fn the_order_can_be_chosen() {
    ranks(6, |group| {
        let place = |order| {
            let options = MeshOptions { order, ..MeshOptions::default() };
            let mesh = Mesh::new(group, &[("data", 2), ("tensor", 3)], &options).unwrap();
            mesh.coordinates(1).unwrap()
        };
        assert_eq!(place(MeshOrder::FirstFastest), [1, 0]);
        assert_eq!(place(MeshOrder::LastFastest), [0, 1]);
    });
}

#[test]
fn meshes_that_differ_are_a_mismatch_on_all_ranks() {
    ranks(3, |group| {
        let name = if group.rank() == 0 { "data" } else { "tensor" };
        fails(Mesh::new(group, &[(name, 3)], &MeshOptions::default()), Status::Mismatch);
    });
}

#[test]
fn wrong_arguments_are_refused() {
    let defaults = MeshOptions::default();
    ranks(1, |group| {
        for axes in [&[][..], &[("data", 2)], &[("data", -1)], &[("", 1)], &[("a\0", 1)]] {
            fails(Mesh::new(group, axes, &defaults), Status::InvalidArgument);
        }
        let mesh = Mesh::new(group, &[("data", 1)], &defaults).unwrap();
        let error = fails(mesh.axis_size("tensor"), Status::InvalidArgument);
        assert!(error.message().contains("it has data"));
        fails(mesh.coordinates(1), Status::InvalidArgument);
        fails(mesh.rank(&[0, 0]), Status::InvalidArgument);
        fails(mesh.group(&[], 0), Status::InvalidArgument);
        fails(mesh.group(&["data", "data"], 0), Status::InvalidArgument);
        fails(mesh.communicator("tensor"), Status::InvalidArgument);
        let options = GroupOptions::default();
        fails(mesh.make_communicator(&["tensor"], &options), Status::InvalidArgument);
    });
}
