// Package scsi is the SCSI device server of the target: it executes commands
// against logical units that are [blockdev.Device] volumes.
//
//	session layer                      device server                     volume
//	  Task, Port   -- Execute -->  lookup, checks -- Admit ----------->  task set (target/volume)
//	                               handler -- LeaseRead, LeaseWrite -->  mapping
//	  DataIn       <-- segments --                or pool
//	  DataOut      <-- segments --
//	               -- DataOutDone -->      -- Commit, Flush ---------->  storage
//	  Respond      <-- status ----
//	               -- Release  -->         -- Lease.Release --------->
//
// A [Device] is one SCSI target device: logical units ([LU]), target port groups
// and I_T nexuses ([Nexus], an initiator port as seen through a target port). A LU is a
// place of a [volume.Volume], which may be LUNs of several targets: then it is one logical
// unit with one task set, one set of reservations and one set of mode parameters, while
// LUN, ALUA states, read-only and unit attentions belong to the place.
//
// Threads. Execute runs a command on the connection's receive goroutine as far
// as it goes without waiting: a READ whose data is resident is answered there.
// What may wait for storage goes to the bounded worker pool of its volume,
// so a slow volume never delays another one on the same connection.
// Nothing in this package waits for a peer while it holds a lock or a worker.
//
// Locks, in the order in which they may be taken:
//
//	Device.mu   LU and nexus registries; never taken per command
//	modes.mu    changes of mode parameters; held across fsync
//	(the locks of package volume)
//	unit.mu     the places of a unit, nexuses that prevent the removal of its medium
//	LU.mu       nexuses of a place, their unit attentions and latencies
//
// What every command must see without a lock is published by atomics: the LU
// table, the access states of the unit, and what the volume publishes.
//
// References in comments: SAM-5, SPC-4, SBC-3.
//
// # ROD tokens are "access upon reference" (ADR 45)
//
// Context. A token of POPULATE TOKEN may stand for the blocks as they were (point in time) or as they
// are when it is used. Point in time needs a snapshot.
//
// Decision. Type 00010000h, access upon reference. The token carries 64 bits of identifier and 256
// bits of secret, so that it cannot be guessed; it is known to one device (target), dies after not
// having been used for its time-out (60 s unless asked, 600 s at most), and there are at most 256 of
// them. One that has expired is remembered for ten minutes, or until its room is needed, so that it is
// refused as expired (23/07) and not as unknown (23/04). The zero token is accepted.
//
// Consequences. Initiators that copy files hold a lock on the source meanwhile, as Windows does. No
// space is ever pinned by a token.
package scsi
