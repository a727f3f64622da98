// Package lvm serves logical volumes in LVM2's on-disk format, in user space:
// the same disks work with lvm2 on any Linux machine, and the other way round.
//
// A [Group] is an open volume group. Its logical volumes are activated as they
// are asked for ([Group.Volume]) and are blockdev.Devices with leases:
//
//	Volume        what is served; stays while the rest changes
//	  swap        holds open leases while what is below is exchanged
//	    snap, thin  copy on write (packages lvm/snap, lvm/thin)
//	      table     linear or striped
//	        disk    a mapped file or block device: lends its own pages to readers
//
// Every change of metadata is one transaction (lvm/vg, Commit) on a copy of
// the group (lvm/meta); devices are switched to the new layout afterwards.
// Operations carry lvm2's names: Create is lvcreate, Extend lvextend, and so on.
//
// A group is put together from parts, which share its lock: the metadata and its
// commits, the volumes in use, thin pools, classic snapshots, and moves.
//
// A group is opened for writing by one process at a time: the backing files
// are locked, block devices opened exclusively. lvm2's own lock is held only
// during changes, as lvm2 does.
package lvm
